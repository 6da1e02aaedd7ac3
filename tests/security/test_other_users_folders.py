"""Another user of this machine exchanges folders that podlift removes, at each step of the removal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import other_user
import pytest
from other_user import NEEDS_ROOT, Victim

from sdk.emulator.vertex import bucket_fs
from sdk.process import janitor, venv
from sdk.storage import folders, own_folders

pytestmark = [NEEDS_ROOT, pytest.mark.process]
_STEPS = 60  # more than any of these removals has


@pytest.fixture
def victim() -> Iterator[Victim]:
    with other_user.victim() as found:
        yield found


@dataclass(frozen=True)
class Removal:
    """Something that podlift removes in a folder where everybody may rename: what is exchanged, and how it is removed."""

    exchanged: str
    removes: Callable[[Path], object]
    holds: str = "file"
    leads_to: str = ""  # in what the victim has, where the link leads


def _environment(place: Path) -> None:
    if not venv.remove(place / "environments" / "x"):
        raise OSError


REMOVALS = {
    "temporary folder": Removal("podlift-0", lambda place: own_folders.discard(str(place / "podlift-0"))),
    "scratch of a task": Removal(
        "podlift-0", lambda place: own_folders.discard(str(place / "podlift-0"), "1-chief-0"), "1-chief-0/data"
    ),
    "what a janitor removes": Removal("podlift-0", lambda place: janitor._remove(str(place / "podlift-0"))),
    "events of a janitor": Removal(
        "events", lambda place: janitor._sweep(str(place / "events")), "a.b.c.part", "events"
    ),
    "run that is pruned": Removal("run", lambda place: folders.remove(place / "run"), "thesis/text"),
    "environment": Removal("x", lambda place: venv.remove(place / "x"), "lock"),
    "cache of environments": Removal("environments", _environment, "x/lock"),
    "view of the buckets": Removal("data", lambda place: _Fs(place / "data" / "gcs"), "gcs/bucket/object"),
    "view that is a link": Removal("view", lambda place: _Fs(place / "view"), "gcs/bucket/object"),
}


class _Fs(bucket_fs.BucketFs):
    def __init__(self, home: Path) -> None:
        super().__init__(None, None, home)  # type: ignore[arg-type]


class Exchange:
    """Functions of `os` that let the other user act before one of their calls."""

    def __init__(self, before: int, action: Callable[[], None]) -> None:
        self._left, self._action = before, action
        self.done = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if not callable(found) or isinstance(found, type):
            return found

        def call(*args: Any, **options: Any) -> Any:
            if not self._left and not self.done:
                self.done = True
                other_user.does(self._action)
            self._left -= 1
            return found(*args, **options)

        return call


def _put(removal: Removal, place: Path) -> None:
    shutil.rmtree(place)
    place.mkdir()
    place.chmod(0o777)
    file = place / removal.exchanged / removal.holds
    file.parent.mkdir(parents=True)
    file.write_text("of no worth")
    (place / removal.exchanged).chmod(0o700)


@pytest.mark.parametrize("name", REMOVALS)
def test_a_folder_that_becomes_a_link_at_any_step_of_its_removal_costs_nothing_else(victim, monkeypatch, name) -> None:
    removal, place = REMOVALS[name], victim.open

    def exchange() -> None:
        if os.path.lexists(place / removal.exchanged):
            os.rename(place / removal.exchanged, place / "away")
        (place / removal.exchanged).symlink_to(victim.precious / removal.leads_to)

    for step in range(_STEPS):
        _put(removal, place)
        exchanging = Exchange(step, exchange)
        for module in (own_folders, janitor, venv, bucket_fs):
            monkeypatch.setattr(module, "os", exchanging)
        try:
            removal.removes(place)
        except OSError:
            pass
        monkeypatch.undo()
        assert victim.is_whole(), f"exchanged before call {step}"
        if not exchanging.done:
            break
    assert 0 < step < _STEPS - 1, "each step was tried"
