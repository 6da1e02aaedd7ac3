"""`podlift_run` as a user's own tests use it: each case is a separate pytest, in a separate project."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import LIMIT_S

import sdk
import sdk.job.edge

# pytester forgets the modules that pytest in this process imports first: then their classes would exist twice.
import sdk.launch
import sdk.planning.prepare

pytestmark = [pytest.mark.process]

pytest_plugins = ["pytester"]

REPO = str(Path(sdk.__file__).parent.parent)


@pytest.fixture
def command(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words that start pytest with the plugin; an installed podlift brings it along."""
    monkeypatch.setenv("PYTHONPATH", REPO, prepend=os.pathsep)
    installed = {point.name for point in importlib.metadata.entry_points(group="pytest11")}
    plugin = [] if "podlift" in installed else ["-p", "sdk.testing.plugin"]
    # Other plugins that are installed here take a part of each start.
    others = [word for name in ("cacheprovider", "anyio", "xdist", "hypothesispytest") for word in ("-p", f"no:{name}")]
    return [sys.executable, "-m", "pytest", *others, *plugin]


@pytest.fixture
def run(pytester: pytest.Pytester, command: list[str]) -> Callable[..., pytest.RunResult]:
    """Run one test file: `run("def test(podlift_run): ...")`."""

    def runner(test: str) -> pytest.RunResult:
        pytester.makepyfile(test)
        return pytester.run(*command, f"--basetemp={pytester.path}/temporary", timeout=LIMIT_S)

    return runner


@pytest.fixture
def run_here(pytester: pytest.Pytester, command: list[str]) -> Callable[..., pytest.RunResult]:
    """Like `run`, in this process, which saves the start of pytest and its imports."""

    def runner(test: str) -> pytest.RunResult:
        pytester.makepyfile(test)
        return pytester.runpytest_inprocess(*command[3:], f"--basetemp={pytester.path}/temporary")

    return runner


def runs_below(folder: Path) -> list[sdk.RunInfo]:
    return [info for root in folder.glob("**/podlift") for info in sdk.runs(root=root)]


def test_a_program_runs_with_any_setting_and_no_variable_moves_it_away(pytester, run_here, root, monkeypatch) -> None:
    monkeypatch.setenv("PODLIFT_BACKEND", "vertex")
    monkeypatch.setenv("PODLIFT_WORKERS", "2")
    pytester.makepyfile(
        train="""
        import os, sdk, sys
        ctx, steps = sdk.context(), 0
        while not ctx.should_stop():
            steps += 1
        ctx.report({"steps": steps, "tasks": len(ctx.tasks), "words": len(sys.argv), "mine": int(os.environ["MINE"])})
        """,
        endless="import signal; signal.pause()",
    )
    shown = run_here("""
        import pytest, sdk

        def test_training(podlift_run, tmp_path):
            result = podlift_run("train.py", max_steps=20, args=["--x", "y"], env={"MINE": "7"}, name="smoke")
            assert result.metrics == {"steps": 19, "tasks": 2, "words": 3, "mine": 7}, "other variables hold as ever"
            assert result.run_dir.startswith(str(tmp_path))
            assert "/smoke-" in result.run_dir

        def test_limit(podlift_run):
            with pytest.raises(sdk.RunFailedError, match="timeout='0.5s'"):
                podlift_run("endless.py", timeout="0.5s", limit_grace=0, workers=1)
    """)
    shown.assert_outcomes(passed=2)
    assert not root.exists(), "the user's own root"


