"""The agent owns one task's container: it runs the task, attempt after attempt, and uploads its records and outputs.

It does in one container what the supervisor does for all tasks on one machine. It knows its own task, and what the other
agents have written into the run's directory. A task that fails is restarted in the container, together with its gang. It never
imports TensorFlow, and knows nothing of the service that runs the container but the terms in the launch spec.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import signal
import sys
import tarfile
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import logs
from ..clock import SystemClock
from ..errors import AccessError, InputError, PodliftError
from ..job import cluster
from ..job.container import ContainerTerms
from ..job.layout import RunPaths
from ..job.payload import VERSION, Payload
from ..job.policies import Retry
from ..job.wire import decode
from ..process import cores, free_memory
from ..process.redirect import start
from ..process.template import Imports, TaskStart, Template, room_for, top_modules
from ..records import outputs
from ..records.events import PHASE, TRAINED
from ..records.recorder import Recorder
from ..records.sync import task_records
from ..records.sync.index import SyncedRun
from ..records.sync.push import ContainerUploader
from ..runtime import secret_values, task_main, unpack
from ..status import EXIT_CANCELLED, EXIT_INFRASTRUCTURE, Reason, State
from ..storage import own_folders, posix
from ..storage.folder_files import path_of
from ..storage.registry import open_store
from . import identity, tail
from .attempt import DRAIN_S, LAST_DRAIN_S, Container, ContainerAttempt, command
from .attempts import Attempts, LeaveError, Membership
from .ending import AttemptEnd
from .task_process import TaskProcess
from .task_restarts import TaskRestart

_log = logs.logger("runtime")
# For the last uploads of a container that nothing has asked to stop.
_NORMAL_S = 120.0
# The container whose task has failed ends first, so that the service reports that one.
_YIELD_S, _POLL_S = 5.0, 0.1
# How often to look for a cancel request while the last phase runs.
_CANCEL_S = 2.0
# Where there are some, an import may open one of them, and could not be forked then.
_ACCELERATORS = ("dev/nvidia*", "dev/accel*", "dev/vfio*", "dev/kfd")


def main(launch_spec: Mapping[str, Any], *, bundle: str, home: str, installed: str) -> int:
    """Run the task of this container, attempt after attempt, and return the container's exit code."""
    logs.start(errors_apart=True)
    terms = decode(ContainerTerms, launch_spec["container"])
    try:
        return _agent(launch_spec, terms, bundle=bundle, home=home, installed=installed).run()
    except LeaveError as left:
        _log.info(str(left))
        return terms.restart_code if left.code is None else left.code
    except AccessError as error:
        _log.error(str(error))
        return EXIT_INFRASTRUCTURE
    except InputError as error:
        _log.error(str(error))
        return error.exit_code
    except PodliftError as error:
        # Another try may succeed: the service starts the container again.
        _log.error(str(error))
        return terms.restart_code
    except Exception:  # a full disk, or a bug in podlift: the program has not failed
        traceback.print_exc()
        return EXIT_INFRASTRUCTURE


def _agent(launch_spec: Mapping[str, Any], terms: ContainerTerms, *, bundle: str, home: str, installed: str) -> Agent:
    payload = Payload.from_json(json.dumps({"version": VERSION, **launch_spec["payload"]}))
    task = identity.task_of(os.environ, payload.tasks, terms)
    store, job = open_store(launch_spec["run"]), int(launch_spec["job"])
    paths = RunPaths(posixpath.join(home, "runs", payload.run_id))
    resumes = int(launch_spec.get("resumes_by_users", job - 1))
    payload = replace(
        payload,
        run_url=paths.url,
        bundle=bundle,
        store=payload.store or RunPaths(launch_spec["run"]).store,
        bucket_url=launch_spec["run"],
        resumes=job - 1,
        resumes_by_users=resumes,
        vendor=posixpath.join(home, "runtime", "vendor"),
    )
    process, clock = TaskProcess(), SystemClock()
    place = identity.TaskAddress(task, terms, os.environ)
    attempts = Attempts(
        store,
        task,
        payload.tasks,
        job,
        clock,
        retry=decode(Retry, launch_spec["retry"]),
        resumes_by_users=resumes,
        drill=bool(payload.drill),
        stop=lambda: process.stop_requested,
        address=place.address,
    )
    container = Container(
        task=task,
        paths=paths,
        store=store,
        terms=terms,
        attempts=attempts,
        process=process,
        clock=clock,
        place=place,
    )
    # Every attempt gets the same values, also of a version that was destroyed meanwhile.
    if payload.secrets:
        from ..storage import secret_manager

        os.environ.update(
            {name: secret_manager.value(version, clock=clock) for name, version in payload.secrets.items()}
        )
    hidden, secrets = (secret_values.words(os.environ, names) for names in (payload.copied, payload.secrets))
    preload = decode(tuple[str, ...], launch_spec.get("preload", []))
    return Agent(container, payload, home=home, installed=installed, hidden=hidden, secrets=secrets, preload=preload)


