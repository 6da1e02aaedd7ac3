"""Looks after one task in its container: finds out who it is, joins the others, runs it, brings what it leaves to the bucket.

It is what a supervisor is on one machine, cut in as many parts as there are containers: each knows its own task, and what the
others have written into the run's directory. It never imports TensorFlow.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import sys
import tarfile
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...clock import Clock, SystemClock
from ...errors import AccessError, InputError, PodliftError
from ...process.redirect import start
from ...records import outputs
from ...records.events import Event, error_of, first_failure, is_collateral, reason_of
from ...records.recorder import Recorder, last_step, read_events
from ...records.restarts import Ended, decide
from ...spec.layout import RunPaths
from ...spec.payload import VERSION, Payload
from ...status import EXIT_CANCELLED, EXIT_INFRASTRUCTURE, Reason, State
from ...storage import posix
from ...storage.registry import open_store
from ...storage.store import Store
from .. import first_stage, unpack
from . import exit_codes, identity, records
from .membership import Claim, Formation
from .task import Task
from .uploader import Carrying

_KEYS = RunPaths("")
# What is left of a machine that was asked for is some 15 s, of which the task has had its part.
_HURRY_S, _PATIENT_S = 8.0, 120.0
_REPLACED_S = 10.0
_NO_RETRY = {"user": 0, "infrastructure": 0, "preemption": 0}


def main(order: Mapping[str, Any], *, bundle: str, home: str, installed: str) -> int:
    """Run the task of this container; return the container's exit code.

    Args:
        order: what the containers of the job have to do.
        bundle: path of the archive of the code.
        home: the container's own folder.
        installed: folder of what the image lacked, "" for none.
    """
    try:
        payload = Payload.from_json(json.dumps({"version": VERSION, **order["payload"]}))
        task = identity.who(os.environ, payload.tasks)
        job = int(order["job"])
        store = open_store(order["run"])
        if _is_cancelled(store, job - 1):
            # Also where nobody looks at the run any more: its job came late, behind the end of whoever made it.
            _say("somebody has cancelled the run: its program is not started")
            return EXIT_CANCELLED
        formation = Formation(store, task, payload.tasks, job, SystemClock(), _say)
        claim = formation.form()
        paths = RunPaths(posixpath.join(home, "runs", payload.run_id))
        payload = replace(
            payload,
            run_url=paths.url,
            attempt=claim.attempt,
            bundle=bundle,
            store=payload.store or RunPaths(order["run"]).store,
            board=order["run"],
            generation=job - 1,
            vendor=posixpath.join(home, "runtime", "vendor"),
        )
        place = Place(home=home, installed=installed, paths=paths)
        return Agent(payload, task, place, store, formation, claim, order.get("retry") or _NO_RETRY).run()
    except AccessError as error:
        _complain(str(error))
        return EXIT_INFRASTRUCTURE
    except InputError as error:
        _complain(str(error))
        return error.exit_code
    except PodliftError as error:
        # What does not answer now may do so when the job is started again, which Vertex AI does three times.
        _complain(str(error))
        return exit_codes.AGAIN
    except Exception:  # a full disk, or a mistake of podlift's: the program has not failed
        traceback.print_exc()
        return EXIT_INFRASTRUCTURE


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where things lie in a container.

    Args:
        home: the folder of the first stage.
        installed: folder of what the image lacked, "" for none.
        paths: the run's folder here.
    """

    home: str
    installed: str
    paths: RunPaths


