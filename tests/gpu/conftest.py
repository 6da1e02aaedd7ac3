"""These tests need GPUs: only `scripts/test --gpu` collects them."""

import os

collect_ignore = [] if os.environ.get("TEST_GPUS") else ["test_real_gpus.py"]