class Agent:
    """Runs one task, attempt after attempt.

    `installed` is the folder of the packages that the image lacked, "" for none; `hidden` words are never stored, and `secrets`
    not shown in the log either; `preload` are the modules that a spare process imports for the next attempt.
    """

    def __init__(
        self,
        container: Container,
        payload: Payload,
        *,
        home: str,
        installed: str,
        hidden: Sequence[str] = (),
        secrets: Sequence[str] = (),
        preload: Sequence[str] = (),
    ) -> None:
        self._container, self._payload = container, payload
        self._home, self._installed, self._preload = home, installed, preload
        self._hidden, self._secrets = hidden, secrets
        self._is_first = container.task == payload.tasks[0]
        self._uploader = self._new_uploader()
        self._redirected: Mapping[str, str] = {}
        self._spare: Template | None = None
        # They finish the work for earlier attempts while the next one runs.
        self._later: list[threading.Thread] = []

    def _new_uploader(self) -> ContainerUploader:
        container, payload = self._container, self._payload
        task = container.task if self._is_first else ""
        return ContainerUploader(
            container.paths, payload.bucket_url, container.clock, task=task, resumes=payload.resumes
        )

    def run(self) -> int:
        """Return the container's exit code."""
        if self._payload.model and (trained := self._container.attempts.succeeded()):
            return self._phase_alone(trained)
        if limits := cores.within_quota(machine := cores.available()):
            _log.info(f"{machine}: TensorFlow gets {limits[cores.INTRA]} threads")
        self._redirected = start.start(os.environ, self._home)
        membership = self._joined()
        self._uploader.start()
        while True:
            restarts = self._container.attempts.restarts_of_task(membership.attempt)
            kept = self._tail(membership.attempt, continued=bool(restarts))
            attempt = self._begun(membership, kept, restarts)
            error, end = None, None
            try:
                env = self._environment(membership.attempt, membership)
                end = attempt.run(env, self._standing_by, partial(self._start_spare, env, membership.attempt))
            except PodliftError as failed:
                error = failed
            except LeaveError as left:
                _log.info(str(left))
            tidy = partial(self._tidy, membership.attempt, attempt.recorder, kept)
            if end is None or not end.restart or self._container.process.stop_requested:
                return self._finish(membership.attempt, attempt.recorder, kept, end, error)
            _log.info(f"attempt {membership.attempt} has ended ({end.reason.value}). {end.why}")
            self._later.append(threading.Thread(target=tidy, name="podlift-tidy", daemon=True))
            self._later[-1].start()
            try:
                membership = self._container.attempts.join(end.delay_s)
            except LeaveError as left:
                _log.info(str(left))
                code = self._container.terms.restart_code if left.code is None else left.code
                return self._leave(None, None, lambda: None, code=code)
            except PodliftError as failed:
                return self._leave(None, failed, lambda: None)

    # --- The beginning of an attempt

    def _joined(self) -> Membership:
        """Return the first attempt of this container. What its task imports is imported while the others are awaited."""
        if not any(path for pattern in _ACCELERATORS for path in Path("/").glob(pattern)):
            Path(self._scratch(1)).mkdir(parents=True, exist_ok=True)
            self._start_spare(self._environment(1), 1, yields=False)
        try:
            return self._container.attempts.join()
        except BaseException:
            self._end_spare()
            raise

    def _tail(self, attempt: int, *, continued: bool) -> tail.TailUploader | tail.LogFile:
        container = self._container
        if not container.terms.keeps_logs:
            if continued:
                # Another container has begun it.
                copy = SyncedRun(container.paths, self._payload.bucket_url, container.clock)
                copy.pull([RunPaths("").log(attempt, container.task)])
            return tail.LogFile(container.paths.log(attempt, container.task), self._hidden)
        key = RunPaths("").tail(attempt, container.task)
        store = open_store(self._payload.bucket_url)
        return tail.TailUploader(store, key, container.clock, self._hidden, continued=continued)

    def _begun(
        self, membership: Membership, kept: tail.TailUploader | tail.LogFile, restarts: Sequence[TaskRestart]
    ) -> ContainerAttempt:
        container, number = self._container, membership.attempt
        work = container.paths.work(number, container.task)
        for folder in (posixpath.dirname(work), self._scratch(number), container.paths.events):
            Path(folder).mkdir(parents=True, exist_ok=True)
        payload = replace(self._payload, attempt=number)
        posix.put_passing(container.paths.payload(number), payload.to_json().encode())
        if restarts:
            sources = (container.task, task_records.agent_of(container.task, payload.tasks))
            task_records.copy_own(container.store, container.paths, number, sources)
        output = partial(tail.CopiedOutput, kept.buffer.add, posixpath.dirname(work), self._secrets)
        attempt = ContainerAttempt(container, payload, membership, output, restarts)
        if self._is_first:
            known = self._addresses(membership)
            attempt.recorder.record("attempt_started", addresses=known, job=membership.job)
        kept.start()
        return attempt

    def _scratch(self, attempt: int) -> str:
        return posixpath.join(self._home, "tmp", f"{attempt:04d}")

    def _addresses(self, membership: Membership | None) -> Mapping[str, str]:
        told = {} if membership is None else membership.addresses
        return told or identity.addresses(os.environ, self._payload.tasks, self._container.terms)

    def _environment(self, attempt: int, membership: Membership | None = None) -> dict[str, str]:
        """Return the variables of the task's process; of the last phase without a membership, which has no cluster."""
        payload, container = replace(self._payload, attempt=attempt), self._container
        known = self._addresses(membership)
        found = environment(
            os.environ, payload, container.task, self._scratch(attempt), self._installed, known.values()
        )
        if membership is not None and membership.addresses:
            found |= container.place.variables(payload.tasks, membership.addresses, payload.run_id)
        return {**cores.within_quota(cores.available()), **found, **self._redirected}

    def _standing_by(self) -> Template | None:
        """Return the process from which a task can be forked, if there is one."""
        if self._spare is not None and not self._spare.is_alive:
            self._end_spare()
        return self._spare

    def _start_spare(self, env: Mapping[str, str], attempt: int, *, yields: bool = True) -> None:
        """Start the process from which the next attempt is forked, if there is none yet and the memory allows it."""
        if self._standing_by() is not None or not self._preload or not free_memory.allows_standby():
            return
        preload, self._preload = self._preload, ()
        container = self._container
        imports = Imports(
            python=sys.executable,
            script=str(Path(task_main.__file__).with_name("template.py")),
            modules=preload,
            project=top_modules(self._names(), self._payload.roots),
            outside=self._payload.source_dirs,
        )
        work = posixpath.dirname(container.paths.work(attempt, container.task))
        log, room = posixpath.join(self._home, "imports.log"), room_for([command(container, attempt)])
        try:
            self._spare = Template(imports, env, cwd=work, log=log, room=room, yields=yields)
            self._spare.stand_by()
        except OSError as error:
            # It is not tried again: the task that trains needs what is scarce.
            _log.info(f"no spare process for the next attempt: {error}")
        else:
            self._preload = preload

    def _end_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _names(self) -> list[str]:
        with tarfile.open(self._payload.bundle, mode="r:") as tar:
            return tar.getnames()

    # --- Its end

    def _finish(
        self,
        number: int,
        recorder: Recorder,
        kept: tail.TailUploader | tail.LogFile,
        end: AttemptEnd | None,
        error: PodliftError | None,
    ) -> int:
        """Do what follows the last attempt, and return the container's exit code."""
        succeeded = end is not None and end.state is State.SUCCEEDED and self._is_first
        stopped = self._container.process.stop_requested
        if not succeeded or not self._payload.model or stopped:
            # The next container registers the model: with the program's code, the run would end without it.
            again = self._container.terms.restart_code if succeeded and self._payload.model else None
            return self._leave(end, error, partial(self._tidy, number, recorder, kept), code=again)
        # It has imported TensorFlow, and the evaluation may need the memory.
        self._end_spare()
        self._collect(number, recorder)
        try:
            # The version is made of what the bucket has.
            self._uploader.flush(_NORMAL_S)
        except PodliftError as failed:
            return self._leave(None, failed, partial(self._free, number, kept))
        self._uploader = self._new_uploader()
        self._uploader.start()
        return self._phase(number, recorder, kept, end)

    def _phase_alone(self, number: int) -> int:
        """Repeat the last phase of a run whose training an earlier container has finished."""
        container = self._container
        if not self._is_first:
            raise LeaveError("the training has ended (done)", 0)
        if container.attempts.is_cancelled():
            raise LeaveError("the run was cancelled", EXIT_CANCELLED)
        _log.info(f"the training has ended with attempt {number}: only its last phase is repeated")
        self._redirected = start.start(os.environ, self._home)
        for folder in (container.paths.attempt(number), self._scratch(number), container.paths.events):
            Path(folder).mkdir(parents=True, exist_ok=True)
        source = task_records.agent_of(container.task, self._payload.tasks)
        task_records.copy_own(container.store, container.paths, number, (source, PHASE))
        recorder = Recorder(container.paths, source, number, container.clock, continued=True)
        kept = self._tail(number, continued=True)
        kept.start()
        self._uploader.start()
        return self._phase(number, recorder, kept, container.attempts.end_of(number))

    def _phase(
        self, number: int, recorder: Recorder, kept: tail.TailUploader | tail.LogFile, end: AttemptEnd | None
    ) -> int:
        """Register the model and decide about it, and return the container's exit code."""
        # Nearly half of the time of all imports here, which every task would wait for.
        from ..runtime import last_phase

        container = self._container
        recorder.record(TRAINED)
        output = tail.CopiedOutput(kept.buffer.add, self._scratch(number), self._secrets)
        process = _PhaseProcess(container, output, self._environment(number))
        payload = replace(self._payload, attempt=number)
        why = last_phase.run(process, payload, container.paths, process.is_cancelled, container.clock)
        code = EXIT_CANCELLED if why is None else container.terms.restart_code if why else None
        if why and not container.process.stop_requested:
            failure = {"task": container.task, "message": why, "traceback": "", "log": ""}
            reason = Reason.INFRASTRUCTURE.value
            recorder.record("attempt_ended", reason=reason, failure=failure, why="", alone="", step=None)
        return self._leave(end, None, partial(self._free, number, kept), code=code)

    def _tidy(self, number: int, recorder: Recorder, kept: tail.TailUploader | tail.LogFile) -> None:
        self._collect(number, recorder)
        self._free(number, kept)

    def _collect(self, number: int, recorder: Recorder) -> None:
        container = self._container
        if self._is_first and not container.process.stop_requested:
            outputs.collect(container.paths, number, container.task, self._bundled, recorder, model=False)

    def _free(self, number: int, kept: tail.TailUploader | tail.LogFile) -> None:
        container, within_s = self._container, self._within_s()
        try:
            kept.finish(within_s)
        except PodliftError as error:
            # The service has it too: the run ends as it has ended.
            _log.info(f"the last output of this task could not be uploaded: {error}")
        if not container.process.stop_requested:
            self._discard(container.paths.work(number, container.task))
        self._discard(self._scratch(number))

    def _discard(self, folder: str) -> None:
        own_folders.discard(self._home, os.path.relpath(folder, self._home))

    def _within_s(self) -> float:
        return self._container.terms.notice_s if self._container.process.stop_requested else _NORMAL_S

    def _leave(
        self, end: AttemptEnd | None, error: PodliftError | None, tidy: Callable[[], None], *, code: int | None = None
    ) -> int:
        denied = error is not None and _upload_failed(error)
        self._end_spare()
        for thread in self._later:
            thread.join(self._within_s())
        tidy()
        try:
            self._uploader.flush(self._within_s(), last=True)
        except PodliftError as failed:
            denied = _upload_failed(failed) or denied
        if code is None:
            code = self._exit_code(end)
        _log.info(f"{self._container.task}: this container exits with {code}. {end.why if end else ''}".rstrip())
        return EXIT_INFRASTRUCTURE if denied else code

    def _exit_code(self, end: AttemptEnd | None) -> int:
        container = self._container
        if end is None or end.restart:
            return container.terms.restart_code
        if end.state is not State.SUCCEEDED and end.nonce != container.attempts.nonce:
            until = container.clock.monotonic() + _YIELD_S
            while container.clock.monotonic() < until and not container.process.stop_requested:
                container.clock.sleep(_POLL_S)
        return end.exit_code

    def _bundled(self) -> dict[str, tuple[int, str]]:
        found = {}
        with tarfile.open(self._payload.bundle, mode="r:") as tar:
            for member in unpack.members(tar, Path(self._payload.bundle).stat().st_size):
                data = tar.extractfile(member)
                if data is not None:
                    found[member.name] = (member.size, hashlib.sha256(data.read()).hexdigest())
        return found


