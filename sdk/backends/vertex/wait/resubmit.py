"""The decision after the end of a job: a verdict on the run, or another job in the same or the next location. Pure.

One object that only one process can create holds it (`final_record`), so that a read-only client, a waiting client and a keeper
never disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....hardware.pricing import Price
from ....job.plan import Plan
from ....job.policies import Resources
from ....records import spending
from ....records.events import Event, continues
from ....records.restarts import Decision, EndedAttempt, decide, of_tasks
from ....records.spending import Spent
from ....records.verdicts import AttemptEnd
from ....status import Reason, State
from ..options import Location, Vertex

# Other machines may be free, or stay longer. A preempted task that has saved its state exits with 75.
_ELSEWHERE = (Reason.STOCKOUT, Reason.QUOTA, Reason.PREEMPTED, Reason.CHECKPOINTED)


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """A job that has ended, and the jobs before it since the last resume by a user.

    Args:
        plan: the plan of the run.
        number: its number within the run, from 1.
        first: the number of the first job of these.
        location: its location in the order of the plan's locations.
        end: how the run has ended if no job follows.
        booked: the time and the money in its final record.
        events: all records of the run.
    """

    plan: Plan
    number: int
    first: int
    location: int
    end: AttemptEnd
    booked: Mapping[str, object]
    events: Sequence[Event]


def following(ended: JobEnd) -> tuple[AttemptEnd, dict[str, object]]:
    """Return how the run has ended, and the additional fields of the job's final record if another job follows."""
    options, resources = Vertex.of(ended.plan.target), ended.plan.job.resources
    locations = options.locations_for(resources)
    decision, location = _decide(ended, len(locations))
    if not decision.restart:
        return replace(ended.end, why=decision.why or ended.end.why), {}
    (used, counted_s), where = _spent(ended), _words(locations[location], resources)
    limited = spending.next_job(ended.plan.job.limits, used, price(ended.plan, location), where, counted_s=counted_s)
    if limited.refused is not None:
        # The limits allow no other job.
        why = f"{limited.why} The job itself ended with {ended.end.reason.value}."
        return replace(ended.end, state=State.FAILED, reason=limited.refused, why=why), {}
    after = {"location": location, "where": where, "delay_s": decision.delay_s, "timeout_s": limited.timeout_s}
    return replace(ended.end, why=""), {
        "number": ended.number,
        "attempts": max((event.attempt for event in ended.events), default=0),
        "continues": after,
        "why": f"{decision.why} Job {ended.number + 1} follows in {where}. Spent so far: {used}.",
    }


def _words(location: Location, resources: Resources) -> str:
    """Return a location as a user would write it."""
    return str(replace(location, accelerator=None) if location.accelerator == resources.accelerator else location)


def price(plan: Plan, location: int) -> Price | None:
    """Return the price of a job in a location; None where nothing is billed."""
    return plan.prices[location] if plan.prices else None


def _spent(ended: JobEnd) -> tuple[Spent, float]:
    """Return the expenses of the run, and the time since the last resume by a user, which counts against the time limit."""
    finals = [event.data for event in ended.events if event.kind == "final"]
    since = [event.data for event in ended.events if continues(event) and event.data["number"] >= ended.first]
    whole, recent = (spending.total([*records, ended.booked]) or Spent() for records in (finals, since))
    return whole, recent.seconds


def _decide(ended: JobEnd, locations: int) -> tuple[Decision, int]:
    """Return whether the budgets allow another job, and its location."""
    moves = ended.end.reason in _ELSEWHERE and ended.location + 1 < locations
    if ended.end.reason is Reason.QUOTA and not moves:
        # The same request would be rejected again.
        return Decision(restart=False), ended.location
    # On machines of another location, an end at the same step is no evidence against the program.
    drill = ended.plan.drill is not None or moves
    return decide(_history(ended), ended.plan.job.retry, drill=drill), ended.location + moves


def _history(ended: JobEnd) -> list[EndedAttempt]:
    """Return the ends of attempts within the jobs, and the ends of the jobs themselves."""
    jobs: dict[int, list[int]] = {}
    for event in ended.events:
        if event.kind == "attempt_started":
            jobs.setdefault(int(event.data.get("job", 0)), []).append(event.attempt)
    data = {int(event.data["number"]): event.data for event in ended.events if continues(event)}
    ends = {number: (State(about["state"]), Reason(about["reason"])) for number, about in data.items()}
    ends[ended.number] = ended.end.state, ended.end.reason
    history: list[EndedAttempt] = []
    for job in range(ended.first, ended.number + 1):
        *earlier, last = sorted(set(jobs.get(job, ()))) or [0]
        for attempt in earlier:
            history += [*of_tasks(ended.events, attempt), _ended(ended.events, attempt)]
        history += of_tasks(ended.events, last)
        if job in ends:
            state, reason = ends[job]
            end = EndedAttempt(state=state, reason=reason, step=_step(ended.events, last) if last else None)
            history.append(_as_of_task(end, ended.events, last))
    return history


def _as_of_task(end: EndedAttempt, events: Sequence[Event], attempt: int) -> EndedAttempt:
    """Return the end of a job as that of a task whose restart alone the containers refused: another job may repeat it."""
    ends = [event.data for event in events if event.kind == "attempt_ended" and event.attempt == attempt]
    task = next((str(data["not_restarted"]) for data in ends if data.get("not_restarted")), "")
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
