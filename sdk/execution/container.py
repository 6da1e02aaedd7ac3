"""A container as an agent's host: it runs one task, and uploads the task's records and outputs.

It knows its own task, and the records of the other agents in the run's directory. A task that fails is restarted in the
container, together with its gang. It never imports TensorFlow, and knows the service that runs the container only by the terms
in the launch spec.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import logs
from ..clock import Clock, SystemClock
from ..errors import AccessError, InputError, PodliftError
from ..job import cluster
from ..job.container import ContainerTerms
from ..job.layout import RunPaths
from ..job.payload import TASK_RESTARTS, VERSION, Payload
from ..job.policies import Retry
from ..job.wire import decode
from ..process import cores, spawn
from ..process.redirect import start
from ..process.template import Imports, TaskStart, top_modules
from ..records import outputs
from ..records.events import PHASE, TASK_RESTARTING, TRAINED
from ..records.recorder import Recorder
from ..records.sync import task_records
from ..records.sync.cancels import CancelWatch
from ..records.sync.index import SyncedRun
from ..records.sync.push import ContainerUploader
from ..records.verdicts import AttemptEnd, failed
from ..runtime import secret_values, task_main, unpack
from ..status import EXIT_CANCELLED, EXIT_INFRASTRUCTURE, EXIT_USER, Failure, Reason, State
from ..storage import own_folders, posix
from ..storage.folder_files import path_of
from ..storage.registry import open_files, open_store
from . import ending, identity, tail
from .agent import Agent, record_end, record_restart
from .agreement import LeaveError, Membership
from .host import AttemptSetup
from .output import ContainerOutput
from .phase import run_phase
from .shared_agreement import SharedAgreement
from .standby import Forks, Launch, Standby
from .task import StopSignals, TaskProcess

_log = logs.logger("runtime")
# For the last uploads of a container without a stop request.
_NORMAL_S = 120.0
# The container of the failed task ends first, so that the service reports this failure.
_YIELD_S, _POLL_S = 5.0, 0.1
# A task that still waits for its imports after this time imports by itself, under the hang watch.
_IMPORT_S = 600.0
# Where there are some, an import may open one of them, and could not be forked then.
_ACCELERATORS = ("dev/nvidia*", "dev/accel*", "dev/vfio*", "dev/kfd")
_SHELL_SIGNAL = 128

LogTail = tail.TailUploader | tail.LogFile


def main(launch_spec: Mapping[str, Any], *, bundle: str, home: str, installed: str) -> int:
    """Run the task of this container, attempt after attempt, and return the container's exit code."""
    logs.start(errors_apart=True)
    terms = decode(ContainerTerms, launch_spec["container"])
    try:
        return Container(launch_spec, terms, bundle=bundle, home=home, installed=installed).run()
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


def _payload(launch_spec: Mapping[str, Any], paths: RunPaths, *, bundle: str, home: str) -> Payload:
    payload, job = _decoded(launch_spec), int(launch_spec["job"])
    return replace(
        payload,
        run_url=paths.url,
        bundle=bundle,
        store=payload.store or RunPaths(launch_spec["run"]).store,
        bucket_url=launch_spec["run"],
        resumes=job - 1,
        resumes_by_users=int(launch_spec.get("resumes_by_users", job - 1)),
        vendor=posixpath.join(home, "runtime", "vendor"),
    )


def _decoded(launch_spec: Mapping[str, Any]) -> Payload:
    return Payload.from_json(json.dumps({"version": VERSION, **launch_spec["payload"]}))


