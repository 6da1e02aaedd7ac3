"""What becomes of a custom job, and when. Pure: every function takes a `Life` and the time and returns what follows.

Where Google documents a number it is used: five restarts of a worker, three retries of a job, six after a spot preemption,
three attempts after a stockout or an internal error. Times between phases are `Knobs`, because waiting teaches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from .states import (
    CANCELLED,
    CANCELLING,
    EXPIRED,
    FAILED,
    PENDING,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    Act,
    End,
    Knobs,
    Life,
    Market,
    Step,
    Terms,
)

CHIEF = "workerpool0-0"
# SIGABRT and SIGSEGV of a container; any other exit code is the program's own mistake.
TRANSIENT = frozenset((134, 139))
# Containers write lines before all of them are known to have started.
ACTIVE = frozenset(("starting", "running"))
INTERNAL = "Internal error occurred for the current attempt"
_WORKER_RESTARTS, _RETRIES, _PREEMPTIONS, _STOCKOUTS, _INTERNAL = 5, 3, 6, 3, 2
_CANCELLED, _INVALID, _DEADLINE, _EXHAUSTED, _INTERNAL_CODE = 1, 3, 4, 8, 13


def unborn(now: float) -> Life:
    """Return the life of a job before anything has happened."""
    return Life(state=QUEUED, phase="queued", created=now, updated=now)


def begin(terms: Terms, now: float, knobs: Knobs) -> Step:
    """Return the life of a job that was just created."""
    life = unborn(now)
    return _waiting(life, terms, now + knobs.queue_s), [_say("Waiting for job to be provisioned.")]


def tick(life: Life, terms: Terms, now: float, knobs: Knobs, market: Market) -> Step:
    """Return what follows from the time alone; to be called when `due` has come, or the market has changed."""
    if life.state == CANCELLING and life.phase in ("queued", "provisioning"):
        return _finish(replace(life, end=life.end or End(state=CANCELLED, code=_CANCELLED, message="CANCELED")), now)
    if life.phase in ("queued", "provisioning") and _waited_too_long(life, terms, now):
        return _finish(replace(life, end=_end_of_waiting(knobs)), now)
    if life.phase == "queued":
        return _leave_queue(life, terms, now, knobs, market)
    if life.phase == "provisioning":
        return _provision(life, terms, now, knobs, market)
    if life.phase == "running" and life.started is not None and now >= life.started + terms.timeout_s:
        text = f"The job was cancelled because it exceeded its timeout of {terms.timeout_s:g} seconds."
        code = _DEADLINE if knobs.timeout_state == FAILED else _CANCELLED
        state = CANCELLING if knobs.timeout_state == CANCELLED else life.state
        return _stop(life, now, end=End(state=knobs.timeout_state, code=code, message=text), state=state)
    return life, []


def began(life: Life, terms: Terms, now: float) -> Step:
    """Return what follows once all replicas were started."""
    if life.phase != "starting":
        return life, []
    started = now if life.started is None else life.started
    life = replace(
        life, state=RUNNING, phase="running", started=started, updated=now, due=started + terms.timeout_s, stockouts=0
    )
    return life, [_say("Job is running.")]


def exited(life: Life, terms: Terms, codes: Mapping[str, int], now: float, killed: Set[str] = frozenset()) -> Step:
    """Return what follows from replicas that have exited, several of them perhaps at the same time.

    Args:
        life: where the job stands.
        terms: what its specification says.
        codes: exit codes by replica.
        now: the time.
        killed: those that memory ran out for.
    """
    if life.phase != "running":
        return life, []
    life = replace(life, out_of_memory=tuple({*life.out_of_memory, *killed}))
    if codes.get(CHIEF) == 0:
        return _stop(life, now, end=End(state=SUCCEEDED))
    gone = [name for name in codes if name in life.preempted]
    if gone:
        return _preempted(life, terms, gone[0], now)
    bad = sorted((name for name, code in codes.items() if code), key=terms.replicas.index)
    final = [name for name in bad if codes[name] not in TRANSIENT or name in life.out_of_memory or not terms.retries]
    if final:
        return _stop(life, now, end=_exit_end(life, terms, final[0], codes[final[0]]))
    acts: list[Act] = []
    for name in bad:
        life, more = _restart(life, terms, name, codes[name], now)
        acts += more
        if life.phase != "running":
            break
    return life, acts


def stopped(life: Life, terms: Terms, now: float, knobs: Knobs) -> Step:
    """Return what follows once no process of the job is left."""
    if life.phase != "stopping":
        return life, []
    life = replace(life, preempted=(), out_of_memory=())
    if life.end is not None:
        return _finish(life, now)
    if life.again == "start":
        return replace(life, phase="starting", again="", updated=now), [Act(kind="start")]
    life = replace(life, state=PENDING, phase="provisioning", again="", updated=now, due=now + knobs.provision_s)
    return life, [_say("Waiting for job to be provisioned.")]


def cancelled(life: Life, now: float) -> Step:
    """Return what follows from a request to cancel; of a job that is over, nothing."""
    if life.phase == "over" or life.state == CANCELLING:
        return life, []
    if life.phase in ("queued", "provisioning"):
        return replace(life, state=CANCELLING, updated=now, due=now), []
    end = life.end or End(state=CANCELLED, code=_CANCELLED, message="CANCELED")
    if life.phase == "stopping":
        return replace(life, state=CANCELLING, updated=now, end=end, again=""), []
    return _stop(life, now, end=end, state=CANCELLING)


def preempt(life: Life, terms: Terms, replica: str, now: float) -> Step:
    """Return what follows when the machine of a replica is taken away."""
    if life.phase not in ACTIVE or replica not in terms.replicas or replica in life.preempted:
        return life, []
    life = replace(life, preempted=(*life.preempted, replica), updated=now)
    return life, [
        _say(f"The machine of {replica} is being taken away.", "WARNING"),
        Act(kind="preempt", replica=replica),
    ]


def out_of_memory(life: Life, terms: Terms, replica: str, now: float) -> Step:
    """Return what follows when a replica needs more memory than its machine has."""
    if life.phase not in ACTIVE or replica not in terms.replicas:
        return life, []
    life = replace(life, out_of_memory=(*life.out_of_memory, replica))
    return _stop(life, now, end=_exit_end(life, terms, replica, 137))


def internal_error(life: Life, terms: Terms, now: float) -> Step:
    """Return what follows from an error of the service itself."""
    if life.phase not in ACTIVE:
        return life, []
    life = replace(life, internal=life.internal + 1)
    if not terms.retries or life.internal > _INTERNAL:
        return _stop(life, now, end=End(state=FAILED, code=_INTERNAL_CODE, message=f"{INTERNAL}."))
    stopping, acts = _stop(life, now, again="provision")
    return stopping, [_say(f"{INTERNAL}; the job is restarted.", "WARNING"), *acts]


def broken(life: Life, now: float, why: str) -> Step:
    """Return what follows if the emulator itself cannot go on with a job."""
    if life.phase == "over":
        return life, []
    return _finish(replace(life, end=End(state=FAILED, code=_INTERNAL_CODE, message=f"{INTERNAL}: {why}")), now)


def abandoned(life: Life, now: float) -> Step:
    """Return what has become of a job whose server died and left no process behind."""
    if life.phase in ("queued", "provisioning", "over"):
        return life, []
    if life.state == CANCELLING:
        return _finish(replace(life, end=life.end or End(state=CANCELLED, code=_CANCELLED, message="CANCELED")), now)
    return broken(life, now, "the emulator was restarted while the job was running.")


def _say(text: str, severity: str = "INFO") -> Act:
    return Act(kind="say", text=text, severity=severity)


def _waiting(life: Life, terms: Terms, due: float | None) -> Life:
    """Return the life with what comes first: the next look at the market, or the end of the patience."""
    limit = None if terms.max_wait_s is None or life.started is not None else life.created + terms.max_wait_s
    times = [each for each in (due, limit) if each is not None]
    return replace(life, due=min(times) if times else None)


def _waited_too_long(life: Life, terms: Terms, now: float) -> bool:
    return terms.max_wait_s is not None and life.started is None and now >= life.created + terms.max_wait_s


def _end_of_waiting(knobs: Knobs) -> End:
    text = "The requested resources were not available within the maximum wait duration."
    return End(state=knobs.wait_state, code=_DEADLINE, message=text)


def _leave_queue(life: Life, terms: Terms, now: float, knobs: Knobs, market: Market) -> Step:
    if market.kind == "held":
        return _waiting(life, terms, market.until), []
    life = replace(life, state=PENDING, phase="provisioning", updated=now)
    return _waiting(life, terms, now + knobs.provision_s), [
        _say(
            "Vertex AI is provisioning job running framework. First time usage might take couple of minutes, and subsequent"
            " runs can be much faster."
        ),
        _say("Vertex AI is setting up this job."),
    ]


def _provision(life: Life, terms: Terms, now: float, knobs: Knobs, market: Market) -> Step:
    if market.kind != "stockout":
        life = replace(life, phase="starting", due=None, updated=now)
        return life, [_say("Waiting for training program to start."), _say("Job is preparing."), Act(kind="start")]
    life = replace(life, stockouts=life.stockouts + 1, updated=now)
    if not terms.flex and life.stockouts >= _STOCKOUTS:
        return _finish(replace(life, end=_stockout(terms)), now)
    return _waiting(life, terms, now + knobs.stockout_s), [_say(_stockout(terms).message, "WARNING")]


def _stockout(terms: Terms) -> End:
    text = (
        f"Resources are insufficient in region: {terms.region}. Try a different region or use a different accelerator."
    )
    return End(state=FAILED, code=_EXHAUSTED, message=text)


def _preempted(life: Life, terms: Terms, replica: str, now: float) -> Step:
    if not terms.spot:
        # Maintenance of a machine: the worker comes back on another one, and nobody counts it.
        if not terms.retries:
            return _stop(life, now, end=End(state=FAILED, code=_INTERNAL_CODE, message=f"{INTERNAL}."))
        if terms.restart_job:
            return _stop(life, now, again="provision")
        left = tuple(name for name in life.preempted if name != replica)
        return replace(life, preempted=left, updated=now), [Act(kind="start_one", replica=replica)]
    life = replace(life, preemptions=life.preemptions + 1)
    if not terms.retries or life.preemptions > _PREEMPTIONS:
        return _stop(life, now, end=_stockout(terms))
    stopping, acts = _stop(life, now, again="provision")
    return stopping, [_say(f"{_stockout(terms).message} The job is restarted.", "WARNING"), *acts]


def _restart(life: Life, terms: Terms, replica: str, code: int, now: float) -> Step:
    """Return what follows from an exit that may be no fault of the program."""
    count = life.restarts.get(replica, 0) + 1
    said = _say(f"The replica {replica} exited with a non-zero status of {code} and is restarted.", "WARNING")
    if count <= _WORKER_RESTARTS:
        life = replace(life, restarts={**life.restarts, replica: count}, updated=now)
        if not terms.restart_job:
            return life, [said, Act(kind="start_one", replica=replica)]
        stopping, acts = _stop(life, now, again="start")
        return stopping, [said, *acts]
    if life.retries >= _RETRIES:
        return _stop(life, now, end=_exit_end(life, terms, replica, code))
    stopping, acts = _stop(replace(life, retries=life.retries + 1, restarts={}), now, again="provision")
    return stopping, [said, *acts]


def _exit_end(life: Life, terms: Terms, replica: str, code: int) -> End:
    if replica in life.out_of_memory:
        text = f"The replica {replica} ran out of memory and exited with a non-zero status of {code}."
    else:
        text = f"The replica {replica} exited with a non-zero status of {code}. Termination reason: Error."
    why = f"To find out more about why your job exited please check the logs: {terms.logs_url}"
    return End(state=FAILED, code=_INVALID, message=f"{text} {why}")


def _stop(life: Life, now: float, *, end: End | None = None, again: str = "", state: str = "") -> Step:
    life = replace(
        life, phase="stopping", state=state or life.state, end=end, again=again, due=None, updated=now, preempted=()
    )
    return life, [Act(kind="stop")]


def _finish(life: Life, now: float) -> Step:
    end = life.end or End(state=FAILED, code=_INTERNAL_CODE, message=f"{INTERNAL}.")
    life = replace(life, state=end.state, phase="over", end=end, ended=now, updated=now, due=None, again="")
    acts = {
        SUCCEEDED: [_say("Job completed successfully.")],
        CANCELLED: [_say("Job was cancelled.")],
        EXPIRED: [_say(end.message, "ERROR")],
    }.get(end.state, [_say("Job failed.", "ERROR"), _say(end.message, "ERROR")])
    return life, [*acts, Act(kind="close")]
