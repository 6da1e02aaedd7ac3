"""The driver of a job on a Ray cluster. It does the work of the service on Vertex AI, with the same agents in the containers.

It reserves the resources of all tasks, starts an agent for each, restarts an agent that requests it or has lost its node, and
writes the verdict when the first task's agent has ended. It lives on the cluster; no client has to stay.
"""

from __future__ import annotations

import os
import posixpath
import secrets
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ... import logs
from ...clock import Clock, SystemClock
from ...errors import PodliftError, StoreError
from ...job.layout import RunPaths
from ...job.wire import decode
from ...records import verdicts
from ...records.events import Event, parse, source_of
from ...records.recorder import Recorder
from ...records.sync import cancels, index
from ...records.sync.index import SYNC_RETRY
from ...records.sync.push import ContainerUploader
from ...status import EXIT_INFRASTRUCTURE, Reason, Status
from ...storage.folder_files import path_of
from ...storage.registry import open_files, open_store
from ...storage.store import Store
from ..containers import job_name
from . import answers
from .cluster import AgentEnd
from .placement import ClusterResources, Placement, infeasible, shortage
from .request import HOST, LOADER, TASK, TERMS, DriverSpec

_log = logs.logger("backends.ray")
_KEYS = RunPaths("")
_POLL_S, _CANCEL_S = 0.5, 1.0
# Resources usually come within the first time; after that, the shortage is recorded at intervals.
_NORMAL_S, _REPORT_S = 5.0, 30.0
# How often a container is restarted without a new attempt, and the waits between.
_RESTARTS, _PAUSE_S = 5, 1.0
# After the first task, the others end by themselves within this time; then they are killed.
_OTHERS_S, _KILLED_S, _FLUSH_S = 60.0, 10.0, 60.0
# Set by Ray for its own workers: they would change how the program computes and debugs.
_DROPPED = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "RAY_JOB_CONFIG_JSON_ENV_VAR", LOADER)


class Cluster(Protocol):
    """The calls of the driver to a cluster: see `cluster.RayCluster`."""

    def resources(self) -> ClusterResources: ...
    def reserve(self, placement: Placement) -> None: ...
    def is_reserved(self, within_s: float) -> bool: ...
    def start(
        self, task: str, words: Sequence[str], env: Mapping[str, str], dropped: Sequence[str], host: str, proof: str
    ) -> None: ...
    def ended(self, within_s: float) -> list[AgentEnd]: ...
    def is_placed(self, task: str) -> bool: ...
    @property
    def running(self) -> list[str]: ...
    def send(self, task: str, number: int) -> None: ...
    def close(self) -> None: ...


class StoppedError(Exception):
    """The job ends without a further look at its agents."""

    def __init__(self, problem: tuple[Reason, str] | None = None) -> None:
        super().__init__(problem)
        self.problem = problem


def main(launched: Mapping[str, object], home: str) -> int:
    """Run a job, and return the exit code of its driver."""
    spec = decode(DriverSpec, launched)
    paths = RunPaths(posixpath.join(home, "runs", spec.run_id))
    Path(paths.events).mkdir(parents=True)
    logs.start(errors_apart=True)
    # Ray's own copy is gone with its head node: this one is uploaded with the records.
    logs.keep(paths.supervisor_log)
    try:
        from .cluster import ConnectedCluster

        cluster = ConnectedCluster()
    except ImportError as error:
        _log.error(
            f"The Python of this job's driver has no Ray: {error}. Next: start Ray where python3 is its own Python."
        )
        return EXIT_INFRASTRUCTURE
    try:
        return Driver(spec, cluster, paths, SystemClock()).run()
    except PodliftError as error:
        _log.error(str(error))
        return EXIT_INFRASTRUCTURE
    finally:
        cluster.close()


