"""Vertex AI: custom jobs and training pipelines, run as real processes, with Cloud Logging, quotas and the metadata server."""
