"""Tools for testing your own programs, backends and stores with podlift."""
