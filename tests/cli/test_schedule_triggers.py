"""`podlift schedule run --due`: any trigger delivers a slot, and each slot starts one run."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support import LIMIT_S, needs

import sdk

needs("cronsim")


@pytest.fixture(autouse=True)
def in_root(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODLIFT_ROOT", str(root))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


def minutes_ago() -> tuple[str, ...]:
    """An expression with its latest slot a moment ago."""
    return "--cron", f"{datetime.now(timezone.utc).minute} * * * *"


@pytest.mark.full
def test_two_triggers_and_a_server_that_fire_at_once_start_one_run(podlift, here, write, environment) -> None:
    write("train.py", "import sys; print(sys.argv[1])")
    made = here("schedule", "create", "hourly", "train.py", *minutes_ago(), "--", "{slot:%H%%}")
    assert made.code == 0, made.stderr
    command = [sys.executable, "-m", "sdk", "schedule", "run", "hourly", "--due"]
    firing = [
        subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True, cwd=Path.cwd())
        for _ in range(2)
    ]
    served = podlift("schedule", "serve", "--once")
    said = [each.communicate(timeout=LIMIT_S)[1] for each in firing]
    assert [each.returncode for each in firing] == [0, 0] and served.code == 0, (said, served.stderr)
    schedule = sdk.Schedule("hourly")
    (record,) = schedule.history()
    assert (record.state, record.cause) == ("SUCCEEDED", "schedule")
    (run,) = sdk.runs()
    assert run.id == record.run
    assert [text.text for text in sdk.attach(run.id).logs()][-1] == f"{record.moment:%H}%"
    duplicates = [
        text for text in said if f"hourly: the slot {record.slot} was delivered before: its run {run.id} is " in text
    ]
    assert duplicates, said


@pytest.mark.process
def test_a_run_that_fails_is_the_exit_code_of_the_command(here, write) -> None:
    write("train.py", "raise SystemExit(1)")
    assert here("schedule", "create", "hourly", "train.py", *minutes_ago()).code == 0
    done = here("schedule", "run", "hourly", "--due", "--json")
    assert done.code == 1, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["state"], shown["exit_code"], shown["cause"]) == ("FAILED", 1, "schedule")
    assert shown["text"].startswith(f"the slot {shown['slot']}: FAILED")
    # A duplicate is none of its business.
    assert here("schedule", "run", "hourly", "--due").code == 0


def test_mistakes_of_a_firing_are_named_at_once(here, project) -> None:
    here("schedule", "create", "weekly", "train.py", "--cron", "0 3 * * 1")
    done = here("schedule", "run", "weekly", "--due", "--slot", "monday", "--within", "soon")
    assert done.code == 2
    assert "--slot: not a date. Received: 'monday'" in done.stderr and "--within: " in done.stderr
    done = here("schedule", "run", "weekly", "--due", "--slot", "2027-01-05T03:00")
    assert "Nearest: 2027-01-04T03:00:00+00:00 and 2027-01-11T03:00:00+00:00." in done.stderr
    done = here("schedule", "run", "weekly", "--within", "10m", "--detach")
    assert done.code == 2
    assert "Only a slot that is due has --within and --detach. Next: podlift schedule run weekly --due." in done.stderr
    assert sdk.Schedule("weekly").history() == []
