"""Starts a run on Vertex AI: brings what its containers read to the bucket, and makes the job, once."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor

from ...checks import vertex_online
from ...clock import Clock, SystemClock
from ...errors import AlreadyExistsError, InputError, PodliftError
from ...packaging.runtime_archive import first_stage, runtime_half
from ...records.events import generation
from ...records.recorder import read_events
from ...records.sync import push
from ...records.sync.pull import Copy
from ...spec.layout import RootPaths
from ...spec.plan import Plan
from ...status import Reason, State
from ...storage import cache, posix
from ...storage.gcs.files import INTERACTIVE, BucketFiles, check_root
from ...storage.gcs.store import GcsStore
from ..base import Request
from . import client, create_job, locations, run_view
from . import request as spec
from .create_job import Asked, Creation, NotMadeError

_REGIONAL = "region"


def check(request: Request) -> None:
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
    root, options = request.plan.root, request.plan.backend_options
    about = check_root(root, retry=INTERACTIVE)
    locations.remember(root, about, os.environ, SystemClock().now())
    found = vertex_online.place(root, about, options) if about else []
    elsewhere = [finding.message for finding in found if finding.level == "error"]
    if elsewhere:
        raise InputError(elsewhere)
    if request.plan.backend_options["raw"]:
        client.checked(request.body)


def start(request: Request) -> None:
    """Make the job, unless it is there.

    Raises:
        PodliftError: Vertex AI has refused it, or gives no answer.
    """
    plan, clock = request.plan, SystemClock()
    number = generation(read_events(plan.paths, ("resumed",))) + 1
    store = GcsStore(plan.url.partition("://")[2], retry=push.PATIENCE, clock=clock)
    made = create_job.read_made(store, number)
    if made is not None and made.name:
        return
    stage, order = _bring(plan, number, store, clock)
    jobs = client.Jobs(str(plan.backend_options["project"]), clock=clock)
    try:
        Creation(_asked(plan, number, stage, order), store, jobs, clock).ensure()
    except NotMadeError as error:
        state = State.CANCELLED if error.reason is Reason.CANCELLED else State.FAILED
        failure = {"task": "", "message": str(error), "traceback": "", "log": ""} if state is State.FAILED else None
        data = {"state": state.value, "reason": error.reason.value, "failure": failure, "vendor": "", "job": ""}
        run_view.finish(store, number, clock.now(), data)
        raise PodliftError(
            f"The run {plan.run_id} was not started. {error} Next: podlift resume {plan.url} tries again."
        ) from error


def _bring(plan: Plan, number: int, store: GcsStore, clock: Clock) -> tuple[str, str]:
    """Bring records, archives and the order to the bucket; return sha256 of the first stage and of the order."""
    root = RootPaths(plan.root)
    half = runtime_half(cache.cache_folder(os.environ))
    stage, text = first_stage()
    copy = Copy(plan.paths, plan.url, clock)
    said = [name for name in posix.list_names(plan.paths.events) if name.startswith("0000.client")]
    order = json.dumps(spec.order(plan, number, half.digest), sort_keys=True).encode()
    key = create_job.KEYS.launch_spec(number)
    with ThreadPoolExecutor(4) as pool:
        ours = pool.submit(_put, store, key, order)
        others = [pool.submit(copy.bring, f"{create_job.KEYS.events}/{name}") for name in said]
        others.append(pool.submit(push.bring_bundle, str(half.path), root.runtime(half.digest)))
        others.append(pool.submit(_bring_text, root.entrypoint(stage), text, clock))
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
    _put(GcsStore(folder, retry=push.PATIENCE, clock=clock), name, text)


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
        provisioning=options["provisioning"],
    )


def _elsewhere(plan: Plan, region: str) -> str:
    """Return why a run with this bucket cannot run in a region; "" where it can, or the bucket does not say."""
    about = BucketFiles(plan.root, retry=INTERACTIVE).bucket()
    place = str(about.get("location", "")).lower()
    if about.get("locationType") == _REGIONAL and place and place != region:
        return f"the bucket lies in {place}, and Vertex AI wants it in the job's region"
    return ""
