"""These tests start jobs in a real project or cluster: only `scripts/test --cloud` and `--cluster` collect them."""

import os

collect_ignore = [] if os.environ.get("CLOUD_SETTINGS") else ["test_cloud_contract.py", "test_cluster_contract.py"]
