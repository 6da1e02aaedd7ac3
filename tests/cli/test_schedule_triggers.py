"""`podlift schedule fire`, and the triggers that `--render` prints: what is printed really fires, once for each slot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support import LIMIT_S, needs, until

import sdk
from sdk.schedules import crontab

needs("cronsim")


@pytest.fixture(autouse=True)
def in_root(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODLIFT_ROOT", str(root))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    # As on a machine whose zone is not that of the schedule.
    monkeypatch.setattr(crontab.shutil, "which", lambda name: None)


def minutes_ago() -> tuple[str, ...]:
    """An expression whose latest slot is a moment ago."""
    return "--cron", f"{datetime.now(timezone.utc).minute} * * * *"


def as_cron_does(line: str, home: Path) -> subprocess.Popen[str]:
    """Start the command of a crontab's line with what cron gives it: a shell, and hardly any environment."""
    command = line.split(" ", 5)[5].replace(r"\%", "%")
    variables = {"HOME": str(home), "LOGNAME": "me", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
    return subprocess.Popen(["/bin/sh", "-c", command], env=variables, cwd=home, text=True)


def test_two_lines_of_a_crontab_and_a_server_that_fire_at_once_start_one_run(
    podlift, here, write, tmp_path: Path
) -> None:
    write("train.py", "import sys; print(sys.argv[1])")
    words = ("schedule", "create", "hourly", "train.py", *minutes_ago(), "--render", "crontab", "--", "{slot:%H%%}")
    made = here(*words)
    assert made.code == 0, made.stderr
    line = made.stdout.splitlines()[-1]
    # Rendered again, from what is stored.
    assert here("schedule", "show", "hourly", "--render", "crontab").stdout == made.stdout
    firing = [as_cron_does(line, tmp_path / "home") for _ in range(2)]
    served = podlift("schedule", "serve", "--once")
    assert [each.wait(LIMIT_S) for each in firing] == [0, 0] and served.code == 0, served.stderr
    schedule = sdk.Schedule("hourly")
    (record,) = schedule.history()
    assert (record.state, record.cause) == ("SUCCEEDED", "schedule")
    (run,) = sdk.runs()
    assert run.id == record.run
    assert [text.text for text in sdk.attach(run.id).logs()][-1] == f"{record.moment:%H}%"
    log = (tmp_path / "home" / ".local" / "state" / "podlift" / "hourly.log").read_text()
    told, other = sorted(line for line in log.splitlines() if line.startswith("hourly: "))[::-1]
    assert told == f"hourly: the slot {record.slot}: SUCCEEDED done"
    assert other.startswith(f"hourly: the slot {record.slot} was delivered before: its run {run.id} is ")


def test_a_run_that_fails_is_the_exit_code_of_the_command(podlift, here, write) -> None:
    write("train.py", "raise SystemExit(1)")
    assert here("schedule", "create", "hourly", "train.py", *minutes_ago()).code == 0
    done = podlift("schedule", "fire", "hourly", "--json")
    assert done.code == 1, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["state"], shown["exit_code"], shown["cause"]) == ("FAILED", 1, "schedule")
    assert shown["text"].startswith(f"the slot {shown['slot']}: FAILED")
    # A duplicate is none of its business.
    assert podlift("schedule", "fire", "hourly").code == 0


def test_nothing_that_is_printed_is_written_and_a_dry_run_writes_nothing(here, write, root: Path) -> None:
    write("train.py", "print(1)")
    words = ("schedule", "create", "weekly", "train.py", "--cron", "0 3 * * 1", "--time-zone", "Europe/Berlin")
    made = here(*words, "--render", "crontab", "--dry-run")
    assert made.code == 0 and "podlift schedule weekly: 0 3 * * 1 in Europe/Berlin" in made.stdout
    assert not root.exists() and not list(Path(os.environ["HOME"]).rglob("*"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--render", "kubernetes"), "the root is a folder of this machine"),
        (("--render", "github"), "the root is a folder of this machine"),
        (("--render", "kubernets"), "Did you mean 'kubernetes'?"),
        (("--render", "crontab", "--json"), "--render prints a file, and --json an object"),
    ],
)
def test_a_trigger_that_could_not_work_is_refused_before_anything_is_written(
    here, write, root: Path, words: tuple[str, ...], sentence: str
) -> None:
    write("train.py", "print(1)")
    made = here("schedule", "create", "weekly", "train.py", "--cron", "0 3 * * 1", *words)
    assert made.code == 2 and sentence in made.stderr + made.stdout
    assert not (root / "schedules").exists()


def test_mistakes_of_a_firing_are_named_at_once(here, write) -> None:
    write("train.py", "print(1)")
    here("schedule", "create", "weekly", "train.py", "--cron", "0 3 * * 1")
    done = here("schedule", "fire", "weekly", "--slot", "monday", "--within", "soon")
    assert done.code == 2
    assert "--slot: not a date. Received: 'monday'" in done.stderr and "--within: " in done.stderr
    done = here("schedule", "fire", "weekly", "--slot", "2027-01-05T03:00")
    assert "Nearest: 2027-01-04T03:00:00+00:00 and 2027-01-11T03:00:00+00:00." in done.stderr


def test_a_slot_at_which_nothing_is_due_ends_the_command_at_once(here, write) -> None:
    write("train.py", "print(1)")
    minute = (datetime.now(timezone.utc).minute + 30) % 60
    here("schedule", "create", "hourly", "train.py", "--cron", f"{minute} * * * *")
    done = here("schedule", "fire", "hourly", "--within", "10m")
    assert done.code == 0 and "nothing is due: the last slot was " in done.stderr
    assert sdk.Schedule("hourly").history() == []


def test_a_reader_that_has_enough_ends_the_output(podlift, here, write) -> None:
    write("train.py", "print(1)")
    here("schedule", "create", "weekly", "train.py", "--cron", "0 3 * * 1")
    done = podlift("schedule", "show", "weekly", "--render", "crontab", shell="| head -n 1")
    assert done.stdout == "# podlift schedule weekly: 0 3 * * 1 in UTC\n" and "Traceback" not in done.stderr


def test_a_run_goes_on_when_its_command_is_killed_and_the_next_delivery_of_that_name_follows_it(
    podlift, here, write, environment, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    write("train.py", f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.05)\n")
    assert here("schedule", "create", "hourly", "train.py", *minutes_ago()).code == 0
    command = [sys.executable, "-m", "sdk", "schedule", "fire", "hourly", "--id", "job-1"]
    first = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    schedule = sdk.Schedule("hourly")
    until(lambda: [each.state for each in schedule.history()] == ["RUNNING"], lambda: str(schedule.history()))
    first.kill()
    first.wait()
    go.write_text("")
    done = podlift("schedule", "fire", "hourly", "--id", "job-1")
    assert done.code == 0 and ": SUCCEEDED" in done.stderr
    assert len(sdk.runs()) == 1
