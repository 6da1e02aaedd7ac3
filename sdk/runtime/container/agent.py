"""The agent owns one task's container: identifies the task, joins the others, runs it, uploads its records and outputs.

It does in one container what the supervisor does for all tasks on one machine. It knows its own task, and what the other
agents have written into the run's directory. It never imports TensorFlow.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import tarfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ... import logs
from ...clock import Clock, SystemClock
from ...errors import AccessError, InputError, PodliftError
from ...process.redirect import start
from ...records import cancels, outputs
from ...records.events import Event, error_of, first_failure, is_collateral, reason_of
from ...records.recorder import Recorder, last_step, read_events
from ...records.restarts import EndedAttempt, decide
from ...records.sync.push import ContainerUploader
from ...spec.layout import RunPaths
from ...spec.payload import VERSION, Payload
from ...spec.policies import Retry
from ...spec.wire import decode
from ...status import EXIT_CANCELLED, EXIT_INFRASTRUCTURE, Reason, State
from ...storage import posix
from ...storage.registry import open_store
from ...storage.store import Store
from .. import secret_values, task_main, unpack
from . import exit_codes, identity, records, tail
from .membership import Membership, MembershipRendezvous
from .task_process import TaskProcess

_log = logs.logger("runtime")
_KEYS = RunPaths("")
# Upload limits. A preempted machine has some 15 s left, part of which the task has used.
_PREEMPTED_S, _NORMAL_S = 8.0, 120.0
_REPLACED_S = 10.0


def main(launch_spec: Mapping[str, Any], *, bundle: str, home: str, installed: str) -> int:
    """Run the task of this container and return the container's exit code."""
    logs.start(errors_apart=True)
    try:
        payload = Payload.from_json(json.dumps({"version": VERSION, **launch_spec["payload"]}))
        task = identity.task_of(os.environ, payload.tasks)
        job = int(launch_spec["job"])
        store = open_store(launch_spec["run"])
        resumes = int(launch_spec.get("resumes_by_users", job - 1))
        if cancels.requests(store, job - 1, resumes):
            # Needed even if no client watches the run: a job may start after the process that created it has ended.
            _log.info("the run was cancelled: its program is not started")
            return EXIT_CANCELLED
        rendezvous = MembershipRendezvous(store, task, payload.tasks, job, SystemClock())
        membership = rendezvous.form()
        paths = RunPaths(posixpath.join(home, "runs", payload.run_id))
        payload = replace(
            payload,
            run_url=paths.url,
            attempt=membership.attempt,
            bundle=bundle,
            store=payload.store or RunPaths(launch_spec["run"]).store,
            bucket_url=launch_spec["run"],
            resumes=job - 1,
            resumes_by_users=resumes,
            vendor=posixpath.join(home, "runtime", "vendor"),
        )
        dirs = ContainerDirs(home=home, installed=installed, paths=paths)
        retry, secrets = decode(Retry, launch_spec["retry"]), secret_values.words(os.environ, payload.copied)
        return Agent(payload, task, dirs, store, rendezvous, membership, retry, secrets).run()
    except AccessError as error:
        _log.error(str(error))
        return EXIT_INFRASTRUCTURE
    except InputError as error:
        _log.error(str(error))
        return error.exit_code
    except PodliftError as error:
        # Another try may succeed: Vertex AI restarts the job up to three times.
        _log.error(str(error))
        return exit_codes.RESTART
    except Exception:  # a full disk, or a bug in podlift: the program has not failed
        traceback.print_exc()
        return EXIT_INFRASTRUCTURE


@dataclass(frozen=True, kw_only=True)
class ContainerDirs:
    home: str  # the entrypoint's folder
    installed: str  # folder of the packages that the image lacked, "" for none
    paths: RunPaths  # the run's folder in this container


