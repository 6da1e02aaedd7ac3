"""Looking after a machine and its roots: doctor and prune."""
