"""Container images for jobs, built by Cloud Build."""
