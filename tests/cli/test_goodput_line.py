"""What `podlift status` says about the time of a run."""

from __future__ import annotations

import json

from support import finished_run

import sdk
from sdk.cli.output import goodput_line
from sdk.runtime.account import OTHER, STEP, Account
from sdk.runtime.reporting import ProgressWriter
from sdk.status import Goodput


def test_goodput_of_an_earlier_podlift_is_not_recorded_and_a_new_run_names_each_task(root, here) -> None:
    paths = finished_run(root)
    assert "\ngoodput    not recorded\n" in here("status", paths.url).stdout
    assert json.loads(here("status", paths.url, "--json").stdout)["goodput"] is None
    run = sdk.attach(paths.url)
    assert run.goodput() is None
    status, tasks = run.status(), run.plan.tasks
    time = [0]
    for task in tasks:
        # It began with the attempt, trained for 2 s and was done for another one.
        account = Account(lambda: time[0], lambda: status.created + status.timings["started"] + time[0] / 1e9)
        writer = ProgressWriter(paths.progress(1, task), account)
        for part in (STEP, OTHER, OTHER):
            account.enter(part)
            time[0] += 10**9 if part == OTHER else 2 * 10**9
        writer.step()
        time[0] = 0
    shown = here("status", paths.url, "-v").stdout
    assert [line.split()[1].rstrip(":") for line in shown.splitlines() if line.startswith("goodput")] == tasks or (
        len(tasks) == 1 and "% of " in shown
    )
    assert "step 2 s" in shown and "input wait" not in shown


def test_the_line_has_the_parts_that_took_time_and_the_steps_that_were_done_again() -> None:
    spent = Goodput(
        task="chief-0",
        total_s=700.0,
        start_s=7.84,
        step_s=672.06,
        input_wait_s=0.02,
        lost_to_failures_s=20.1,
        steps_lost=1,
    )
    said = "96.0% of 11 min 40 s: start 7.8 s, step 11 min 12 s, lost to failures 20.1 s (1 step again)"
    assert goodput_line(spent) == said
    assert goodput_line(Goodput(task="chief-0")).startswith("0.0% of 0 s")
