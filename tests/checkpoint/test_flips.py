"""One bit of one object is another than it was; somebody notices."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from programs.checkpoint_flips import undetected

from sdk.checkpoint import catalog
from sdk.checkpoint.contents import Array, Contents
from sdk.storage.posix_store import PosixStore

from .parts import Attempt


def small(folder: Path) -> str:
    """A checkpoint of two tasks with a few bytes each, a pin and a note; returns its commit."""
    store = PosixStore(folder)
    attempt = Attempt(store, tasks=2)
    array = Array("a", "uint8", (70,), lambda: memoryview(random.Random(1).randbytes(70)))
    tickets = [
        s.save(Contents((array,) if not r else (), {"rng": b"12"}), step=1) for r, s in enumerate(attempt.savers)
    ]
    for ticket in tickets:
        ticket.wait(20)
    attempt.close()
    commit = tickets[0].wait().key
    catalog.pin(store, commit, "good")
    return commit


def test_every_flip_of_a_sample_of_bits_is_detected(tmp_path: Path) -> None:
    commit = small(tmp_path)
    flips, missed = undetected(str(tmp_path), commit, stride=61)
    assert missed == []
    assert flips > 300
    assert restored_commit(tmp_path) == commit


@pytest.mark.full
def test_every_flip_of_every_bit_is_detected(tmp_path: Path) -> None:
    commit = small(tmp_path)
    # Times and numbers in the manifest have as many digits as they happen to have: the size differs a little each time.
    stored = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    flips, missed = undetected(str(tmp_path), commit)
    assert missed == []
    assert flips == 8 * stored


def restored_commit(folder: Path) -> str:
    return catalog.list_checkpoints(PosixStore(folder))[-1].key
