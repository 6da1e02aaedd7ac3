"""Which weights a run starts from is decided with its plan, pinned in it, and refused there if they cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from registered_models import register

import sdk
from sdk import launch
from sdk.errors import CorruptObjectError, InputError
from sdk.job.payload import Payload
from sdk.job.plan import Plan
from sdk.model_registry.models import Model
from sdk.planning import initial
from sdk.storage import posix
from sdk.upkeep import remove

CHECKPOINTS = "These are checkpoints of podlift, the state of a training.*checkpoint_resume_from"


@pytest.fixture(autouse=True)
def program(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    # Tests of the store cover a loss of power.
    monkeypatch.setattr(posix, "sync_file", lambda handle: None)
    monkeypatch.setattr(posix, "sync_folder", lambda folder: None)
    return write("train.py", "print(1)")


def planned(root: Path, warm_start: str = "champion", **settings: object) -> Plan:
    return sdk.plan("train.py", root=root, model="digits", warm_start=warm_start, **settings)  # type: ignore[arg-type]


def lines(plan: Plan, label: str) -> list[str]:
    return [line.partition(label)[2].strip() for line in str(plan).splitlines() if line.startswith(label)]


def test_the_champion_and_the_newest_version_are_pinned_by_number_and_digest(root: Path) -> None:
    champion = register(root, "digits", {"model.keras": b"one"})
    last = register(root, "digits", {"model.keras": b"two"}, promote=False)
    plan = planned(root)
    assert (plan.initial.version, plan.initial.manifest) == (1, champion.record.manifest)
    assert lines(plan, "warm start") == [
        f"version 1 of 'digits', the champion, weights only: files {champion.record.manifest[:12]}"
    ]
    newest = planned(root, "last").initial
    assert (newest.version, newest.manifest) == (2, last.record.manifest)
    # A later promotion changes nothing about a plan, nor about the weights that its tasks read.
    Model(str(root), "digits").promote(2)
    read = Plan.from_json(plan.to_json(), "plan.json")
    assert read.initial == plan.initial
    payload = Payload.from_json(read.payload(2).to_json())
    assert (payload.initial, payload.models) == (plan.initial, f"{root}/models")


def test_without_a_version_the_weights_are_fresh_and_the_plan_says_why(root: Path) -> None:
    plan = planned(root)
    assert plan.initial.version == 0
    assert lines(plan, "warm start") == [f"none, fresh weights: the model 'digits' below {root} has no version yet"]
    register(root, "digits", {"model.keras": b"one"}, promote=False)
    (line,) = lines(planned(root), "warm start")
    assert "'digits' has no champion yet (podlift models promote digits 1)" in line
    assert sdk.plan("train.py", root=root).initial is None


def test_weights_that_cannot_be_read_are_one_mistake_among_others(root: Path, write: Callable[..., Path]) -> None:
    register(root, "digits", {"notes.txt": b"one"})
    write("podlift.toml", 'warm_start = "champion"')
    with pytest.raises(InputError) as caught:
        sdk.plan("train.py", root=root, model="digits", code_requirements="gone.txt")
    weights, requirements = caught.value.problems
    assert weights.startswith("warm_start: version 1 of 'digits'")
    assert weights.endswith("podlift.toml.")
    assert requirements.startswith("No such requirements file. Received: 'gone.txt'.")


def test_a_model_of_another_root_is_not_found_and_the_plan_names_that_root(root, tmp_path, monkeypatch) -> None:
    register(root, "digits", {"model.keras": b"one"})
    monkeypatch.setenv("PODLIFT_ROOT", str(root))
    (line,) = lines(planned(tmp_path / "elsewhere"), "warm start")
    assert line == (
        f"none, fresh weights: the model 'digits' below {tmp_path}/elsewhere has no version yet, and {root} has one. A run "
        f"starts only from models of its root. Next: --root {root}"
    )


def test_without_a_name_the_model_has_the_name_of_the_run(root: Path) -> None:
    register(root, "weekly", {"model.keras": b"one"})
    weights = sdk.plan("train.py", root=root, name="weekly", warm_start="champion").initial
    assert (weights.model, weights.version) == ("weekly", 1)


def test_a_damaged_version_is_an_error_before_anything_is_written(root: Path) -> None:
    register(root, "digits", {"model.keras": b"one"})
    (part,) = (root / "models" / "blobs").iterdir()
    part.write_bytes(b"other")
    damaged = r"Version 1 of 'digits' is damaged.*Next: podlift models add digits-aaaaaa"
    with pytest.raises(CorruptObjectError, match=damaged):
        planned(root)
    part.unlink()
    with pytest.raises(CorruptObjectError, match="is missing"):
        planned(root)
    assert not (root / "runs").exists()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("labels.txt", r"^warm_start: version 1 of 'digits', the champion has no weights .* It has labels.txt.$"),
        ("store/commits/e000001/000000000480-000001.json", CHECKPOINTS),
    ],
)
def test_a_version_without_weights_that_can_be_read_is_refused_with_the_next_step(root, path: str, said: str) -> None:
    register(root, "digits", {path: b"{}"})
    with pytest.raises(InputError, match=said):
        planned(root)


def test_a_plan_for_a_root_without_its_model_is_refused_with_the_next_step(root: Path, tmp_path: Path) -> None:
    register(root, "digits", {"model.keras": b"one"})
    plan = planned(root)
    assert initial.problems(plan) == []
    elsewhere = replace(plan, root=str(tmp_path / "elsewhere"))
    incomplete = r"starts from version 1 of 'digits'.*is not complete in .*elsewhere/models.*Next: "
    with pytest.raises(InputError, match=incomplete):
        launch.execute(elsewhere)
    assert not (tmp_path / "elsewhere").exists()


def test_the_state_of_another_run_and_weights_of_a_model_are_not_both_a_start(root: Path) -> None:
    both = r"checkpoint_resume_from and warm_start.*'other' and 'champion'. Next: omit one"
    with pytest.raises(InputError, match=both):
        planned(root, checkpoint_resume_from="other")


def test_podlift_remove_keeps_a_version_that_a_plan_pins(root: Path) -> None:
    register(root, "digits", {"model.keras": b"one"})
    plan = planned(root)
    register(root, "digits", {"model.keras": b"two"})
    remove.remove(remove.find(root, older_than_s=0.0, keep=0, now=1e12))
    assert initial.problems(plan) == []
    assert Model(str(root), "digits").version(1).damage() == []
