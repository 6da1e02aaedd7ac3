"""Google Cloud Storage: its JSON API with enforced preconditions, a folder on disk, and injected faults."""
