"""The list of checkpoints that people see, and the checkpoints that they keep."""

import math
from pathlib import Path

import pytest
from support import heard

from sdk.checkpoint import catalog, restore
from sdk.errors import InputError
from sdk.job.layout import RunPaths
from sdk.storage.posix_store import PosixStore
from sdk.storage.retry import RetryPolicy
from sdk.storage.store import Stat

from .parts import Attempt, check, files, restored


def test_a_list_shows_the_state_of_each_checkpoint(store: PosixStore) -> None:
    assert catalog.list_checkpoints(store) == []
    attempt = Attempt(store)
    first = attempt.save(1, metrics={"loss": 1.0})
    attempt.save(2, reason="manual", downgrades=["no data position"])
    catalog.pin(store, first, "good-one")
    one, two = catalog.list_checkpoints(store)
    assert (one.key, one.step, one.epoch, one.pinned, one.metrics) == (first, 1, 1, ("good-one",), {"loss": 1.0})
    assert (two.reason, two.downgrades, two.pinned, two.quarantined) == ("manual", ("no data position",), (), None)
    assert two.size == sum(stat.size for stat in store.list("data/") if "000000000002-" in stat.key)
    assert two.created_at is not None


def test_a_damaged_checkpoint_lists_its_damage_and_leaves_quarantine_once_repaired(store) -> None:
    attempt = Attempt(store)
    attempt.save(1)
    key = attempt.save(2)
    path = Path(store.url, restore.read_manifest(store, key).files[0].key)
    good = path.read_bytes()
    path.write_bytes(good[:-100])
    assert "differs from the one that was written" in str(catalog.verify(store, key))
    assert restored(store) == 1
    assert "differs from the one that was written" in str(catalog.list_checkpoints(store)[1].quarantined)
    path.write_bytes(good)
    # Whoever was found damaged stays out until somebody has looked at all of it.
    assert restored(store) == 1
    assert catalog.verify(store, key) is None
    assert restored(store) == 2
    assert catalog.list_checkpoints(store)[1].quarantined is None
    Path(store.url, key).write_bytes(b"{}")
    assert (catalog.list_checkpoints(store)[1].size, catalog.list_checkpoints(store)[1].step) == (None, 2)
    assert "damaged" in str(catalog.list_checkpoints(store)[1].quarantined)


def test_a_checkpoint_of_a_run_is_found_by_its_step_and_none_that_cannot_be_read(tmp_path: Path) -> None:
    paths, other = (RunPaths(str(tmp_path / name)) for name in ("test", "digits-aaaaaa"))
    assert (catalog.newest(paths), catalog.entries(paths), catalog.is_empty(paths)) == (None, [], True)
    with pytest.raises(InputError, match=r"Received: 'last'\. It has no checkpoints"):
        catalog.find(paths, "last")
    attempt = Attempt(PosixStore(paths.store))
    first, last = (attempt.save(step) for step in (5, 7))
    assert [catalog.find(paths, step).key for step in ("5", "7", "last")] == [first, last, last]
    with pytest.raises(InputError, match=r"Received: '6'\. Known steps: 5, 7\."):
        catalog.find(paths, "6")
    assert catalog.newest(paths) == (7, catalog.entries(paths)[-1].created_at)
    assert check(catalog.read(paths, first)) == 5 and not catalog.is_empty(paths)
    Path(paths.url).rename(other.url)
    assert catalog.newest(other) is None, "a checkpoint of another run"
    Path(other.store, last).write_bytes(b"")
    assert catalog.newest(other) is None