def test_entries_are_found_in_the_current_folder_and_then_in_pytests_rootdir(pytester, run_here) -> None:
    pytester.makepyfile(
        **{"jobs/train": "print('of rootdir')", "pkg/__init__": "", "pkg/fit": "def main(x): return x + 1"}
    )
    shown = run_here("""
        from pathlib import Path

        def said(result):
            return Path(result.logs["chief-0"]).read_text()

        def test_from_elsewhere(podlift_run, tmp_path, monkeypatch):
            monkeypatch.chdir(tmp_path)
            assert "of rootdir" in said(podlift_run(Path("jobs") / "train.py"))
            assert podlift_run("pkg.fit:main", args={"x": 1}).value == 2
            (tmp_path / "jobs").mkdir()
            (tmp_path / "jobs" / "train.py").write_text("print('of here')")
            assert "of here" in said(podlift_run("jobs/train.py"))

        def test_from_rootdir(podlift_run):
            assert podlift_run("pkg.fit:main", args={"x": 2}).value == 3
    """)
    shown.assert_outcomes(passed=2)


def test_a_failure_shows_the_traceback_of_the_task_and_none_of_ours(pytester, run_here) -> None:
    pytester.makepyfile(train="raise ValueError('the loss is gone')")
    shown = run_here("""
        def test_training(podlift_run):
            podlift_run("train.py")
    """)
    shown.assert_outcomes(failed=1)
    shown.stdout.fnmatch_lines(["*RunFailedError*", "*train.py*line 1*", "*ValueError: the loss is gone*"])
    for line in ("*sdk/testing/plugin.py*", "*sdk/run.py*"):
        shown.stdout.no_fnmatch_line(line)


def test_mistakes_are_said_before_anything_starts(pytester, run_here) -> None:
    pytester.makepyfile(train="")
    shown = run_here("""
        import pytest, sdk

        def test_keywords(podlift_run):
            with pytest.raises(sdk.InputError) as failed:
                podlift_run("train.py", worker=2, root="/somewhere")
            assert len(failed.value.problems) == 2
            assert "Did you mean 'workers'" in str(failed.value)

        def test_entry(podlift_run):
            with pytest.raises(sdk.InputError, match="There is no file trian.py in .*Received: 'trian.py'"):
                podlift_run("trian.py")
    """)
    shown.assert_outcomes(passed=2)
    assert runs_below(pytester.path) == []


@pytest.mark.full
def test_a_run_that_still_goes_when_the_test_is_interrupted_is_cancelled(pytester, run) -> None:
    pytester.makepyfile(train="import os, signal, sys; os.kill(int(sys.argv[1]), signal.SIGUSR1); signal.pause()")
    shown = run("""
        import os, signal

        def interrupt(*_):
            raise RuntimeError("interrupted")

        def test_training(podlift_run):
            signal.signal(signal.SIGUSR1, interrupt)
            podlift_run("train.py", args=[os.getpid()])
    """)
    shown.assert_outcomes(failed=1)
    shown.stdout.fnmatch_lines(["*RuntimeError: interrupted*"])
    assert [info.status.state for info in runs_below(pytester.path)] == [sdk.State.CANCELLED]


@pytest.mark.full
def test_several_processes_of_pytest_do_not_disturb_each_other(pytester, command) -> None:
    pytester.makepyfile(train="import os, sdk; sdk.context().report({'pid': os.getpid()})")
    pytester.makepyfile("""
        def test_one(podlift_run): podlift_run("train.py")
    """)
    (pytester.path / "temporary").mkdir()
    side_by_side = [
        subprocess.Popen([*command, f"--basetemp={pytester.path}/temporary/{name}"], stdout=subprocess.DEVNULL)
        for name in ("gw0", "gw1")
    ]
    assert [process.wait(LIMIT_S) for process in side_by_side] == [0, 0]
    states = [info.status.state for info in runs_below(pytester.path)]
    assert states == [sdk.State.SUCCEEDED] * 2


def test_pytest_starts_without_anything_heavy(run) -> None:
    shown = run("""
        import sys

        def test_modules(pytestconfig):
            assert "sdk.testing.plugin" in sys.modules
            heavy = {"tensorflow", "keras", "numpy", "pydantic", "typer", "rich", "google.cloud.storage", "sdk.api"}
            assert heavy & set(sys.modules) == set()
    """)
    shown.assert_outcomes(passed=1)
