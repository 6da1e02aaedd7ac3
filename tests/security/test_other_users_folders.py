"""Another user of this machine prepares or exchanges folders that podlift removes, at each step of the removal."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import other_user
import pytest
from other_user import NEEDS_ROOT, Victim
from support import full_only

from sdk.emulator.vertex import bucket_fs
from sdk.process import janitor, namespaces, venv
from sdk.storage import folders, own_folders
from sdk.upkeep.remove import folder as remove

pytestmark = [NEEDS_ROOT, pytest.mark.process]
_SET_DUMPABLE = 4
_STEPS = 60  # more than any of these removals has


@pytest.fixture
def victim() -> Iterator[Victim]:
    with other_user.victim() as found:
        yield found


@dataclass(frozen=True)
class Removal:
    """A removal by podlift in a folder where everybody may rename: the exchanged entry, and the way to remove it."""

    exchanged: str
    removes: Callable[[Path], object]
    holds: str = "file"
    leads_to: str = ""  # in the victim's folder, where the link leads


def _environment(place: Path) -> None:
    if not venv.remove(place / "environments" / "x"):
        raise OSError


REMOVALS = {
    "temporary folder": Removal("podlift-0", lambda place: own_folders.discard(str(place / "podlift-0"))),
    "scratch of a task": Removal(
        "podlift-0", lambda place: own_folders.discard(str(place / "podlift-0"), "1-chief-0"), "1-chief-0/data"
    ),
    "what a janitor removes": Removal(
        "podlift-0", lambda place: janitor._remove(str(place / "podlift-0"), "/none/events")
    ),
    "events of a janitor": Removal(
        "events", lambda place: janitor._sweep(str(place / "events")), "a.b.c.part", "events"
    ),
    "run that is removed": Removal("run", lambda place: folders.remove(place / "run"), "thesis/text"),
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


# A task's folder, and one that nothing but its name tells from another user's.
DEFAULT = ("scratch of a task", "run that is removed")


@pytest.mark.parametrize("name", [name if name in DEFAULT else full_only(name) for name in REMOVALS])
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


def test_a_racing_user_wins_nothing(victim) -> None:
    """He exchanges the folder for a link and back, as fast as he can, while it is made and removed."""
    place, folder = victim.open, victim.open / "podlift-0"

    def race() -> None:
        while True:
            try:
                os.rename(folder, place / f"away-{os.urandom(4).hex()}")
                os.symlink(victim.precious, folder)
                os.unlink(folder)
            except OSError:
                pass

    with other_user.keeps_doing(race):
        for _ in range(400):
            try:
                (folder / "1-chief-0" / "deep").mkdir(parents=True)
                (folder / "1-chief-0" / "data").touch()
            except OSError:
                pass  # the link stood there
            own_folders.discard(str(folder), "1-chief-0")
            own_folders.discard(str(folder))
    assert victim.is_whole()


def _fill(folder: Path, victim: Victim) -> None:
    """Put everything into a folder that could lead out of it, or keep it from being removed."""
    folder.mkdir()
    folder.chmod(0o777)
    other_user.does(lambda: (folder / "link").symlink_to(victim.precious))
    other_user.does(lambda: (folder / "up").symlink_to(".."))
    other_user.does(lambda: os.mkfifo(folder / "pipe"))
    other_user.does(lambda: (folder / "theirs" / "deep").mkdir(parents=True))
    other_user.does(lambda: (folder / "theirs" / "deep" / "link").symlink_to(victim.precious / "thesis"))
    other_user.try_to(lambda: os.link(victim.precious / "thesis" / "text", folder / "hard"))
    for name in ("-rf", "...", "a\nb", "*", "$(id)", "\udc80", "x" * 255, "~"):
        (folder / name).mkdir()
        (folder / name / name).touch()
    (folder / "/".join("d" for _ in range(200))).mkdir(parents=True)
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed").chmod(0)


def test_a_folder_that_others_may_write_to_goes_if_chosen_and_no_link_is_followed(victim) -> None:
    folder = victim.open / "podlift-0"
    _fill(folder, victim)
    assert not own_folders.discard(str(folder)), "it may be another user's"
    assert (folder / "-rf").is_dir()
    folders.remove(folder)
    assert not folder.exists() and victim.is_whole()


@pytest.mark.parametrize("private", [True, False])
def test_a_folder_of_another_user_stays(victim, private) -> None:
    folder = victim.open / "podlift-0"
    other_user.does(lambda: (folder / "1-chief-0").mkdir(parents=True))
    for inside in ("", "1-chief-0"):
        assert not own_folders.discard(str(folder), inside, private=private)
    assert (folder / "1-chief-0").is_dir()
    assert own_folders.claimed(str(folder)) is None


@pytest.mark.parametrize("inside", ["", "1-chief-0", "thesis/text", "thesis"])
def test_a_link_of_another_user_stays_and_leads_nowhere(victim, inside) -> None:
    link = victim.open / "podlift-0"
    other_user.does(lambda: link.symlink_to(victim.precious))
    for private in (True, False):
        assert not own_folders.discard(str(link), inside, private=private)
        assert not own_folders.discard(str(link / "thesis"), private=private)
    assert link.is_symlink() and victim.is_whole()


def test_links_of_this_user_and_of_root_on_the_way_are_followed(victim) -> None:
    (victim.open / "real" / "podlift-0").mkdir(parents=True, mode=0o700)
    (victim.open / "short").symlink_to("real")
    assert own_folders.discard(str(victim.open / "short" / "podlift-0"))
    assert list((victim.open / "real").iterdir()) == []


def test_a_link_of_a_nameless_root_is_followed_unless_another_user_may_have_made_it(victim, monkeypatch) -> None:
    """As in a task without a network, and in a container without root."""
    if namespaces.why_not():
        pytest.skip("no user namespace can be made here")
    monkeypatch.setattr(other_user, "UID", 4321)
    with tempfile.TemporaryDirectory(dir="/var", prefix="podlift-test-") as of_root:
        os.chmod(of_root, 0o755)
        below_an_open_folder = victim.open / "closed"
        below_an_open_folder.mkdir(mode=0o755)
        for place, is_removed in ((Path(of_root), True), (victim.open, False), (below_an_open_folder, False)):
            folder = place / "real" / "podlift-0"
            folder.mkdir(parents=True, mode=0o700)
            for each in (folder, folder.parent):
                os.chown(each, 4321, 4321)
            (place / "short").symlink_to("real")

            def remove(path: str = str(place / "short" / "podlift-0"), expected: bool = is_removed) -> None:
                # After it has changed its user, a process may not write its own files in /proc.
                ctypes.CDLL(None).prctl(_SET_DUMPABLE, 1, 0, 0, 0)
                namespaces._enter_network()
                assert own_folders.discard(path) == expected

            other_user.does(remove)
            assert folder.exists() != is_removed


def test_a_mount_in_a_temporary_folder_stays(victim) -> None:
    folder = victim.folder / "podlift-0"
    (folder / "mounted").mkdir(parents=True)
    memory = victim.folder / "memory"
    memory.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(folder / "mounted")], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (folder / "mounted" / "file").touch()
        assert not own_folders.discard(str(folder))
        assert (folder / "mounted" / "file").exists()
    finally:
        subprocess.run(["umount", str(folder / "mounted")], check=True)
    assert own_folders.discard(str(folder))


def test_a_run_that_is_exchanged_for_another_one_before_it_is_pruned_stays(victim) -> None:
    old, new = victim.open / "old", victim.open / "new"
    for folder in (old, new):
        folder.mkdir()
    before = old.lstat()

    def exchange() -> None:
        os.rename(old, victim.open / "away")
        os.rename(new, old)

    other_user.does(exchange)
    with pytest.raises(remove.ChangedError, match="exchanged"):
        remove._remove_folder(old, before)
    assert old.is_dir()