def environment(
    own: Mapping[str, str], payload: Payload, task: str, scratch: str, installed: str, addresses: Iterable[str]
) -> dict[str, str]:
    """Return a task's environment variables: the container's own, and what podlift adds."""
    bucket = RunPaths(path_of(payload.bucket_url))
    hosts = [address.rpartition(":")[0] for address in addresses]
    no_proxy = [own.get("no_grpc_proxy", ""), "localhost", *hosts]
    found = {
        **cluster.network(payload.tasks),
        **own,
        # A service may set these itself. Here all jobs of a run have the run's own directory.
        "AIP_MODEL_DIR": f"{bucket.model}/",
        "AIP_CHECKPOINT_DIR": f"{bucket.checkpoints}/",
        "AIP_TENSORBOARD_LOG_DIR": f"{bucket.tensorboard}/",
        "PODLIFT_RUN": payload.run_url,
        "PODLIFT_TASK": task,
        "PODLIFT_ATTEMPT": str(payload.attempt),
        "TMPDIR": scratch,
        "PYTHONUNBUFFERED": "1",
        "no_grpc_proxy": ",".join(filter(None, no_proxy)),
    }
    if installed:
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (installed, own.get("PYTHONPATH", ""))))
    return found


def _upload_failed(error: PodliftError) -> bool:
    """Report it, and return whether access was denied, which no restart changes."""
    _log.error(f"this task's records and outputs could not be uploaded: {error}")
    return isinstance(error, AccessError)


