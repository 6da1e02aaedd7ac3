"""A run that begins as a fork (backends/local/warm.py) is like one of started processes, as far as its program can see."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import LIMIT_S, full_only, printed

import sdk
from sdk.backends.local import warm as warm_module
from sdk.backends.local.warm import WarmRuns

pytestmark = [pytest.mark.process, pytest.mark.cold]

PROGRAM = """
    import gc, json, os, signal, sys, tempfile, threading

    def links(folder):
        return sorted(os.path.basename(os.readlink(f"{folder}/{fd}")) for fd in ("0", "1", "2"))

    main = sys.modules["__main__"]
    print(json.dumps({
        "words": [os.path.basename(word) for word in [*sys.argv, *sys.orig_argv]],
        "main": [main.__name__, os.path.basename(main.__file__)],
        "path": sys.path[-3:],
        "flags": [str(sys.flags), sys.executable, sys.stdout.write_through, gc.isenabled(), threading.active_count()],
        "variables": sorted(os.environ),
        "places": [os.path.basename(os.getcwd()), os.path.basename(tempfile.gettempdir())],
        "process": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), os.umask(0o22)],
        "open": [len(os.listdir("/proc/self/fd")), links("/proc/self/fd")],
        "signals": [str(signal.getsignal(n)) for n in (1, 2, 13, 15, 17)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "podlift": sorted(name for name in sys.modules if name.startswith("sdk.backends")),
    }))
"""


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmRuns]:
    if not sys.platform.startswith("linux"):
        pytest.skip("runs begin as forks on Linux only")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    process = WarmRuns("json.tool", project=["beside"])
    yield process
    process.close()


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes of the supervisors that began as forks."""
    pids: list[int] = []
    real = warm_module._Elsewhere
    monkeypatch.setattr(warm_module, "_Elsewhere", lambda pid: pids.append(pid) or real(pid))
    return pids


def seen(workers: int) -> list[dict[str, object]]:
    run = sdk.submit("train.py", workers=workers, name="look")
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    return [printed(run, task) for task in run.plan.tasks]


@pytest.mark.parametrize("workers", [full_only(1), 2])
def test_a_program_sees_no_difference(write, warm: WarmRuns, forks: list[int], workers: int) -> None:
    write("train.py", PROGRAM)
    started = seen(workers)
    with warm:
        assert seen(workers) == seen(workers) == started
    assert len(forks) == 2, "both began as forks"


@pytest.mark.process
def test_a_failure_and_a_resume_are_the_same_as_without_a_warm_process(write, warm: WarmRuns) -> None:
    write("train.py", "import os, sys\nsys.exit(int(os.environ['PODLIFT_ATTEMPT']) == 1 and 'not yet')")
    with warm:
        run = sdk.submit("train.py")
        assert run.wait(LIMIT_S).reason is sdk.Reason.USER_ERROR
        assert "not yet" in run.why()
        run.resume()
        assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why()


def test_a_task_with_another_seed_for_hashes_has_it(write, warm: WarmRuns) -> None:
    write("train.py", "print([hash('a')])")
    with warm:
        runs = [sdk.submit("train.py", env={"PYTHONHASHSEED": seed}) for seed in ("7", "7", "8")]
    assert [run.wait(LIMIT_S).state for run in runs] == [sdk.State.SUCCEEDED] * 3
    first, again, other = (printed(run, "chief-0") for run in runs)
    assert first == again != other


def test_a_project_that_shadows_an_imported_module_is_started_anew(write, forks: list[int]) -> None:
    write("argparse.py", "WHOSE = 'the project'")
    write("train.py", "import argparse, json; print(json.dumps([argparse.WHOSE]))")
    shadowing = WarmRuns("json.tool", project=["argparse", "train"])
    with shadowing:
        run = sdk.submit("train.py")
    shadowing.close()
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    assert (printed(run, "chief-0"), forks) == (["the project"], [])


def test_a_warm_process_that_was_killed_costs_no_run(write, warm: WarmRuns, forks: list[int]) -> None:
    write("train.py", "print(1)")
    with warm:
        runs = [sdk.submit("train.py")]
        warm._process.kill()
        warm._process.wait()
        runs.append(sdk.submit("train.py"))
        warm.close()
    assert [run.wait(LIMIT_S).state for run in runs] == [sdk.State.SUCCEEDED] * 2
    assert len(forks) == 1


def test_an_open_file_of_a_fork_is_written_and_its_failed_start_is_an_error(
    write, root: Path, warm: WarmRuns, forks: list[int]
) -> None:
    write("train.py", f"kept = open({str(root.parent / 'kept.csv')!r}, 'w'); kept.write('1,2')")
    with warm:
        assert sdk.submit("train.py").wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert ((root.parent / "kept.csv").read_text(), len(forks)) == ("1,2", 1)
    command = [sys.executable, "-m", warm_module.SUPERVISOR, "nowhere"]
    with warm, pytest.raises(OSError, match="No such file"):
        warm_module.spawn.spawn(command, env={}, cwd=str(root.parent / "none"), log=str(root.parent / "log"))
