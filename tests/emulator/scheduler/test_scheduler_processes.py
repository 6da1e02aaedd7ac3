"""Cloud Scheduler of an emulator in a process of its own: real containers, a kill, and the fixture's own methods."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from support import LIMIT_S, until
from timetable import WEEK_S, job

from sdk.testing.vertex import Cloud

pytestmark = pytest.mark.process

PRINTS = {
    "displayName": "keeper",
    "jobSpec": {
        "workerPoolSpecs": [
            {
                "machineSpec": {"machineType": "n1-standard-4"},
                "replicaCount": "1",
                "containerSpec": {"imageUri": "any", "command": ["sh", "-c"], "args": ["echo here"]},
            }
        ]
    },
}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Cloud:
    with Cloud(tmp_path_factory.mktemp("cloud"), project="acme", frozen=True) as made:
        yield made


def test_a_killed_emulator_fires_on_and_its_custom_jobs_really_run(cloud: Cloud) -> None:
    body = json.dumps(PRINTS).encode()
    cloud.scheduler().create_job(parent=cloud.parent, job=job(target={"body": body}), timeout=LIMIT_S)
    (first,) = cloud.advance(WEEK_S)
    cloud.kill()
    cloud.start()
    (second,) = cloud.advance(WEEK_S)
    assert (first.code, second.code) == (0, 0)
    slots = [datetime.fromisoformat(each.schedule_time) for each in (first, second)]
    assert (slots[1] - slots[0]).days in (6, 7)

    def succeeded() -> list:
        found = list(cloud.jobs().list_custom_jobs(parent=cloud.parent, timeout=LIMIT_S))
        return [each for each in found if each.state.name == "JOB_STATE_SUCCEEDED" and each.create_time == slots[1]]

    # A job that runs needs a clock that moves.
    until(lambda: cloud.advance(1) == [] and succeeded())
    (ended,) = succeeded()
    assert "here" in [entry.get("textPayload") for entry in cloud.entries(ended.name)]