class _PhaseProcess:
    """The process of the last phase, in the place of the task's."""

    def __init__(self, container: Container, output: tail.CopiedOutput, env: Mapping[str, str]) -> None:
        self._container, self._output, self._env = container, output, env
        self._due = container.clock.monotonic()

    def start(self, arguments: list[str]) -> None:
        about = TaskStart(
            task=self._container.task,
            command=[sys.executable, str(Path(task_main.__file__)), *arguments],
            env=dict(self._env),
            cwd=os.path.dirname(arguments[0]),
            log=self._output.paths[0],
            errors=self._output.paths[1],
        )
        self._container.process.start(about, None)
        self._output.start()

    def poll(self) -> int | None:
        return self._container.process.poll()

    def end(self) -> None:
        process = self._container.process
        process.send(signal.SIGKILL)
        while process.pid is not None and process.poll() is None:
            self._container.clock.sleep(_POLL_S)
        self._output.finish(LAST_DRAIN_S if process.stop_requested else DRAIN_S)

    def is_cancelled(self) -> bool:
        """Return whether a cancel request is known; the bucket is asked every two seconds."""
        container = self._container
        if container.clock.monotonic() < self._due:
            return False
        self._due += _CANCEL_S
        try:
            return container.attempts.is_cancelled()
        except PodliftError as error:
            _log.info(f"cannot check now whether the run was cancelled: {error}")
            return False
