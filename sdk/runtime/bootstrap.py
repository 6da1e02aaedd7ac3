"""A task's life: read the payload, unpack the code, run the user's program, record how it went, leave last if chief."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import importlib
import importlib.machinery
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from .. import names, tracebacks
from ..clock import SystemClock
from ..errors import CheckpointError, StoreError
from ..records.recorder import Recorder, read_events
from ..spec import cluster
from ..spec.layout import RunPaths
from ..spec.payload import Payload
from ..status import EXIT_CHECKPOINTED, EXIT_USER
from ..storage.emulator import masked
from ..storage.reserve import Reserve
from . import cells, context, determinism, outside, reporting, value
from .apart import Apart
from .hooks import auto_checkpoint, limits
from .hooks.fit import FitProtection
from .hooks.unseeded import Unseeded
from .patches import Patch, chief_writes, install, keras_multi_worker, restore_together, steps_per_execution, tpu
from .progress import Progress
from .rendezvous.files import Agreement, Entries, Files
from .unpack import unpack

_BARRIER_POLL_S, _BUCKET_POLL_S = 0.05, 1.0
_PR_SET_PDEATHSIG = 1
_MAX_MESSAGE, _MAX_TRACEBACK = 2_000, 64_000


def main(payload_path: str, task: str, home: str) -> int:
    """Run one task; return the exit code of its process.

    Args:
        payload_path: where the payload lies.
        task: its name.
        home: the folder that holds this package.
    """
    die_with_parent()
    pid = os.getpid()
    # What the supervisor asks for when nothing moves any more: the Python stacks of all threads, in the task's log.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    payload = Payload.from_json(Path(payload_path).read_bytes())
    paths = RunPaths(payload.run_url)
    reserve = Reserve(paths.reserve(payload.attempt, task))
    recorder = Recorder(paths, task, payload.attempt, SystemClock(), reserve)
    try:
        work = Path(paths.work(payload.attempt, task))
        unpack(Path(payload.bundle), payload.digest, work)
        (work / payload.cwd).mkdir(parents=True, exist_ok=True)
    except Exception as error:
        _show(error)
        recorder.record("failed", reason="infrastructure", **_describe(error))
        return 1
    os.chdir(work / payload.cwd)
    _arrange(payload, work, home)
    outside.install(payload.outside, work)
    together = cluster.in_step(payload.tasks)
    apart = Apart(len(together) if task == payload.tasks[0] else 1, functools.partial(_find, recorder))
    reporter = reporting.Reporter(
        paths.metrics(payload.attempt, task) if task == payload.tasks[0] else None,
        recorder,
        Progress(paths.progress(payload.attempt, task)),
        apart.look,
    )
    takes_part = task in together
    agreement = Agreement(_entries(payload, task, alone=len(together) == 1), _log)
    guard = auto_checkpoint.make(payload, task, agreement, SystemClock(), _log, recorder.record, reporter.begin)
    context.enter(payload, task, reporter, guard if takes_part else None)
    tpu.prepare(payload, os.environ, _log)
    limit = None if payload.max_steps is None else limits.Limit(payload.max_steps, _log)
    fits = FitProtection(guard, auto=payload.checkpoints.get("auto", False), limit=limit)
    more = [*([] if limit is None else limit.patches()), *(fits.patches() if takes_part else [])]
    install([*_patches(payload, task, reporter, work), *apart.patches(), *more], _log)
    recorder.record("entry")
    code, returned, failure = _run(payload, work, guard)
    if os.getpid() != pid:
        return code  # a child that the program forked, and that came out here: it has nothing to say about the task
    if failure is not None:
        _fail(failure, guard, recorder, payload.grace_s)
    elif code == 0:
        _record_value(recorder, returned)
        recorder.record("done")
        agreement.close()
        if task == payload.tasks[0]:
            _wait_for_others(paths, payload)
    return code


def _arrange(payload: Payload, work: Path, home: str) -> None:
    names.settle(payload.own_names)
    # A task's own processes (multiprocessing, subprocess) find podlift too, behind everything of the user's.
    # A checkout has the name `podlift` in a folder of its own.
    published = "" if Path(home, "podlift").exists() else str(Path(__file__).parents[1] / "published")
    behind = [place for place in (home, published, payload.vendor) if place and place not in sys.path]
    sys.path[:] = [*(str(work / root) for root in payload.roots), *sys.path, *behind]


def _entries(payload: Payload, task: str, *, alone: bool) -> Entries:
    decides = task == payload.tasks[0]
    if payload.board:
        from .rendezvous.bucket import Board

        return Board(payload, task, decides=decides, alone=alone, clock=SystemClock(), log=_log)
    return Files(RunPaths(payload.run_url), payload.attempt, task, decides=decides, alone=alone)


def _patches(payload: Payload, task: str, reporter: reporting.Reporter, work: Path) -> list[Patch]:
    found = [*reporting.patches(reporter), *steps_per_execution.patches(_log)]
    found += tpu.patches(payload, os.environ, _log)
    if payload.drill:
        # After the seeds: what the drill itself sets is not noted.
        found += determinism.patches(int(payload.drill["seed"]))
        path = RunPaths(payload.run_url).unseeded(payload.attempt, task)
        found += Unseeded(path, work).patches()
    if len(payload.tasks) > 1:
        found += [keras_multi_worker.PATCH, *restore_together.patches()]
        if payload.writes == "chief" and task == payload.tasks[0]:
            found += chief_writes.chief_patches(_log)
        elif payload.writes == "chief" and cluster.role_of(task) != "evaluator":
            found += chief_writes.patches(os.environ["TMPDIR"], _log, own_dirs=[str(work)])
    return found


def _run(payload: Payload, work: Path, guard: auto_checkpoint.Protection) -> tuple[int, Any, BaseException | None]:
    """Return the exit code, the value, and the error that is the user's to see."""
    code, returned, failure = _called(payload, work)
    if failure is not None:
        return code, returned, failure
    try:
        if code == 0:
            guard.end()
        guard.session.close(None if code == 0 else payload.grace_s)
    except BaseException as error:
        if code == 0:
            _show(error)
            return EXIT_USER, None, error
        _log(f"what was being saved is not saved: {error}")
    return code, returned, failure


