"""The lines of a plan about a schedule's trigger: its location, its account and rights, and the monthly price. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ....job.targets import Keeper
from ....text import counted, duration, joined, money
from ...triggers import TriggerDraft
from ..options import Vertex
from . import scheduled_keeper

_WAITS = {
    "queue": ", up to half of it for the end of an earlier firing (overlap='queue')",
    "replace": ", up to half of it for the end of an earlier firing (overlap='replace')",
}


def of_cloud_scheduler(draft: TriggerDraft, name: str, location: str, retries: int) -> Iterator[tuple[str, str]]:
    """Yield (label, text) pairs."""
    slot_keeper, project = scheduled_keeper.keeper(draft.plan, draft.overlap), _project(draft)
    why = "as schedule_location says" if draft.location else "the region of the first location"
    yield "trigger", f"{name} in Cloud Scheduler, {location} ({why}), project {project}"
    again = (
        f"delivered again {counted(retries, 'time')} if that fails, from 30 s on"
        if retries
        else "never delivered again"
    )
    yield "posts", f"a keeper job to Vertex AI in {slot_keeper.rental.regions[0]}; {again}"
    yield "keeper", _keeper(draft, slot_keeper)
    yield "identity", f"{slot_keeper.account}: Cloud Scheduler's token, and the keeper's own account"
    yield from (("rights", text) for text in _rights(draft, slot_keeper))
    if not draft.plan.emulator:
        yield "a month", _month(draft, slot_keeper)


def _project(draft: TriggerDraft) -> str:
    return Vertex.of(draft.plan.target).project or "<project>"


def _keeper(draft: TriggerDraft, slot_keeper: Keeper) -> str:
    price = slot_keeper.price
    waits = _WAITS.get(draft.overlap, "")
    text = f"{slot_keeper.machine} for each firing, which submits its jobs and ends with it"
    text += f", after {duration(slot_keeper.life_s)} at most{waits}"
    if draft.plan.emulator:
        return text
    if price.own is None or price.cap is None:
        return f"{text}: its price is not known to podlift"
    return f"{text}: {money(price.own)} an hour, {money(price.cap)} at most"


def _rights(draft: TriggerDraft, slot_keeper: Keeper) -> Iterator[str]:
    """Yield the rights that each account needs, with their resources."""
    bucket, project = draft.plan.root.removeprefix("gs://").partition("/")[0], _project(draft)
    program = slot_keeper.program_account
    others = [slot_keeper.account, *([program] if program and program != slot_keeper.account else [])]
    yield (
        f"you: cloudscheduler.jobs.create, get, list, update, pause, enable and delete in {project} "
        f"(roles/cloudscheduler.admin); iam.serviceAccounts.actAs on {slot_keeper.account} (roles/iam.serviceAccountUser)"
    )
    yield (
        f"{slot_keeper.account}: aiplatform.customJobs.create, get, list and cancel in {project} (roles/aiplatform.user); "
        f"iam.serviceAccounts.actAs on {joined(others, 'and')} (roles/iam.serviceAccountUser); "
        f"roles/storage.objectAdmin on gs://{bucket}; cloudscheduler.jobs.pause in {project}, to pause after failures: "
        "without it a record makes the later firings end early"
    )
    secrets = [text.removeprefix("webhook:") for text in draft.notify if text.startswith("webhook:")]
    if secrets:
        yield f"{slot_keeper.account}: roles/secretmanager.secretAccessor on {joined(secrets, 'and')}"


def _month(draft: TriggerDraft, slot_keeper: Keeper) -> str:
    """Return the most that the firings of 30 days may cost."""
    keeper = slot_keeper.price.cap
    caps = [price.cap for price in draft.plan.prices]
    known_caps = [cap for cap in caps if cap is not None]
    run = max(known_caps) if known_caps and len(known_caps) == len(caps) else None
    most = draft.plan.job.limits.max_cost_usd
    if most is not None:
        run = most if run is None else min(run, most)
    count = counted(draft.firings, "firing")
    of_keeper = f"keeper {money(keeper)} at most" if keeper is not None else "keeper at an unknown price"
    of_run = f"run {money(run)} at most" if run is not None else "run at an unknown price"
    text = f"{count} in the next 30 days x ({of_keeper} + {of_run})"
    if keeper is not None:
        least = "" if run is not None else "at least "
        text += f" = {least}{money(draft.firings * (keeper + (run or 0.0)))}{' at most' if run is not None else ''}"
    limit = draft.max_cost_usd_per_month
    return f"{text}; {money(limit)} a calendar month at most" if limit is not None else text
