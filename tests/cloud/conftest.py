"""These tests start jobs in a real project: only `scripts/test --cloud` collects them."""

import os

collect_ignore = [] if os.environ.get("CLOUD_SETTINGS") else ["test_cloud_contract.py"]