def _fail(failure: BaseException, guard: auto_checkpoint.Protection, recorder: Recorder, grace_s: float) -> None:
    """Record a failure, then save what it has left of the training; both within `grace_s`."""
    until = time.monotonic() + grace_s
    # Where the state cannot be kept, it is not the program that is wrong.
    ours = isinstance(failure, (StoreError, CheckpointError))
    state = None if ours else guard.left()
    within_s = max(until - time.monotonic(), 0.0)
    trains = guard.session.phases > 0
    saving = {"saving_s": within_s} if trains else {}
    recorder.record("failed", **({"reason": "infrastructure"} if ours else {}), **saving, **_describe(failure))
    if trains:
        guard.rescue(state, within_s)
        recorder.record("left")


def _called(payload: Payload, work: Path) -> tuple[int, Any, BaseException | None]:
    try:
        return 0, call(payload, work), None
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else EXIT_USER
        if left.code is not None and not isinstance(left.code, int):
            _say(str(left.code))
        code &= 0xFF  # the kernel keeps no more of it
        return code, None, None if code in (0, EXIT_CHECKPOINTED) else left
    except BaseException as error:
        _show(error)
        return EXIT_USER, None, error
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed or replaced by the program: its own business
                stream.flush()


def call(payload: Payload, work: Path) -> Any:
    if payload.kind == "function":
        sys.argv = [payload.target, *payload.argv]
        return getattr(importlib.import_module(payload.target), payload.function)(**payload.kwargs)
    # A module that stays: threads, atexit, multiprocessing and pickle look up what the program defined in "__main__".
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:  # multiprocessing was imported before, and has another module for the program's
        sys.modules["__mp_main__"] = module
    if payload.kind == "module":
        sys.argv = [payload.target, *payload.argv]
        # What `python -m` calls; run_module would put the old "__main__" back while the program's threads still run.
        runpy._run_module_as_main(payload.target, alter_argv=False)  # type: ignore[attr-defined]
        return None
    path = str(work / payload.target)
    sys.argv = [path, *payload.argv]
    module.__file__, module.__dict__["__cached__"] = path, None
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    if cells.notebook_of(payload.target):
        for code in cells.codes(path, Path(path).read_bytes()):
            exec(code, module.__dict__)  # noqa: S102
        return None
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    return None


