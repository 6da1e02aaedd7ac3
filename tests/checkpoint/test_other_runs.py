"""A store holds the checkpoints of one run: checkpoints of another one are refused, and removed ones are missed."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import sdk
from sdk import backends
from sdk.backends.base import Request
from sdk.checkpoint import catalog, opening, restore
from sdk.checkpoint.opening import Env
from sdk.checkpoint.saver import AsyncSaver
from sdk.errors import CorruptCheckpointError, InputError
from sdk.storage.posix_store import PosixStore
from sdk.testing.fake_backend import FakeBackend

from .parts import CLOCK, Attempt, check, manager

OF_ANOTHER = (
    r"checkpoint of the run 'other-bbbbbb' that was copied into the store of the run 'mine-aaaaaa'.*"
    r"resume_from='other-bbbbbb@7'"
)


def copied(tmp_path: Path, *own: int) -> tuple[PosixStore, str]:
    """A store with checkpoints of its run, and a copied checkpoint of another run."""
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


@pytest.mark.shows("a checkpoint of another run is copied")
def test_another_runs_copied_checkpoint_is_skipped_and_the_message_names_both_runs(tmp_path: Path) -> None:
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


def test_a_store_with_only_another_runs_checkpoints_is_refused_with_the_next_step(tmp_path: Path) -> None:
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


@pytest.mark.shows("`store/` is removed")
def test_an_empty_store_is_no_fresh_start_where_the_records_know_of_a_checkpoint(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "store")
    missing = r"mine-aaaaaa are missing: according to its records step 4 was saved"
    with pytest.raises(CorruptCheckpointError, match=missing):
        opening.open_first(store, 2, "me", CLOCK, run_id="mine-aaaaaa", saved=4)
    assert opening.open_first(store, 2, "me", CLOCK, run_id="mine-aaaaaa").commit is None


def test_the_first_acknowledged_checkpoint_is_reported_once_and_before_its_ticket(tmp_path) -> None:
    told: list[int] = []

    def saved(step: int) -> None:
        if step == 2:
            raise OSError("the disk is full")
        told.append(step)

    attempt = Attempt(PosixStore(tmp_path / "store"))
    attempt.savers = [AsyncSaver(replace(attempt.savers[0].opened, env=Env(clock=CLOCK, saved=saved)))]
    attempt.save(2)
    assert attempt.said == ["The checkpoint of step 2 was saved, but this could not be recorded: the disk is full"]
    attempt.save(3)
    assert told == [3], "the next one is recorded instead"
    attempt.save(4)
    attempt.close()
    assert told == [3]


class Idle(FakeBackend):
    """Starts nothing."""

    def start(self, request: Request) -> None: ...


@pytest.fixture
def source(write: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[sdk.Run, Attempt]]:
    """A run that goes on training, and its attempt."""
    monkeypatch.setattr(backends, "_registered", {})
    backends.register("idle", Idle)
    write("train.py", "print(1)")
    run = sdk.submit("train.py", backend="idle")
    attempt = Attempt(PosixStore(run.plan.paths.store), run_id=run.id, keep_last=1)
    attempt.save(7)
    yield run, attempt
    attempt.close()


def test_a_run_that_goes_on_keeps_the_checkpoint_with_which_another_one_starts(source: tuple[sdk.Run, Attempt]) -> None:
    run, attempt = source
    started = sdk.submit("train.py", backend="idle", checkpoint_resume_from=run.id)
    for step in (8, 9, 10):
        attempt.save(step)
    url, _, key = started.plan.warm_start.rpartition("#")
    assert check(restore.read(PosixStore(url), key)) == 7
    assert [(entry.step, entry.pinned) for entry in run.checkpoints()] == [(7, (f"start-{started.id}",)), (10, ())]


def test_a_start_removed_by_retention_is_refused_at_submit_and_named_in_the_task(source, tmp_path) -> None:
    run, attempt = source
    plan = sdk.plan("train.py", backend="idle", checkpoint_resume_from=run.id)
    attempt.save(8)
    with pytest.raises(InputError, match="There is no such checkpoint"):
        sdk.submit(plan)
    removed = "was removed, by the retention of its run or together with that run: commits/"
    with pytest.raises(InputError, match=removed):
        manager(tmp_path / "new", run_id="new", warm_start=plan.warm_start).begin("fit", "signature")
