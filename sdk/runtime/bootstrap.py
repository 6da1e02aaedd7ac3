"""A task's life: read the payload, unpack the code, run the user's program, record how it went, leave last if chief."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from ..clock import SystemClock
from ..errors import EXIT_CHECKPOINTED, EXIT_USER
from ..layout import RunPaths
from ..payload import Payload
from ..storage import posix
from ..storage.records import Recorder
from . import context, reporting
from .patches import Patch, chief_writes, install, keras_multi_worker, restore_together
from .unpack import unpack

_BARRIER_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


def main(payload_path: str, task: str, home: str) -> int:
    """Run one task; return the exit code of its process.

    Args:
        payload_path: where the payload lies.
        task: its name.
        home: the folder that holds this package.
    """
    _die_with_parent()
    payload = Payload.from_json(Path(payload_path).read_bytes())
    paths = RunPaths(payload.run_url)
    recorder = Recorder(paths, task, payload.attempt, SystemClock())
    try:
        work = Path(paths.work(payload.attempt, task))
        unpack(Path(payload.bundle), payload.digest, work)
    except Exception as error:
        traceback.print_exc()
        recorder.record("failed", reason="infrastructure", **_describe(error, error.__traceback__))
        return 1
    os.chdir(work)
    # A task's own processes (multiprocessing, subprocess) find `sdk` too, behind everything of the user's.
    sys.path[:] = [*(str(work / root) for root in payload.roots), *sys.path, *([] if home in sys.path else [home])]
    reporter = reporting.Reporter(paths.metrics(payload.attempt, task) if task == payload.tasks[0] else None, recorder)
    context.enter(payload, task, reporter)
    install(_patches(payload, task, reporter, work), _log)
    recorder.record("entry")
    code = _run(payload, recorder, work)
    if code == 0:
        recorder.record("done")
        if task == payload.tasks[0]:
            _wait_for_others(paths, payload)
    return code


def _patches(payload: Payload, task: str, reporter: reporting.Reporter, work: Path) -> list[Patch]:
    found = reporting.patches(reporter)
    if len(payload.tasks) > 1:
        found += [keras_multi_worker.PATCH, *restore_together.patches()]
        if payload.writes == "chief" and task == payload.tasks[0]:
            found += chief_writes.chief_patches(_log)
        elif payload.writes == "chief":
            found += chief_writes.patches(os.environ["TMPDIR"], _log, own_dirs=[str(work)])
    return found


def _run(payload: Payload, recorder: Recorder, work: Path) -> int:
    try:
        value = _call(payload, work)
        sys.stdout.flush()
        _record_value(recorder, value)
        return 0
    except SystemExit as left:
        if left.code is None or left.code == 0:
            return 0
        if left.code == EXIT_CHECKPOINTED:
            return EXIT_CHECKPOINTED
        if not isinstance(left.code, int):
            print(left.code, file=sys.stderr)  # noqa: T201
        recorder.record("failed", **_describe(left, left.__traceback__))
        return left.code if isinstance(left.code, int) else EXIT_USER
    except BaseException as error:
        shown = _without_ours(error.__traceback__)
        recorder.record("failed", **_describe(error, shown))
        traceback.print_exception(type(error), error, shown)
        return EXIT_USER
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _call(payload: Payload, work: Path) -> Any:
    if payload.kind == "script":
        path = str(work / payload.target)
        sys.argv = [path, *payload.argv]
        # A module that stays: multiprocessing and pickle look up what the script defined in sys.modules["__main__"].
        module = ModuleType("__main__")
        module.__file__ = path
        sys.modules["__main__"] = module
        exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)  # noqa: S102
        return None
    sys.argv = [payload.target, *payload.argv]
    if payload.kind == "module":
        runpy.run_module(payload.target, run_name="__main__", alter_sys=True)
        return None
    function = getattr(importlib.import_module(payload.target), payload.function)
    return function(**payload.kwargs)


def _record_value(recorder: Recorder, value: Any) -> None:
    if value is None:
        return
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        _log(f"the function's value is not kept, because it is not JSON: {error}")
    else:
        recorder.record("result", value=value)


def _describe(error: BaseException, shown: TracebackType | None) -> dict[str, Any]:
    text = "".join(traceback.format_exception(type(error), error, shown))
    return {"type": type(error).__name__, "message": str(error), "traceback": text}


def _without_ours(start: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not podlift's, so that it starts with the user's code."""
    ours = (str(Path(__file__).parent), "<frozen")
    shown = start
    while shown is not None and shown.tb_frame.f_code.co_filename.startswith(ours):
        shown = shown.tb_next
    return shown or start


def _wait_for_others(paths: RunPaths, payload: Payload) -> None:
    """Stay until the other tasks are done: a cloud stops them as soon as the first task's process ends."""
    until = time.monotonic() + payload.exit_wait_s
    others = set(payload.tasks[1:])
    while True:
        names = [name.split(".") for name in posix.list_names(paths.events) if name.endswith(".done.json")]
        waiting = others - {parts[1] for parts in names if int(parts[0]) == payload.attempt}
        if not waiting:
            return
        if time.monotonic() >= until:
            _log(f"left after exit_wait_s={payload.exit_wait_s}, although not done: {', '.join(sorted(waiting))}")
            return
        time.sleep(_BARRIER_POLL_S)


def _die_with_parent() -> None:
    """Have the kernel end this process when its supervisor is gone (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have gone before the kernel was asked.
    if os.environ.pop("PODLIFT_PARENT", str(os.getppid())) != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)


def _log(message: str) -> None:
    print(f"podlift: {message}", file=sys.stderr, flush=True)  # noqa: T201
