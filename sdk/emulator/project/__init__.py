"""A project of Google Cloud: its APIs, policies of access, service accounts and image repositories."""
