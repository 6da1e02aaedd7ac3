"""One bit of one object is another than it was; somebody notices."""

from pathlib import Path

import pytest
from programs.checkpoint_flips import save_small, undetected

from sdk.checkpoint import catalog
from sdk.storage.posix_store import PosixStore


@pytest.mark.parametrize("stride", [61, pytest.param(1, marks=pytest.mark.full)])
def test_every_flip_of_a_bit_is_detected(tmp_path: Path, stride: int) -> None:
    commit = save_small(str(tmp_path))
    # Times and numbers in the manifest have as many digits as they happen to have: the size differs a little each time.
    bits = [8 * path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    flips, missed = undetected(str(tmp_path), commit, stride=stride)
    assert missed == []
    assert flips == sum(-(-each // stride) for each in bits) > 300
    assert catalog.list_checkpoints(PosixStore(tmp_path))[-1].key == commit
