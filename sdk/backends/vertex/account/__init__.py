"""The resources of a project and its account: rights, buckets, quotas, prices."""