def _record_value(recorder: Recorder, returned: Any) -> None:
    if returned is None:
        return
    found, refused = value.encode(returned)
    recorder.record("result", value=found)
    if refused:
        _find(recorder, value.note(refused))


def _find(recorder: Recorder, text: str) -> None:
    """Say something about a run that goes on, in the log and in its status."""
    _log(text)
    recorder.record("finding", text=text)


def _describe(error: BaseException) -> dict[str, Any]:
    try:
        message = str(error)
    except Exception as broken:
        message = f"(its message cannot be made: {type(broken).__name__})"
    # The task's log has it as Python prints it.
    text = tracebacks.clip(tracebacks.fold(masked("".join(_lines(error)))), _MAX_TRACEBACK)
    said = tracebacks.clip(tracebacks.fold(masked(message)), _MAX_MESSAGE)
    return {"type": type(error).__name__, "message": said, "traceback": text}


def _lines(error: BaseException) -> list[str]:
    shown = _without_ours(error.__traceback__)
    try:
        return traceback.format_exception(type(error), error, shown)
    except Exception:
        return [f"{type(error).__name__}\n"]


def _without_ours(start: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not podlift's; None where the user's code was not reached."""
    ours = (str(Path(__file__).parent), "<frozen", importlib.__file__, runpy.__file__)
    while start is not None and start.tb_frame.f_code.co_filename.startswith(ours):
        start = start.tb_next
    return start


def _wait_for_others(paths: RunPaths, payload: Payload) -> None:
    """Stay until the other tasks are done: a cloud stops them as soon as the first task's process ends."""
    until = time.monotonic() + payload.exit_wait_s
    if payload.board:
        from .container.records import gone_of

        gone, poll_s = functools.partial(gone_of, payload, _log), _BUCKET_POLL_S
    else:
        gone, poll_s = functools.partial(_gone, paths, payload), _BARRIER_POLL_S
    others = set(cluster.end_by_themselves(payload.tasks)) - {payload.tasks[0]}
    while waiting := others - gone():
        if time.monotonic() >= until:
            _log(f"left after exit_wait_s={payload.exit_wait_s}, although not done: {', '.join(sorted(waiting))}")
            return
        time.sleep(poll_s)


def _gone(paths: RunPaths, payload: Payload) -> set[str]:
    events = [event for event in read_events(paths, ("done", "exited")) if event.attempt == payload.attempt]
    # One that left by os._exit or exec has recorded nothing; its supervisor has.
    return {event.data["task"] if event.kind == "exited" else event.source for event in events}


def die_with_parent() -> None:
    """Have the kernel end this process when its supervisor is gone (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have gone before the kernel was asked.
    if os.environ.pop("PODLIFT_PARENT", str(os.getppid())) != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)


def _show(error: BaseException) -> None:
    _say(masked("".join(_lines(error)).rstrip()))


def _log(message: str) -> None:
    _say(f"podlift: {message}")


def _say(text: str) -> None:
    with contextlib.suppress(Exception):  # a program may have closed or replaced its streams
        print(text, file=sys.stderr, flush=True)  # noqa: T201
