"""Vertex AI: custom jobs over its REST API, run as real processes, with Cloud Logging, quotas and the metadata server."""
