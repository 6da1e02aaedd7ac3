"""One client for Cloud Storage."""
