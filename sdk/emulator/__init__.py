"""Google Cloud on this machine: Cloud Storage, Vertex AI custom jobs, Cloud Logging and the metadata server on one port.

See README.md for what is emulated and how the packages are divided.
"""
