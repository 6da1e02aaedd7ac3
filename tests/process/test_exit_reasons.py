"""The message about a process that ended without a traceback."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

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
    for name, text in texts.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)


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
