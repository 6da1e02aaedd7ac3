"""Runs a task: reads the payload, unpacks the code, runs the program, records its end. The first task exits last."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import importlib.machinery
import io
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import logs, tracebacks
from ..checkpoint.feed import CheckpointFeed
from ..clock import SystemClock
from ..errors import CheckpointError, StoreError
from ..job import cluster
from ..job.layout import RunPaths
from ..job.payload import TASK_RESTARTS, Payload
from ..records.events import TASK_RESTARTING, names_a_lost_peer, unsettled
from ..records.metric_file import read_metrics
from ..records.recorder import Recorder, read_events
from ..status import EXIT_CHECKPOINTED, EXIT_USER
from ..storage.emulator import mask_token
from ..storage.reserve import Reserve
from . import cells, context, import_guard, reporting, return_value, secret_values
from .hooks import accounting, auto_checkpoint, evaluator, limits, rescue, seeds
from .hooks.fit import FitHooks
from .hooks.input_wait import InputWait
from .hooks.losses import LossWatch
from .hooks.starvation import StarvedInput
from .hooks.strategies import StrategyWatch
from .patches import (
    Function,
    Patch,
    around,
    auto_shard,
    central_storage,
    chief_writes,
    cpu_xla,
    devices,
    install,
    iterator_ends,
    keras_multi_worker,
    optimizer_conditions,
    plumbing,
    predictions,
    restore_together,
    servers,
    shuffle_seeds,
    steps_per_execution,
)
from .rendezvous import StepCoordinator
from .rendezvous import coordinator as coordinator_of
from .unpack import unpack

_log = logs.logger("runtime")
_BARRIER_POLL_S, _BUCKET_POLL_S = 0.05, 1.0
_PR_SET_PDEATHSIG = 1
_MAX_MESSAGE, _MAX_TRACEBACK = 2_000, 64_000


def main(payload_path: str, task: str, home: str) -> int:
    """Run one task; return the exit code of its process. `home` is the folder that holds this package."""
    die_with_parent()
    logs.start()
    pid = os.getpid()
    # The supervisor sends this signal if the task makes no progress: all Python stacks go to the task's log.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    payload = Payload.from_json(Path(payload_path).read_bytes())
    # Now: the program may remove them from its environment.
    secrets = secret_values.words(os.environ, payload.copied)
    paths = RunPaths(payload.run_url)
    reserve = Reserve(paths.reserve(payload.attempt, task))
    continued = TASK_RESTARTS in os.environ
    recorder = Recorder(paths, task, payload.attempt, SystemClock(), reserve, continued=continued)
    work = Path(paths.work(payload.attempt, task))
    try:
        unpack(Path(payload.bundle), payload.digest, work)
        (work / payload.cwd).mkdir(parents=True, exist_ok=True)
    except Exception as error:
        _print_error(error)
        recorder.record("failed", reason="infrastructure", **_describe(error, secrets))
        return 1
    if payload.cores and task == payload.tasks[0]:
        _log.info(payload.cores)
    os.chdir(work / payload.cwd)
    set_path(payload, work, home)
    import_guard.install(payload.source_dirs, work)
    together = cluster.in_step(payload.tasks)
    coordinator = coordinator_of(payload, task, together)
    checkpoint = _instrument(payload, task, coordinator, recorder, work)
    recorder.record("entry")
    code, returned, failure = _called(payload, work)
    if failure is None:
        code, failure = _finish(code, checkpoint, payload.limits.grace_s)
    if os.getpid() != pid:
        return code  # a child that the program forked: it must not report for the task
    if failure is not None:
        details, ended = _describe(failure, secrets), _finished(paths, payload)
        _fail(failure, details, checkpoint, recorder, payload.limits.grace_s, ended)
        if task in together and len(together) > 1 and names_a_lost_peer(details):
            del failure
            leave_process(code)
    elif code == 0:
        is_first = task == payload.tasks[0]
        _record_value(recorder, returned if is_first else None, secrets)
        if is_first and (unused := checkpoint.warm_start.unused):
            _report_finding(recorder, unused)
        recorder.record("done")
        coordinator.close()
        if is_first:
            _wait_for_others(paths, payload)
    return code


def _instrument(
    payload: Payload, task: str, coordinator: StepCoordinator, recorder: Recorder, work: Path
) -> auto_checkpoint.AutoCheckpoint:
    """Install all patches and hooks, enter the context, and return the task's checkpoints."""
    paths, together = RunPaths(payload.run_url), cluster.in_step(payload.tasks)
    is_first, takes_part = task == payload.tasks[0], task in together
    finding = functools.partial(_report_finding, recorder) if is_first else None
    disconnected = DisconnectedTasks(len(together) if takes_part else 1, finding)
    coordinator.apart = lambda: disconnected.apart
    evaluates = cluster.role_of(task) == "evaluator"
    reporter = reporting.Reporter(
        paths.metrics(payload.attempt, task) if is_first or evaluates else None,
        recorder,
        reporting.ProgressWriter(paths.progress(payload.attempt, task)),
        disconnected.check,
    )
    checkpoint = auto_checkpoint.make(payload, task, coordinator, SystemClock(), recorder.record, reporter.progress)
    evaluator = _evaluator(payload, task, reporter, work) if evaluates else None
    context.enter(payload, task, reporter, checkpoint if takes_part else None, evaluator)
    devices.prepare(payload, os.environ)
    patches = [*_patches(payload, task, reporter, work), *disconnected.patches()]
    report = finding or _log.info
    patches += [*StrategyWatch(report, work).patches(), *LossWatch(report, work).patches()]
    reporter.starved = StarvedInput(reporter.progress.account, report)
    patches += accounting.FitAccounting(reporter.progress.account, reporter.starved).patches()
    if not (payload.tpu or cluster.has_servers(payload.tasks)):
        # There, other devices or other tasks take the batches.
        patches += InputWait(reporter.progress.account).patches()
    limit = None
    if payload.limits.max_steps is not None:
        limit = limits.Limit(payload.limits.max_steps)
        patches += limit.patches()
    if evaluator is not None:
        patches += evaluator.patches()
    if takes_part:
        patches += FitHooks(checkpoint, auto=payload.checkpoints.auto, limit=limit).patches()
    install(patches)
    return checkpoint


