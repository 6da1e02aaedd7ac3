"""Programs of our own with the tutorials' techniques. They never import `sdk`, and they run unmodified."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sdk

from . import report, running
from .equivalents import EQUIVALENTS, Equivalent

pytestmark = [pytest.mark.tensorflow, pytest.mark.full, pytest.mark.xdist_group("tutorials")]

_CASES = [
    pytest.param(own, mode, id=f"{own.name}-{mode}".replace(" ", "-")) for own in EQUIVALENTS for mode in report.MODES
]


@pytest.mark.parametrize(("own", "mode"), _CASES)
def test_a_program_has_the_documented_outcome(
    own: Equivalent, mode: str, tmp_path: Path, measurements: report.Measurements
) -> None:
    expected = getattr(own, mode)
    measured = running.run(_job(own.file, own, mode), tmp_path, [], sdk.Local(cluster=own.cluster))
    assert measured.as_expected(expected), f"expected {expected}, got {measured}"
    silent = [task for task, log in measured.logs.items() if own.says not in log]
    assert expected or not silent, f"{own.says!r} is not in the log of {silent}"
    measurements.add(own.name, mode)


def test_a_training_reports_its_epochs_and_a_later_one_goes_on_from_its_newest_model(tmp_path: Path) -> None:
    own = next(own for own in EQUIVALENTS if own.file == "report_and_keep")
    first = sdk.submit(_job(own.file, own, "keras3"), root=tmp_path)
    kept = Path(first.result(running.TIMEOUT_S).checkpoint_dir) / "newest.keras"
    epochs = [record["metrics"]["loss"] for record in first.metrics()]
    assert len(epochs) == 2
    assert kept.is_file()
    again = sdk.submit(_job(own.file, own, "keras3", ["--resume-from", str(kept)]), root=tmp_path)
    again.result(running.TIMEOUT_S)
    assert again.metrics()[0]["metrics"]["loss"] < epochs[-1]


def test_no_program_knows_about_podlift() -> None:
    for path in running.OWN.glob("*.py"):
        assert not re.search(r"^\s*(import|from) sdk\b", path.read_text(), re.M), path.name


def test_every_program_is_run() -> None:
    helpers = {"spots", "mnist_offline"}
    assert {path.stem for path in running.OWN.glob("*.py")} - helpers == {own.file for own in EQUIVALENTS}


def _job(file: str, own: Equivalent, mode: str, args: list[str] | None = None) -> sdk.Job:
    return sdk.Job(
        str(running.OWN / f"{file}.py"),
        args=args or list(own.args),
        resources=sdk.Resources(workers=own.workers),
        code=sdk.Code(keras=running.MODES[mode]),
    )
