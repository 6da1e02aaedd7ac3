"""After a loss of power, at any moment: acknowledged objects are there, and none partially.

A recorder in the place of `os.fsync` simulates it. A file that was never synced is empty afterwards, a folder that was
never synced has no names, and synced data is as it was at that moment: the least that POSIX promises.
"""

import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sdk
from sdk import launch
from sdk.checkpoint import catalog, restore
from sdk.job.layout import RootPaths
from sdk.packaging import bundle
from sdk.packaging.entry import LocatedEntry
from sdk.records import outputs
from sdk.records.recorder import Recorder, read_events
from sdk.storage import posix
from sdk.storage.posix_store import PosixStore

from .parts import CLOCK, Attempt, check


class Disk:
    """The content of the disk below a folder that exists; `monkeypatch` puts the recorder in its place."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._top = top
        # Called before each sync below the folder, which is after everything that came before it.
        self.look: Callable[[], object] = lambda: None
        self._fsync = os.fsync
        self._lock = threading.RLock()
        # Each number names one file as long as a process has it open.
        self._open: dict[int, int] = {}
        self._content: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self.syncs = 0
        monkeypatch.setattr(os, "fsync", self._synced)

    def close(self) -> None:
        for handle in self._open.values():
            os.close(handle)

    def _synced(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not path.is_relative_to(self._top):
            return self._fsync(handle)
        with self._lock:
            self.look()
            number = self._number(handle)
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                self._names[number] = self._listed(f"/proc/self/fd/{handle}")
            else:
                self._content[number] = Path(f"/proc/self/fd/{handle}").read_bytes()
            self.syncs += 1
        return None

    def _number(self, handle: int) -> int:
        number = os.fstat(handle).st_ino
        if number not in self._open:
            self._open[number] = os.dup(handle)
        return number

    def _listed(self, folder: str) -> dict[str, int]:
        found = {}
        for name in os.listdir(folder):
            handle = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_NOFOLLOW)
            found[name] = self._number(handle)
            os.close(handle)
        return found

    def after(self, target: Path, *, lucky: Callable[[], bool] = lambda: False) -> Path:
        """Make `target` as the disk would hold it after a loss of power at this moment.

        `lucky` is asked for each folder whether its names have come to the disk without being synced.
        """
        with self._lock:
            self._write(os.stat(self._top).st_ino, str(self._top), target, lucky)
        return target

    def _write(self, number: int, now: str | None, target: Path, lucky: Callable[[], bool]) -> None:
        target.mkdir()
        names = self._names.get(number, {})
        if now is not None and lucky():
            names = self._listed(now)
        for name, inner in names.items():
            if stat.S_ISDIR(os.fstat(self._open[inner]).st_mode):
                place = f"{now}/{name}" if now is not None and os.path.isdir(f"{now}/{name}") else None
                self._write(inner, place, target / name, lucky)
            else:
                (target / name).write_bytes(self._content.get(inner, b""))


def worlds(disk: Disk, folder: Path) -> Iterator[Path]:
    """Yield the disks that a loss of power at this moment may leave: without luck, with all of it, and with some."""
    dice = random.Random(disk.syncs)
    for lucky in (lambda: False, lambda: True, lambda: dice.random() < 0.5):
        target = disk.after(folder / "world", lucky=lucky)
        yield target
        shutil.rmtree(target)


Watch = Callable[[Callable[[Path], object]], Disk]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Watch the folder `disk`: the check gets its content after each possible loss of power."""
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk", monkeypatch)

    def begin(checked: Callable[[Path], object]) -> Disk:
        disk.look = lambda: [checked(world) for world in worlds(disk, tmp_path)]
        return disk

    yield begin
    disk.close()


def test_an_acknowledged_file_survives_a_power_cut_with_its_folders_and_never_partly(tmp_path, watch) -> None:
    names = [f"disk/runs/a/events/{number}" for number in range(3)]
    acknowledged: list[str] = []

    def checked(world: Path) -> None:
        for name in names:
            place = world / Path(name).relative_to("disk")
            assert place.exists() or name not in acknowledged
            assert not place.exists() or place.read_bytes() == name.encode()

    disk = watch(checked)
    for name in names:
        posix.put_new(str(tmp_path / name), name.encode())
        acknowledged.append(name)
        disk.look()
    assert disk.syncs == 3 + 2 * 3, "each folder that was made, and for each file its bytes and its name"


def test_a_copy_may_be_gone_but_is_whole_and_passing_files_cost_no_sync(tmp_path: Path, watch: Watch) -> None:
    def checked(world: Path) -> None:
        place = world / "runs/a"
        assert not place.exists() or place.read_bytes() == b"copy"

    disk = watch(checked)
    posix.put_copy(str(tmp_path / "disk/runs/a"), b"copy")
    disk.look()
    assert disk.syncs == 1
    posix.put_passing(str(tmp_path / "disk/runs/b"), b"passing")
    assert disk.syncs == 1


def test_every_record_that_was_written_is_there(tmp_path: Path, watch: Watch) -> None:
    kinds: list[str] = []

    def checked(world: Path) -> None:
        found = RootPaths(str(world)).run("a-aaaaaa")
        read = [event.kind for event in read_events(found)] if Path(found.events).exists() else []
        assert read[: len(kinds)] == kinds

    disk = watch(checked)
    recorder = Recorder(RootPaths(str(tmp_path / "disk")).run("a-aaaaaa"), "supervisor", 0, CLOCK)
    for kind in ("started", "collected"):
        recorder.record(kind, supervisor="a:1:1")
        kinds.append(kind)
        disk.look()


