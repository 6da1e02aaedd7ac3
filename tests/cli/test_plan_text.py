"""The plan as a person reads it: a few lines before a run, all of it when asked for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support import holds

import sdk
from sdk.job import plan_text


@pytest.mark.process
def test_a_submit_begins_with_a_few_lines_and_shows_the_rest_with_v(project, here, monkeypatch) -> None:
    for number in range(9):
        monkeypatch.setenv(f"SOME_VARIABLE_{number}", "x")
    project("big.bin", "x" * 70_000)
    shown = here("submit", "train.py", "--detach")
    plan = shown.stderr.partition("started.")[0].splitlines()
    assert [line.split("  ")[0] for line in plan] == ["run", "directory", "tasks", "entry", "bundle", "more"]
    assert "with -v: " in plan[-1] and "variables not passed " in plan[-1]
    sdk.attach("latest").wait(60)
    for flag in ("-v", "--verbose"):
        everything = here("submit", "train.py", "--detach", flag).stderr
        holds(everything, "not passed", "SOME_VARIABLE_3", "largest", "sys.path", "python ", "checkpoints ")
        sdk.attach("latest").wait(60)
        assert "SOME_VARIABLE_3" in here("plan", "train.py", flag).stdout
    holds(here("plan", "train.py").stdout, "more         with -v: variables not passed ", lacks=["SOME_VARIABLE_3"])


PLANS: list[dict[str, object]] = [
    {"workers": 2},
    {"workers": 3, "backend": "vertex", "accelerator": "l4:4"},
    {"backend": "vertex", "accelerator": "v5e-8", "timeout": "4h", "max_cost_usd": 50},
]


@pytest.mark.parametrize("settings", PLANS)
def test_a_plan_fits_a_screen_of_80_columns_and_hides_no_line_that_costs_or_warns(
    project, monkeypatch, settings
) -> None:
    for number in range(40):
        monkeypatch.setenv(f"SOME_VARIABLE_{number}", "x")
    if settings.get("backend"):
        settings = {**settings, "backend": sdk.Vertex(project="my-project", bucket="mine", image="tf")}
    made = sdk.plan("train.py", **settings)
    shown = plan_text.text(plan_text.page(made), 80).splitlines()
    assert len(shown) <= 35 and all(len(line) <= 80 for line in shown if "/tmp" not in line), "\n".join(shown)
    hidden = {label for label, _ in plan_text.lines(made)} - {label for label, _ in plan_text.page(made)}
    assert hidden <= {"largest", "sys.path", "left out", "submitted by", "its rights", "memory", "not passed"}


def test_no_warning_and_no_price_is_hidden(write) -> None:
    write("train.py", "import os\nimport nothing_like_this\nprint(1)")
    write("requirements.txt", "nothing-like-this\n")
    made = sdk.plan("train.py", backend=sdk.Vertex(project="my-project", bucket="mine"), accelerator="l4:4", workers=3)
    hidden = {name for name, _ in set(plan_text.lines(made)) - set(plan_text.short(made))}
    assert not hidden & {"price", "cap", "cost limit", "keeper", "warning", "error", "region"}
    assert {"price", "cap", "region", "warning"} <= {name for name, _ in plan_text.short(made)}


def test_a_submit_to_a_cloud_says_as_much_as_a_local_one_with_cost_and_task_count(project) -> None:
    here = [label for label, _ in plan_text.short(sdk.plan("train.py"))]
    made = sdk.plan("train.py", backend=sdk.Vertex(project="my-project", bucket="mine", image="tf"), max_cost_usd=50)
    costs = ["region", "price", "cap", "cost limit"]
    assert [label for label, _ in plan_text.short(made) if label != "warning"] == [*here[:-1], *costs, here[-1]]
    emulated = replace(made, emulator="127.0.0.1:8123")
    assert dict(plan_text.short(emulated))["backend"] == "vertex, emulator at 127.0.0.1:8123"
    assert not {"price", "cap", "quota"} & {label for label, _ in plan_text.short(emulated)}
    tasks = dict(plan_text.short(sdk.plan("train.py", workers=9)))["tasks"]
    assert tasks == "9 x cpu: chief-0, worker-0, worker-1, worker-2 and 5 more, local"


BUDGETS = "after a failure of the infrastructure 3 times, after a preemption any number of times"
LOST = "restarts all from the last checkpoint, and later steps are repeated"


@pytest.mark.parametrize(
    ("settings", "restarts", "alone"),
    [
        ({}, f"the task, from its last checkpoint; {BUDGETS}", []),
        ({"workers": 2}, f"all tasks together, from the last checkpoint; {BUDGETS}", []),
        ({"workers": 3, "ps": 1},
         f"a lost worker restarts alone, and the others continue; a lost chief or parameter server {LOST}; {BUDGETS}",
         ["worker-0", "worker-1"]),
        ({"workers": 2, "ps": 1, "evaluator": True, "backend": sdk.Local(cluster="workers")},
         "a lost worker or evaluator restarts alone, and the others continue; "
         f"a lost worker-0 or parameter server {LOST}; {BUDGETS}",
         ["worker-1", "evaluator-0"]),
        ({"workers": 2, "evaluator": True, "retry_preemptions": 0, "retry_infrastructure": 0, "retry_user_errors": 1},
         f"a lost evaluator restarts alone, and the others continue; a lost chief or worker {LOST}; after an error in the "
         "program 1 time",
         ["evaluator-0"]),
        ({"retry_preemptions": 0, "retry_infrastructure": 0},
         "none (retry_user_errors, retry_infrastructure, retry_preemptions)", []),
    ],
)  # fmt: skip
def test_a_plan_names_the_restarted_failures_and_the_limits_of_restarts(project, settings, restarts, alone) -> None:
    made = sdk.plan("train.py", **{"retry_preemptions": None, "retry_infrastructure": 3, **settings})
    assert dict(plan_text.lines(made))["restarts"] == restarts
    together = [task for task in made.tasks if task not in alone]
    assert json.loads(made.to_json())["restarts"] == {"alone": alone, "together": together}


@pytest.mark.parametrize("width", [None, 40, 80])
def test_a_line_that_is_too_long_goes_on_below_its_beginning_and_no_path_is_broken(width: int | None) -> None:
    path = "/a/" + "long-" * 20
    lines = plan_text.text([("run", "digits"), ("error", f"{'word ' * 30}{path}")], width).splitlines()
    assert lines[0] == "run          digits"
    assert any(path in line for line in lines)
    assert width is not None or len(lines) == 2
    assert all(line.startswith(" " * 13) for line in lines[2:])
    assert [line for line in lines if width and len(line) > width and path not in line] == []


LOCATED = """\
location 1   us-central1 on spot; chief: 1 x ct5lp-hightpu-8t with TPU v5e x 8,
             100 GB of disk