def _evaluator(payload: Payload, task: str, reporter: reporting.Reporter, work: Path) -> evaluator.Evaluator:
    """Return the evaluator of the run's checkpoints, from the first one that no earlier process of it has evaluated."""
    paths, finished = RunPaths(payload.run_url), _finished(RunPaths(payload.run_url), payload)

    def wait() -> None:
        reporter.progress.beat()
        time.sleep(_BUCKET_POLL_S if payload.bucket_url else _BARRIER_POLL_S)

    before = [read_metrics(paths.metrics(number, task)) for number in range(1, payload.attempt + 1)]
    feed = CheckpointFeed(
        payload.store or paths.store,
        payload.run_id,
        after=max((int(record["step"] or 0) for records in before for record in records), default=-1),
        over=lambda: payload.tasks[0] in finished(),
        wait=wait,
    )
    files = functools.partial(chief_writes.patches, os.environ["TMPDIR"], own_dirs=[str(work)])
    return evaluator.Evaluator(feed, reporter, context.dirs_of(payload).tensorboard, files)


def set_path(payload: Payload, work: Path, home: str) -> None:
    """Search the unpacked code first, and podlift last."""
    # Processes that the task starts (multiprocessing, subprocess) find podlift too, after everything of the user's.
    last = [folder for folder in (home, payload.vendor) if folder and folder not in sys.path]
    sys.path[:] = [*(str(work / root) for root in payload.roots), *sys.path, *last]


