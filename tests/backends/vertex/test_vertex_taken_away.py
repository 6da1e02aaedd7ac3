"""A run whose machines are taken away until Vertex AI gives up ends elsewhere, with the weights of an undisturbed one."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support import LONG_LIMIT_S as LIMIT_S
from support import PROGRAMS, REPO

import sdk
from sdk import api
from sdk.drill.comparison import compare_ends, end_of
from sdk.job.layout import RunPaths
from sdk.job.payload import Drill
from sdk.testing.vertex import Cloud

pytestmark = pytest.mark.full

DIGITS = REPO / "jobs" / "digits" / "train.py"
PLACES = ("us-central1:spot", "europe-west4:standard")
EPOCHS = 9
# At the second epoch, at the third after the restart in the second, and so on: seven times, one more than Vertex AI restarts.
PREEMPTIONS = {
    "api": "vertex",
    "kind": "preempt",
    "log": rf"Epoch (?!1/)\d+/{EPOCHS}",
    "nth": [1, 3, 5, 7, 9, 11, 13],
    "times": 7,
}
# A client whose process dies between the claim on the second job and its request.
CLIENT = (
    (PROGRAMS / "dying_client.py").read_text()
    + """
import sys
import sdk
run = sdk.submit(sdk.Plan.from_json(open(sys.argv[1]).read(), sys.argv[1]))
print(run.url, flush=True)
run.wait()
"""
)


def planned(cloud: Cloud) -> sdk.Plan:
    """Return the plan of the digits with everything that is random decided: two of these are the same training."""
    job = sdk.Job(
        str(DIGITS),
        args=["--epochs", str(EPOCHS)],
        checkpoints=sdk.Checkpoints(every_steps=10),
        retry=sdk.Retry(infrastructure=3, preemptions=None),
    )
    return replace(sdk.plan(job, backend=cloud.backend(places=PLACES)), drill=Drill(seed=7))


def test_a_run_ends_on_demand_in_another_region_although_the_process_that_submitted_it_was_killed(
    podlift_vertex: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sdk.submit(planned(podlift_vertex))
    assert whole.wait(LIMIT_S).state is sdk.State.SUCCEEDED

    podlift_vertex.faults(PREEMPTIONS)
    plan_file = tmp_path / "plan.json"
    plan_file.write_bytes(planned(podlift_vertex).to_json().encode())
    command = [sys.executable, "-c", CLIENT, str(plan_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        run = api.attach(client.stdout.readline().strip())
        assert client.wait(LIMIT_S) < 0, "it was killed while it submitted the second job"

    # Another one waits now; the first one's claim expires.
    monkeypatch.setattr("sdk.backends.vertex.create_job.LEASE_S", 1.0)
    monkeypatch.setattr("sdk.backends.vertex.create_job.SEARCH_DELAYS_S", (0.0, 0.5))
    waiting = threading.Thread(target=api.attach(run.url).wait, args=(LIMIT_S,), daemon=True)
    waiting.start()
    status = run.wait(LIMIT_S)
    waiting.join(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 8)
    jobs = [
        job
        for region in ("us-central1", "europe-west4")
        for job in podlift_vertex.jobs().list_custom_jobs(
            parent=f"projects/{podlift_vertex.project}/locations/{region}", timeout=30
        )
        if job.labels["podlift-run"] == run.id
    ]
    assert [(job.labels["podlift-job"], job.job_spec.scheduling.strategy.name) for job in jobs] == [
        ("1", "SPOT"),
        ("2", "STRATEGY_UNSPECIFIED"),
    ]
    why = " ".join(run.why().split())
    assert "job 1 ended (preempted)" in why
    assert "Job 2 follows in europe-" in why
    ends = [end_of(RunPaths(each.url)) for each in (whole, run)]
    assert compare_ends(ends[0], ends[1]) == ([], [])  # type: ignore[arg-type]
