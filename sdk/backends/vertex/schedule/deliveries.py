"""The questions of a schedule's keeper to Vertex AI and Cloud Scheduler, by REST: its container has no library of Google."""

from __future__ import annotations

from collections.abc import Mapping

from ....clock import Clock
from ....errors import MissingError
from ....hardware.pricing import Price
from ....job.plan import Plan
from ...deliveries import KEEPER_LEASE_S, Delivery
from ..client import JobClient
from ..job.states import VendorJob
from ..options import Vertex
from . import scheduler_calls
from .keeper_labels import BY_HAND, SLOT, slot_of
from .scheduled_keeper import keeper

_JOB, _REGION = "CLOUD_ML_JOB_ID", "CLOUD_ML_REGION"


class VertexDeliveries:
    """The deliveries of the backend called "vertex"."""

    def delivery(self, plan: Plan, environ: Mapping[str, str], clock: Clock) -> Delivery:
        job = _own_job(plan, environ, clock)
        created = clock.now() if job.created is None else job.created
        label = (job.labels or {}).get(SLOT, "")
        by_hand, slot = label == BY_HAND, slot_of(label)
        return Delivery(job=job.name, created=created, by_hand=by_hand, slot=slot, lease_s=KEEPER_LEASE_S)

    def keeper_price(self, plan: Plan, overlap: str) -> Price | None:
        return None if plan.emulator else keeper(plan, overlap).price

    def pause(self, trigger: str, clock: Clock) -> None:
        scheduler_calls.set_paused(trigger, clock, paused=True)


def _own_job(plan: Plan, environ: Mapping[str, str], clock: Clock) -> VendorJob:
    """Return the job of this container; its region is one of the plan's if the variable is not set."""
    options, id = Vertex.of(plan.target), environ.get(_JOB, "")
    regions = [environ.get(_REGION, ""), *options.region_names]
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
