"""Containers fetch the weights that a run begins with from the bucket, by the digest in the plan."""

from __future__ import annotations

import pytest
from support import LONG_LIMIT_S, PROGRAMS

import sdk
from sdk.testing.vertex import Cloud

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]


def losses(run: sdk.Run, word: str) -> dict[str, float]:
    assert run.wait(LONG_LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    return {line.task: float(line.text.split()[1]) for line in run.logs() if line.text.startswith(f"{word} ")}


def test_every_container_begins_with_the_champion_of_the_bucket(podlift_vertex: Cloud) -> None:
    def submitted(**settings: object) -> sdk.Run:
        backend = podlift_vertex.backend()
        return sdk.submit(PROGRAMS / "warm_started.py", backend=backend, model="digits", workers=2, **settings)  # type: ignore[arg-type]

    first = submitted()
    (loss,) = {round(each, 5) for each in losses(first, "last").values()}
    registry = sdk.models(first.plan.root)
    registry.add(first.url, model="digits")
    registry["digits"].promote("latest")
    second = submitted(warm_start="champion")
    assert second.plan.initial is not None
    assert second.plan.initial.version == 1
    found = losses(second, "first")
    assert set(found) == {"chief-0", "worker-0"}
    assert list(found.values()) == [pytest.approx(loss, rel=1e-4)] * 2