def test_a_submitted_run_is_there_with_all_folders_above_it(tmp_path: Path, watch: Watch, write) -> None:
    plan = sdk.plan(write("train.py", "print(1)"), root=str(tmp_path / "disk" / "root"))

    def checked(world: Path) -> None:
        assert Path(RootPaths(str(world / "root")).run(plan.run_id).plan).exists() or not submitted

    submitted = False
    disk = watch(checked)
    # Another submit made it a moment ago, and has not synced it yet.
    (tmp_path / "disk" / "root" / "runs").mkdir(parents=True, exist_ok=True)
    launch.submit(plan, starts=False)
    submitted = True
    disk.look()


def test_a_plan_is_never_there_without_its_code(tmp_path: Path, watch: Watch, write) -> None:
    project = write("train.py", "print(1)").parent
    source = LocatedEntry(project=project, kind="script", target="train.py", function="", file="train.py", roots=("",))
    made = bundle.build(source, never={})
    written = submitted = False

    def checked(world: Path) -> None:
        root = RootPaths(str(world))
        there = Path(root.run("a-aaaaaa").plan).exists()
        assert there or not submitted
        archive = Path(root.bundle(made.digest))
        assert archive.exists() or not (written or there)
        assert not archive.exists() or bundle.sha256(archive) == made.digest

    disk = watch(checked)
    root = RootPaths(str(tmp_path / "disk"))
    bundle.write(made, project, Path(root.bundle(made.digest)))
    written = True
    disk.look()
    posix.put_new(root.run("a-aaaaaa").plan, b"{}")
    submitted = True
    disk.look()


def test_the_outputs_of_a_program_are_there_when_the_record_says_so(tmp_path: Path, watch: Watch) -> None:
    def checked(world: Path) -> None:
        found = RootPaths(str(world)).run("a-aaaaaa")
        if Path(found.events).exists() and read_events(found, ("collected",)):
            assert (Path(found.outputs_model) / "deep" / "weights").read_bytes() == b"1"

    disk = watch(checked)
    paths = RootPaths(str(tmp_path / "disk")).run("a-aaaaaa")
    recorder = Recorder(paths, "supervisor", 1, CLOCK)
    recorder.record("stopping")
    posix.make_folders(paths.model)
    deep = Path(paths.model, "deep")
    deep.mkdir()
    (deep / "weights").write_bytes(b"1")
    outputs.collect(paths, 1, "chief-0", dict, recorder)
    disk.look()
    assert (Path(paths.outputs_model) / "deep" / "weights").exists()


def test_every_acknowledged_object_is_there_and_every_object_is_whole(tmp_path: Path, watch: Watch) -> None:
    acknowledged: dict[str, bytes] = {}

    def checked(world: Path) -> None:
        store = PosixStore(world / "runs" / "store")
        for found in store.list(""):
            store.get(found.key)
        for key, data in acknowledged.items():
            assert bytes(store.get(key)) == data

    disk = watch(checked)
    (tmp_path / "disk" / "runs").mkdir()
    posix.sync_folder(str(tmp_path / "disk"))
    # The folder of the store was made by another task a moment ago, and is not synced yet.
    (tmp_path / "disk" / "runs" / "store").mkdir()
    store = PosixStore(tmp_path / "disk" / "runs" / "store")

    @contextmanager
    def acknowledging(key: str, data: bytes) -> Iterator[None]:
        acknowledged.pop(key, None)
        yield
        acknowledged[key] = data
        disk.look()

    with acknowledging("commits/e1/a", b"1"):
        store.put_new("commits/e1/a", [b"1"])
    # So is a folder in it.
    (tmp_path / "disk" / "runs" / "store" / "data" / "e1").mkdir(parents=True)
    with acknowledging("data/e1/a", b"1"):
        store.put_new("data/e1/a", [b"1"])
    for data in (b"1", b"2"):
        with acknowledging("LEASE", data):
            store.swap("LEASE", [data], expected=store.stat("LEASE").generation if data == b"2" else None)
    for data in (b"1", b"2"):
        with acknowledging("pins/good", data):
            store.swap("pins/good", [data], expected=None)
        del acknowledged["pins/good"]
        store.delete("pins/good")
    # The folder was removed with its last object, and is made again.
    with acknowledging("pins/good", b"3"):
        store.put_new("pins/good", [b"3"])


@pytest.mark.parametrize("tasks", [pytest.param(1, marks=pytest.mark.full), 2])
def test_an_acknowledged_checkpoint_is_restored_whenever_the_power_goes(tmp_path, watch, tasks: int) -> None:
    acknowledged = 0

    def checked(world: Path) -> None:
        store = PosixStore(world / "runs" / "store")
        found = restore.newest(store, quarantine=False)
        if found is None:
            assert not acknowledged
        else:
            assert check(found, tasks) >= acknowledged
        if pinned:
            assert restore.pins(store) == {"good": pinned[0]}

    pinned: list[str] = []
    disk = watch(checked)
    store = PosixStore(tmp_path / "disk" / "runs" / "store")
    for number in (1, 2):
        attempt = Attempt(store, number, tasks=tasks, keep_last=1)
        for step in (2 * number - 1, 2 * number):
            key = attempt.save(step)
            acknowledged = step
            disk.look()
            if not pinned:
                catalog.pin(store, key, "good")
                pinned.append(key)
        attempt.close()
    assert len(catalog.list_checkpoints(store)) == 2, "the pinned one and the last: those between are removed"