def test_a_question_about_checkpoints_in_a_bucket_waits_less_than_a_training(store: PosixStore, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(catalog, "open_store", lambda url, retry=None: asked.append((url, retry)) or store)
    assert catalog.is_empty(RunPaths("gs://mine/runs/test"))
    [(url, retry)] = asked
    assert url.startswith("gs://mine/runs/test/") and retry.total_s < RetryPolicy().total_s


def test_a_checkpoint_removed_by_retention_is_not_removed_again(store: PosixStore, monkeypatch) -> None:
    gone, delete = list[str](), store.delete
    monkeypatch.setattr(store, "delete", lambda key, **more: gone.append(key) or delete(key, **more))
    attempt = Attempt(store, keep_last=1)
    keys = [attempt.save(step) for step in range(1, 5)]
    assert len(gone) == len({*gone}) and [key for key in gone if key in keys] == keys[:3]


def test_a_pinned_checkpoint_stays_until_it_is_unpinned(store: PosixStore) -> None:
    attempt = Attempt(store, keep_last=1)
    first = attempt.save(1)
    catalog.pin(store, first, "keep")
    attempt.save(2)
    third = attempt.save(3)
    assert files(store, "commits/") == [first, third]
    catalog.pin(store, third, "keep")
    assert restore.pins(store) == {"keep": third}
    attempt.save(4)
    assert first not in files(store, "commits/")
    catalog.unpin(store, "keep")
    attempt.save(5)
    assert len(files(store, "commits/")) == 1


@pytest.mark.parametrize("meanwhile", ["made", "moved", "removed"])
def test_a_pin_that_another_process_changes_meanwhile_moves_all_the_same(store, monkeypatch, meanwhile: str) -> None:
    attempt = Attempt(store)
    first, second = attempt.save(1), attempt.save(2)
    if meanwhile != "made":
        catalog.pin(store, first, "keep")
    swap = store.swap

    def late(key: str, data: list[bytes], *, expected: str | None) -> Stat:
        monkeypatch.setattr(store, "swap", swap)
        if meanwhile == "removed":
            catalog.unpin(store, "keep")
        else:
            catalog.pin(store, first, "keep")
        return swap(key, data, expected=expected)

    monkeypatch.setattr(store, "swap", late)
    catalog.pin(store, second, "keep")
    assert restore.pins(store) == {"keep": second}


def test_38_where_a_pin_is_damaged_nothing_is_removed(store: PosixStore) -> None:
    attempt = Attempt(store, keep_last=1)
    first = attempt.save(1)
    catalog.pin(store, first, "keep")
    Path(store.url, "pins/keep.json").write_bytes(b"{}")
    attempt.save(2)
    attempt.save(3)
    assert len(files(store, "commits/")) == 3
    assert any("could not be removed now" in line for line in attempt.said)


@pytest.mark.parametrize("name", ["", "../x", "Capital", "a/b", "x" * 41, "-x", "a.b"])
def test_a_name_that_is_no_pins_is_refused(store: PosixStore, name: str) -> None:
    key = Attempt(store).save(1)
    with pytest.raises(InputError, match="Invalid name of a pin"):
        catalog.pin(store, key, name)
    with pytest.raises(InputError, match="no pin of that name"):
        catalog.unpin(store, name)


def test_a_missing_checkpoint_is_named_with_the_existing_ones(store: PosixStore) -> None:
    with pytest.raises(InputError, match="There are none"):
        catalog.verify(store, "x")
    key = Attempt(store).save(1)
    for call in (catalog.verify, lambda s, k: catalog.pin(s, k, "x")):
        with pytest.raises(InputError, match=f"Did you mean '{key}'"):
            call(store, key.replace("1-", "2-"))
    catalog.pin(store, key, "best")
    with pytest.raises(InputError, match="Did you mean 'best'"):
        catalog.unpin(store, "bast")


def test_39_a_metric_that_is_no_number_is_said_once_and_the_best_before_it_stays(store: PosixStore) -> None:
    attempt = Attempt(store, keep_last=1, best="val_loss")
    best = attempt.save(1, metrics={"val_loss": 0.5})
    for step, loss in enumerate([math.nan, math.nan, 0.7], 2):
        last = attempt.save(step, metrics={"val_loss": loss})
    assert files(store, "commits/") == [best, last]
    (said,) = (line for line in attempt.said if "val_loss" in line)
    assert "is nan, so this checkpoint cannot be the best one" in said
    kept = {"metric": "val_loss", "mode": "min", "value": 0.5, "commit": best}
    assert restore.read_manifest(store, last).best == kept


def test_an_unreported_metric_is_named_with_the_nearest_one(store: PosixStore) -> None:
    attempt = Attempt(store, best="val_lss")
    attempt.save(1)
    attempt.save(2, metrics={"val_loss": 1.0})
    attempt.save(3, metrics={"val_loss": 1.0})
    (said,) = (line for line in attempt.said if "val_lss" in line)
    assert "Did you mean 'val_loss'?" in said


@pytest.mark.parametrize("count", [60, pytest.param(1100, marks=pytest.mark.full)])
def test_25_a_thousand_checkpoints_are_all_seen(store: PosixStore, count: int) -> None:
    attempt = Attempt(store, keep_last=3)
    key = attempt.save(1)
    data = bytes(store.get(key))
    for step in range(2, count + 2):
        # Damaged, so that only the listing tells that they are there.
        store.put_new(f"commits/e000001/{step:012d}-000000.json", [data])
    assert len(catalog.list_checkpoints(store)) == count + 1
    said = heard("checkpoint")
    assert restore.newest(store, quarantine=False).manifest.step == 1
    assert len(said) == count


def test_the_best_ones_come_first_and_only_usable_ones_with_the_metric(store: PosixStore) -> None:
    attempt = Attempt(store, keep_last=9)
    for step, metrics in enumerate([{"f1": 0.5}, {"f1": 0.9}, {}, {"f1": 0.5}, {"f1": math.nan}, {"f1": 0.95}], 1):
        last = attempt.save(step, metrics=metrics)
    Path(store.url, last).write_bytes(b"{}")
    found = catalog.list_checkpoints(store)
    assert [entry.step for entry in catalog.best_first(found, "f1")] == [2, 1, 4]
    assert [entry.step for entry in catalog.best_first(found, "min:f1")] == [1, 4, 2]
    assert catalog.best_first([], "f1") == []
    with pytest.raises(InputError, match=r"None of the 5 checkpoints has this metric.*Known: f1"):
        catalog.best_first(found, "f2")
    with pytest.raises(InputError, match=r"They have no metrics.*--checkpoint-best"):
        catalog.best_first(found[2:3], "f1")
    with pytest.raises(InputError, match="Invalid metric"):
        catalog.best_first(found, "largest:f1")
