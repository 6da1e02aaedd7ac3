"""Records on a disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sdk.clock import SystemClock
from sdk.job.layout import RunPaths
from sdk.records.recorder import Recorder, read_events, sweep


def test_half_a_record_of_a_dead_task_is_removed_and_nothing_else(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path / "runs" / "digits-aaaaaa"))
    sweep(paths, ["chief-0"])
    Recorder(paths, "chief-0", 1, SystemClock()).record("entry")
    events = Path(paths.events)
    halves = [
        f".{source}.000002.failed.json.0123.part" for source in ("0001.chief-0", "0000.launcher", "0001.worker-0")
    ]
    for name in halves:
        (events / name).write_text("{")
    before = read_events(paths)
    sweep(paths, ["chief-0", "worker-1"])
    assert sorted(path.name for path in events.glob(".*")) == sorted(halves[1:])
    assert read_events(paths) == before


def test_records_of_several_threads_have_different_numbers(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path / "runs" / "digits-aaaaaa"))
    recorder = Recorder(paths, "chief-0", 1, SystemClock())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: recorder.record("saved", step=number), range(12)))
    assert [event.sequence for event in read_events(paths)] == list(range(1, 13))
