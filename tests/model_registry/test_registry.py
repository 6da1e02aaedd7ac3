"""Registered models below a folder and in a bucket: one contract."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from programs.store_faults import FaultyStore, StoreFault
from registered_models import in_both, register
from support import PROGRAMS, REPO, finished_run

import sdk
from sdk.clock import SystemClock
from sdk.errors import ConflictError, CorruptObjectError, InputError, StoreError
from sdk.job.payload import InitialWeights
from sdk.model_registry import files, listing
from sdk.model_registry.models import Model
from sdk.records.recorder import Recorder


def program(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAMS / "promotions.py"), *words]
    variables = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.run(command, env=variables, text=True, capture_output=True, timeout=120)


def test_a_version_is_numbered_has_its_lineage_and_is_written_once(model: Model, add) -> None:
    first, second = add(), add()
    assert [each.number for each in model.versions()] == [1, 2]
    assert (first.record.run, first.record.bundle, first.record.parent) == ("digits-aaaaaa", f"{1:064x}", 0)
    assert (dict(second.metrics), second.record.data["rows"].digest) == ({"accuracy": 0.02}, "1")
    # Labels are stored once for both.
    assert len([*model.store.list("blobs/")]) == 3
    assert add(number=2).number == 2, "the same files of the same run are one version"
    assert len(model.versions()) == 2
    assert add("other weights", number=2).number == 3, "other files of it are another version"
    newest = model.of_run("digits-aaaaab", "model")
    assert newest is not None and newest.number == 3
    assert model.of_run("digits-aaaaab", "work") is None


def test_a_later_version_replaces_a_damaged_object_that_it_needs(model: Model, add) -> None:
    add()
    sound = {stat.key: bytes(model.store.get(stat.key)) for stat in model.store.list("blobs/")}
    for key in sound:
        model.store.delete(key)
        model.store.put_new(key, [b"damaged"])
    add("weights 1", number=2)
    assert {stat.key: bytes(model.store.get(stat.key)) for stat in model.store.list("blobs/")} == sound


def test_an_object_that_disappears_while_it_is_checked_is_written_again(model: Model, add, monkeypatch) -> None:
    add()
    kept = [stat.key for stat in model.store.list("blobs/")]

    def disappear(path: str) -> None:
        os.unlink(path)
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "utime", disappear)
    add("weights 1", number=2)
    assert [stat.key for stat in model.store.list("blobs/")] == kept


@pytest.mark.parametrize("root", [pytest.param("bucket", marks=pytest.mark.process)], indirect=True)
def test_unchanged_versions_of_a_bucket_are_listed_again_with_few_requests(model, add, podlift_gcs) -> None:
    for _ in range(12):
        add()
    model.promote(12)
    first = listing.of(model)
    add()
    podlift_gcs.forget_requests()
    again = listing.of(model)
    assert podlift_gcs.requests().total <= 5
    assert [row.state for row in again.rows] == [*["registered"] * 11, "champion", "registered"]
    assert again.rows[0] == replace(first.rows[0], version=again.rows[0].version)


def test_the_champion_only_moves_forward_in_one_line_and_is_parent_of_later_versions(model: Model, add) -> None:
    add()
    with pytest.raises(InputError, match=r"has no champion. It has version 1. Next: podlift models promote digits 1"):
        model.champion()
    assert model.promote(1, note="the first").number == 1
    assert model.promote("latest").number == 1
    assert len(model.history()) == 1, "promoting the champion changes nothing"
    assert add().record.parent == 1
    model.promote("latest", expect=1)
    moves = [(move.before, move.champion, move.cause) for move in model.history()]
    assert moves == [(0, 1, "promote"), (1, 2, "promote")]
    assert [model.state(each) for each in model.versions()] == ["was champion", "champion"]
    assert model.history()[0].note == "the first"


def test_a_rollback_restores_the_bytes_and_a_second_one_goes_further_back(model: Model, add, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        add()
        model.promote(number)
    assert model.rollback().number == 2
    assert model.rollback(note="worse in production").number == 1
    home = Path(model.champion().download(tmp_path / "home"))
    assert (home / "model.keras").read_text() == "weights 1"
    assert (home / "variables" / "labels.txt").read_text() == "0 1 2"
    with pytest.raises(InputError, match="Version 1 is the first one"):
        model.rollback()
    model.promote(3)
    assert model.rollback().number == 1
    moves = model.history()
    assert all(one.champion == other.before for one, other in itertools.pairwise(moves))


def test_a_promotion_with_an_outdated_champion_is_refused_and_names_the_mover(model: Model, add) -> None:
    add(), add(), add()
    model.promote(1)
    model.promote(2)
    with pytest.raises(InputError, match=r"Expected: version 1. It is version 2. .*@.* moved it at .* \(promote\)"):
        model.promote(3, expect=1)
    with pytest.raises(InputError, match="Expected: none"):
        model.promote(3, expect=0)
    assert len(model.history()) == 2


@in_both
@pytest.mark.process
def test_of_8_promotions_that_saw_the_same_champion_one_wins(model: Model, add) -> None:
    for _ in range(9):
        add()
    model.promote(1)
    raced = program(model.root, "race", "1")
    assert raced.returncode == 0, raced.stderr
    (won,) = json.loads(raced.stdout)
    assert [move.champion for move in model.history()] == [1, won]


@in_both
@pytest.mark.process
def test_a_promotion_killed_at_any_step_leaves_the_old_champion_or_the_new_one(model: Model, add) -> None:
    add(), add()
    model.promote(1)
    steps = [("stat", "before"), ("get", "after"), ("swap", "before"), ("swap", "after")]
    if not model.root.startswith("gs://"):
        steps += [("moment", "written"), ("moment", "synced"), ("moment", "replaced")]
    seen = set()
    for op, when in steps:
        before, moves = model.champion().number, len(model.history())
        other = 3 - before
        killed = program(model.root, "kill", op, when, str(other))
        assert killed.returncode == -signal.SIGKILL, (op, when, killed.stderr)
        now = model.champion()
        assert (now.number, len(model.history())) in ((before, moves), (other, moves + 1)), (op, when)
        assert now.damage() == []
        seen.add(now.number == other)
        assert model.promote(other).number == other, "a killed promotion can be repeated"
    assert seen == {True, False}


def test_a_lost_reply_of_a_promotion_counts_once_and_a_lost_request_not_at_all(model: Model, add) -> None:
    add(), add()
    lost = Model(model.root, "digits", store=FaultyStore(model.store, StoreFault("swap", "champion", "lose")))
    assert lost.promote(1).number == 1
    again = StoreFault("swap", "champion", "lose", error=ConflictError("changed by its own first request (injected)"))
    assert Model(model.root, "digits", store=FaultyStore(model.store, again)).promote(2).number == 2
    assert [move.champion for move in model.history()] == [1, 2]
    failing = Model(model.root, "digits", store=FaultyStore(model.store, StoreFault("swap", "champion", "fail")))
    with pytest.raises(StoreError, match="injected"):
        failing.promote(1)
    assert model.champion().number == 2


def test_a_registration_that_fails_anywhere_leaves_no_version_and_can_be_repeated(model: Model, add) -> None:
    sound = model.store
    faults = [StoreFault("put_new", part) for part in ("blobs/", "manifests/", "versions/")]
    for fault in (*faults, StoreFault("put_new", "versions/", "lose")):
        assert model.numbers() == []
        model.store = FaultyStore(sound, fault)
        with pytest.raises(StoreError, match="injected"):
            add()
        model.store = sound
    assert add(number=1).number == 1
    assert model.numbers() == [1]


def test_damaged_files_are_never_promoted_downloaded_or_restored_and_can_be_repaired(model, add, tmp_path) -> None:
    add(), add()
    model.promote(1)
    model.promote(2)
    blob = next(each.parts[0] for each in model.version(1).files() if each.path == "model.keras")
    model.store.delete(f"blobs/{blob}")
    model.store.put_new(f"blobs/{blob}", [b"other bytes"])
    advice = r"Next: podlift models add digits-aaaaaa --model digits"
    for call in (model.rollback, lambda: model.promote(1), lambda: model.version(1).download(tmp_path / "home")):
        with pytest.raises(CorruptObjectError, match=rf"(?s)Version 1 of 'digits' is damaged: .*{advice}"):
            call()
    assert model.champion().number == 2
    assert not (tmp_path / "home").exists()
    model.store.delete(f"blobs/{blob}")
    with pytest.raises(CorruptObjectError, match="is missing"):
        model.rollback()
    assert add(number=1).number == 1
    assert model.rollback().number == 1


def test_a_damaged_record_is_named_with_the_way_out(model: Model, add) -> None:
    add()
    model.promote(1)
    model.store.swap("records/digits/champion.json", [b"{}}"], expected=model.record()[1])
    with pytest.raises(CorruptObjectError, match=r"champion of 'digits' is unknown.*Next: remove that object"):
        model.promote(1)
    model.store.delete("records/digits/champion.json")
    model.promote(1)
    model.store.delete("records/digits/versions/000001.json")
    model.store.put_new("records/digits/versions/000001.json", [b'{"model": 3}'])
    with pytest.raises(CorruptObjectError, match=r"record of version 1 of 'digits' is damaged"):
        model.champion()


def test_a_download_appears_whole_or_not_at_all_and_overwrites_nothing(model: Model, add, tmp_path: Path) -> None:
    first, second = add(), add()
    home, home_of_root = tmp_path / "home", {path.name for path in tmp_path.iterdir()}
    assert first.download(home) == first.download(home) == str(home)
    with pytest.raises(InputError, match=r"holds other files: model.keras. Nothing was written. Next: choose another"):
        second.download(home)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="holds other files"):
        first.download(tmp_path / "file")
    model.store = FaultyStore(model.store, StoreFault("get", "blobs/", nth=2))
    with pytest.raises(StoreError, match="injected"):
        first.download(tmp_path / "half")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "home", "made", *home_of_root}
    assert not (tmp_path / "half").exists() and not [*tmp_path.glob(".podlift-*")]


def test_large_files_are_stored_in_parts(model: Model, add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PART_BYTES", 4)
    made = add("weights of many bytes")
    assert [len(each.parts) for each in made.files()] == [6, 2]
    assert [sum(files.sizes(each).values()) for each in made.files()] == [each.size_bytes for each in made.files()]
    assert Path(made.download(tmp_path / "home"), "model.keras").read_text() == "weights of many bytes"
    assert made.download(tmp_path / "home")


def test_the_difference_names_every_difference_of_two_versions(model: Model, add) -> None:
    add(), add(), add("weights 1")
    found = model.diff(1, 2)
    assert (found.metrics, found.changed, found.added) == ({"accuracy": (0.01, 0.02)}, ("model.keras",), ())
    assert (found.code, found.args, found.data) == (True, False, ("rows",))
    assert model.diff(1, 3).changed == ()
    assert model.diff(2, 3).data == ()
    began = InitialWeights(choice="last", model="digits", version=2)
    assert add(warm_start=began).number == 4
    assert (model.diff(1, 4).warm_start, model.diff(1, 2).warm_start) == ((0, 2), (0, 0))


def test_a_model_without_a_way_to_evaluate_names_the_object_that_has_one(model: Model, add) -> None:
    add()
    with pytest.raises(InputError, match=r"cannot evaluate. Next: sdk.models\(.*\)\['digits'\].evaluate"):
        model.evaluate("latest")


def test_unknown_models_and_versions_are_named_with_the_existing_ones(model: Model, add) -> None:
    with pytest.raises(InputError, match=r"Received: 'digits'. There is none. Next: podlift models add RUN"):
        sdk.models(model.root)["digits"]
    for _ in range(10):
        add()
    with pytest.raises(InputError, match=r"Received: 'digit'. Did you mean 'digits'"):
        sdk.models(model.root)["digit"]
    found = sdk.models(model.root)["digits"]
    named = [sdk.models(model.root).version(text) for text in ("digits:10", "weights.h5", "gs://a/b")]
    assert [each and each.number for each in named] == [10, None, None]
    for which in ("11", "0", "first", "-1"):
        with pytest.raises(InputError, match=rf"Received: '{which}'. It has versions 1, 2, 3, ..., 7, 8, 9, 10"):
            found.promote(which)


def test_the_champion_is_found_while_another_process_registers_and_promotes_one(model: Model, add, meanwhile) -> None:
    add()
    model.promote(1)
    meanwhile(Model, "numbers", lambda: (add(), Model(model.root, "digits").promote(2)))
    assert model.champion().number == 1
    assert model.champion().number == 2


def test_files_that_are_absent_are_found_without_reading_the_others(model: Model, add) -> None:
    manifest = add().record.manifest
    assert files.absent(model.store, manifest) == []
    part = next(each for each in files.read(model.store, manifest).files if each.path == "model.keras").parts[0]
    model.store.delete(f"blobs/{part}")
    (why,) = files.absent(model.store, manifest)
    assert why == f"model.keras: {model.store.url}/blobs/{part} is missing."
    assert "is missing" in files.absent(model.store, "0" * 64)[0]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"{", "cannot be read"),
        (b'{"files": 3}', "cannot be read"),
        *(
            (json.dumps({"files": [{"path": path, "size_bytes": 0, "parts": []}]}).encode(), "names a file outside")
            for path in ("../x", "/x", "a/../../x", "a//b")
        ),
    ],
)
def test_a_list_of_files_that_podlift_has_not_written_is_damaged(model: Model, data: bytes, sentence: str) -> None:
    model.store.put_new(f"manifests/{files.digest_of(data)}", [data])
    with pytest.raises(CorruptObjectError, match=sentence):
        files.read(model.store, files.digest_of(data))


def test_the_files_of_a_download_are_on_the_disk_before_they_have_their_name(model, add, tmp_path, monkeypatch) -> None:
    home, synced = tmp_path / "home", []
    monkeypatch.setattr(files.posix, "sync_tree", lambda part: synced.append((home.exists(), sorted(os.listdir(part)))))
    add().download(home)
    assert synced == [(False, ["model.keras", "variables"])]
    two = register(tmp_path / "two", "digits", {"a": b"1", "b": b"2"}).download(tmp_path / "files")
    assert [Path(two, name).read_bytes() for name in ("a", "b")] == [b"1", b"2"]


def test_a_run_with_possibly_incomplete_outputs_registers_no_model(tmp_path: Path) -> None:
    run = finished_run(tmp_path, "digits-aaaaaa")
    Path(run.outputs_model).mkdir(parents=True)
    Path(run.outputs_model, "model.keras").write_text("weights")

    def added() -> int:
        return sdk.models(str(tmp_path)).add(run.url, model="digits").number

    with pytest.raises(InputError, match=r"may be incomplete: its end was not recorded.*podlift resume digits-aaaaaa"):
        added()
    collected = {"files": 1, "bytes": 7, "skipped_count": 1}
    for number, (path, said) in enumerate((("model/x", r"Not collected: model/x \(why\)"), ("work/x", "")), 1):
        recorder = Recorder(run, "supervisor", number, SystemClock(), continued=True)
        recorder.record("collected", **collected, skipped=[[path, "why"]])
        with pytest.raises(InputError, match=said) if said else nullcontext():
            assert added() == 1