class Agent:
    """One task of one attempt.

    Args:
        payload: what the task has to do.
        task: its name.
        place: where things lie.
        store: the run's directory.
        formation: how the attempt came about.
        claim: the attempt.
        policy: how many restarts the job allows.
    """

    def __init__(
        self,
        payload: Payload,
        task: str,
        place: Place,
        store: Store,
        formation: Formation,
        claim: Claim,
        policy: Mapping[str, Any],
        clock: Clock | None = None,
    ) -> None:
        self._payload = payload
        self._task = task
        self._place = place
        self._paths = place.paths
        self._store = store
        self._formation = formation
        self._claim = claim
        self._policy = policy
        self._clock = clock or SystemClock()
        self._is_first = task == payload.tasks[0]
        self._recorder = Recorder(self._paths, records.agent_of(task, payload.tasks), claim.attempt, self._clock)
        self._replaced: list[str] = []
        self._over = threading.Event()

    def run(self) -> int:
        """Run the task to its end, and return the container's exit code."""
        child = Task()
        carrying = Carrying(
            self._paths,
            self._payload.board,
            self._clock,
            _say,
            task=self._task if self._is_first else "",
            generation=self._payload.generation,
        )
        env = self._prepare()
        if self._is_first:
            known = identity.addresses(os.environ, self._payload.tasks)
            self._recorder.record("attempt_started", addresses=known, job=self._claim.job)
        stage, work = str(Path(first_stage.__file__)), self._paths.work(self._claim.attempt, self._task)
        child.start(stage, self._paths.payload(self._claim.attempt), self._task, env=env, cwd=posixpath.dirname(work))
        carrying.start()
        if self._is_first and len(self._payload.tasks) > 1:
            threading.Thread(target=self._watch, args=(child,), name="podlift-watch", daemon=True).start()
        code = child.wait()
        self._over.set()
        return self._leave(code, child, carrying)

    def _prepare(self) -> dict[str, str]:
        """Write down what the task has to do, and return its variables."""
        paths, attempt = self._paths, self._claim.attempt
        work, scratch = paths.work(attempt, self._task), posixpath.join(self._place.home, "tmp")
        for folder in (posixpath.dirname(work), scratch, paths.events):
            Path(folder).mkdir(parents=True, exist_ok=True)
        posix.put_passing(paths.payload(attempt), self._payload.to_json().encode())
        return {
            **environment(os.environ, self._payload, self._task, scratch, self._place.installed),
            **start.start(os.environ, self._place.home),
        }

    def _watch(self, child: Task) -> None:
        """End the task when another container waits in the place of one of its peers: Vertex AI has replaced that one."""
        while not self._over.wait(_REPLACED_S):
            try:
                self._replaced = self._formation.replaced(self._claim)
            except (PodliftError, ValueError, LookupError) as error:
                _say(f"cannot look for other containers now: {error}")
            if self._replaced:
                _say(f"{', '.join(self._replaced)} was started again: this attempt cannot go on")
                child.kill()
                return

    def _leave(self, code: int, child: Task, carrying: Carrying) -> int:
        """Record how the task has ended, bring the rest to the bucket, and return the container's exit code."""
        attempt, told = self._claim.attempt, child.told
        failure = first_failure(read_events(self._paths, ("failed",)), attempt)
        echo = bool(self._replaced) or (failure is not None and is_collateral(failure))
        step = last_step(self._paths, attempt, self._task)
        reason = reason_of(failure) if failure is not None and not told else exit_codes.reason_of(code, told=told)
        denied = False
        exit_code = code
        try:
            # What the others are to know of this task, before they are asked what they know.
            carrying.now(_HURRY_S if told else _PATIENT_S)
            again, why = self._again(code, reason, step, failure, echo=echo)
            cancelled = code != 0 and _is_cancelled(self._store, self._payload.generation)
            exit_code = exit_codes.code_of(code, echo=echo, cancelled=cancelled, again=again)
        except PodliftError as error:
            _complain(f"the bucket does not take what this task has left: {error}")
            denied, again, why = isinstance(error, AccessError), False, ""
            exit_code = exit_codes.code_of(code, echo=echo, cancelled=False, again=True)
        about = {"reason": reason.value, "step": step, "echo": echo, "told": told, "left": exit_code}
        self._recorder.record("exited", task=self._task, code=code, **about)
        if again:
            told_of = None if failure is None else self._told_of(failure)
            self._recorder.record("restarting", reason=reason.value, failure=told_of, why=why, delay_s=0.0)
        if self._is_first and not told and not denied:
            outputs.collect(self._paths, attempt, self._task, self._planned, self._recorder, model=False)
        try:
            carrying.finish(_HURRY_S if told else _PATIENT_S)
        except PodliftError as error:
            _complain(f"the bucket does not take what this task has left: {error}")
            denied = denied or isinstance(error, AccessError)
        _say(f"{self._task} ended with {code}; this container leaves with {exit_code}{f': {why}' if why else ''}")
        return EXIT_INFRASTRUCTURE if denied else exit_code

    def _again(
        self, code: int, reason: Reason, step: int | None, failure: Event | None, *, echo: bool
    ) -> tuple[bool, str]:
        """Say whether the run is to start again because of this task's end, and why."""
        if code == 0 or echo:
            return False, ""
        earlier = [claim.attempt for claim in self._formation.claims if claim.job == self._claim.job]
        earlier = [number for number in earlier if number < self._claim.attempt]
        ends = exit_codes.history(records.read(self._store, ("exited",), earlier), earlier)
        decision = decide(
            [*ends, Ended(state=State.FAILED, reason=reason, step=step)], self._policy, drill=bool(self._payload.drill)
        )
        return decision.restart, decision.why

    def _told_of(self, failure: Event) -> dict[str, Any]:
        message = f"{self._task} failed: {error_of(failure)}"
        return {"task": self._task, "message": message, "traceback": failure.data["traceback"], "log": ""}

    def _planned(self) -> dict[str, tuple[int, str]]:
        """Return what the bundle held."""
        found = {}
        with tarfile.open(self._payload.bundle, mode="r:") as tar:
            for member in unpack.members(tar, Path(self._payload.bundle).stat().st_size):
                data = tar.extractfile(member)
                if data is not None:
                    found[member.name] = (member.size, hashlib.sha256(data.read()).hexdigest())
        return found


def environment(own: Mapping[str, str], payload: Payload, task: str, scratch: str, installed: str) -> dict[str, str]:
    """Return a task's variables: the container's, and what podlift adds.

    Args:
        own: the container's.
        payload: what the task has to do.
        task: its name.
        scratch: its folder for temporary files.
        installed: folder of what the image lacked, "" for none.
    """
    bucket = RunPaths(payload.board)
    hosts = [place.rpartition(":")[0] for place in identity.addresses(own, payload.tasks).values()]
    spared = [own.get("no_grpc_proxy", ""), "localhost", *hosts]
    found = {
        # Vertex AI sets these where the job names an output directory.
        "AIP_MODEL_DIR": f"{bucket.model}/",
        "AIP_CHECKPOINT_DIR": f"{bucket.checkpoints}/",
        "AIP_TENSORBOARD_LOG_DIR": f"{bucket.tensorboard}/",
        **own,
        "PODLIFT_RUN": payload.run_url,
        "PODLIFT_TASK": task,
        "PODLIFT_ATTEMPT": str(payload.attempt),
        "TMPDIR": scratch,
        "PYTHONUNBUFFERED": "1",
        "no_grpc_proxy": ",".join(filter(None, spared)),
    }
    if installed:
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (installed, own.get("PYTHONPATH", ""))))
    return found


def _is_cancelled(store: Store, generation: int) -> bool:
    return next(iter(store.list(f"{_KEYS.control}/{generation:04d}-")), None) is not None


def _say(text: str) -> None:
    print(f"podlift: {text}", flush=True)  # noqa: T201


def _complain(text: str) -> None:
    print(f"podlift: {text}", file=sys.stderr, flush=True)  # noqa: T201
