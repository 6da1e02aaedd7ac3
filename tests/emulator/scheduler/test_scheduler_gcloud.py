"""`gcloud scheduler jobs` against the emulator, set up by the lines that `podlift emulator` prints, where it is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from gcloud_command import Gcloud, serving
from support import full_only
from timetable import DAY_S, JOBS

pytestmark = [
    pytest.mark.skipif(
        shutil.which("gcloud") is None, reason="gcloud is not installed: https://cloud.google.com/sdk/docs/install"
    ),
    pytest.mark.process,
]
NAME = "projects/podlift/locations/us-central1/jobs/daily"
SCHEDULER = ("scheduler", "jobs")
HTTP = (
    "--schedule=0 3 * * *",
    "--time-zone=Europe/Berlin",
    f"--uri={JOBS.replace('acme', 'podlift')}",
    "--oauth-service-account-email=runner@podlift.iam.gserviceaccount.com",
    "--headers=Content-Type=application/json",
)
TOPIC = ("--schedule=0 3 * * *", "--topic=t", "--message-body=x")


@pytest.fixture(scope="module")
def gcloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gcloud]:
    with serving(tmp_path_factory.mktemp("gcloud"), "--location=us-central1") as found:
        yield found


def create(gcloud: Gcloud, name: str, folder: Path) -> None:
    (folder / "body.json").write_text("{}")
    more = (f"--message-body-from-file={folder / 'body.json'}", "--max-retry-attempts=3", "--min-backoff=30s")
    gcloud.value(*SCHEDULER, "create", "http", name, *HTTP, *more)


@pytest.mark.full
def test_a_job_is_created_and_forced(gcloud: Gcloud, tmp_path: Path) -> None:
    create(gcloud, "daily", tmp_path)
    shown = gcloud.ask("GET", f"v1/{NAME}")
    assert (shown["schedule"], shown["state"], shown["timeZone"]) == ("0 3 * * *", "ENABLED", "Europe/Berlin")
    assert (shown["retryConfig"]["retryCount"], shown["retryConfig"]["minBackoffDuration"]) == (3, "30s")
    gcloud.value(*SCHEDULER, "run", "daily")
    gcloud.ask("POST", "_clock", {"advance_s": 0})
    (attempt,) = gcloud.ask("GET", "_attempts")["attempts"]
    # The body is no custom job.
    assert (attempt["job"], attempt["forced"], attempt["code"]) == (NAME, True, 3)


@pytest.mark.full
def test_a_job_is_described_listed_paused_resumed_changed_and_deleted(gcloud: Gcloud, tmp_path: Path) -> None:
    create(gcloud, "weekly", tmp_path)
    gcloud.value(*SCHEDULER, "pause", "weekly")
    assert gcloud.value(*SCHEDULER, "describe", "weekly", "--format=value(state,attemptDeadline)") == "PAUSED\t180s"
    attempts = gcloud.ask("POST", "_clock", {"advance_s": 2 * DAY_S})["attempts"]
    assert [each for each in attempts if each["job"].endswith("weekly")] == []
    gcloud.value(*SCHEDULER, "resume", "weekly")
    gcloud.value(*SCHEDULER, "update", "http", "weekly", "--schedule=30 4 * * 1", "--max-retry-attempts=0")
    listed = gcloud.value(*SCHEDULER, "list", "--format=value(name.basename(),schedule,state)")
    assert "weekly\t30 4 * * 1\tENABLED" in listed.splitlines()
    gcloud.value(*SCHEDULER, "delete", "weekly")
    assert "weekly" not in gcloud.value(*SCHEDULER, "list", "--format=value(name)")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        full_only(
            (*SCHEDULER, "create", "http", "odd", *HTTP, "--schedule=0 3 L * *"), "Schedule or time zone is invalid."
        ),
        full_only((*SCHEDULER, "describe", "nothing"), "NOT_FOUND"),
        full_only((*SCHEDULER, "create", "pubsub", "odd", *TOPIC), "UNIMPLEMENTED"),
    ],
    ids=["schedule", "no such job", "another target"],
)
def test_gcloud_gives_the_reason_of_a_refusal(gcloud: Gcloud, words: tuple[str, ...], sentence: str) -> None:
    code, _, err = gcloud.run(*words)
    assert code == 1 and sentence in err