class Container:
    """The host of one task.

    Args:
        home: its folder, with the run's folder and temporary files.
        installed: the folder of the packages that the image lacked, "" for none.
    """

    scope = ending.SHARED

    def __init__(
        self, launch_spec: Mapping[str, Any], terms: ContainerTerms, *, bundle: str, home: str, installed: str
    ) -> None:
        self.paths = RunPaths(posixpath.join(home, "runs", _decoded(launch_spec).run_id))
        payload = self._payload = _payload(launch_spec, self.paths, bundle=bundle, home=home)
        self._task = identity.task_of(os.environ, payload.tasks, terms)
        self._terms, self._home, self._installed = terms, home, installed
        self._store = open_store(launch_spec["run"])
        self.clock: Clock = SystemClock()
        self._signals = StopSignals()
        spawn.adopt_orphans()
        self._place = identity.TaskAddress(self._task, terms, os.environ)
        self._agreement = SharedAgreement(
            self._store,
            self._task,
            payload.tasks,
            int(launch_spec["job"]),
            self.clock,
            retry=decode(Retry, launch_spec["retry"]),
            resumes_by_users=payload.resumes_by_users,
            drill=bool(payload.drill),
            hang_s=payload.limits.hang_s,
            limit_s=None if terms.keeps_limit else payload.limits.timeout_s,
            age_s=open_files(launch_spec["run"]).age_s,
            stop=lambda: self._signals.stop_requested,
            address=self._place.address,
        )
        self.tasks: Sequence[str] = (self._task,)
        self.folders: Sequence[str] = (self.paths.root,)
        self._is_first = self._task == payload.tasks[0]
        self._source = task_records.agent_of(self._task, payload.tasks)
        self._read_secrets()
        # Values that are never stored, and values that the log hides too.
        self._hidden = secret_values.words(os.environ, payload.copied)
        self._secrets = secret_values.words(os.environ, payload.secrets)
        self._uploader = self._new_uploader()
        self._redirected: Mapping[str, str] = {}
        self._standby = Standby(self._forks(decode(tuple[str, ...], launch_spec.get("preload", []))))
        # Of the attempt that runs, or of the last one.
        self._log_tail: LogTail | None = None
        self._output = self._new_output("", lambda data: None)
        self._attempt = 0
        self._env: dict[str, str] = {}
        # They finish the work for earlier attempts while the next one runs.
        self._later: list[threading.Thread] = []

    def _read_secrets(self) -> None:
        """Read the program's secrets from Secret Manager, once: later attempts get them even if a version was destroyed."""
        if self._payload.secrets:
            from ..storage import secret_manager

            versions = self._payload.secrets.items()
            os.environ.update({name: secret_manager.value(version, clock=self.clock) for name, version in versions})

    def _forks(self, preload: Sequence[str]) -> Forks:
        with tarfile.open(self._payload.bundle, mode="r:") as tar:
            names = tar.getnames() if preload else []
        imports = Imports(
            python=sys.executable,
            script=str(Path(task_main.__file__).with_name("template.py")),
            modules=preload,
            project=top_modules(names, self._payload.roots),
            outside=self._payload.source_dirs,
        )
        why_not = "" if preload else "its plan does not mention it"
        return Forks(imports=imports, folder=self._home, why_not=why_not, why_not_first="no process stands by")

    def _new_uploader(self) -> ContainerUploader:
        task = self._task if self._is_first else ""
        return ContainerUploader(
            self.paths, self._payload.bucket_url, self.clock, task=task, resumes=self._payload.resumes
        )

    @property
    def stop_requested(self) -> bool:
        return self._signals.stop_requested

    def run(self) -> int:
        """Return the container's exit code."""
        if self._payload.model and (trained := self._agreement.succeeded()):
            return self._repeat_phase(trained)
        if limits := cores.within_quota(available := cores.available()):
            _log.info(f"{available}: TensorFlow gets {limits[cores.INTRA]} threads")
        self._redirected = start.start(os.environ, self._home)
        if not any(path for pattern in _ACCELERATORS for path in Path("/").glob(pattern)):
            # The modules of its task are imported while the container waits for the others.
            Path(self._scratch(1)).mkdir(parents=True, exist_ok=True)
            self._standby.prepare([self._start(1, self._environment(1))], yields=False)
        end, error, code = None, None, None
        try:
            end = Agent(self, self._payload, self._agreement).run()
        except (LeaveError, PodliftError) as problem:
            if isinstance(problem, LeaveError) and problem.ended:
                self._record_last(*problem.ended)
            if not self._attempt:
                self._standby.close()
                raise
            if isinstance(problem, LeaveError):
                _log.info(str(problem))
                code = problem.code
            else:
                error = problem
        return self._finish(end, error, code)

    # --- An attempt: the calls of its agent

    def begin(self, membership: Membership) -> AttemptSetup:
        if not self._attempt:
            self._uploader.start()
        number = self._attempt = membership.attempt
        self._record_inherited()
        restarts = self._agreement.restarts_of_task(number)
        work = self.paths.work(number, self._task)
        for folder in (posixpath.dirname(work), self._scratch(number), self.paths.events):
            Path(folder).mkdir(parents=True, exist_ok=True)
        posix.put_passing(self.paths.payload(number), replace(self._payload, attempt=number).to_json().encode())
        if restarts:
            task_records.copy_own(self._store, self.paths, number, (self._task, self._source))
        recorder = Recorder(self.paths, self._source, number, self.clock, continued=bool(restarts))
        if restarts:
            failure = Failure(task=self._task, message=f"The container of {self._task} was replaced.")
            about = {"reason": restarts[-1].reason.value, "failure": asdict(failure), "step": None}
            recorder.record(TASK_RESTARTING, task=self._task, why=restarts[-1].why, delay_s=0.0, **about)
        self._log_tail = self._tail(number, continued=bool(restarts))
        self._log_tail.start()
        folder = posixpath.dirname(work)
        self._output = self._new_output(folder, self._log_tail.buffer.add)
        return AttemptSetup(recorder=recorder, output=self._output, restarts=len(restarts))

    def _record_inherited(self) -> None:
        """Record the restarts that no other agent records: after attempts that lost the container of the first task."""
        while self._agreement.inherited:
            attempt, end = self._agreement.inherited.popitem()
            if self._is_first:
                Path(self.paths.events).mkdir(parents=True, exist_ok=True)
                task_records.copy_own(self._store, self.paths, attempt, (self._source,))
                record_restart(end, Recorder(self.paths, self._source, attempt, self.clock, continued=True))

    def _record_last(self, attempt: int, end: AttemptEnd) -> None:
        """Record why an attempt is the last one, which another container may have had."""
        if not self._attempt:
            self._attempt = attempt
            self._uploader.start()
        Path(self.paths.events).mkdir(parents=True, exist_ok=True)
        task_records.copy_own(self._store, self.paths, attempt, (self._source,))
        record_end(end, Recorder(self.paths, self._source, attempt, self.clock, continued=True))

    def start(self, membership: Membership, setup: AttemptSetup) -> Mapping[str, TaskProcess]:
        number = membership.attempt
        if self._is_first:
            setup.recorder.record("attempt_started", addresses=self._addresses(membership), job=membership.job)
        env = self._environment(number, membership)
        if setup.restarts:
            env[TASK_RESTARTS] = str(setup.restarts)
        self._env = env
        return {self._task: self.start_again(self._start(number, env))}

    def _start(self, attempt: int, env: Mapping[str, str]) -> TaskStart:
        work = self.paths.work(attempt, self._task)
        return TaskStart(
            task=self._task,
            command=[sys.executable, str(Path(task_main.__file__)), self.paths.payload(attempt), self._task],
            env=dict(env),
            cwd=os.path.dirname(work),
            log="",
        )

    def start_again(self, start: TaskStart) -> TaskProcess:
        log, errors = self._output.opened()
        # The kernel ends the task when this process is gone: the task compares the number with its parent's.
        start = replace(start, log=log, errors=errors, env={**start.env, "PODLIFT_PARENT": str(os.getpid())})
        until, signals, forks = time.monotonic() + _IMPORT_S, self._signals, self._standby.forks

        def stop() -> bool:
            over = self._agreement.known_end(self._attempt) is not None
            return over or self.stop_requested or time.monotonic() >= until

        with closing(Launch([start], self._standby)) as launch:
            process = launch.finish(stop).get(self._task) or start.spawn()
        if launch.why_fresh not in (forks.why_not, forks.why_not_first):
            _log.info(f"the task was not forked: {launch.why_fresh}")
            # A task that could not be forked once will not be forked later.
            self._standby = Standby(replace(forks, prepares=False))
        signals.forward_to(process.pid)
        self._output.started()
        return TaskProcess(start, process, exited=lambda: signals.forward_to(None))

    def clear(self, attempt: int, task: str) -> None:
        scratch = self._scratch(attempt)
        for folder in (self.paths.work(attempt, task), scratch):
            self._discard(folder)
        Path(scratch).mkdir(parents=True, exist_ok=True)

    def keep_standby(self) -> None:
        self._standby.prepare([self._start(self._attempt, self._env)])

    def exit_code(self, own_end: AttemptEnd, code: int) -> int:
        if own_end.reason in (Reason.ACCELERATOR_IDLE, Reason.TIMEOUT):
            return EXIT_USER
        if own_end.reason is Reason.HUNG:
            return EXIT_INFRASTRUCTURE
        return container_code(code, self._terms)

    def tidy(self, attempt: int, setup: AttemptSetup, *, more: bool) -> None:
        """Collect the program's files. The rest is done after the last phase, or by a thread while the next attempt runs."""
        log_tail = self._log_tail
        if more and log_tail is not None:
            thread = threading.Thread(
                target=self._tidy, args=[attempt, setup, log_tail], name="podlift-tidy", daemon=True
            )
            self._later.append(thread)
            thread.start()
            # By that thread.
            self._log_tail = None
        else:
            # Files of an earlier attempt must not replace newer ones.
            for earlier in self._later:
                earlier.join(self._within_s())
            self._collect(attempt, setup.recorder)

    def _tidy(self, attempt: int, setup: AttemptSetup, log_tail: LogTail) -> None:
        self._collect(attempt, setup.recorder)
        self._free(attempt, log_tail)

    # --- The beginning of an attempt

    def _tail(self, attempt: int, *, continued: bool) -> LogTail:
        url = self._payload.bucket_url
        if not self._terms.keeps_logs:
            log = self.paths.log(attempt, self._task)
            if continued:
                # Another container has begun it.
                SyncedRun(self.paths, url, self.clock).pull([RunPaths("").log(attempt, self._task)])
            return tail.LogFile(log, self._hidden)
        key = RunPaths("").tail(attempt, self._task)
        return tail.TailUploader(open_store(url), key, self.clock, self._hidden, continued=continued)

    def _new_output(self, folder: str, add: Callable[[bytes], None]) -> ContainerOutput:
        return ContainerOutput(add, folder, self._secrets, self._hidden, lambda: self.stop_requested)

    def _scratch(self, attempt: int) -> str:
        return posixpath.join(self._home, "tmp", f"{attempt:04d}")

    def _addresses(self, membership: Membership | None) -> Mapping[str, str]:
        peers = {} if membership is None else membership.addresses
        return peers or identity.addresses(os.environ, self._payload.tasks, self._terms)

    def _environment(self, attempt: int, membership: Membership | None = None) -> dict[str, str]:
        """Return the variables of the task's process; of the last phase without a membership, which has no cluster."""
        payload, place = replace(self._payload, attempt=attempt), self._place
        addresses = self._addresses(membership).values()
        variables = environment(os.environ, payload, self._task, self._scratch(attempt), self._installed, addresses)
        if membership is not None and membership.addresses:
            variables |= place.variables(payload.tasks, membership.addresses, payload.run_id)
        return {**cores.within_quota(cores.available()), **variables, **self._redirected}

    # --- After the last attempt

    def _finish(self, end: AttemptEnd | None, error: PodliftError | None, code: int | None) -> int:
        """Finish the work after the last attempt, and return the container's exit code."""
        registers = end is not None and end.state is State.SUCCEEDED and self._is_first and bool(self._payload.model)
        if not registers or self._log_tail is None:
            return self._leave(end, error, code=code)
        if self.stop_requested:
            # The next container registers the model: with the program's code, the run would end without it.
            return self._leave(end, error, code=self._terms.restart_code)
        # It has imported TensorFlow, and the evaluation may need the memory.
        self._standby.close()
        try:
            # The version consists of the files in the bucket.
            self._uploader.flush(_NORMAL_S)
        except PodliftError as problem:
            return self._leave(None, problem)
        self._uploader = self._new_uploader()
        self._uploader.start()
        return self._phase(end, self._log_tail)

    def _repeat_phase(self, number: int) -> int:
        """Repeat the last phase of a run whose training an earlier container has finished."""
        if not self._is_first:
            raise LeaveError("the training has ended (done)", 0)
        if self._agreement.is_cancelled():
            raise LeaveError("the run was cancelled", EXIT_CANCELLED)
        self._agreement.leave_if_over()
        _log.info(f"the training has ended with attempt {number}: only its last phase is repeated")
        self._attempt, self._redirected = number, start.start(os.environ, self._home)
        for folder in (self.paths.attempt(number), self._scratch(number), self.paths.events):
            Path(folder).mkdir(parents=True, exist_ok=True)
        task_records.copy_own(self._store, self.paths, number, (self._source, PHASE))
        self._log_tail = self._tail(number, continued=True)
        self._log_tail.start()
        self._uploader.start()
        return self._phase(self._agreement.end_of(number), self._log_tail)

    def _phase(self, end: AttemptEnd | None, log_tail: LogTail) -> int:
        """Register the model and decide about it, and return the container's exit code."""
        number, terms = self._attempt, self._terms
        recorder = Recorder(self.paths, self._source, number, self.clock, continued=True)
        recorder.record(TRAINED)
        self._output = self._new_output(self._scratch(number), log_tail.buffer.add)
        about = replace(self._start(number, self._environment(number)), cwd=self.paths.attempt(number))
        payload = replace(self._payload, attempt=number)
        is_stopped = partial(self._is_over, self._agreement.cancel_watch())
        why = run_phase(
            about, self.start_again, self._output, payload, self.paths, is_stopped=is_stopped, clock=self.clock
        )
        code = EXIT_CANCELLED if why is None else terms.restart_code if why else None
        if why is None and self._agreement.is_overdue():
            code = EXIT_USER
            record_end(ending.over_limit(self._payload.limits.timeout_s), recorder)
        elif why and not self.stop_requested:
            record_end(failed(Reason.INFRASTRUCTURE, Failure(task=self._task, message=why)), recorder)
        return self._leave(end, None, code=code)

    def _is_over(self, requests: CancelWatch) -> bool:
        """Return whether the last phase has to stop."""
        try:
            return self._agreement.is_overdue() or bool(requests.look())
        except PodliftError as error:
            _log.info(f"cannot check now whether the run was cancelled: {error}")
            return False

    def _collect(self, number: int, recorder: Recorder) -> None:
        if self._is_first and not self.stop_requested:
            outputs.collect(self.paths, number, self._task, self._bundled, recorder, model=False)

    def _free(self, number: int, log_tail: LogTail) -> None:
        try:
            log_tail.finish(self._within_s())
        except PodliftError as error:
            # The service has it too: the run ends as it has ended.
            _log.info(f"the last output of this task could not be uploaded: {error}")
        if not self.stop_requested:
            self._discard(self.paths.work(number, self._task))
        self._discard(self._scratch(number))

    def _discard(self, folder: str) -> None:
        own_folders.discard(self._home, os.path.relpath(folder, self._home))

    def _within_s(self) -> float:
        return self._terms.notice_s if self.stop_requested else _NORMAL_S

    def _leave(self, end: AttemptEnd | None, error: PodliftError | None, *, code: int | None = None) -> int:
        denied = error is not None and _upload_failed(error)
        self._standby.close()
        for thread in self._later:
            thread.join(self._within_s())
        if self._log_tail is not None:
            self._free(self._attempt, self._log_tail)
        try:
            self._uploader.flush(self._within_s(), last=True)
        except PodliftError as problem:
            denied = _upload_failed(problem) or denied
        if code is None:
            code = self._exit_code(end)
        _log.info(f"{self._task}: this container exits with {code}. {end.why if end else ''}".rstrip())
        return EXIT_INFRASTRUCTURE if denied else code

    def _exit_code(self, end: AttemptEnd | None) -> int:
        if end is None or end.restart:
            return self._terms.restart_code
        if end.state is not State.SUCCEEDED and not self._agreement.is_own(end):
            until = self.clock.monotonic() + _YIELD_S
            while self.clock.monotonic() < until and not self.stop_requested:
                self.clock.sleep(_POLL_S)
        return end.exit_code

    def _bundled(self) -> dict[str, tuple[int, str]]:
        files = {}
        with tarfile.open(self._payload.bundle, mode="r:") as tar:
            for member in unpack.members(tar, Path(self._payload.bundle).stat().st_size):
                data = tar.extractfile(member)
                if data is not None:
                    files[member.name] = (member.size, hashlib.sha256(data.read()).hexdigest())
        return files


def container_code(code: int, terms: ContainerTerms) -> int:
    """Return the container's exit code for the code of its task, which is negative after a signal."""
    # As a shell would report it.
    plain = code if code >= 0 else _SHELL_SIGNAL - code
    # With such a code, the service would restart the container by its own rules, beyond the retry budget.
    return EXIT_INFRASTRUCTURE if plain in terms.restarting_codes else plain


def environment(
    own: Mapping[str, str], payload: Payload, task: str, scratch: str, installed: str, addresses: Iterable[str]
) -> dict[str, str]:
    """Return a task's environment variables: the container's own, and the ones that podlift adds."""
    bucket = RunPaths(path_of(payload.bucket_url))
    hosts = [address.rpartition(":")[0].strip("[]") for address in addresses]
    no_proxy = [own.get("no_grpc_proxy", ""), "localhost", *hosts]
    variables = {
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
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (installed, own.get("PYTHONPATH", ""))))
    return variables


def _upload_failed(error: PodliftError) -> bool:
    """Report it, and return whether access was denied, which no restart changes."""
    _log.error(f"this task's records and outputs could not be uploaded: {error}")
    return isinstance(error, AccessError)
