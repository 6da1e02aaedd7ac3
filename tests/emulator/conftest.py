"""The storage that the tests talk to, and a bucket in it."""

from __future__ import annotations

import pytest
from google.cloud.storage import Bucket

from sdk.testing.gcs import GcsServer


@pytest.fixture
def gcs(podlift_gcs: GcsServer) -> GcsServer:
    return podlift_gcs


@pytest.fixture
def bucket(gcs: GcsServer) -> Bucket:
    return gcs.client().create_bucket("bucket")
