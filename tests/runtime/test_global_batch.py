"""The global batch of a run that moves to a place with another number of replicas."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import sdk
from sdk.job.payload import Payload
from sdk.runtime import context
from sdk.runtime.reporting import Reporter


@pytest.mark.parametrize(
    ("kept", "replicas", "batch"),
    [
        (None, 4, 128),  # the first place, or one with as many replicas
        ((8, 4), 8, 128),
        ((2, 4), 2, 128),
        ((8, 4), 2, 64),  # machines without their GPUs, as on the emulator: nobody has four replicas there
    ],
)
def test_a_place_with_other_replicas_keeps_the_global_batch_of_the_first_one(
    write, monkeypatch: pytest.MonkeyPatch, kept: tuple[int, int] | None, replicas: int, batch: int
) -> None:
    write("train.py", "print(1)")
    payload = Payload.from_json(replace(sdk.plan("train.py").payload(1), replicas=kept).to_json())
    assert payload.replicas == kept
    monkeypatch.setattr(context, "_current", None)
    monkeypatch.setattr(context, "_make_strategy", lambda *_, **__: SimpleNamespace(num_replicas_in_sync=replicas))
    context.enter(payload, "chief-0", Reporter(None))
    assert sdk.context().global_batch_size(32) == batch
