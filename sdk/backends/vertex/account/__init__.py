"""What a project and its account have: rights, buckets, quotas, prices."""
