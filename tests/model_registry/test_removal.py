"""Removed versions: refusals, freed and kept files, and their meeting with promotions, registrations and remove."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from programs.store_faults import FaultyStore, StoreFault

from sdk.errors import ConflictError, InputError, StoreError
from sdk.model_registry import evidence, files
from sdk.model_registry.models import Model, ModelVersion
from sdk.planning.roots import in_bucket
from sdk.upkeep import remove
from sdk.upkeep.remove import root as removing
from sdk.upkeep.remove.bucket import BucketRoot
from sdk.upkeep.remove.folder import FolderRoot
from sdk.upkeep.remove.root import ChangedError, Limits


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a day be over since everything there was written."""
    monkeypatch.setattr(removing, "JOB_SETTLED_S", 0.0)


def removed(model: Model) -> list[str]:
    """Remove the root of a model, and return the digests that went."""
    plan = remove.find(model.root, older_than_s=0, keep=0, now=time.time() + 2)
    result = remove.remove(plan)
    assert (result.problems, result.skipped, plan.skipped) == ((), (), ())
    return sorted(item.name for item in result.items if item.kind == "model part")


def test_the_champion_and_versions_for_a_rollback_are_not_removed_by_mistake(model: Model, add) -> None:
    for number in (1, 2, 3):
        add()
        model.promote(number)
    champion = r"Version 3 is the champion of 'digits', which cannot be removed.*promote digits --previous"
    earlier = r"a rollback could return to it.* Next: podlift models remove digits 2 --force"
    for number, force, said in ((3, False, champion), (3, True, champion), (2, False, earlier)):
        with pytest.raises(InputError, match=said):
            model.remove(number, force=force)
    assert model.numbers() == [1, 2, 3]
    model.remove(2, force=True)
    assert model.rollback().number == 1


def test_a_removal_frees_files_of_no_other_version_and_never_reuses_the_number(model, add, settled) -> None:
    first, second = add(), add()
    freed = model.remove(second.number)
    assert (freed.number, freed.run, freed.size_bytes) == (2, second.record.run, len("weights 2"))
    weights = next(each.parts[0] for each in second.files() if each.path == "model.keras")
    assert removed(model) == sorted([weights, second.record.manifest])
    assert first.damage() == [], "the labels belong to both"
    assert removed(model) == []
    assert [each.number for each in model.versions()] == [1]
    assert add("weights 2", number=2).number == 3, "the same files of the same run are a new version"
    assert model.version(3).damage() == []


def test_podlift_remove_keeps_young_parts_and_the_parts_of_every_version(model, add, settled, monkeypatch) -> None:
    add(), add()
    model.store.put_new(f"blobs/{'f' * 64}", [b"of an interrupted registration"])
    monkeypatch.setattr(removing, "JOB_SETTLED_S", 3600.0)
    assert removed(model) == []
    monkeypatch.setattr(removing, "JOB_SETTLED_S", 0.0)
    assert removed(model) == ["f" * 64]
    assert [each.damage() for each in model.versions()] == [[], []]


def test_podlift_remove_removes_no_part_while_a_manifest_is_damaged(model: Model, add, settled) -> None:
    version = add()
    model.store.put_new(f"blobs/{'f' * 64}", [b"of an interrupted registration"])
    model.store.delete(f"manifests/{version.record.manifest}")
    model.store.put_new(f"manifests/{version.record.manifest}", [b"{}"])
    plan = remove.find(model.root, older_than_s=0, keep=0, now=time.time() + 2)
    assert [item.kind for item in plan.items] == []
    assert any("its manifest is damaged" in each.why for each in plan.skipped)


@pytest.mark.parametrize("damaged", [1, 2], ids=["of another version", "of the version itself"])
def test_a_damaged_manifest_keeps_no_version_from_being_removed(model: Model, add, damaged: int) -> None:
    versions = [add(), add()]
    model.store.delete(f"manifests/{versions[damaged - 1].record.manifest}")
    freed = model.remove(2)
    assert (freed.number, freed.size_bytes) == (2, None)
    assert model.numbers() == [1]


def test_a_registration_while_a_removal_takes_keeps_its_parts(model: Model, add, settled, tmp_path: Path) -> None:
    add(), add()
    model.remove(2)
    limits = Limits(older_than_s=0, keep=0, now=time.time() + 2)
    place = (BucketRoot if in_bucket(model.root) else FolderRoot)(model.root, limits)
    known = {each.item.path: each for each in place.archives()}
    unused = [known[item.path] for item in place.candidates() if item.kind == "model part"]
    assert len(unused) == 2
    files.add(model.store, str(tmp_path / "made" / "2"))  # the version follows
    for item in unused:
        with pytest.raises(ChangedError, match="a submit or a registration uses it"):
            place.remove_archive(item)
    assert add(number=2).damage() == []


def test_a_version_removed_meanwhile_is_not_listed_and_stops_only_its_own_promotion(model, add, meanwhile) -> None:
    for _ in range(6):
        add()
    model.promote(1)
    other = Model(model.root, "digits")
    meanwhile(Model, "numbers", lambda: other.remove(6))
    assert [each.number for each in model.versions()] == [1, 2, 3, 4, 5]
    meanwhile(ModelVersion, "damage", lambda: other.remove(5))
    with pytest.raises(InputError, match="Version 5 of 'digits' was removed"):
        model.promote(5)
    assert (model.champion().number, model.numbers()) == (1, [1, 2, 3, 4])
    meanwhile(ModelVersion, "damage", lambda: other.remove(3))
    assert model.promote(2, expect=1).number == 2
    meanwhile(ModelVersion, "damage", lambda: other.remove(4))
    assert model.rollback().number == 1
    assert ([move.champion for move in model.history()], model.numbers()) == ([1, 2, 1], [1, 2])


def test_an_interrupted_removal_can_be_repeated_and_its_version_is_not_promoted(model: Model, add) -> None:
    add(), add()
    lost = StoreFault("swap", "champion", "lose", error=ConflictError("changed by its own first request (injected)"))
    failing = Model(model.root, "digits", store=FaultyStore(model.store, lost, StoreFault("delete", "versions/")))
    with pytest.raises(StoreError, match="injected"):
        failing.remove(2)
    assert model.record()[0].removed == (2,)
    with pytest.raises(InputError, match="Version 2 of 'digits' was removed"):
        model.promote(2)
    seen = evidence.key_of("digits", 2, "0")
    model.store.put_new(seen, [b"what a gate has found"])
    failing.store = FaultyStore(model.store, StoreFault("delete", "evidence/"))
    with pytest.raises(StoreError, match="injected"):
        failing.remove(2)
    model.remove(2)
    assert (model.numbers(), [*model.store.list(seen)]) == ([1], [])
