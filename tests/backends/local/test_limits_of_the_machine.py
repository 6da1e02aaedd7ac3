"""A disk that is full, and limits of this user: the run has a verdict, and it names the cause."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import LIMIT_S, FakeClock, full_only

import sdk
from sdk.job.layout import RunPaths
from sdk.process import exit_reasons
from sdk.records.recorder import Recorder, has_ended, read_events
from sdk.storage import reserve
from sdk.storage.file_systems import describe, out_of_space
from sdk.storage.reserve import Reserve

pytestmark = pytest.mark.process

BYTES = """
import contextlib, os, pathlib
with GOES_ON, open(pathlib.Path(os.environ["AIP_MODEL_DIR"], "big"), "wb", buffering=0) as file:
    while file.write(b"x" * 4096):
        pass
"""
INODES = """
import os, pathlib
for number in range(10**6):
    pathlib.Path(os.environ["AIP_MODEL_DIR"], str(number)).touch()
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root on a separate file system, of 4 MB and 300 files."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=300", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    monkeypatch.setenv("PODLIFT_ROOT", str(folder))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [(BYTES, "is full (0 bytes are free)"), full_only(INODES, "has no inodes left")],
    ids=["bytes", "inodes"],
)
def test_a_full_disk_is_named(submit, small: Path, text: str, said: str) -> None:
    run = submit(text.replace("GOES_ON", "contextlib.nullcontext()"))
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason) == (sdk.State.FAILED, sdk.Reason.INFRASTRUCTURE), run.why()
    assert status.failure.task == "chief-0"
    assert "[Errno 28] No space left on device" in status.failure.message and said in status.failure.message
    assert 'File "train.py", line ' in status.failure.traceback
    (listed,) = sdk.runs()
    assert (listed.status.state, listed.status.reason) == (status.state, status.reason)


def test_a_program_that_survives_a_full_disk_succeeds_and_any_other_can_be_resumed(submit, small: Path) -> None:
    run = submit(BYTES.replace("GOES_ON", "contextlib.suppress(OSError)"))
    status = run.wait(LIMIT_S)
    assert status.state is sdk.State.SUCCEEDED, run.why()
    assert {event.kind for event in read_events(run.plan.paths)} >= {"done", "exited", "collected", "final"}


@pytest.mark.full
def test_cpu_time_that_is_used_up_is_named(submit) -> None:
    status = submit("import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass").wait(LIMIT_S)
    assert "it used up its CPU time limit: 1 s (ulimit -t)" in status.failure.message


def test_a_limit_of_processes_is_named(write, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another user than root has limits; this one may read and write what root may.
    may = "+dac_override,+dac_read_search"
    stranger = ["setpriv", "--reuid=23003", "--regid=23000", "--clear-groups", f"--inh-caps={may}"]
    stranger += [f"--ambient-caps={may}", "prlimit", "--nproc=4"]
    if os.getuid() != 0 or shutil.which("setpriv") is None or shutil.which("prlimit") is None:
        pytest.skip("another user cannot be had here")
    write("train.py", "import subprocess; subprocess.run(['true']); print('hello')")
    program = "import sdk; run = sdk.submit('train.py'); run.wait(60); print(run.url)"
    # For every user: access() does not ask for capabilities, and pytest's folders are closed.
    with tempfile.TemporaryDirectory(prefix="podlift-") as folder:
        Path(folder).chmod(0o777)
        monkeypatch.setenv("PODLIFT_ROOT", folder)
        done = subprocess.run([*stranger, sys.executable, "-c", program], capture_output=True, text=True, check=False)
        if done.returncode:
            assert "ulimit -u" in done.stderr or "Resource temporarily unavailable" in done.stderr
            return
        status = sdk.attach(done.stdout.strip()).status()
    assert status.state is not sdk.State.LOST
    assert status.state is sdk.State.SUCCEEDED or "ulimit -u" in (status.failure.message if status.failure else "")


@pytest.mark.parametrize(
    ("kind", "message", "said"),
    [
        ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", "ulimit -u"),
        ("RuntimeError", "can't start new thread", "ulimit -u"),
        ("OSError", "[Errno 24] Too many open files: 'x'", "ulimit -n"),
        ("ValueError", "x", ""),
    ],
)
def test_a_limit_that_a_program_meets_is_named(kind: str, message: str, said: str) -> None:
    hint = exit_reasons.hint(kind, message)
    assert (said in hint, bool(hint)) == (True, bool(said))


def test_a_disk_with_room_is_not_called_full(tmp_path: Path) -> None:
    assert out_of_space(str(tmp_path)) == ""
    assert "ulimit -u" in describe(BlockingIOError(11, "Resource temporarily unavailable"), str(tmp_path))
    assert describe(OSError(123, "odd"), str(tmp_path)) == "OSError: [Errno 123] odd"


def test_records_for_a_full_disk_lie_in_the_reserve_and_are_read_with_the_rest(tmp_path: Path, monkeypatch) -> None:
    paths = RunPaths(str(tmp_path))
    Path(paths.events).mkdir()
    room = Reserve(paths.reserve(0, "supervisor"))
    recorder = Recorder(paths, "supervisor", 0, FakeClock(), room)
    recorder.record("started", supervisor="a:1:2")

    def no_room(path: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("sdk.storage.posix.put_new", no_room)
        recorder.record("placed", temporary="/tmp/x")
        with pytest.raises(OSError, match="No space"):
            recorder.record("odd", text="x" * reserve.BYTES)
        assert not has_ended(paths)
        recorder.record("final", state="FAILED", reason="infrastructure", failure={"traceback": "x" * reserve.BYTES})
    assert has_ended(paths)
    assert [event.kind for event in read_events(paths)] == ["started", "placed", "final"]
    (final,) = read_events(paths, ("final",))
    assert len(final.data["failure"]["traceback"]) < reserve.BYTES
    room.close()
    assert Path(paths.reserve(0, "supervisor")).exists()


@pytest.mark.parametrize("promised", [True, False])
def test_an_unneeded_reserve_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promised: bool) -> None:
    if not promised:  # as on macOS
        monkeypatch.delattr(os, "posix_fallocate")
    paths = RunPaths(str(tmp_path))
    Reserve(paths.reserve(0, "supervisor")).close()
    assert not Path(paths.reserves).exists()
    left = Reserve(paths.reserve(1, "chief-0"))  # its process is killed
    assert Path(paths.reserve(1, "chief-0")).stat().st_size == reserve.BYTES
    reserve.sweep(paths.reserves, frozenset({"chief-0"}), 1)
    assert not Path(paths.reserves).exists()
    left.close()


LINES = b"".join(json.dumps({"name": f"{n}.json", "record": {"n": n, "text": "é"}}).encode() + b"\n" for n in range(3))


@given(st.integers(0, len(LINES)))
def test_a_reserve_that_was_cut_off_while_it_was_written_is_read_as_far_as_it_goes(cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "0000.supervisor").write_bytes(LINES[:cut] + bytes(reserve.BYTES - cut))
        found = [name for name, _ in reserve.read(folder)]
    assert found == [f"{n}.json" for n in range(LINES[:cut].count(b"\n"))]
