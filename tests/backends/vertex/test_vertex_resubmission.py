"""A job that has lost its machines for good is followed by another one, in the next place, while somebody waits for the run."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, PROGRAMS, full_only, heard, made, until
from vertex_faults import HOLD, flat, vertex

import sdk
from sdk import Reason, State, api
from sdk.backends.vertex.client import JobClient
from sdk.backends.vertex.job import create_job
from sdk.hardware import accelerators, pricing
from sdk.job.plan import Plan
from sdk.records.sync import index
from sdk.testing.vertex import Cloud

PLACES = ("us-central1:spot", "us-central1:standard")
# An attempt to get machines fails, as often as Vertex AI tries.
STOCKOUT = vertex("stockout", times=3)


@pytest.fixture
def start(start) -> Callable[..., sdk.Run]:
    return partial(start, regions=PLACES, retry=sdk.Retry(infrastructure=3, preemptions=None))


def strategies(cloud: Cloud) -> list[str]:
    return [job.job_spec.scheduling.strategy.name for job in made(cloud)]


def jobs_in(cloud: Cloud, region: str) -> list[Any]:
    return list(cloud.jobs().list_custom_jobs(parent=f"projects/{cloud.project}/locations/{region}", timeout=30))


def test_a_waiting_process_submits_the_next_job_in_the_next_place_and_says_so_once(cloud, start) -> None:
    said = heard("backends")
    cloud.faults(STOCKOUT)
    run = start()
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (State.SUCCEEDED, 1)
    first, second = made(cloud)
    assert (first.state.name, second.state.name) == ("JOB_STATE_FAILED", "JOB_STATE_SUCCEEDED")
    assert strategies(cloud) == ["SPOT", "STRATEGY_UNSPECIFIED"]
    (line,) = [text for text in said if text.startswith("Job 1 ended")]
    assert line.startswith("Job 1 ended (stockout). Restarting after an infrastructure failure (stockout).")
    assert "Job 2 follows in us-central1:standard" in line
    why = flat(run.why())
    for text in ("run job 1 ended (stockout)", "Job 2 follows in us-", "run SUCCEEDED (done)"):
        assert text in why
    assert [line.text for line in run.logs()] == ["here"]
    assert [line.text for line in run.logs(task="service") if "insufficient" in line.text], "the lines of the first job"
    (info,) = api.runs(root=f"gs://{cloud.bucket}/podlift")
    assert info.status.state is State.SUCCEEDED


def test_a_reader_leaves_the_decision_to_a_waiting_process_as_long_as_it_waits(cloud, start, monkeypatch) -> None:
    cloud.faults(vertex("stockout"))
    run = start()
    lease = cloud.client().bucket(cloud.bucket).blob(f"podlift/runs/{run.id}/waiting.json")
    lease.upload_from_string(json.dumps({"holder": "another process", "time": time.time()}))
    until(lambda: run.status().vendor == "JOB_STATE_FAILED", run.why)
    status = run.status()
    assert (status.state, status.reason) == (State.RUNNING, Reason.RESTARTING)
    assert api.attach(run.url).status().state is State.RUNNING
    monkeypatch.setattr("sdk.backends.vertex.wait.waiting.EXPIRES_S", 0.0)
    assert api.attach(run.url).status().state is State.FAILED


def test_after_a_service_error_the_same_place_is_tried_until_the_budget_is_spent(cloud, start) -> None:
    cloud.faults(vertex("internal", times=6, after_s=0.0))
    run = start("import time; time.sleep(600)", retry=sdk.Retry(infrastructure=1), limits={"timeout_s": 3600})
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason) == (State.FAILED, Reason.INTERNAL)
    assert strategies(cloud) == ["SPOT", "SPOT"]
    assert "1 of 1 restarts after an infrastructure failure are used up" in flat(run.why())
    limits = [job.job_spec.scheduling.timeout.total_seconds() for job in made(cloud)]
    assert limits[0] == 3600
    assert 3000 < limits[1] < 3600, "the time limit is that of the whole run"


# --- Seven preemptions, and a process that is killed ----------------------------------------------------------------

# Weights that depend on every step, in the program's own checkpoints; it leaves at once when its machine is taken away.
PROGRAM = """
import os, signal, time
from sdk.storage.registry import open_store
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
store = open_store(os.environ["AIP_CHECKPOINT_DIR"].rstrip("/"))
done = sorted(stat.key for stat in store.list("step-"))
weight = float.fromhex(bytes(store.get(done[-1])).decode()) if done else 0.1
for step in range(len(done), 9):
    weight = 3.9 * weight * (1 - weight)
    store.put_new(f"step-{step:03d}", [weight.hex().encode()])
    print("step", step, flush=True)
    # Until its machine is taken away, once in each attempt.
    time.sleep(60 * (step < 7) * DISTURBED)
