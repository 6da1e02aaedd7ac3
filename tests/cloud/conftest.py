"""These tests start jobs in a real project or cluster: only `scripts/test --cloud` and `--cluster` collect them."""

import os

collect_ignore = [] if os.environ.get("REAL_SETTINGS") else ["test_real_contract.py"]
