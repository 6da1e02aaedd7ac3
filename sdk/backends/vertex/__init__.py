"""Runs a plan on Vertex AI, as one custom job."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ... import cache
from ...checks import Facts, Finding
from ...clock import Clock, SystemClock
from ...errors import AlreadyExistsError, InputError, PodliftError
from ...events import generation
from ...layout import RootPaths
from ...packaging.runtime_half import first_stage, runtime_half
from ...planner import Plan
from ...storage import mirror, posix
from ...storage.copies import Copy
from ...storage.gcs_files import FIRST_LOOK, Files, check_root
from ...storage.gcs_store import GcsStore
from ...storage.records import read_events
from ..base import LogLine, Observation, Request
from . import client, spec, submit, watch
from .submit import Asked, Creation, NotMadeError

_REGIONAL = "region"


class Vertex:
    """The backend called "vertex"."""

    def warm_up(self) -> None:
        """Begin to import Google's client."""
        client.warm_up()

    def probe(self, job: dict[str, Any]) -> Facts:
        """Say what is known without asking anybody: the tasks see neither this machine's disk nor its environment."""
        return Facts(
            python=platform.python_version(),
            executable=sys.executable,
            tensorflow=None,
            keras=None,
            tf_keras=None,
            cpus=os.cpu_count() or 1,
            isolation=None,
            disk=False,
        )

    def look(self, job: dict[str, Any], options: Mapping[str, Any], root: str) -> dict[str, Any]:
        """Ask for the bucket, the image and the quotas."""
        from . import online  # a plan is made without it, unless it is asked for

        return online.look(job, options, root)

    def review(self, plan: Plan, *, starting: bool) -> list[Finding]:
        """Return what is not configured, and what was patched."""
        return [
            *(Finding("error" if starting else "warning", text) for text in spec.missing(plan)),
            *spec.findings(plan),
        ]

    def render(self, plan: Plan) -> Request:
        """Return the body of the request."""
        return Request(plan=plan, body=spec.render(plan), url=spec.url(plan))

    def check(self, request: Request) -> None:
        """Raise for what is not configured, a patch that Vertex AI does not know, credentials and a bucket that are not there.

        Raises:
            InputError: names each.
        """
        missing = spec.missing(request.plan)
        if missing:
            raise InputError(missing)
        try:
            client.credentials()
        except client.RefusedError as error:
            raise InputError(str(error)) from error
        check_root(request.plan.root, patience=FIRST_LOOK)
        if request.plan.backend_options["raw"]:
            client.checked(request.body)

    def start(self, request: Request) -> None:
        """Bring what the containers read to the bucket, and make the job, once.

        Raises:
            PodliftError: Vertex AI has refused it, or gives no answer.
        """
        plan, clock = request.plan, SystemClock()
        number = generation(read_events(plan.paths, ("resumed",))) + 1
        store = GcsStore(plan.url.partition("://")[2], patience=mirror.PATIENCE, clock=clock)
        made = submit.read_made(store, number)
        if made is not None:
            return
        stage, order = _bring(plan, number, store, clock)
        jobs = client.Jobs(str(plan.backend_options["project"]), clock=clock)
        try:
            Creation(_asked(plan, number, stage, order), store, jobs, clock).ensure()
        except NotMadeError as error:
            failure = {"task": "", "message": str(error), "traceback": "", "log": ""}
            data = {"state": "FAILED", "reason": error.reason.value, "failure": failure, "vendor": "", "job": ""}
            watch.finish(store, number, clock.now(), data)
            raise PodliftError(
                f"The run {plan.run_id} was not started. {error} Next: podlift resume {plan.url} tries again."
            ) from error

    def observe(self, plan: Plan) -> Observation:
        """Say whether something can still become of the run."""
        return self.remote(plan, SystemClock()).observe(plan)

    def logs(self, plan: Plan, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the tasks' lines, from Cloud Logging."""
        return self.remote(plan, SystemClock()).logs(task=task, attempt=attempt, follow=follow)

    def cancel(self, plan: Plan, *, grace_s: float) -> None:
        """Leave the wish in the run's directory; ask the vendor where no task would see it."""
        self.remote(plan, SystemClock()).cancel(grace_s)

    def remote(self, plan: Plan, clock: Clock) -> watch.Watch:
        """Return the way to the run: nobody of this machine looks after it."""
        return watch.Watch(plan, clock)


def _bring(plan: Plan, number: int, store: GcsStore, clock: Clock) -> tuple[str, str]:
    """Bring records, archives and the order to the bucket; return sha256 of the first stage and of the order."""
    root = RootPaths(plan.root)
    half = runtime_half(cache.cache_folder(os.environ))
    stage, text = first_stage()
    copy = Copy(plan.paths, plan.url, clock)
    said = [name for name in posix.list_names(plan.paths.events) if name.startswith("0000.client")]
    order = json.dumps(spec.order(plan, number, half.digest), sort_keys=True).encode()
    key = submit.KEYS.order(number)
    with ThreadPoolExecutor(4) as pool:
        ours = pool.submit(_put, store, key, order)
        others = [pool.submit(copy.bring, f"{submit.KEYS.events}/{name}") for name in said]
        others.append(pool.submit(mirror.bring_bundle, str(half.path), root.runtime(half.digest)))
        others.append(pool.submit(_bring_text, root.stage(stage), text, clock))
        for each in others:
            each.result()
    # Of somebody who began before; the containers read that one.
    order = order if ours.result() else bytes(store.get(key))
    return stage, hashlib.sha256(order).hexdigest()


def _put(store: GcsStore, key: str, data: bytes) -> bool:
    try:
        store.put_new(key, [data])
    except AlreadyExistsError:
        return False
    return True


def _bring_text(url: str, text: bytes, clock: Clock) -> None:
    folder, _, name = url.partition("://")[2].rpartition("/")
    # Its name is its digest: what is there is the same.
    _put(GcsStore(folder, patience=mirror.PATIENCE, clock=clock), name, text)


def _asked(plan: Plan, number: int, stage: str, order: str) -> Asked:
    options = plan.backend_options
    # The caller's own values travel in the request, and are kept nowhere.
    values = {name: os.environ[name] for name in spec.copied_names(plan) if name in os.environ}
    return Asked(
        run_id=plan.run_id,
        number=number,
        regions=options["regions"],
        shown=spec.render(plan, number=number, stage=stage, order_digest=order),
        job=client.checked(spec.render(plan, number=number, stage=stage, order_digest=order, copied=values)),
        excluded=lambda region: _elsewhere(plan, region),
        provisioning=plan.job["resources"]["provisioning"],
    )


def _elsewhere(plan: Plan, region: str) -> str:
    """Return why a run with this bucket cannot run in a region; "" where it can, or the bucket does not say."""
    about = Files(plan.root, patience=FIRST_LOOK).bucket()
    place = str(about.get("location", "")).lower()
    if about.get("locationType") == _REGIONAL and place and place != region:
        return f"the bucket lies in {place}, and Vertex AI wants it in the job's region"
    return ""