print("weights", weight.hex(), flush=True)
"""
# One more than Vertex AI restarts: it takes the machine away after the first seven steps.
PREEMPTIONS = vertex("preempt", log=r"^step [0-6]$", times=7)
# Its process dies between the claim on the second job and its request.
CLIENT = (
    (PROGRAMS / "dying_client.py").read_text()
    + """
import sys
import sdk
places = ["us-central1:spot", "europe-west4:standard"]
backend = sdk.Vertex(project="podlift", bucket="podlift-runs", image="podlift/emulated", regions=places)
run = sdk.submit(sdk.Job("program.py", retry=sdk.Retry(infrastructure=3, preemptions=None)), backend=backend)
print(run.url, flush=True)
run.wait()
"""
)


@pytest.mark.full
def test_a_run_taken_over_after_a_kill_and_seven_preemptions_ends_with_equal_weights(cloud, start, monkeypatch) -> None:
    undisturbed = start(PROGRAM.replace("DISTURBED", "0"))
    assert undisturbed.wait(LIMIT_S).state is State.SUCCEEDED
    Path("program.py").write_text(PROGRAM.replace("DISTURBED", "1"))
    cloud.faults(PREEMPTIONS)
    with subprocess.Popen([sys.executable, "-c", CLIENT], stdout=subprocess.PIPE, text=True) as client:
        run = api.attach(client.stdout.readline().strip())
        assert client.wait(LIMIT_S) == -signal.SIGKILL, run.why()
    # The claim of the killed process expires, and several others wait.
    monkeypatch.setattr(create_job, "LEASE_S", 1.0)
    monkeypatch.setattr(create_job, "SEARCH_DELAYS_S", (0.0, 0.5))
    others = [threading.Thread(target=api.attach(run.url).wait, args=(LIMIT_S,), daemon=True) for _ in range(2)]
    for other in others:
        other.start()
    status = run.wait(LIMIT_S)
    for other in others:
        other.join(LIMIT_S)
    assert (status.state, status.attempts) == (State.SUCCEEDED, 8)
    assert [job.labels["podlift-job"] for job in jobs_in(cloud, "europe-west4")] == ["2"]
    assert "job 1 ended (preempted)" in flat(run.why())
    ends = [[line.text for line in each.logs() if line.text.startswith("weights")] for each in (undisturbed, run)]
    assert ends[0] == ends[1] and len(ends[0]) == 1


@pytest.mark.full
def test_a_job_in_another_region_uses_the_runs_directory_without_an_output_directory(cloud, start) -> None:
    cloud.faults(STOCKOUT)
    dirs = "[os.environ['AIP_MODEL_DIR'], os.environ['AIP_CHECKPOINT_DIR'], sdk.context().dirs.tensorboard]"
    run = start(f"import os, sdk; print(*{dirs})", regions=("us-central1:spot", "europe-west4"))
    assert run.wait(LIMIT_S).state is State.SUCCEEDED
    assert [line.text for line in run.logs()] == [f"{run.url}/model/ {run.url}/checkpoints/ {run.url}/logs"]
    (first,), (second,) = (jobs_in(cloud, region) for region in ("us-central1", "europe-west4"))
    assert first.job_spec.base_output_directory.output_uri_prefix == f"{run.url}/"
    assert second.job_spec.base_output_directory.output_uri_prefix == ""


@pytest.mark.full
def test_no_job_is_made_above_the_remaining_budget_and_the_run_reports_its_cost(cloud, start, monkeypatch) -> None:
    """On the emulator nothing is billed: a price of 1 USD a second in the first place, and of 2 in the next, stands in."""

    def priced(plan: Plan, place: int) -> pricing.Price:
        price = pricing.price(pricing.Rental(pools=accelerators.pools()))
        return replace(price, own=3600.0 * (place + 1), at_least=3600.0 * (place + 1))

    monkeypatch.setattr("sdk.backends.vertex.wait.resubmit.price", priced)
    cloud.faults(vertex("preempt", times=7, after_s=0.3))
    limits = {"timeout_s": 100.0, "max_cost_usd": 150.0}
    run = start("import time; time.sleep(600)", limits=limits, retry={"preemptions": None})
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason, status.exit_code) == (State.FAILED, Reason.BUDGET, 1)
    assert 0 < status.spent_usd == pytest.approx(status.spent_s)
    assert len(made(cloud)) == 1
    why = " ".join(run.why().split())
    assert f"The run has spent {status.spent_usd:.2f} USD in" in why
    assert "another job in us-central1:standard may cost" in why and "left of max_cost_usd=150." in why
    assert f"Spent: {status.spent_usd:.2f} USD in" in why
    assert "Another job was not made, because it could exceed the limit on the cost" in why
    assert "podlift resume" in why and "--code current" not in why
    (info,) = sdk.runs(root=f"gs://{cloud.bucket}/podlift")
    assert info.status.spent_usd == status.spent_usd
    record = next(path for path in Path(run.plan.paths.events).iterdir() if ".final." in path.name)
    assert json.loads(record.read_text())["data"]["spent"]["usd"] == status.spent_usd


# --- Cancelling while another job is on its way ---------------------------------------------------------------------

# Where another process cancels: right before or after each write of the process that submits the next job.
MOMENTS = {
    "before it is decided that another job follows": (index, "write_final", True),
    "after that": (index, "write_final", False),
    "before the request": (JobClient, "create", True),
    "after the request": (JobClient, "create", False),
    "before its name is recorded": (create_job, "record_created", True),
    "after that, too": (create_job, "record_created", False),
}


# Who cancels lives on, or dies after the request.
IN_EVERY_RUN = [("before the request", True), ("after the request", False)]
EACH = product(MOMENTS, (False, True))


@pytest.mark.parametrize(("moment", "dies"), [each if each in IN_EVERY_RUN else full_only(*each) for each in EACH])
def test_a_cancellation_at_any_moment_of_a_resubmission_ends_the_run(cloud, start, monkeypatch, moment, dies) -> None:
    owner, name, before = MOMENTS[moment]
    cloud.faults(HOLD)
    run = start("import time; time.sleep(600)")
    other, cancelled = api.attach(run.url), list[bool]()
    assert other.status().state is State.PENDING
    cloud.faults(STOCKOUT)
    call = getattr(owner, name)

    def cancel() -> None:
        if not cancelled:
            cancelled.append(True)
            if dies:
                # It knows of the first job only, and gets no further.
                other._handle._copy.request_cancel(0, 0.0)  # type: ignore[attr-defined]
            else:
                other.cancel(0.0)

    def hooked(*args: Any, **more: Any) -> Any:
        if before:
            cancel()
        found = call(*args, **more)
        cancel()
        return found

    monkeypatch.setattr("sdk.backends.vertex.job.run._CANCEL_MARGIN_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, hooked)
        assert run.wait(LIMIT_S).state in (State.CANCELLED, State.FAILED)
    assert cancelled
    assert api.attach(run.url).status().state.terminal
    jobs = [job.state.name for job in made(cloud)]
    assert len(jobs) <= 2 and not any(job.endswith(("RUNNING", "PENDING", "QUEUED")) for job in jobs)
