"""What is collected in this process, from folders and records that no task of a run has written."""

from __future__ import annotations

from pathlib import Path

from sdk.clock import SystemClock
from sdk.job.layout import RunPaths
from sdk.records import outputs
from sdk.records.recorder import Recorder


def test_the_copy_of_a_task_that_never_reached_the_program_is_no_output(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path / "runs" / "digits-aaaaaa"))
    chief, worker, supervisor = (
        Recorder(paths, name, 1, SystemClock()) for name in ("chief-0", "worker-0", "supervisor")
    )
    work = Path(paths.work(1, "chief-0"))
    work.mkdir(parents=True)
    (work / "helper.py").write_text("")
    # Its copy may be incomplete. That another task was faster says nothing about it.
    chief.record("failed")
    worker.record("entry")
    outputs.collect(paths, 1, "chief-0", dict, supervisor)
    assert not Path(paths.outputs).exists()
    chief.record("entry")
    outputs.collect(paths, 1, "chief-0", dict, supervisor)
    assert [each.name for each in Path(paths.outputs_work).iterdir()] == ["helper.py"]
