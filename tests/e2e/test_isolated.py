"""`--code-isolated`: the tasks run in a fresh environment made of exactly the requirements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emulator.vertex.wheels import module, wheel
from support import PROGRAMS

import sdk

pytestmark = pytest.mark.process

ISOLATED = sdk.Code(isolated=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "podlift"


def test_an_isolated_task_sees_its_requirements_podlift_and_nothing_else(write, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "project" / "wheels").mkdir()
    wheel(tmp_path / "project" / "wheels", "onlythere", "1.5", {"onlythere.py": module("1.5")})
    write("requirements.txt", "--no-index\n--find-links wheels\nonlythere==1.5\n")
    text = """
        import importlib.util, json, os, sys
        import onlythere, sdk
        print(json.dumps({
            "version": onlythere.VERSION,
            "task": sdk.context().task,
            "seen": [name for name in ("pydantic", "numpy", "pytest") if importlib.util.find_spec(name)],
            "prefix": sys.prefix,
            "first on PATH": os.environ["PATH"].split(os.pathsep)[0],
        }))
        """
    write("train.py", text)
    plan = sdk.plan(sdk.Job("train.py", code=ISOLATED, resources=sdk.Resources(workers=2)))
    assert "a fresh environment" in str(plan)
    assert "1 of requirements.txt: onlythere==1.5" in str(plan)
    run = sdk.submit(plan)
    run.result(120)
    for task in plan.tasks:
        texts = [line.text for line in run.logs(task=task)]
        (line,) = [json.loads(text) for text in texts if not text.startswith("podlift: ")]
        assert (line["version"], line["task"], line["seen"]) == ("1.5", task, [])
        assert Path(line["prefix"]).is_relative_to(cache / "environments")
        assert line["first on PATH"] == f"{line['prefix']}/bin"
    prepared = json.loads(next(Path(run.plan.paths.events).glob("*.prepared.json")).read_text())
    assert prepared["data"]["installed"]["onlythere"] == "1.5"


@pytest.mark.full
def test_an_environment_that_cannot_be_built_is_the_users_error_with_uvs_words(write, cache, tmp_path) -> None:
    (tmp_path / "project" / "wheels").mkdir()
    write("requirements.txt", "--no-index\n--find-links wheels\nnowhere-to-be-found\n")
    write("train.py", "print(1)")
    run = sdk.submit(sdk.Job("train.py", code=ISOLATED))
    with pytest.raises(sdk.RunFailedError, match="nowhere-to-be-found") as caught:
        run.result(120)
    assert caught.value.status.failure.log.endswith("environment.log")
    assert "No solution found" in Path(caught.value.status.failure.log).read_text()


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2])
def test_an_estimator_program_brings_its_old_tensorflow(write, workers: int) -> None:
    """TensorFlow 2.15 is the last one that has tf.estimator; there are wheels of it for Python 3.10 and 3.11."""
    write("requirements.txt", "tensorflow==2.15.*\n")
    write("train.py", (PROGRAMS / "estimator.py").read_text())
    run = sdk.submit(sdk.Job("train.py", code=ISOLATED, resources=sdk.Resources(workers=workers)))
    run.result(600)
    lines = [json.loads(line.text) for line in run.logs(task="chief-0") if line.text.startswith("{")]
    assert lines[0]["tensorflow"].startswith("2.15.")
    # One task alone gets no TF_CONFIG, as on Vertex AI.
    assert lines[0]["cluster"] == (["chief", "worker"] if workers == 2 else [])
    assert lines[-1] == {"done": "chief", "step": 200, "error": pytest.approx(0.0, abs=1e-3)}
