"""What the container of a schedule's keeper asks Vertex AI and Cloud Scheduler, by REST: it has none of Google's libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping

import requests

from ...clock import Clock
from ...errors import InputError, MissingError, PodliftError, UnavailableError
from ...hardware import accelerators, pricing
from ...spec.plan import Plan
from ...spec.policies import Vertex
from ...storage import emulator
from ..deliveries import Delivery
from ..triggers import FailedKeeper
from . import client, own_schedules
from .client import JobClient, unix_time
from .keeper_labels import BY_CRON, BY_HAND, CAUSE, CREATED, JOB, SLOT, SLOT_TIME
from .slot_labels import slot_of
from .states import VendorJob

_JOB, _REGION = "CLOUD_ML_JOB_ID", "CLOUD_ML_REGION"
_SCHEDULER = "https://cloudscheduler.googleapis.com"
_LIMIT_S = 20.0
# projects/P/locations/REGION/pipelineJobs/ID
_SLASHES = 5


class VertexDeliveries:
    """The deliveries of the backend called "vertex"."""

    def delivery(self, plan: Plan, environ: Mapping[str, str], clock: Clock) -> Delivery:
        if CAUSE in environ:
            return _of_pipeline(environ)
        job = _own_job(plan, environ, clock)
        created = clock.now() if job.created is None else job.created
        label = (job.labels or {}).get(SLOT, "")
        return Delivery(job=job.name, created=created, by_hand=label == BY_HAND, slot=slot_of(label))

    def failed(self, plan: Plan, schedule: str, since: float, clock: Clock) -> list[FailedKeeper]:
        from . import failed_keepers

        find = failed_keepers.of_pipelines if CAUSE in os.environ else failed_keepers.found
        return find(plan, schedule, since, clock)

    def hourly_usd(self, plan: Plan) -> float:
        if plan.emulator:
            return 0.0
        regions = Vertex.of(plan.target).place_regions[:1]
        rented = pricing.Rental(pools=accelerators.pools("cpu"), regions=regions, known=plan.facts.prices)
        return pricing.price(rented).at_least

    def pause(self, trigger: str, clock: Clock) -> None:
        if "/schedules/" in trigger:
            own_schedules.set_paused(trigger, clock, paused=True)
            return
        address = emulator.checked_address() or _SCHEDULER
        try:
            answer = client.session(address).post(f"{address}/v1/{trigger}:pause", json={}, timeout=_LIMIT_S)
        except (requests.RequestException, OSError) as error:
            raise UnavailableError(f"Cloud Scheduler cannot be reached: {type(error).__name__}.") from error
        if not answer.ok:
            raise PodliftError(f"Cloud Scheduler refuses to pause {trigger}: {answer.status_code} {answer.text[:300]}")


def _of_pipeline(environ: Mapping[str, str]) -> Delivery:
    """Return the delivery of a pipeline job. Its slot is the time of the schedule, however late the job was created."""
    cause, told = environ[CAUSE], {name: environ.get(name, "") for name in (SLOT_TIME, CREATED, JOB)}
    try:
        slot, created = (unix_time(told[name].replace("+00:00", "Z")) for name in (SLOT_TIME, CREATED))
    except ValueError:
        slot = created = None
    if created is None or slot is None or told[JOB].count("/") != _SLASHES:
        raise InputError(
            "Vertex AI did not say for which slot it has started this pipeline. Received: "
            f"{', '.join(f'{name}={value!r}' for name, value in told.items())}. Next: podlift schedule run, for a firing by "
            "hand."
        )
    # Slots lie on whole minutes, and their records are found by them; a slot of the past may be named instead.
    slot = round(slot / 60) * 60.0 if cause == BY_CRON else slot_of(cause)
    return Delivery(job=told[JOB], created=created, slot=slot, by_hand=cause == BY_HAND)


def _own_job(plan: Plan, environ: Mapping[str, str], clock: Clock) -> VendorJob:
    """Return the job of this container; its region is one of the plan's if the variable is not set."""
    options, id = Vertex.of(plan.target), environ.get(_JOB, "")
    regions = [environ.get(_REGION, ""), *options.place_regions]
    for region in dict.fromkeys(filter(None, regions)):
        try:
            return JobClient(str(options.project), clock=clock).get(
                f"projects/{options.project}/locations/{region}/customJobs/{id}"
            )
        except MissingError:
            continue
    raise MissingError(
        f"Vertex AI does not know the job of this container. Received: {_JOB}={id!r}. This is no keeper job."
    )
