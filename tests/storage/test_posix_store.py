"""The store on a disk: the contract of all stores, and what only a disk can do to it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from store_contract import StoreContract
from support import race

from sdk.errors import ConflictError, CorruptObjectError, MissingError, StoreError
from sdk.storage import locking, posix
from sdk.storage.checksums import crc32c
from sdk.storage.posix_store import PosixStore
from sdk.storage.raw_memory import addressed
from sdk.storage.registry import open_store
from sdk.storage.store import DAMAGED, Store


class TestPosixStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return PosixStore(tmp_path / "store")


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path / "store")


def program(text: str, *words: object, **options: object) -> subprocess.Popen[str]:
    head = f"import sys\nsys.path[:] = {sys.path!r}\nfrom sdk.storage.posix_store import PosixStore\nfrom sdk.errors import *\n"
    command = [sys.executable, "-c", head + textwrap.dedent(text), *map(str, words)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload]


def test_a_path_or_file_url_is_a_store_that_writes_nothing_before_its_first_object(tmp_path: Path) -> None:
    for url in (str(tmp_path / "x"), f"file://{tmp_path}/x"):
        found = open_store(url)
        assert (found.url, list(found.list(""))) == (str(tmp_path / "x"), [])
    assert not (tmp_path / "x").exists()


def test_a_person_can_read_an_object_with_cat(store: PosixStore) -> None:
    stat = store.put_new("x.json", [b'{"a": 1}'])
    lines = Path(store.url, "x.json").read_text().splitlines()
    assert lines[0] == '{"a": 1}'
    assert lines[1].split()[0] == stat.generation
    assert lines[1].endswith(" podlift")


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        pytest.param(lambda data: b"", True, id="empty"),
        pytest.param(lambda data: data[:-1], True, id="without its end"),
        pytest.param(lambda data: data[1:], True, id="without its start"),
        pytest.param(lambda data: b"X" + data[1:], False, id="with another byte"),
        pytest.param(lambda data: b"{}" * 50, True, id="somebody else's"),
    ],
)
def test_a_damaged_object_is_listed_and_refused(store: PosixStore, spoil: object, seen: bool) -> None:
    store.put_new("x", [b"0123456789"])
    path = Path(store.url, "x")
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(CorruptObjectError, match="damaged"):
        store.get("x")
    (listed,) = store.list("")
    assert (listed.key, listed.generation == DAMAGED) == ("x", seen)


def test_a_damaged_object_can_be_replaced_by_whoever_says_that_it_is(store: PosixStore) -> None:
    stat = store.put_new("x", [b"0123456789"])
    Path(store.url, "x").write_bytes(b"other")
    assert store.stat("x").generation == DAMAGED
    with pytest.raises(ConflictError):
        store.swap("x", [b"new"], expected=stat.generation)
    store.swap("x", [b"new"], expected=DAMAGED)
    assert bytes(store.get("x")) == b"new"


def test_a_pipe_or_a_folder_in_the_place_of_an_object_is_not_waited_for(store: PosixStore) -> None:
    store.put_new("a", [b""])
    os.mkfifo(Path(store.url, "pipe"))
    Path(store.url, "folder").mkdir()
    with pytest.raises(CorruptObjectError, match="not a regular file"):
        store.get("pipe")
    assert {stat.key: stat.generation for stat in store.list("p")} == {"pipe": DAMAGED}
    with pytest.raises(MissingError):
        store.get("folder/x")


@pytest.mark.process
def test_of_24_processes_one_creates_an_object_and_one_swaps_it(store: PosixStore) -> None:
    first = store.swap("lease", [b"first"], expected=None)
    raced = race(store.url, 24, first.generation)
    for key, place in (("commits/x", 1), ("lease", 2)):
        assert [str(each[0]) for each in raced if each[place]] == [bytes(store.get(key)).decode()]
    assert sorted(epoch for *_, epoch in raced) == list(range(1, 25))


@pytest.mark.process
def test_a_killed_holder_leaves_no_lock(store: PosixStore) -> None:
    store.put_new("x", [b""])
    holder = program(
        """
        from sdk.storage import locking
        with locking.folder_lock(sys.argv[1]):
            print("held", flush=True)
            sys.stdin.read()
        """,
        store.url,
        stdin=subprocess.PIPE,
    )
    assert holder.stdout.readline() == "held\n"
    handle = os.open(f"{store.url}/.lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)
    holder.kill()
    holder.communicate()
    store.swap("y", [b"1"], expected=None)
    assert bytes(store.get("y")) == b"1"


def test_a_lock_that_is_held_for_ever_is_an_error_that_says_how_to_find_the_holder(store, monkeypatch) -> None:
    store.put_new("x", [b""])
    monkeypatch.setattr(locking, "_WAIT_S", 0.02)
    with locking.folder_lock(store.url), pytest.raises(StoreError, match="fuser"):
        store.swap("x", [b""], expected=None)


@pytest.mark.process
def test_the_next_writer_removes_a_killed_writers_part_and_not_a_living_writers(store) -> None:
    text = """
        import os, signal
        from programs.store_faults import kill_at
        PosixStore(sys.argv[1], at=kill_at("synced")).put_new("x", [b"half"])
    """
    killed = program(text, store.url)
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    parts = Path(store.url, ".parts")
    assert len(list(parts.iterdir())) == 1
    living = locking.TemporaryFiles(store.url)
    living._swept = True
    mine = living.new()
    PosixStore(store.url).put_new("x", [b"whole"])
    assert [str(path) for path in parts.iterdir()] == [mine.path]
    mine.drop()
    assert bytes(store.get("x")) == b"whole"
    assert list(parts.iterdir()) == []


def test_a_temporary_file_swept_away_before_its_lock_is_made_again(store, monkeypatch) -> None:
    locked, swept = locking._locked, []

    def late(handle: int) -> bool:
        if not swept:
            swept.append(os.readlink(f"/proc/self/fd/{handle}"))
            os.unlink(swept[0])
        return locked(handle)

    parts = locking.TemporaryFiles(store.url)
    parts._swept = True
    monkeypatch.setattr(locking, "_locked", late)
    part = parts.new()
    assert part.path != swept[0]
    assert Path(part.path).exists()
    part.drop()


@pytest.mark.parametrize(
    ("call", "number", "said"),
    [
        ("link", errno.EPERM, r"its file system \(\w+ at /.*\) has no hard links"),
        ("link", errno.EOPNOTSUPP, r"its file system \(\w+ at /.*\) has no hard links"),
        ("write", errno.ENOSPC, "disk is full"),
        ("fsync", errno.EIO, "the device failed to read or write"),
    ],
)
def test_a_refusal_of_the_system_is_reported_and_leaves_nothing(store, monkeypatch, call, number, said) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StoreError, match=said):
            store.put_new("x", large(_SIZES[-1]))
    assert list(store.list("")) == []
    assert list(Path(store.url).glob(".parts/*")) == []


@pytest.mark.process
def test_a_file_that_may_grow_no_further_is_an_error_and_leaves_nothing(store: PosixStore) -> None:
    store.put_new("old", [b"old"])
    text = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            PosixStore(sys.argv[1]).put_new("new", [bytes(2 << 20)])
        except StoreError as error:
            print(error)
    """
    out, err = program(text, store.url).communicate(timeout=60)
    assert "may write (ulimit -f)" in out, err
    assert [stat.key for stat in store.list("")] == ["old"]
    assert list(Path(store.url, ".parts").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_cannot_be_written_is_said_to_be_and_can_still_be_read(store: PosixStore) -> None:
    store.put_new("x", [b"1"])
    Path(store.url).chmod(0o500)
    Path(store.url, ".parts").chmod(0o500)
    try:
        with pytest.raises(StoreError, match="permission denied"):
            store.put_new("y", [b""])
        assert bytes(store.get("x")) == b"1"
    finally:
        Path(store.url).chmod(0o700)
        Path(store.url, ".parts").chmod(0o700)


def test_a_file_where_a_folder_should_be_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = PosixStore(tmp_path / "file" / "store")
    with pytest.raises(StoreError, match="a part of the path is a file"):
        store.put_new("x", [b""])


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_empty(store, monkeypatch) -> None:
    store.put_new("commits/x", [b""])

    def scandir(path: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(StoreError, match="Cannot list"):
        list(store.list("commits/"))


def test_a_large_object_is_written_from_where_it_lies(store: PosixStore) -> None:
    import tracemalloc

    data = memoryview(bytearray(64 << 20))
    into = memoryview(bytearray(64 << 20))
    tracemalloc.start()
    try:
        store.put_new("x", [data[:1000], data[1000:]])
        store.get("x", into=into)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_folder_that_another_process_removed_before_the_link_is_made_again(store, monkeypatch) -> None:
    link, removed = os.link, []

    def remove_first(source: str, target: str) -> None:
        if not removed:
            removed.append(os.path.dirname(target))
            os.rmdir(removed[0])
        link(source, target)

    monkeypatch.setattr(os, "link", remove_first)
    store.put_new("folder/x", [b"data"])
    assert bytes(store.get("folder/x")) == b"data" and len(removed) == 1


def test_an_object_deleted_at_once_with_its_folder_by_another_task_was_still_written(store, tmp_path) -> None:
    def delete(moment: str) -> None:
        if moment == "linked":
            store.delete("data/skipped/x")

    written = PosixStore(tmp_path / "store", at=delete).put_new("data/skipped/x", [b"data"])
    assert written.size == 4 and list(store.list("")) == []
    assert not Path(store.url, "data").exists()


def test_bytes_that_the_kernel_does_not_take_at_once_are_written_too(store, monkeypatch) -> None:
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda handle, views: writev(handle, [views[0][:3]]))
    store.put_new("x", [b"0123456789", b"", b"abcdefgh"])
    monkeypatch.undo()
    assert bytes(store.get("x")) == b"0123456789abcdefgh"


def test_a_folder_that_cannot_be_synced_is_an_error(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_new("x", [b"1"])
    fsync = os.fsync

    def fail_on_folders(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fail_on_folders)
    with pytest.raises(StoreError, match="the device failed to read or write"):
        store.put_new("y", [b"2"])


def test_a_record_never_replaces_another_one(tmp_path: Path) -> None:
    posix.put_new(str(tmp_path / "record.json"), b"first")
    with pytest.raises(FileExistsError):
        posix.put_new(str(tmp_path / "record.json"), b"second")
    assert (tmp_path / "record.json").read_bytes() == b"first"
    assert posix.list_names(str(tmp_path)) == ["record.json"]


# --- Large objects, which are written past the page cache

_SIZES = [(4 << 20) - 1, 4 << 20, (9 << 20) + 4097]


def large(size: int) -> list[memoryview]:
    """Return this many bytes, in buffers that are not aligned to a page."""
    data = memoryview(random.Random(size).randbytes(size + 3))[3:]
    return [data[:5], data[5 : 3 << 20], data[3 << 20 :]]


@pytest.mark.parametrize("size", _SIZES)
def test_a_large_object_equals_its_source_and_stays_out_of_the_page_cache(store: PosixStore, size: int) -> None:
    data = large(size)
    stat = store.put_new("x", data)
    cached = cached_pages(Path(store.url, "x"))
    assert stat.crc32c == store.put_new("y", data, crc=stat.crc32c).crc32c == crc32c([b"".join(data)])
    assert (stat.size, bytes(store.get("x"))) == (size, b"".join(data))
    if size >= 8 << 20 and direct_works(Path(store.url)):
        assert cached < size // 4096 // 2


class Unwilling:
    """A file system that does not write past the page cache, or not everything."""

    def __init__(self, how: str) -> None:
        self.how, self.refused = how, 0
        self._write, self._fcntl = os.write, fcntl.fcntl

    def fcntl(self, handle: int, command: int, value: int = 0) -> object:
        if self.how == "no flag" and command == fcntl.F_SETFL and value & os.O_DIRECT:
            self.refused += 1
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return self._fcntl(handle, command, value)

    def write(self, handle: int, data: memoryview) -> int:
        if self.how == "short writes" and len(data) > 8192:
            self.refused += 1
            return self._write(handle, data[:8192])
        if self._fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT and (self.how == "no writes" or len(data) % 512):
            self.refused += 1
            raise OSError(errno.EINVAL, "not aligned")
        if self.how == "a write within a page" and not self.refused:
            self.refused = 1
            self._fcntl(handle, fcntl.F_SETFL, self._fcntl(handle, fcntl.F_GETFL) & ~os.O_DIRECT)
            written = self._write(handle, data[:1000])
            self._fcntl(handle, fcntl.F_SETFL, self._fcntl(handle, fcntl.F_GETFL) | os.O_DIRECT)
            return written
        return self._write(handle, data)


@pytest.mark.parametrize("how", ["no flag", "no writes", "short writes", "a write within a page"])
def test_a_file_system_without_direct_writes_gets_the_same_bytes(store, monkeypatch, how: str) -> None:
    unwilling = Unwilling(how)
    monkeypatch.setattr(fcntl, "fcntl", unwilling.fcntl)
    monkeypatch.setattr(os, "write", unwilling.write)
    data = large(_SIZES[-1])
    store.put_new("x", data)
    assert bytes(store.get("x")) == b"".join(data)
    assert unwilling.refused


_FORKED = """
    import os, sys
    sys.path[:] = {path!r}
    from sdk.storage.posix_store import PosixStore
    store, write, at = PosixStore(sys.argv[1]), os.write, os.pipe()
    store.put_new("first", [bytes(8 << 20)])
    child = os.fork()
    if not child:
        os.read(at[0], 1)
        store.put_new("child", [b"c" * (8 << 20)])
        os._exit(0)
    def late(handle, data):
        # The child writes a whole object between the moment at which the parent has the bytes and its write.
        os.write = write
        os.write(at[1], b"x")
        os.waitpid(child, 0)
        return write(handle, data)
    os.write = late
    store.put_new("parent", [b"p" * (8 << 20)])
    assert os.write is write, "nothing was written past the page cache"
"""


@pytest.mark.process
def test_a_forked_process_does_not_write_into_the_objects_of_its_parent(store: PosixStore, tmp_path: Path) -> None:
    code = textwrap.dedent(_FORKED).format(path=sys.path)
    done = subprocess.run([sys.executable, "-c", code, store.url], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 or not direct_works(tmp_path), done.stderr
    assert {bytes(store.get(name))[:1] for name in ("parent", "child")} == {b"p", b"c"}


def direct_works(folder: Path) -> bool:
    try:
        os.close(os.open(folder / ".direct", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    # In memory there is nothing but the page cache.
    return os.stat(folder).st_dev != os.stat("/dev/shm").st_dev


def cached_pages(path: Path) -> int:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as pages:
        found = (ctypes.c_ubyte * (len(pages) // mmap.PAGESIZE + 1))()
        with addressed(pages) as address:
            ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(pages)), found)
        return sum(each & 1 for each in found)


def test_a_store_may_lie_in_a_folder_that_its_user_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    sync, closed = posix.sync_folder, {str(tmp_path)}

    def refused(folder: str) -> None:
        if folder in closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        sync(folder)

    monkeypatch.setattr(posix, "sync_folder", refused)
    PosixStore(tmp_path / "store").put_new("a/b", [b"1"])
    closed.add(str(tmp_path / "store"))
    with pytest.raises(StoreError, match="permission denied"):
        PosixStore(tmp_path / "store").put_new("a/c", [b"1"])


def test_names_are_synced_up_to_the_root_and_from_the_top_folder_without_end(monkeypatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(posix, "sync_folder", synced.append)
    posix.sync_names("/a/b/c", "/a", {"/a/b"})
    posix.sync_names("//", "/", set())
    assert synced == ["/a/b", "/", "/"]
