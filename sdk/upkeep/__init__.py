"""Maintenance of a machine and its roots: doctor and remove."""
