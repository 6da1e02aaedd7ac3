"""The message about a process that ended without a traceback; memory for a second copy of the state and for a standby."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import sdk
from sdk.process import free_memory
from sdk.process.exit_reasons import MemoryWatch
from sdk.records.exits import OutOfMemory, describe
from sdk.status import Reason

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("code", "memory", "reason", "said"),
    [
        (7, OutOfMemory.UNKNOWN, Reason.USER_ERROR, "exit code 7 and no traceback."),
        (137, OutOfMemory.UNKNOWN, Reason.USER_ERROR, "killed by SIGKILL"),
        (-9, OutOfMemory.YES, Reason.OUT_OF_MEMORY, "SIGKILL: the machine or its control group was out of memory"),
        (-9, OutOfMemory.PERHAPS, Reason.KILLED, "at that time"),
        (-9, OutOfMemory.NO, Reason.KILLED, "another process did"),
        (-9, OutOfMemory.UNKNOWN, Reason.KILLED, "this system does not report"),
        (-11, OutOfMemory.YES, Reason.KILLED, "SIGSEGV: native code accessed"),
        (-1, OutOfMemory.NO, Reason.KILLED, "SIGHUP: podlift did not send it."),
        (-15, OutOfMemory.NO, Reason.PREEMPTED, "SIGTERM: podlift did not send it."),
        (-63, OutOfMemory.NO, Reason.KILLED, "killed by signal 63"),
    ],
)
def test_every_death_has_its_reason_and_its_sentence(code: int, memory: OutOfMemory, reason: Reason, said: str) -> None:
    received, sentence = describe(code, memory)
    assert received is reason
    assert said in sentence


@pytest.mark.parametrize("number", signal.Signals)
def test_every_signal_has_a_sentence(number: signal.Signals) -> None:
    assert f"was killed by {number.name}: " in describe(-number, OutOfMemory.UNKNOWN)[1]


GROUPS = {
    "v2": ("0::/user/shell", "user/shell/memory.events"),
    # A container's own group is mounted at the top.
    "v1": ("9:cpu,cpuacct:/a\n4:memory:/docker/abc/job\n0::/", "memory/memory.oom_control"),
    # A shell's own group has no controller of memory; the groups around it count the losses of others.
    "above": ("0::/user/shell", "user/memory.events"),
    "none": ("", ""),
    "damaged": ("5", ""),
}


def kernel(top: Path, version: str, group: int | None, machine: int | None) -> None:
    """Write the line of a kernel."""
    groups, counter = GROUPS[version]
    texts = {"proc/self/cgroup": groups}
    if machine is not None:
        texts["proc/vmstat"] = f"nr_free_pages 1\noom_kill {machine}\nother 3\n"
    if counter and group is not None:
        texts[f"sys/fs/cgroup/{counter}"] = f"oom 9\noom_kill {group}\n"
        own = "user/shell" if version == "above" else str(Path(counter).parent)
        texts |= {f"sys/fs/cgroup/{folder}/cgroup.procs": "" for folder in (own, Path(counter).parent)}
    written(top, texts)


@pytest.mark.parametrize(
    ("version", "group", "machine", "expected"),
    [
        ("v2", (1, 2), (1, 2), OutOfMemory.YES),
        ("v2", (1, 1), (1, 2), OutOfMemory.NO),
        ("v1", (0, 1), (None, None), OutOfMemory.YES),
        ("v2", (None, None), (3, 4), OutOfMemory.PERHAPS),
        ("above", (1, 2), (3, 4), OutOfMemory.PERHAPS),
        ("none", (None, None), (3, 4), OutOfMemory.PERHAPS),
        ("v1", (0, 0), (None, None), OutOfMemory.NO),
        ("none", (None, None), (3, 3), OutOfMemory.NO),
        ("none", (None, None), (None, None), OutOfMemory.UNKNOWN),
        ("damaged", (None, None), (None, None), OutOfMemory.UNKNOWN),
    ],
)
def test_the_counters_of_the_kernel_decide_whether_memory_ran_out(tmp_path, version, group, machine, expected) -> None:
    kernel(tmp_path, version, group[0], machine[0])
    watch = MemoryWatch(tmp_path)
    kernel(tmp_path, version, group[1], machine[1])
    assert watch.ended() is expected


def test_a_kill_by_another_process_is_not_called_a_lack_of_memory_here() -> None:
    watch = MemoryWatch()
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert describe(code, watch.ended())[0] is Reason.KILLED


@pytest.mark.full
@pytest.mark.fidelity("memory", "local")
def test_a_task_that_the_kernel_kills_for_memory_is_told_from_others(write, with_memory) -> None:
    write("train.py", "import os\nkept = [bytearray(os.urandom(1 << 20)) for _ in range(2000)]")
    program = "import sdk; run = sdk.submit('train.py'); print(run.wait(60).reason.value)"
    assert with_memory("300M", program).strip() == "out_of_memory"


MB = 1_000_000
MEMINFO = {"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable:    8000000 kB\n"}
SECOND = {"proc/self/cgroup": "0::/user/job\n"}
UNLIMITED = {"sys/fs/cgroup/user/job/memory.max": "max\n"}
FIRST = {"proc/self/cgroup": "7:pids:/\n4:memory:/job\n"}


def group(name: str, *, limit: int, used: int, **stat: int) -> dict[str, str]:
    """The files of a control group, in MB; `stat` has its statistics of memory."""
    limit_name, used_name = ("limit_in_bytes", "usage_in_bytes") if name.startswith("memory") else ("max", "current")
    texts = {limit_name: f"{limit * MB}\n", used_name: f"{used * MB}\n"}
    if stat:
        texts["stat"] = "".join(f"{field} {size * MB}\n" for field, size in stat.items())
    return {f"sys/fs/cgroup/{name}/memory.{file}": text for file, text in texts.items()}


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        (MEMINFO, 8_192_000_000),
        ({"proc/meminfo": "MemAvailable: lots\n"}, None),
        ({**MEMINFO, **SECOND, **UNLIMITED}, 8_192_000_000),
        ({**MEMINFO, **SECOND, **group("user/job", limit=300, used=100)}, 200_000_000),
        # Files that were read fill a group up to its limit, and are given up for memory.
        ({**SECOND, **group("user/job", limit=300, used=299, file=250, inactive_file=199)}, 200_000_000),
        ({**FIRST, **group("memory/job", limit=300, used=299, inactive_file=7, total_inactive_file=199)}, 2e8),
        # A group that contains this one has less left.
        ({**MEMINFO, **SECOND, **UNLIMITED, **group("user", limit=300, used=299, inactive_file=99)}, 1e8),
        ({**FIRST, **group("memory/job", limit=300, used=400)}, 0),
        ({**FIRST, **group("memory", limit=9223372036854, used=400)}, None),
    ],
)
def test_42_free_memory_is_the_least_of_the_kernels_and_the_control_groups(tmp_path, files, free) -> None:
    written(tmp_path, files)
    assert free_memory.available(str(tmp_path)) == free


def test_42_a_state_that_does_not_fit_twice_is_told() -> None:
    cases = [(5, None), (5, 6), (5, 5), (6, 5), (0, 0)]
    assert [case for case in cases if free_memory.is_short(*case)] == [(6, 5)]


def test_cached_files_leave_room_for_a_standby_and_unknown_memory_leaves_none(tmp_path: Path) -> None:
    assert not free_memory.allows_standby(str(tmp_path))
    written(tmp_path, {**MEMINFO, **SECOND, **group("user/job", limit=4000, used=3900, inactive_file=2000)})
    assert free_memory.allows_standby(str(tmp_path))
    written(tmp_path, group("user/job", limit=4000, used=3900, inactive_file=1000))
    assert not free_memory.allows_standby(str(tmp_path))


@pytest.mark.full
def test_42_training_with_little_memory_waits_for_its_checkpoints(tmp_path: Path, monkeypatch, with_memory) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import tensorflow as tf, sdk\n"
        "state = tf.Variable(tf.zeros((100, 1_000_000)))\n"
        "ckpt = sdk.context().checkpoint(state=state, data=tf.data.Dataset.range(6))\n"
        "for number in ckpt.data:\n"
        "    state[0, :].assign(state[0, :] + 1)\n"
        "    ckpt.step()\n"
        "print('done', float(state[0, 0]), flush=True)\n"
    )
    program = "import sdk; run = sdk.submit('train.py', checkpoint_every='2steps'); print(run.url, run.wait(120).state)"
    url, state = with_memory("1400M", program).split()
    assert state == "State.SUCCEEDED", sdk.attach(url).why()
    said = [line.text for line in sdk.attach(url).logs()]
    assert "done 6.0" in said
    assert any("training waits for its save" in line for line in said), said
