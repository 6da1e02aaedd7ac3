"""The backend "ray": a run is a job of a Ray cluster."""
