"""Jobs (the user's request), plans (the decisions) and their values. Pure."""