location 2   us-central1 on demand; chief: 1 x ct5lp-hightpu-8t with TPU v5e x
             8, 100 GB of disk
image        tf
price 1      3.40 USD an hour on spot in us-central1; 11.04 USD on demand; an
             estimate: price list of Compute Engine x 1.15, 2026-11-20; boot
             disks are extra
price 2      11.04 USD an hour on demand in us-central1; 3.40 USD on spot; an
             estimate: price list of Compute Engine x 1.15, 2026-11-20; boot
             disks are extra
cap          44.16 USD at most, for 4 h in us-central1: the timeout, for all
             jobs together
cost limit   50.00 USD for all jobs together: a job that could exceed the rest
             is not submitted
next job     after a preemption: the next location, any number of times
             (retry_preemptions); after a stockout or a missing quota: the next
             location; after an internal error or a lost job: the same one; all
             together 3 times (retry_infrastructure). The last location stays
submitted by a process that waits: podlift submit or podlift wait, on any
             machine. With --detach and without one, the run ends with its job,
             and podlift resume continues it"""


def test_a_plan_shows_locations_in_order_with_prices_and_the_step_after_a_jobs_end(project) -> None:
    target = sdk.Vertex(project="my-project", bucket="mine", image="tf", regions="us-central1:spot,us-central1")
    retry = {"retry_preemptions": None, "retry_infrastructure": 3}
    made = sdk.plan("train.py", backend=target, accelerator="v5e-8", timeout="4h", max_cost_usd=50, **retry)  # type: ignore[arg-type]
    shown = plan_text.text([(label, text) for label, text in plan_text.lines(made) if label != "quota"], 80)
    assert LOCATED in shown, shown


def test_a_plan_for_one_location_goes_on_there_and_an_emulators_costs_nothing(project) -> None:
    retry = {"retry_preemptions": 0, "retry_infrastructure": 1}
    made = sdk.plan("train.py", backend=sdk.Vertex(bucket="mine"), max_cost_usd=50, **retry)  # type: ignore[arg-type]
    stockout = "after a stockout, an internal error or a lost job: the same location, 1 time (retry_infrastructure)"
    assert dict(plan_text.lines(made))["next job"] == f"after a preemption: none (retry_preemptions); {stockout}"
    labels = [label for label, _ in plan_text.lines(replace(made, emulator="127.0.0.1:8123"))]
    assert "next job" in labels and not {"price", "cap", "cost limit"} & {*labels}


def test_a_plan_names_the_decision_about_its_model_however_the_gate_was_written(project, here, monkeypatch) -> None:
    project("quality.py", "def measure(model, data):\n    return {}\n")
    project("test/a.csv", "1")
    rules = 'metric = "loss"\nmin_gain = 0.01\nguards = ["accuracy >= 0.5"]\n'
    project("podlift.toml", f'model = "digits"\n[gate]\n{rules}')
    monkeypatch.setenv("PODLIFT_GATE_METRIC", "min:accuracy")
    monkeypatch.setenv("PODLIFT_GATE_DATA", "test")
    plan = sdk.plan("train.py", gate_evaluate="quality:measure", inputs={"test": "test"}, warm_start="last")
    named = {"evaluate": "quality:measure", "data": "test", "metric": "min:accuracy"}
    expected = sdk.Gate(**named, min_gain="0.01", guards=["accuracy >= 0.5"])  # type: ignore[arg-type]
    assert (plan.job.gate, plan.job.model, plan.job.warm_start) == (expected, "digits", "last")
    assert (plan.payload(1).gate, plan.payload(1).model) == (expected, "digits")
    words = ("--gate-evaluate", "quality:measure", "--gate-guards", "loss < 1", "--gate-guards", "loss < champion")
    shown = here("plan", "train.py", "--input", "test=test", *words, "--gate-ask-below", "2%", "--warm-start", "none")
    assert "model        digits: registered when the program has succeeded" in shown.stdout
    gate = (
        "gate         quality:measure on test; promoted if accuracy is lower than the champion's by 0.01 at least, and "
        "loss < 1 and loss < champion; a gain below 2% needs an approval; evaluated on chief-0 at the end of the run"
    )
    assert gate in shown.stdout.splitlines(), shown.stdout + shown.stderr


def test_a_plan_names_the_cost_of_rented_machines_while_the_gate_evaluates(project) -> None:
    target = sdk.Vertex(project="my-project", bucket="mine", image="tf")
    made = sdk.plan("train.py", backend=target, accelerator="v5e-8", model="digits")
    gate = sdk.Gate(evaluate="quality:measure", data="test", metric="accuracy")
    made = replace(made, job=replace(made.job, gate=gate))
    end = "evaluated on chief-0 at the end of the run"
    billed = f"{end}, while all machines of the job are billed: 0.18 USD a minute"
    assert dict(plan_text.lines(made))["gate"].endswith(billed)
    assert dict(plan_text.lines(replace(made, emulator="127.0.0.1:8123")))["gate"].endswith(end)
