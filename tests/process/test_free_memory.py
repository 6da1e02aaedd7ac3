"""Memory that is free: for a second copy of the state (fault 42), and for a process that waits for the next attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

import sdk
from sdk.process import free_memory

pytestmark = pytest.mark.process

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
        (
            {**FIRST, **group("memory/job", limit=300, used=299, inactive_file=7, total_inactive_file=199)},
            200_000_000,
        ),
        # A group that contains this one has less left.
        (
            {**MEMINFO, **SECOND, **UNLIMITED, **group("user", limit=300, used=299, inactive_file=99)},
            100_000_000,
        ),
        ({**FIRST, **group("memory/job", limit=300, used=400)}, 0),
        ({**FIRST, **group("memory", limit=9223372036854, used=400)}, None),
    ],
)
def test_42_free_memory_is_the_least_of_the_kernels_and_the_control_groups(tmp_path, files, free) -> None:
    written(tmp_path, files)
    assert free_memory.available(str(tmp_path)) == free


@pytest.mark.parametrize(
    ("size", "free", "short"), [(5, None, False), (5, 6, False), (5, 5, False), (6, 5, True), (0, 0, False)]
)
def test_42_a_state_that_does_not_fit_twice_is_told(size: int, free: int | None, short: bool) -> None:
    assert free_memory.is_short(size, free) is short


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
    program = (
        "import sdk; run = sdk.submit(sdk.Job('train.py', checkpoints=sdk.Checkpoints(every_steps=2))); "
        "print(run.url, run.wait(120).state)"
    )
    url, state = with_memory("1400M", program).split()
    assert state == "State.SUCCEEDED", sdk.attach(url).why()
    said = [line.text for line in sdk.attach(url).logs()]
    assert "done 6.0" in said
    assert any("training waits for its save" in line for line in said), said
