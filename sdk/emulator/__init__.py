"""Google Cloud on this machine, on one port.

Cloud Storage, custom jobs and training pipelines of Vertex AI, Cloud Scheduler, Cloud Logging and the metadata server.
See README.md for the emulated features and the division into packages.
"""