def _patches(payload: Payload, task: str, reporter: reporting.Reporter, work: Path) -> list[Patch]:
    patches = [
        *reporting.patches(reporter),
        *steps_per_execution.patches(),
        *devices.thread_patches(),
        central_storage.PATCH,
        optimizer_conditions.PATCH,
        *iterator_ends.patches(),
    ]
    patches += [*devices.tpu_patches(payload, os.environ), *devices.gpu_patches(payload, task, os.environ)]
    patches += cpu_xla.patches(payload, os.environ)
    shuffles = shuffle_seeds.ShuffleSeeds(payload.run_id)
    patches += auto_shard.SharedInput(logs=task == payload.tasks[0], seeded=shuffles.derived).patches()
    if not cluster.has_servers(payload.tasks):
        # The workers of parameter servers each read all of the data, and must not all take the same batches.
        patches += shuffles.patches()
    if payload.drill:
        # After the seeds, so that the drill's own calls are not reported.
        patches += seeds.patches(payload.drill.seed)
        path = RunPaths(payload.run_url).unseeded(payload.attempt, task)
        patches += seeds.UnseededCalls(path, work).patches()
    if len(payload.tasks) > 1:
        patches += [keras_multi_worker.PATCH, keras_multi_worker.LEGACY, *restore_together.patches()]
        patches += servers.patches(task, payload.tasks)
        if payload.writes == "chief" and task == payload.tasks[0]:
            patches += chief_writes.chief_patches()
        elif payload.writes == "chief" and cluster.role_of(task) != "evaluator":
            patches += chief_writes.patches(os.environ["TMPDIR"], own_dirs=[str(work)])
    return patches


def _finish(code: int, checkpoint: auto_checkpoint.AutoCheckpoint, grace_s: float) -> tuple[int, BaseException | None]:
    """Complete the checkpoints; return the exit code and the error to record."""
    try:
        if code == 0:
            checkpoint.end()
        if checkpoint.has_phases:
            checkpoint.manager.close(None if code == 0 else grace_s)
    except BaseException as error:
        if code == 0:
            _print_error(error)
            return EXIT_USER, error
        _log.info(f"the last checkpoint could not be completed: {error}")
    return code, None


def _fail(
    failure: BaseException,
    details: dict[str, object],
    checkpoint: auto_checkpoint.AutoCheckpoint,
    recorder: Recorder,
    grace_s: float,
    ended: Callable[[], set[str]],
) -> None:
    """Record a failure, then save the state of the training that it left; both within `grace_s`."""
    until = time.monotonic() + grace_s
    # A failure of the store is not the program's.
    infrastructure = isinstance(failure, (StoreError, CheckpointError))
    state = None if infrastructure else checkpoint.unsaved_state()
    within_s = max(until - time.monotonic(), 0.0)
    if infrastructure:
        details["reason"] = "infrastructure"
    if checkpoint.has_phases:
        details["saving_s"] = within_s
    recorder.record("failed", **details)
    if checkpoint.has_phases:
        rescue.save(checkpoint.manager, state, within_s, ended)
        recorder.record("left")


def _called(payload: Payload, work: Path) -> tuple[int, Any, BaseException | None]:
    try:
        return 0, call(payload, work), None
    except SystemExit as left:
        code = _exit_code(left)
        return code, None, None if code in (0, EXIT_CHECKPOINTED) else left
    except BaseException as error:
        _print_error(error)
        return EXIT_USER, None, error
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the program may have closed or replaced them
                stream.flush()


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF  # as the kernel does
    _print(str(error.code))
    return EXIT_USER


def call(payload: Payload, work: Path) -> Any:
    if payload.kind == "function":
        sys.argv = [payload.target, *payload.argv]
        return getattr(importlib.import_module(payload.target), payload.function)(**payload.kwargs)
    # It stays: threads, atexit, multiprocessing and pickle look up the program's definitions in "__main__".
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:  # multiprocessing was imported before, and holds the old module
        sys.modules["__mp_main__"] = module
    if payload.kind == "module":
        sys.argv = [payload.target, *payload.argv]
        # As `python -m` does. run_module would restore the old "__main__" while the program's threads still run.
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


