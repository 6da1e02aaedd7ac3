"""When there is room for a process that has imported TensorFlow and waits for the next attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdk.process import free_memory

GB = 1_000_000_000
MEMORY = "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\nHugePages_Total:       0\n"


@pytest.fixture
def machine(tmp_path: Path):
    """Return the free memory of a container with these limits."""
    (tmp_path / "meminfo").write_text(MEMORY)

    def free(**files: object) -> int | None:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("DOT", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{text}\n")
        return free_memory.free_bytes(tmp_path, tmp_path / "meminfo")

    return free


def test_without_a_limit_the_memory_of_the_machine_counts(machine) -> None:
    assert machine() == 8_192_000_000
    assert machine(memoryDOTmax="max", memoryDOTcurrent=7 * GB) == 8_192_000_000


def test_the_limit_of_the_container_counts_if_it_is_lower(machine) -> None:
    assert machine(memoryDOTmax=2 * GB, memoryDOTcurrent=1 * GB) == 1 * GB
    assert machine(memoryDOTmax=20 * GB, memoryDOTcurrent=1 * GB) == 8_192_000_000


def test_an_older_kernel_has_other_files(machine) -> None:
    limits = {"memory__memoryDOTlimit_in_bytes": 3 * GB, "memory__memoryDOTusage_in_bytes": 2 * GB}
    assert machine(**limits) == 1 * GB


def test_where_memory_is_short_or_unknown_there_is_no_spare_process(tmp_path: Path) -> None:
    assert free_memory.free_bytes(tmp_path, tmp_path / "nothing") is None
    assert not free_memory.fits(None)
    assert not free_memory.fits(1 * GB)
    assert free_memory.fits(2 * GB)
