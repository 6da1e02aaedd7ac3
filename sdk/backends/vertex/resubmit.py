"""What follows the end of a job: a verdict on the run, or another job in the same or in the next place. Pure.

One object that only one process can create says which (`final_record`), so that a client that only looks, one that waits and
a keeper never disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...hardware.pricing import Price
from ...job.places import Place
from ...job.plan import Plan
from ...job.policies import Resources, Vertex
from ...job.values import changed
from ...records import spending
from ...records.events import Event, continues
from ...records.restarts import Decision, EndedAttempt, decide, of_tasks
from ...records.spending import Spent
from ...status import Reason, State

# Other machines may be free, or stay longer.
_ELSEWHERE = (Reason.STOCKOUT, Reason.QUOTA, Reason.PREEMPTED)


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """A job that has ended, and those before it since the last resume by a user.

    Args:
        plan: the plan of the run.
        number: its number within the run, from 1.
        first: the number of the first job of these.
        place: its place in the order of the plan's places.
        verdict: what its final record says if no job follows, with what it has spent.
        events: all records of the run.
    """

    plan: Plan
    number: int
    first: int
    place: int
    verdict: Mapping[str, object]
    events: Sequence[Event]

    @property
    def reason(self) -> Reason:
        return Reason(str(self.verdict["reason"]))


def following(ended: JobEnd) -> dict[str, object]:
    """Return what the final record of the job says in addition, whether another job follows it or not."""
    options, resources = Vertex.of(ended.plan.target), ended.plan.job.resources
    places = options.places_for(resources)
    decision, place = _decide(ended, len(places))
    if not decision.restart:
        return {"why": decision.why}
    (used, counted_s), where = _spent(ended), _words(places[place], resources)
    limited = spending.next_job(ended.plan.job.limits, used, price(ended.plan, place), where, counted_s=counted_s)
    if limited.refused is not None:
        return _refused(ended, limited.refused, limited.why)
    after = {"place": place, "where": where, "delay_s": decision.delay_s, "timeout_s": limited.timeout_s}
    return {
        "number": ended.number,
        "attempts": max((event.attempt for event in ended.events), default=0),
        "continues": after,
        "why": f"{decision.why} Job {ended.number + 1} follows in {where}. Spent so far: {used}.",
    }


def _words(place: Place, resources: Resources) -> str:
    """Return a place as a user would write it."""
    return str(changed(place, accelerator=None) if place.accelerator == resources.accelerator else place)


def price(plan: Plan, place: int) -> Price | None:
    """Return what a job costs in a place; None where nothing is billed."""
    return plan.prices[place] if plan.prices else None


def _spent(ended: JobEnd) -> tuple[Spent, float]:
    """Return what the run has used, and the time since the last resume by a user, which counts against the time limit."""
    finals = [event.data for event in ended.events if event.kind == "final"]
    since = [event.data for event in ended.events if continues(event) and event.data["number"] >= ended.first]
    whole, recent = (spending.total([*each, ended.verdict]) or Spent() for each in (finals, since))
    return whole, recent.seconds


def _refused(ended: JobEnd, reason: Reason, why: str) -> dict[str, object]:
    """Return the verdict of a run whose limits allow no other job."""
    failure = ended.verdict.get("failure")
    message = str(failure.get("message", "")) if isinstance(failure, Mapping) else ""
    about = {"task": "", "traceback": "", "log": "", **(failure if isinstance(failure, Mapping) else {})}
    return {
        "state": State.FAILED.value,
        "reason": reason.value,
        "failure": {**about, "message": f"{message} {why}".strip()},
        "why": f"The job itself ended with {ended.reason.value}.",
    }


def _decide(ended: JobEnd, places: int) -> tuple[Decision, int]:
    """Return whether another job follows as far as the budgets allow, and its place."""
    moves = ended.reason in _ELSEWHERE and ended.place + 1 < places
    if ended.reason is Reason.QUOTA and not moves:
        # The same request would be rejected again.
        return Decision(restart=False), ended.place
    # Machines of another place say nothing about a program that ends at the same step.
    drill = ended.plan.drill is not None or moves
    return decide(_history(ended), ended.plan.job.retry, drill=drill), ended.place + moves


def _history(ended: JobEnd) -> list[EndedAttempt]:
    """Return the ends of attempts within the jobs, and those of the jobs themselves."""
    jobs: dict[int, list[int]] = {}
    for event in ended.events:
        if event.kind == "attempt_started":
            jobs.setdefault(int(event.data.get("job", 0)), []).append(event.attempt)
    ends = {int(event.data["number"]): event.data for event in ended.events if continues(event)}
    ends[ended.number] = dict(ended.verdict)
    found: list[EndedAttempt] = []
    for job in range(ended.first, ended.number + 1):
        *earlier, last = sorted(set(jobs.get(job, ()))) or [0]
        for attempt in earlier:
            found += [*of_tasks(ended.events, attempt), _ended(ended.events, attempt)]
        found += of_tasks(ended.events, last)
        if job in ends:
            about = ends[job]
            end = EndedAttempt(state=State(str(about["state"])), reason=Reason(str(about["reason"])))
            end = replace(end, step=_step(ended.events, last) if last else None)
            found.append(_alone(end, ended.events, last))
    return found


def _alone(end: EndedAttempt, events: Sequence[Event], attempt: int) -> EndedAttempt:
    """Return the end of a job as that of a task whose restart alone the containers refused: another job may repeat it."""
    ends = [event.data for event in events if event.kind == "attempt_ended" and event.attempt == attempt]
    task = next((str(data["alone"]) for data in ends if data.get("alone")), "")
    return replace(end, task=task, step=ends[0].get("step")) if task else end


def _ended(events: Sequence[Event], attempt: int) -> EndedAttempt:
    """Return how an attempt ended that another one of the same job followed."""
    own = sorted((event for event in events if event.attempt == attempt), key=lambda event: event.time)
    causes = [event for event in own if event.kind == "restarting"]
    causes += [
        event for event in own if event.kind == "exited" and event.data.get("code") and not event.data.get("collateral")
    ]
    # A machine that disappears without a record was preempted.
    reason = next((Reason(event.data["reason"]) for event in causes if event.data.get("reason")), Reason.PREEMPTED)
    return EndedAttempt(state=State.FAILED, reason=reason, step=_step(events, attempt))


def _step(events: Sequence[Event], attempt: int) -> int | None:
    """Return how far an attempt came, by its own records or by where the next one continued."""
    own = ("exited", "saved", "continued")
    steps = [event.data.get("step") for event in events if event.attempt == attempt and event.kind in own]
    steps += [event.data.get("step") for event in events if event.attempt == attempt + 1 and event.kind == "continued"]
    return max((int(step) for step in steps if step is not None), default=None)
