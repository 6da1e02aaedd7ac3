"""Jobs with real processes as containers, in an emulator of another process, asked by Google's client."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from gcloud_command import command
from served import WAIT_S, created, reached, texts
from support import REPO, until

from sdk.testing.vertex import Cloud

pytestmark = pytest.mark.process

ASK = """
import os, urllib.request
url = "http://" + os.environ["GCE_METADATA_HOST"] + "/computeMetadata/v1/instance/"
def ask(path):
    request = urllib.request.Request(url + path, headers={"Metadata-Flavor": "Google"})
    return urllib.request.urlopen(request, timeout=60).read().decode()
"""
TRAPPED = f"""
import signal, sys, time
{ASK}
def leave(*_):
    # The signal may come within a print.
    os.write(1, ("preempted: " + ask("preempted") + "\\n").encode())
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("step 1", ask("preempted"), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    with Cloud(tmp_path_factory.mktemp("real") / "data") as cloud:
        yield cloud


@pytest.fixture
def run(cloud):
    cloud.reset()
    return lambda *commands, **spec: created(cloud, *({"command": each} for each in commands), **spec)


def test_the_token_is_in_no_line_of_a_job(cloud, run) -> None:
    token = cloud.url.rpartition("/")[2]
    job = run(["/bin/sh", "-c", "echo $PODLIFT_EMULATOR $https_proxy; echo $STORAGE_EMULATOR_HOST >&2"])
    reached(cloud, job)
    said = " ".join(texts(cloud, job))
    assert said.count("TOKEN") == 3 and token not in said
    spec = json.dumps(requests.get(f"{cloud.url}/v1/{job.name}", timeout=WAIT_S).json())
    assert token not in spec


def test_a_replica_that_is_preempted_is_told_and_comes_back(cloud, run) -> None:
    cloud.faults({"api": "vertex", "kind": "preempt", "replica": "workerpool1-0", "log": "^step 1"})
    spot = {"strategy": "SPOT", "restart_job_on_worker_restart": True}
    job = run(["sleep", "600"], ["python3", "-c", TRAPPED], scheduling=spot)
    until(lambda: sum(text.startswith("step 1") for text in texts(cloud, job, "workerpool1-0")) == 2)
    assert texts(cloud, job, "workerpool1-0") == ["step 1 FALSE", "preempted: TRUE", "step 1 FALSE"]
    with cloud.jobs() as client:
        client.cancel_custom_job(name=job.name, timeout=WAIT_S)
    gone = reached(cloud, job)
    assert (gone.state.name, gone.error.code) == ("JOB_STATE_CANCELLED", 1)


def test_a_killed_server_leaves_no_process_and_a_failed_job(cloud, run) -> None:
    # One child stays with its parent, and one is an orphan in another session.
    leaves = ["sh", "-c", "sleep 600 & (setsid sleep 600 &) ; wait"]
    job = run(leaves, ["sleep", "600"])
    reached(cloud, job, "JOB_STATE_RUNNING")
    until(lambda: running(job.name) >= 4)
    cloud.kill()
    until(lambda: running(job.name) == 0)
    cloud.start()
    failed = reached(cloud, job)
    assert (failed.state.name, failed.error.code) == ("JOB_STATE_FAILED", 13)


def test_the_command_serves_everything_and_leaves_no_process(tmp_path) -> None:
    buckets = ("--bucket", "mine@us-central1", "--bucket", "any@us")
    with command("--data", str(tmp_path / "data"), "--json", *buckets) as process:
        told = json.loads(process.stdout.readline())
        url = told["url"]
        assert (told["data"], told["port"]) == (str(tmp_path / "data"), urlsplit(url).port)
        items = requests.get(f"{url}/storage/v1/b?project=p", timeout=WAIT_S).json()["items"]
        places = {each["name"]: (each["location"], each["locationType"]) for each in items}
        assert places == {"any": ("US", "multi-region"), "mine": ("US-CENTRAL1", "region")}
        container = {"imageUri": "any", "command": ["sleep", "600"]}
        pool = {"machineSpec": {"machineType": "e2-standard-4"}, "replicaCount": "1", "containerSpec": container}
        sent = {"displayName": "x", "jobSpec": {"workerPoolSpecs": [pool]}}
        path = f"{url}/v1/projects/p/locations/us-central1/customJobs"
        job = requests.post(path, json=sent, timeout=WAIT_S).json()["name"]
        until(lambda: running(job))
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 0 and not (tmp_path / "data" / "token").exists()
    assert "export STORAGE_EMULATOR_HOST=$PODLIFT_EMULATOR " in said
    guide = (REPO / "docs" / "how-to" / "emulator.md").read_text()
    for service, path in (("AIPLATFORM", ""), ("LOGGING", ""), ("STORAGE", "storage/v1/")):
        line = f"export CLOUDSDK_API_ENDPOINT_OVERRIDES_{service}=$PODLIFT_EMULATOR/{path}\n"
        assert line in said and line in guide
    assert "api_endpoint=os.environ['PODLIFT_EMULATOR'], api_transport='rest')" in said
    until(lambda: running(job) == 0)


def running(job: str) -> int:
    mark = f"CLOUD_ML_JOB_ID={job.rpartition('/')[2]}".encode()
    found = 0
    for each in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found += mark in each.read_bytes()
    return found
