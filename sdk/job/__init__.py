"""What a user wants and what was decided: jobs, plans and their values. Pure."""
