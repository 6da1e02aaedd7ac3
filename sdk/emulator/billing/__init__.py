"""The Cloud Billing catalog and the lists of machine types, made up after their documented shape."""