@dataclass
class Agent:
    """Runs one task of one attempt. `retry` says how many restarts the job allows; `secrets` are never stored."""

    payload: Payload
    task: str
    dirs: ContainerDirs
    store: Store
    rendezvous: MembershipRendezvous
    membership: Membership
    retry: Retry
    secrets: Sequence[str] = ()
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self._paths = self.dirs.paths
        self._is_first = self.task == self.payload.tasks[0]
        source = records.agent_of(self.task, self.payload.tasks)
        self._recorder = Recorder(self._paths, source, self.membership.attempt, self.clock)
        self._ended = threading.Event()
        key = _KEYS.tail(self.membership.attempt, self.task)
        self._tail = tail.TailUploader(open_store(self.payload.bucket_url), key, self.clock, self.secrets)

    def run(self) -> int:
        process = TaskProcess()
        uploader = ContainerUploader(
            self._paths,
            self.payload.bucket_url,
            self.clock,
            task=self.task if self._is_first else "",
            resumes=self.payload.resumes,
        )
        env = self._prepare()
        attempt = self.membership.attempt
        if self._is_first:
            known = identity.addresses(os.environ, self.payload.tasks)
            self._recorder.record("attempt_started", addresses=known, job=self.membership.job)
        cwd = posixpath.dirname(self._paths.work(attempt, self.task))
        output = tail.CopiedOutput(self._tail.buffer.add)
        payload = self._paths.payload(attempt)
        process.start(str(Path(task_main.__file__)), payload, self.task, env=env, cwd=cwd, output=output.ends)
        output.start()
        uploader.start()
        self._tail.start()
        if self._is_first and len(self.payload.tasks) > 1:
            threading.Thread(target=self._watch, args=(process,), name="podlift-watch", daemon=True).start()
        code = process.wait()
        output.finish()
        self._ended.set()
        return self._exit(code, process, uploader)

    def _prepare(self) -> dict[str, str]:
        paths, attempt = self._paths, self.membership.attempt
        work, scratch = paths.work(attempt, self.task), posixpath.join(self.dirs.home, "tmp")
        for folder in (posixpath.dirname(work), scratch, paths.events):
            Path(folder).mkdir(parents=True, exist_ok=True)
        posix.put_passing(paths.payload(attempt), self.payload.to_json().encode())
        return {
            **environment(os.environ, self.payload, self.task, scratch, self.dirs.installed),
            **start.start(os.environ, self.dirs.home),
        }

    def _watch(self, process: TaskProcess) -> None:
        """Kill the task once Vertex AI has replaced the container of one of its peers."""
        while not self._ended.wait(_REPLACED_S):
            try:
                replaced = tuple(self.rendezvous.replaced(self.membership))
            except (PodliftError, ValueError, LookupError) as error:
                _log.info(f"cannot check for replaced containers now: {error}")
                continue
            if replaced:
                _log.info(f"{', '.join(replaced)} was restarted: this attempt cannot continue")
                process.give_up(replaced)
                return

    def _exit(self, code: int, process: TaskProcess, uploader: ContainerUploader) -> int:
        """Record how the task ended, upload the rest, and return the container's exit code."""
        attempt, state = self.membership.attempt, process.state.value
        stop_requested = state.stop_requested
        failure = first_failure(read_events(self._paths, ("failed",)), attempt)
        collateral = bool(state.replaced) or (failure is not None and is_collateral(failure))
        step = last_step(self._paths, attempt, self.task)
        if failure is not None and not stop_requested:
            reason = reason_of(failure)
        else:
            reason = exit_codes.reason_of(code, stop_requested=stop_requested)
        within_s = _PREEMPTED_S if stop_requested else _NORMAL_S
        restart, why, denied = False, "", False
        try:
            # The other agents need this task's records before this one reads theirs.
            uploader.flush(within_s)
            cancelled = code != 0 and self._is_cancelled()
            restart, why = self._decide(code, reason, step, collateral=collateral)
            exit_code = exit_codes.code_of(code, collateral=collateral, cancelled=cancelled, restart=restart)
        except PodliftError as error:
            denied = _upload_failed(error)
            exit_code = exit_codes.code_of(code, collateral=collateral, cancelled=False, restart=True)
        found = {"code": code, "reason": reason.value, "step": step, "exit_code": exit_code}
        self._recorder.record("exited", task=self.task, collateral=collateral, stop_requested=stop_requested, **found)
        if restart:
            details = None if failure is None else self._failure_details(failure)
            self._recorder.record("restarting", reason=reason.value, failure=details, why=why, delay_s=0.0)
        if self._is_first and not stop_requested and not denied:
            outputs.collect(self._paths, attempt, self.task, self._bundled, self._recorder, model=False)
        denied = self._upload_rest(uploader, within_s) or denied
        suffix = f": {why}" if why else ""
        _log.info(f"{self.task} ended with {code}; this container exits with {exit_code}{suffix}")
        return EXIT_INFRASTRUCTURE if denied else exit_code

    def _upload_rest(self, uploader: ContainerUploader, within_s: float) -> bool:
        """Upload what remains, and return whether access was denied."""
        denied = False
        try:
            uploader.flush(within_s, last=True)
        except PodliftError as error:
            denied = _upload_failed(error)
        try:
            self._tail.finish(within_s)
        except PodliftError as error:
            # The service has it too: the run ends as it has ended.
            _log.info(f"the last output of this task could not be uploaded: {error}")
        return denied

    def _decide(self, code: int, reason: Reason, step: int | None, *, collateral: bool) -> tuple[bool, str]:
        """Return whether this task's end restarts the run, and why."""
        if code == 0 or collateral:
            return False, ""
        own = self.membership
        same_job = [each.attempt for each in self.rendezvous.memberships if each.job == own.job]
        earlier = [number for number in same_job if number < own.attempt]
        ends = exit_codes.history(records.read(self.store, ("exited",), earlier), earlier)
        this = EndedAttempt(state=State.FAILED, reason=reason, step=step)
        decision = decide([*ends, this], self.retry, drill=bool(self.payload.drill))
        return decision.restart, decision.why

    def _is_cancelled(self) -> bool:
        return bool(cancels.requests(self.store, self.payload.resumes, self.payload.resumes_by_users))

    def _failure_details(self, failure: Event) -> dict[str, object]:
        message = f"{self.task} failed: {error_of(failure)}"
        return {"task": self.task, "message": message, "traceback": failure.data["traceback"], "log": ""}

    def _bundled(self) -> dict[str, tuple[int, str]]:
        """Return size and sha256 of each file of the bundle."""
        found = {}
        with tarfile.open(self.payload.bundle, mode="r:") as tar:
            for member in unpack.members(tar, Path(self.payload.bundle).stat().st_size):
                data = tar.extractfile(member)
                if data is not None:
                    found[member.name] = (member.size, hashlib.sha256(data.read()).hexdigest())
        return found


def environment(own: Mapping[str, str], payload: Payload, task: str, scratch: str, installed: str) -> dict[str, str]:
    """Return a task's environment variables: the container's own, and what podlift adds."""
    bucket = RunPaths(payload.bucket_url)
    hosts = [address.rpartition(":")[0] for address in identity.addresses(own, payload.tasks).values()]
    no_proxy = [own.get("no_grpc_proxy", ""), "localhost", *hosts]
    found = {
        **own,
        # Those of Vertex AI are in the job's own output directory, which may be in another bucket than the run.
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
