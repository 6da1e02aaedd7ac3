"""The collected files of a program, without a program."""

from __future__ import annotations

import os
from pathlib import Path

from sdk.clock import SystemClock
from sdk.job.layout import RunPaths
from sdk.records.outputs import collect
from sdk.records.recorder import Recorder, read_events


def test_links_lead_to_the_same_files_and_broken_links_are_named(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path / "run"))
    model, outputs = Path(paths.model), Path(paths.outputs_model)
    (model / "steps/2").mkdir(parents=True)
    (model / "steps/2/weights").write_text("w")
    for name, target in (("steps/latest", "2"), ("best", model / "steps/2/weights"), ("steps/none", "nowhere")):
        (model / name).symlink_to(target)
    collect(paths, 1, "chief-0", dict, Recorder(paths, "supervisor", 1, SystemClock()))
    assert (outputs / "steps/2/weights").read_text() == "w"
    assert [os.readlink(outputs / name) for name in ("best", "steps/latest")] == ["steps/2/weights", "2"]
    [record] = read_events(paths)
    skipped = [["model/steps/none", "a link to nothing"]]
    assert record.data == {"files": 3, "bytes": 1, "skipped_count": 1, "skipped": skipped}
