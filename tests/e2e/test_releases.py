"""Every release since 0.2.0 has left a root in tests/golden (`scripts/golden`); this one reads and continues each of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import GOLDEN_FILES, LONG_LIMIT_S

import sdk
from sdk.job.plan import Plan

RELEASES = sorted(path.name for path in GOLDEN_FILES.glob("v[0-9]*"))


@pytest.fixture(params=RELEASES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN_FILES / request.param, tmp_path / "root"))


@pytest.fixture
def names(root: Path) -> dict[str, str]:
    """Return the ids of the runs by their first word."""
    return {run.id.partition("-")[0]: run.id for run in reversed(sdk.runs(root=root))}


def weights(run: sdk.Run) -> Iterator[float]:
    for each in json.loads(Path(run.result().model_dir, "weights.json").read_text()):
        for row in each:
            yield from row if isinstance(row, list) else [row]


def test_this_release_has_its_root() -> None:
    assert f"v{sdk.__version__}" in RELEASES, "Next: scripts/golden"


def test_runs_of_every_release_are_read_and_their_plans_written_again_are_the_same(
    root: Path, names: dict[str, str]
) -> None:
    whole, stopped = (sdk.attach(names[name], root=root) for name in ("whole", "stopped"))
    assert [run.status().state for run in (whole, stopped)] == [sdk.State.SUCCEEDED, sdk.State.CANCELLED]
    result = whole.result()
    assert set(result.metrics) == {"loss", "weights"}
    assert [row["epoch"] for row in whole.metrics() if "loss" in row] == [1, 2, 3, 4]
    assert whole.checkpoints()[-1].step == 32 and 5 <= stopped.checkpoints()[-1].step < 32
    assert [line.text for line in whole.logs(task="worker-0")]
    assert "cancelled" in stopped.why() and whole.timeline()
    assert [*whole.plan.tasks] == ["chief-0", "worker-0"]
    stored = (root / "runs" / names["whole"] / "plan.json").read_bytes()
    assert json.loads(Plan.from_json(stored, "plan.json").to_json()) == json.loads(stored)


def test_models_schedules_and_sweeps_of_every_release_are_read(root: Path) -> None:
    version = sdk.models(root=root)["golden"].versions()[0]
    assert version.number == 1 and (root / "runs" / version.record.run).is_dir()
    nightly = sdk.Schedule("nightly", root=root)
    assert [slot.state for slot in nightly.history()] == ["SUCCEEDED"] and nightly.plan.job.model is None
    best = sdk.Sweep("search", root=root).best()
    assert best is not None and best.value == pytest.approx(1 - best.params["lr"])


@pytest.mark.full
@pytest.mark.process
@pytest.mark.tensorflow
def test_a_run_that_a_release_has_stopped_ends_with_the_weights_of_the_whole_one(root: Path, names) -> None:
    stopped, whole = (sdk.attach(names[name], root=root) for name in ("stopped", "whole"))
    stopped.resume()
    assert stopped.wait(LONG_LIMIT_S).state is sdk.State.SUCCEEDED
    # Another TensorFlow may add in another order.
    assert [*weights(stopped)] == pytest.approx([*weights(whole)], rel=1e-4)