class Driver:
    """Runs one job of a run."""

    def __init__(self, spec: DriverSpec, cluster: Cluster, paths: RunPaths, clock: Clock) -> None:
        self._spec, self._cluster, self._paths, self._clock = spec, cluster, paths, clock
        self._job, self._tasks, self._placement, self._limits = spec.job, spec.tasks, spec.placement, spec.limits
        self._store: Store = open_store(spec.run, retry=SYNC_RETRY, clock=clock)
        self._recorder = Recorder(paths, source_of("driver", self._job - 1), 0, clock)
        self._uploader = ContainerUploader(paths, spec.run, clock)
        self._restarts: Counter[str] = Counter()
        self._attempt, self._root_proof = 0, ""
        since = spec.resumes_by_users
        self._cancels = cancels.CancelWatch(self._store, clock, self._job - 1, since, every_s=_CANCEL_S)
        self._requests: dict[str, tuple[float, float]] = {}  # their unix time, and the monotonic end of their grace
        self._pending: dict[str, float] = {}  # by task: since when its container waits for resources
        self._due: dict[str, float] = {}  # by task: when its container is restarted

    def run(self) -> int:
        """Return the exit code of the driver."""
        if index.has_final(self._store, self._job):
            _log.info("the run has a verdict already: nothing is started")
            return EXIT_INFRASTRUCTURE
        self._uploader.start()
        ended: list[AgentEnd] = []
        problem: tuple[Reason, str] | None = None
        try:
            self._place()
            ended = self._watch()
        except StoppedError as stopped:
            problem = stopped.problem
        # Not if this process itself is stopped: an agent without a driver lets the training save.
        self._kill_all()
        return self._conclude(ended, problem)

    # --- The resources

    def _place(self) -> None:
        self._cluster.reserve(self._placement)
        start = self._clock.monotonic()
        until, last_report = start + self._placement.pending_timeout_s, start - _REPORT_S + _NORMAL_S
        waited = False
        while not self._cluster.is_reserved(_POLL_S):
            self._check_cancelled()
            now = self._clock.monotonic()
            has = self._cluster.resources()
            if now >= until:
                raise StoppedError((Reason.STOCKOUT, infeasible(self._placement, has)))
            if now - last_report >= _REPORT_S:
                last_report, waited, text = now, True, shortage(self._placement, has)
                _log.info(f"waiting for resources: {text}")
                self._recorder.record("waiting", text=text)
        if waited:
            self._recorder.record("placed")
        if self._spec.shared:
            self._write_root_proof()
        for task in self._tasks:
            self._start(task)

    def _write_root_proof(self) -> None:
        """Write the record that every container reads back before its agent starts."""
        name = _KEYS.seen(self._job, secrets.token_hex(8))
        open_files(self._spec.run).create(name, b"{}")
        self._root_proof = f"{path_of(self._spec.run)}/{name}"

    def _start(self, task: str) -> None:
        env = {**self._spec.env, TASK: task}
        loader = os.environ[LOADER]
        self._pending[task] = self._clock.monotonic()
        dropped = [name for name in _DROPPED if name not in env]
        self._cluster.start(task, [loader, *self._spec.agent], env, dropped, HOST, self._root_proof)

    # --- While the agents run

    def _watch(self) -> list[AgentEnd]:
        """Return the ends of the agents; the first is the end of the agent that ended the job."""
        ended: list[AgentEnd] = []
        leave: float | None = None
        while self._cluster.running or self._due:
            for end in self._cluster.ended(_POLL_S):
                self._pending.pop(end.task, None)
                if leave is None and self._is_replaced(end):
                    continue
                ended.append(end)
                if leave is None and (end.task == self._tasks[0] or end.code != 0):
                    leave = self._clock.monotonic() + _OTHERS_S
                    self._due.clear()
            if leave is not None and self._clock.monotonic() >= leave:
                break
            self._check_cancelled()
            self._start_due()
        return sorted(ended, key=lambda end: end.task != self._tasks[0])

    def _is_replaced(self, end: AgentEnd) -> bool:
        """Return whether the container of a task is started again; None of the agents decides that."""
        if end.code is not None and end.code not in TERMS.restarting_codes:
            return False
        attempt = self._attempts()
        if attempt > self._attempt:
            self._attempt = attempt
            self._restarts.clear()
        self._restarts[end.task] += 1
        count = self._restarts[end.task]
        why = end.why if end.code is None else f"it exited with {end.code}"
        if count > _RESTARTS:
            message = (
                f"The container of {end.task} ended {count} times without an attempt: {why}. {end.last_output[-1000:]}"
            )
            raise StoppedError((Reason.INFRASTRUCTURE, message.strip()))
        _log.info(f"the container of {end.task} is started again: {why}")
        self._recorder.record("container_restarting", task=end.task, text=why)
        self._due[end.task] = self._clock.monotonic() + (0.0 if count == 1 else _PAUSE_S * 2.0 ** (count - 1))
        return True

    def _attempts(self) -> int:
        """Return the number of attempts that the run has had."""
        number = self._attempt
        with suppress(StoreError):
            while True:
                self._store.stat(_KEYS.membership(number + 1))
                number += 1
        return number

    def _start_due(self) -> None:
        now = self._clock.monotonic()
        for task in [task for task, at in self._due.items() if now >= at]:
            del self._due[task]
            self._start(task)
        for task, since in list(self._pending.items()):
            if self._cluster.is_placed(task):
                del self._pending[task]
            elif now - since >= self._placement.pending_timeout_s:
                has = self._cluster.resources()
                raise StoppedError((Reason.STOCKOUT, infeasible(self._placement, has)))

    def _check_cancelled(self) -> None:
        """Stop the job at the end of the grace of a cancel request; the agents stop the training before, after a step."""
        try:
            self._read_requests(self._cancels.look())
        except PodliftError as error:
            _log.info(f"cannot check now whether the run was cancelled: {error}")
        if any(self._clock.monotonic() >= over for _, over in self._requests.values()):
            raise StoppedError

    def _read_requests(self, keys: Iterable[str]) -> None:
        now, start, grace_s = self._clock.now(), self._clock.monotonic(), self._limits.grace_s
        for key in keys:
            if key not in self._requests:
                time, own_s = cancels.cancel_request(self._store, key, now=now, grace_s=grace_s)
                self._requests[key] = time, start + own_s

    # --- The end

    def _let_end(self, within_s: float) -> None:
        until = self._clock.monotonic() + within_s
        while self._cluster.running and self._clock.monotonic() < until:
            self._cluster.ended(_POLL_S)

    def _kill_all(self) -> None:
        for task in self._cluster.running:
            self._cluster.send(task, signal.SIGKILL)
        self._let_end(_KILLED_S)

    def _conclude(self, ended: Sequence[AgentEnd], problem: tuple[Reason, str] | None) -> int:
        if not self._requests and problem is None:
            # A request may have been the reason why the agents ended.
            with suppress(PodliftError):
                keys = cancels.cancel_requests(self._store, self._job - 1, self._spec.resumes_by_users)
                self._read_requests(keys)
        first = next((end for end in ended if end.code is not None), None)
        job = job_name(self._spec.run_id, self._job)
        code, output = (None, "") if first is None else (first.code, first.last_output)
        answer = answers.of_ended(job, code=code, problem=problem, last_output=output)
        cancelled_at = min((time for time, _ in self._requests.values()), default=None)
        run = index.run_end(self._store, self._events(), self._tasks, self._spec.model, answer, cancelled_at)
        end = verdicts.verdict(run)
        assert end is not None  # noqa: S101
        _log.info(f"the run has ended: {end.state.value}, {end.reason.value}")
        try:
            self._uploader.flush(_FLUSH_S, last=True)
        except PodliftError as error:
            # Ray keeps this line: the run directory cannot be reached.
            _log.error(f"The last records and logs of the driver were not uploaded: {error}")
        index.write_final(self._store, self._job, self._clock.now(), verdicts.final(end, vendor="", job=job))
        return Status(state=end.state, reason=end.reason).exit_code or 0

    def _events(self) -> list[Event]:
        events = []
        for stat in self._store.list(f"{_KEYS.events}/"):
            with suppress(ValueError):
                events.append(parse(stat.key.rpartition("/")[2], bytes(self._store.get(stat.key))))
        return events
