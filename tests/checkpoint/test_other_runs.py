"""A store holds the checkpoints of one run: those of another one are refused, and those that have gone are missed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sdk.checkpoint import catalog, opening, restore
from sdk.errors import CorruptCheckpointError
from sdk.storage.posix_store import PosixStore

from .parts import CLOCK, Attempt

OF_ANOTHER = (
    r"checkpoint of the run 'other-bbbbbb' that was copied into the store of the run 'mine-aaaaaa'.*"
    r"resume_from='other-bbbbbb@7'"
)


def copied(tmp_path: Path, *own: int) -> tuple[PosixStore, str]:
    """A store with checkpoints of its own, and one of another run that somebody has copied into it."""
    mine, other = PosixStore(tmp_path / "mine"), PosixStore(tmp_path / "other")
    for step in own:
        attempt = Attempt(mine, step, run_id="mine-aaaaaa")
        attempt.save(step)
        attempt.close()
    for number in range(len(own) + 1):
        attempt = Attempt(other, number, run_id="other-bbbbbb")
    foreign = attempt.save(7)
    attempt.close()
    for name in ("commits", "data"):
        shutil.copytree(Path(other.url, name), Path(mine.url, name), dirs_exist_ok=True)
    return mine, foreign


def test_a_copied_checkpoint_of_another_run_is_passed_over_and_the_sentence_names_both(tmp_path: Path) -> None:
    store, foreign = copied(tmp_path, 1, 2)
    entry = catalog.list_checkpoints(store, "mine-aaaaaa")[-1]
    assert entry.key == foreign
    assert "other-bbbbbb" in str(entry.quarantined)
    assert "other-bbbbbb" in str(catalog.verify(store, foreign, "mine-aaaaaa"))
    attempt = Attempt(store, 9, run_id="mine-aaaaaa")
    assert attempt.opening.manifest is not None
    assert (attempt.opening.manifest.step, attempt.opening.manifest.run_id) == (2, "mine-aaaaaa")
    assert "Trying an older one." in attempt.said[0]
    assert "other-bbbbbb" in attempt.said[0]
    attempt.save(3)
    attempt.close()
    assert [e.step for e in catalog.list_checkpoints(store, "mine-aaaaaa") if e.quarantined is None][-1] == 3


def test_a_store_with_nothing_but_another_runs_checkpoints_is_refused_and_names_the_way(tmp_path: Path) -> None:
    store, foreign = copied(tmp_path)
    for number in (1, 2):
        with pytest.raises(CorruptCheckpointError, match=OF_ANOTHER):
            opening.open_first(store, number, "me", CLOCK, run_id="mine-aaaaaa")
    for call in (restore.read, restore.verify, restore.read_manifest):
        with pytest.raises(CorruptCheckpointError, match=OF_ANOTHER):
            call(store, foreign, "mine-aaaaaa")
        assert call(store, foreign) is not None, "on purpose it can be read: resume_from does"


def test_another_task_does_not_restore_another_runs_checkpoint_either(tmp_path: Path) -> None:
    store, foreign = copied(tmp_path)
    found = opening.open_first(store, 1, "me", CLOCK)
    assert found.commit == foreign
    with pytest.raises(CorruptCheckpointError, match=OF_ANOTHER):
        opening.join(store, 1, CLOCK, 1.0, run_id="mine-aaaaaa")
    with pytest.raises(CorruptCheckpointError, match=OF_ANOTHER):
        opening.Opening(attempt=1, epoch=1, nonce="0", commit=foreign, run_id="mine-aaaaaa").read(store)


def test_an_empty_store_is_no_fresh_start_where_the_records_know_of_a_checkpoint(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "store")
    with pytest.raises(
        CorruptCheckpointError, match=r"mine-aaaaaa are missing: according to its records step 4 was saved"
    ):
        opening.open_first(store, 2, "me", CLOCK, run_id="mine-aaaaaa", saved=4)
    assert opening.open_first(store, 2, "me", CLOCK, run_id="mine-aaaaaa").commit is None


def test_the_first_acknowledged_checkpoint_of_an_attempt_is_told_once_and_before_its_ticket_is_done(
    tmp_path: Path,
) -> None:
    told: list[int] = []
    attempt = Attempt(PosixStore(tmp_path / "store"))
    saver = attempt.saver(0, 1)
    saver._saved = told.append
    attempt.savers = [saver]
    attempt.save(3)
    assert told == [3]
    attempt.save(4)
    attempt.close()
    assert told == [3]
