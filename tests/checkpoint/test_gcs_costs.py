"""What a checkpoint in a bucket costs: requests, because each of them takes as long as the way to the bucket and back."""

from __future__ import annotations

from collections import Counter

import pytest

from sdk.checkpoint.contents import Array, Contents
from sdk.storage.registry import open_store
from sdk.testing.gcs import GcsServer, podlift_gcs, podlift_gcs_server

from .parts import Attempt

pytestmark = pytest.mark.process

__all__ = ["podlift_gcs", "podlift_gcs_server"]


def test_a_commit_costs_three_requests_beside_its_data_and_a_removal_two(
    podlift_gcs: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODLIFT_EMULATOR", podlift_gcs.url)
    podlift_gcs.client().create_bucket("bucket")
    attempt = Attempt(open_store("gs://bucket/run"), keep_last=3)
    asked = []
    for step in range(1, 6):
        podlift_gcs.forget_requests()
        small = Contents((Array("w", "uint8", (900,), lambda: memoryview(bytes(900))),), {"rng": b"1"})
        ticket = attempt.savers[0].save(small, step=step)
        assert ticket is not None
        ticket.wait(20)
        attempt.savers[0].wait(20)
        asked.append(Counter(podlift_gcs.requests().operations))
    data = Counter({"objects.insert": 2})
    # The lease is read, the commit is created, and pins are looked at before anything is removed.
    commit = Counter({"objects.download": 1, "objects.insert": 1, "objects.list": 1})
    removal = Counter({"objects.download": 1, "objects.delete": 1})
    assert asked[1] == asked[2] == data + commit
    assert asked[3] == asked[4] == data + commit + removal + Counter({"objects.delete": 2})
    attempt.close()
