"""From a call to a plan: settings, roots, checks, decisions."""