def _record_value(recorder: Recorder, returned: Any, secrets: Sequence[str]) -> None:
    if returned is None:
        return
    value, refused = return_value.encode(returned)
    recorder.record("result", value=secret_values.without(value, secrets))
    if refused:
        _report_finding(recorder, _stored(return_value.note(refused), secrets))


def _report_finding(recorder: Recorder, text: str) -> None:
    _log.info(text)
    recorder.record("finding", text=text)


def _describe(error: BaseException, secrets: Sequence[str]) -> dict[str, object]:
    """Return the error for its record, without secret values."""
    # Shortened here; the task's log has the whole traceback.
    text = tracebacks.clip(tracebacks.fold(_stored("".join(_lines(error)), secrets)), _MAX_TRACEBACK)
    message = tracebacks.clip(tracebacks.fold(_stored(_message(error), secrets)), _MAX_MESSAGE)
    return {"type": type(error).__name__, "message": message, "traceback": text, "call": predictions.call_of(error)}


def _message(error: BaseException) -> str:
    try:
        return _error_text(error)
    except Exception as broken:
        return f"(its message raised {type(broken).__name__})"


def _error_text(error: BaseException) -> str:
    """Return the message of an error; for an exit with a number, also the reason that a parser of arguments has printed."""
    if not (isinstance(error, SystemExit) and isinstance(error.code, int)):
        return str(error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    printed = [
        str(frame.f_locals["message"] or "").strip()
        for frame in frames
        if frame.f_code.co_name == "exit" and frame.f_globals.get("__name__") == "argparse"
    ]
    # Other parsers, such as absl and click, catch their own error, print it and exit.
    reason = next(filter(None, [*printed, str(error.__context__ or "").strip()]), "")
    return f"{error.code} ({reason})" if reason else str(error)


def _stored(text: str, secrets: Sequence[str]) -> str:
    return secret_values.hidden(mask_token(text), secrets)


def _lines(error: BaseException) -> list[str]:
    """Return the traceback from the first frame that is not podlift's."""
    ours = (str(Path(__file__).parent), "<frozen", importlib.__file__, runpy.__file__)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
        trace = trace.tb_next
    try:
        return traceback.format_exception(type(error), error, trace)
    except Exception:  # Python reads the notes of the error; the program's class may refuse
        first, last = "Traceback (most recent call last):\n", f"{type(error).__name__}: {_message(error)}\n"
        return [first, *traceback.format_tb(trace), last]


def _wait_for_others(paths: RunPaths, payload: Payload) -> None:
    """Wait until the other tasks are done: a cloud stops them as soon as the first task's process ends."""
    until = time.monotonic() + payload.limits.exit_wait_s
    finished, poll_s = _finished(paths, payload), _BUCKET_POLL_S if payload.bucket_url else _BARRIER_POLL_S
    others = set(cluster.end_by_themselves(payload.tasks)) - {payload.tasks[0]}
    while waiting := others - finished():
        if time.monotonic() >= until:
            _log.info(
                f"exits after limit_exit_wait={payload.limits.exit_wait_s:g}s; not done yet: {', '.join(sorted(waiting))}"
            )
            return
        time.sleep(poll_s)


def _finished(paths: RunPaths, payload: Payload) -> Callable[[], set[str]]:
    """Return a function that returns the finished tasks of the attempt."""
    if not payload.bucket_url:
        return functools.partial(_finished_tasks, paths, payload)
    from ..records.sync.index import SYNC_RETRY
    from ..records.sync.task_records import finished_tasks
    from ..storage.registry import open_store

    store = open_store(payload.bucket_url, retry=SYNC_RETRY)
    return functools.partial(finished_tasks, store, payload.tasks, payload.attempt)


def _finished_tasks(paths: RunPaths, payload: Payload) -> set[str]:
    unsettled_events = unsettled(read_events(paths, ("done", "exited", TASK_RESTARTING)))
    events = [event for event in unsettled_events if event.attempt == payload.attempt and event.kind != TASK_RESTARTING]
    # A task that ended by os._exit or exec wrote no record; the supervisor wrote one.
    return {event.data["task"] if event.kind == "exited" else event.source for event in events}


def die_with_parent() -> None:
    """Have the kernel end this process when its supervisor is gone (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have ended before the call above.
    if os.environ.pop("PODLIFT_PARENT", str(os.getppid())) != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)


def _print_error(error: BaseException) -> None:
    _print(mask_token("".join(_lines(error)).rstrip()))


def _print(text: str) -> None:
    with contextlib.suppress(Exception):  # a program may have closed or replaced its streams
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def leave_process(code: int) -> None:
    """Join threads, call exit handlers, drop the program's objects, flush, and end this process.

    Python clears all imported modules on exit. With TensorFlow and Keras that takes half a second to a second, in a forked task
    also because it touches memory that was shared until then, and the next attempt waits for it.
    """
    iterator_ends.leave_waiting()
    for step in (threading._shutdown, atexit._run_exitfuncs, drop_program):  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            step()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the program may have closed or replaced them
            stream.flush()
    os._exit(code)


def drop_program() -> None:
    """Drop the program's objects: its writers flush when they are dropped."""
    # Modules imported before the fork are not searched.
    vars(sys.modules["__main__"]).clear()
    gc.collect()
    iterator_ends.settle()  # the search below must not find objects that are being dropped, and end them here
    for item in gc.get_objects():  # the files that other modules of the program hold
        if isinstance(item, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom) and not item.closed:
            with contextlib.suppress(Exception):
                item.flush()


_SERVERS = "tensorflow.python.training.server_lib"


class DisconnectedTasks:
    """Reports once, at the first step or report, that several tasks train without a connection: each its own model.

    `count` is the number of tasks that step together.
    """

    def __init__(self, count: int, report: Callable[[str], None] | None) -> None:
        self._count = count
        self._report = report
        self._has_server = self._checked = False
        self._pid = os.getpid()

    def patches(self) -> list[Patch]:
        """Return the patch that notes a server that the program starts itself."""
        return plumbing("note-servers", "a cluster's server connects the tasks", {_SERVERS: self._note_servers})

    def _note_servers(self, module: ModuleType) -> None:
        @around(module.Server, "__init__")
        def init(original: Function, *args: Any, **kwargs: Any) -> None:
            self._has_server = True
            original(*args, **kwargs)

    @property
    def apart(self) -> bool:
        """True if this task and the others train without a connection now, each at its own pace."""
        return self._count > 1 and not self._has_server and "tensorflow" in sys.modules and not _is_connected()

    def check(self) -> None:
        """Report disconnected tasks. Only the first call does anything."""
        # A process that the program forked must not report for the task.
        if self._checked or self._report is None or self._count < 2 or os.getpid() != self._pid:
            return
        self._checked = True
        if self.apart:
            self._report(
                f"{self._count} tasks run this program without a connection: it made no tf.distribute strategy for several "
                "workers, so each task trains its own model on all of the data. Next: train under sdk.context().strategy "
                "(tf.distribute.MultiWorkerMirroredStrategy), or use --workers 1. Tasks that are meant to be independent "
                "need nothing."
            )


def _is_connected() -> bool:
    if "horovod" in sys.modules:
        return True
    jax = sys.modules.get("jax._src.distributed")
    if getattr(getattr(jax, "global_state", None), "client", None) is not None:
        return True
    # Reads the context without creating it.
    context = importlib.import_module("tensorflow.python.eager.context").__dict__.get("_context")
    servers = (getattr(context, name, None) for name in ("_server_def", "_collective_ops_server_def"))
    return any(server is not None for server in servers)
