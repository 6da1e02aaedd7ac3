"""Helpers for tests of many rooms: places, time limits, and waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import strategies as st

import sdk
from sdk import logs
from sdk.job.layout import RunPaths

if TYPE_CHECKING:
    from sdk.testing.vertex import Cloud

REPO = Path(sdk.__file__).resolve().parent.parent
# Requests to the letter.
GOLDEN_FILES = Path(__file__).parent / "golden"
# The directory of a run that has succeeded, and a store with checkpoints.
FINISHED_RUN = Path(__file__).parent / "finished" / "runs" / "digits-bxswa7"
FINISHED_STORE = Path(__file__).parent / "finished" / "store"
PROGRAMS = Path(__file__).parent / "programs"
# The beginning of a program that waits until its test has written the file "go" into the run's directory.
WAITS = "import os, time\nwhile not os.path.exists(os.environ['PODLIFT_RUN'] + '/go'): time.sleep(0.01)\n"
# Upper bounds of waiting, in seconds: a test that passes never waits that long.
LIMIT_S, LONG_LIMIT_S = 240, 600
# For trainings of many replicas on a busy machine: one that hangs is ended by `limit_hang`, after half an hour.
TRAINING_S = 3600
# A case of a parametrized test that `scripts/test --full` alone runs: its path in the code has another case.
full_only = partial(pytest.param, marks=pytest.mark.full)


def files_of_a_run(**plan: object) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a run that has succeeded, by their names in it, with other values of its plan."""
    for path in FINISHED_RUN.rglob("*"):
        if path.is_file():
            name, data = path.relative_to(FINISHED_RUN).as_posix(), path.read_bytes()
            if plan and name == "plan.json":
                data = json.dumps({**json.loads(data), **plan}, sort_keys=True).encode()
            yield name, data


def finished_run(root: Path, name: str = FINISHED_RUN.name, **plan: object) -> RunPaths:
    """Make a run that has succeeded, with other values of its plan: `finished_run(root, "a-aaaaaa", digest="1")`."""
    run = root / "runs" / name
    for part, data in files_of_a_run(run_id=name, root=str(root), **plan):
        (run / part).parent.mkdir(parents=True, exist_ok=True)
        (run / part).write_bytes(data)
    return RunPaths(str(run))


class Shown(NamedTuple):
    """The output of a command."""

    code: int
    stdout: str
    stderr: str


def command(capsys: pytest.CaptureFixture[str], *words: str) -> Shown:
    """Run the command in this process, which saves its start."""
    from sdk.cli import app

    capsys.readouterr()
    code = app.run(list(words))
    return Shown(code, *capsys.readouterr())


def holds(text: str, *parts: str, lacks: Sequence[str] = ()) -> None:
    """Assert that a text has all these parts, and no part of those that it lacks."""
    missing, found = [part for part in parts if part not in text], [part for part in lacks if part in text]
    assert not missing and not found, f"missing: {missing}; there, but not wanted: {found}; in:\n{text}"


SHORT = st.text(max_size=9)


def any_json(*more: st.SearchStrategy, keys: st.SearchStrategy = SHORT, leaves: int = 8) -> st.SearchStrategy:
    """Return any value of JSON, with more values that are no list and no object: `st.floats()` adds infinity and NaN."""
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.one_of(st.none(), st.booleans(), numbers, SHORT, *more),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=leaves,
    )


def needs(*modules: str) -> None:
    """Skip a file of tests if one of these is not installed, without importing it: workers are forks of this process."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed", allow_module_level=True)


class Later:
    """A module, or a name in one, that is imported when a test uses it and not when its file is collected."""

    def __init__(self, module: str, name: str = "") -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks each global of a file whether it is a fixture
            raise AttributeError(name)
        return getattr(self._found(), name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._found()(*args, **keywords)

    def _found(self) -> Any:
        module = import_module(self._module)
        return attrgetter(self._name)(module) if self._name else module


def until(
    condition: Callable[[], object], what: Callable[[], object] = lambda: "it never happened", limit_s: float = LIMIT_S
) -> None:
    """Wait until a condition holds; `what` describes the state if it does not within `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


@contextmanager
def input_error(*parts: str, problems: int = 0) -> Iterator[None]:
    """Expect an error of bad input with all of these parts, and with that many problems."""
    with pytest.raises(sdk.InputError) as caught:
        yield
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)
    assert problems in (0, len(caught.value.problems)), caught.value.problems


def has_ended(pid: int) -> bool:
    """Whether or not its new parent, which may be this process, has taken note of it."""
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def made(cloud: Cloud) -> list[Any]:
    """Return the custom jobs of an emulated cloud, the first one of a run before its next one."""
    found = list(cloud.jobs().list_custom_jobs(parent=cloud.parent, timeout=LIMIT_S))
    return sorted(found, key=lambda job: int(job.labels.get("podlift-job", 0)))


class FakeClock:
    """A clock that moves when somebody sleeps, or sets its `time`."""

    def __init__(self, time: float = 1000.0) -> None:
        self.time = time

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], tuple[int, bytes] | None]) -> Iterator[str]:
    """Answer each GET, HEAD and POST with what `answer` returns, a status and a body, or not; yield "127.0.0.1:PORT"."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answered = answer(self)
            if answered is None:
                return
            status, body = answered
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def python(*words: str, **env: str) -> str:
    """Run Python with these words and podlift on its path, and return its output; it has to succeed."""
    settings = {**os.environ, "PYTHONPATH": str(REPO), "TF_CPP_MIN_LOG_LEVEL": "3", **env}
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_LIMIT_S, env=settings)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def race(url: str, count: int, *words: str) -> list[list[int]]:
    """Let processes race for the objects of a store; return each one's number, the objects that it won, and its epoch."""
    command = [sys.executable, str(PROGRAMS / "races.py"), url, str(count), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == count, done.stderr
    return found


listeners = ExitStack()


def heard(room: str = "") -> list[str]:
    """Return a list that gets the messages that podlift logs in this process, or one room of it, until the test is over."""
    lines: list[str] = []
    listeners.enter_context(logs.heard(lines.append, room))
    return lines


def files_with(text: str, folder: str | Path) -> list[Path]:
    """Return the files below a folder that contain a text. A supervisor that is about to end removes files meanwhile."""
    assert Path(folder).is_dir()
    found = []
    for path in Path(folder).rglob("*"):
        with suppress(FileNotFoundError):
            found += [path] if path.is_file() and text.encode() in path.read_bytes() else []
    return found


def said(run: sdk.Run, task: str | None = None, attempt: int | None = None) -> list[str]:
    """Return the lines of a task's output without podlift's own; TensorFlow's are among them."""
    return [line.text for line in run.logs(task=task, attempt=attempt) if not line.text.startswith("podlift: ")]


def printed(run: sdk.Run, task: str) -> Any:
    """Return the value that a task has printed last as JSON: gRPC may write lines after it."""
    return json.loads([line for line in said(run, task) if line.startswith(("[", "{"))][-1])
