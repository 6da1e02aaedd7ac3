"""The cost of the jobs of a run, and whether its limits allow another one: by tables, and by chance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdk
from sdk import Reason, launch
from sdk.clock import SystemClock
from sdk.hardware import accelerators, pricing
from sdk.records import spending
from sdk.records.events import Event, fold
from sdk.records.spending import Spent, next_job

HOUR = 3600.0
KNOWN = pricing.price(pricing.Rental(pools=accelerators.pools("v5e-8"), provisioning="spot"))
DEAR = pricing.price(pricing.Rental(pools=accelerators.pools("v5e-8")))
PARTLY = pricing.price(pricing.Rental(pools=accelerators.pools("b200:8"), provisioning="spot"))
UNKNOWN = pricing.price(pricing.Rental(pools=accelerators.pools("v5e-8"), regions=("us-west1",)))
RATE = DEAR.at_least
UNBILLED, RAN = Spent(seconds=HOUR), Spent(seconds=HOUR, usd=RATE)
USED_UP = "The time limit of the run is used up"
TOO_LONG = f"{USED_UP}: its jobs ran for 1 h, and timeout='1h' holds for all of them together."
TOO_SHORT = f"{USED_UP} but for 59 s, too little for another job: its jobs ran for 59 min 1 s, and"
TOO_DEAR = (
    "The run has spent 2.25 USD in 1 h, and another job in us-central1:standard may cost 33.12 USD: 11.04 USD an hour "
    "for 3 h. That is more than the 27.75 USD left of max_cost_usd=30."
)
NO_PRICE = "no source gives the price of a job in us-central1:standard: max_cost_usd=1e+06 cannot be enforced."


def record(kind: str, time: float, source: str = "supervisor", **data: object) -> Event:
    return Event(attempt=0, source=source, sequence=1, kind=kind, time=time, data=data)


def limits(timeout_s: float | None = None, usd: float | None = None, **more: bool) -> sdk.Limits:
    return sdk.Limits(timeout_s=timeout_s, max_cost_usd=usd, **more)


@pytest.mark.parametrize(
    ("started", "until", "price", "expected"),
    [
        (100.0, 100.0 + HOUR, DEAR, Spent(seconds=HOUR, usd=RATE)),
        (None, 200.0, DEAR, Spent(usd=0.0)),  # it never got machines
        (100.0, None, DEAR, Spent(usd=0.0)),
        (200.0, 100.0, DEAR, Spent(usd=0.0)),  # two clocks
        (100.0, 100.0 + HOUR, None, Spent(seconds=HOUR)),  # an emulator
        (0.0, HOUR, PARTLY, Spent(seconds=HOUR, usd=PARTLY.at_least, at_least=True)),
        (0.0, HOUR, UNKNOWN, Spent(seconds=HOUR, at_least=True)),
    ],
)
def test_a_job_costs_its_running_time(started, until, price, expected: Spent) -> None:
    assert spending.spent(started, until, price) == expected


@pytest.mark.parametrize(
    ("used", "text"),
    [
        (Spent(seconds=HOUR, usd=2.254), "2.25 USD in 1 h"),
        (Spent(seconds=HOUR, usd=2.254, at_least=True), "at least 2.25 USD in 1 h"),
        (Spent(seconds=90), "1 min 30 s"),
        (Spent(seconds=90, at_least=True), "1 min 30 s, at an unknown price"),
    ],
)
def test_a_cost_is_written_in_words(used: Spent, text: str) -> None:
    assert str(used) == text


@pytest.mark.parametrize(
    ("limit", "used", "price", "timeout_s", "refused", "said"),
    [
        (limits(), RAN, DEAR, None, None, ""),
        (limits(3 * HOUR), RAN, DEAR, 2 * HOUR, None, ""),
        (limits(3 * HOUR), UNBILLED, None, 2 * HOUR, None, ""),
        (limits(HOUR), UNBILLED, None, 0.0, Reason.TIMEOUT, TOO_LONG),
        (limits(HOUR), Spent(seconds=HOUR - 59), None, 0.0, Reason.TIMEOUT, TOO_SHORT),
        (limits(2 * HOUR, 2 * RATE), RAN, DEAR, HOUR, None, ""),
        (limits(2 * HOUR, 2 * RATE), Spent(seconds=HOUR, usd=KNOWN.at_least), DEAR, HOUR, None, ""),
        (limits(4 * HOUR, 30.0), Spent(seconds=HOUR, usd=2.254), DEAR, 3 * HOUR, Reason.BUDGET, TOO_DEAR),
        (limits(2 * HOUR, 2 * RATE - 0.01), RAN, DEAR, HOUR, Reason.BUDGET, "11.04 USD"),
        # Without a timeout, a limit on the cost counts 7 days for all jobs together.
        (limits(None, 7 * 24 * RATE), Spent(seconds=24 * HOUR, usd=24 * RATE), DEAR, 6 * 24 * HOUR, None, ""),
        (limits(None, 100.0), Spent(), DEAR, 7 * 24 * HOUR, Reason.BUDGET, "The run has spent nothing yet, and"),
        (limits(2 * HOUR, 1e6), RAN, UNKNOWN, HOUR, Reason.BUDGET, NO_PRICE),
        (limits(2 * HOUR, 1e6, allow_unknown_price=True), Spent(), UNKNOWN, 2 * HOUR, None, ""),
        (
            limits(2 * HOUR, 1.0, allow_unknown_price=True),
            Spent(),
            PARTLY,
            2 * HOUR,
            Reason.BUDGET,
            "at least 74.99 USD",
        ),
        (limits(2 * HOUR, 1e-9), UNBILLED, None, HOUR, None, ""),  # nothing is billed
    ],
)
def test_another_job_is_made_if_the_limits_of_the_run_allow_it(limit, used, price, timeout_s, refused, said) -> None:
    found = next_job(limit, used, price, "us-central1:standard")
    assert (found.timeout_s, found.refused) == (timeout_s, refused)
    assert said in found.why and bool(found.why) == bool(refused)


@pytest.mark.parametrize(
    ("limit", "used", "price", "options"),
    [
        (limits(4 * HOUR, 30.0), Spent(usd=2.254), DEAR, "--timeout 2h30m or --max-cost-usd 47"),
        (limits(4 * HOUR, 30.0), Spent(usd=28.15), DEAR, "--timeout 10m or --max-cost-usd 73"),
        (limits(4 * HOUR, 30.0), Spent(usd=28.17), DEAR, "--max-cost-usd 73"),
        (limits(4 * HOUR, 30.0), Spent(usd=29.0), DEAR, "--max-cost-usd 74"),
        (limits(None, 30.0), Spent(usd=29.0), DEAR, "--max-cost-usd 1884"),
        (limits(4 * HOUR, 30.0), Spent(usd=29.0), UNKNOWN, ""),
    ],
)
def test_a_refused_resume_names_the_limits_that_would_do(limit, used, price, options: str) -> None:
    found = next_job(limit, used, price, "us-central1")
    assert found.refused is Reason.BUDGET and spending.remedies(limit, used, price, found) == options
    given = dict(zip(options.split()[::2], options.split()[1::2], strict=False)) if " or " not in options else {}
    if "--max-cost-usd" in given:
        enough = replace(limit, max_cost_usd=float(given["--max-cost-usd"]))
        assert next_job(enough, used, price, "us-central1").refused is None


JOBS = st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0, 1)), max_size=12)


@given(st.floats(60, 1e6), st.floats(0.01, 1e4), JOBS)
def test_no_chain_of_allowed_jobs_takes_or_costs_more_than_the_run_may(timeout_s, most, jobs) -> None:
    limit, used = limits(timeout_s, most), Spent(usd=0.0)
    for rate, part in jobs:
        price = replace(DEAR, own=rate, at_least=rate)
        found = next_job(limit, used, price, "there")
        if found.refused is None:
            assert found.timeout_s is not None
            used += spending.spent(0.0, part * found.timeout_s, price)
        assert used.seconds <= timeout_s * 1.000001 and (used.usd or 0.0) <= most + 0.01


@given(st.lists(st.builds(Spent, seconds=st.floats(0, 1e6), usd=st.none() | st.floats(0, 1e6), at_least=st.booleans())))
def test_a_booked_cost_is_read_back(parts: list[Spent]) -> None:
    found = spending.total([*({"state": "FAILED", **spending.booked(part)} for part in parts), {"state": "FAILED"}])
    expected = sum(parts[1:], parts[0]) if parts else None
    assert found == expected


def test_a_resume_begins_the_time_again_but_not_the_money_and_counts_its_keeper() -> None:
    limit, used = limits(2 * HOUR, 40.0), Spent(seconds=2 * HOUR, usd=2 * RATE)
    assert next_job(limit, used, DEAR, "there").refused is Reason.TIMEOUT
    assert next_job(limit, used, DEAR, "there", counted_s=0.0).refused is Reason.BUDGET
    found = next_job(limit, used, KNOWN, "there", counted_s=HOUR)
    assert (found.timeout_s, found.refused) == (HOUR, None)
    keeper = replace(DEAR, own=1.0, at_least=1.0, timeout_s=16 * HOUR)
    kept = next_job(limit, used, KNOWN, "there", counted_s=HOUR, keeper=keeper)
    assert kept.refused is Reason.BUDGET and "for 1 h, and 16.00 USD for its keeper. That is more" in kept.why
    assert spending.remedies(limit, used, KNOWN, kept, keeper=keeper) == "--timeout 33m or --max-cost-usd 42"
    unknown = next_job(limit, used, KNOWN, "there", counted_s=HOUR, keeper=UNKNOWN)
    assert "no source gives the price of its keeper: max_cost_usd=40 cannot be enforced." in unknown.why
    assert spending.remedies(limit, used, KNOWN, unknown, keeper=UNKNOWN) == ""


def test_a_status_adds_the_cost_of_every_job_of_the_run_also_before_a_resume() -> None:
    part = spending.booked(Spent(seconds=HOUR, usd=2.0))
    end = {"state": "FAILED", "reason": "preempted", "failure": None}
    events = [record("submitted", 1.0, "client"), record("final", 2.0, **end, **part)]
    again = [record("resumed", 3.0, "client-1", attempts=0), record("final", 4.0, "supervisor-1", **end, **part)]
    status = fold([*events, *again], supervisor_alive=True)
    assert (status.spent_s, status.spent_usd, status.spent_at_least) == (2 * HOUR, 4.0, False)
    now = Spent(seconds=60.0, usd=1.0, at_least=True).merged(status)
    assert (now.spent_s, now.spent_usd, now.spent_at_least) == (2 * HOUR + 60, 5.0, True)
    assert fold(events[:1], supervisor_alive=True).spent_s is None


def test_a_resume_that_could_exceed_the_cost_limit_is_refused_with_fitting_options(write) -> None:
    write("train.py", "print(1)")
    cloud = sdk.Vertex(project="my-project", bucket="mine", image="tf", regions="us-central1:spot,us-central1")
    plan = sdk.plan("train.py", backend=cloud, accelerator="v5e-8", timeout="4h", max_cost_usd=50, name="digits")
    spent = spending.booked(Spent(seconds=3 * HOUR, usd=33.12))
    end = record("final", 2.0, state="FAILED", reason="budget", failure=None, **spent)
    events = [record("submitted", 1.0, "client"), end]
    status = fold(events, supervisor_alive=False)
    with pytest.raises(sdk.InputError) as caught:
        launch.resume(plan, events, status, "same", SystemClock())
    assert caught.value.problems == (
        "The run has spent 33.12 USD in 3 h, and another job in us-central1 may cost 44.16 USD: 11.04 USD an hour for 4 h. "
        f"That is more than the 16.88 USD left of max_cost_usd=50. Next: podlift resume {plan.run_id} --timeout 1h31m or "
        "--max-cost-usd 78.",
    )
    assert not launch._too_expensive(replace(plan, emulator="127.0.0.1:8123"), events), "an emulator bills nothing"
