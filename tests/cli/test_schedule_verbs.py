"""`podlift schedule`: created, changed, listed, fired, removed; refusals; and the triggers of the guide."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import LIMIT_S, REPO, finished_run, full_only, holds, needs, until

import sdk
from sdk.backends.local.backend import LocalBackend
from sdk.clock import SystemClock
from sdk.records import named
from sdk.schedules.runs import LocalRuns
from sdk.schedules.server import Server
from sdk.upkeep import remove

needs("cronsim")
CRON = ("--cron", "0 3 * * 1", "--time-zone", "Europe/Berlin")


def the_json(shown):
    assert shown.code == 0, shown.stderr
    return json.loads(shown.stdout)


def test_a_list_of_schedules_fits_80_columns_without_its_empty_ones(project, here, on_terminal, monkeypatch) -> None:
    assert here("schedule", "create", "a-rather-long-schedule", "train.py", "--cron", "0 3 * * 1").code == 0
    on_terminal()
    monkeypatch.setenv("COLUMNS", "80")
    head, row = here("schedule", "list").stdout.splitlines()
    assert head.split() == ["schedule", "cron", "time", "zone", "state", "next"]
    assert max(len(head), len(row)) <= 80
    monkeypatch.setenv("COLUMNS", "200")
    assert here("schedule", "list").stdout.splitlines()[0].split()[-3:] == ["trigger", "next", "last"]


def test_a_schedule_is_created_once_changed_with_a_diff_and_deleted(here, project) -> None:
    words = ("schedule", "create", "weekly", "train.py", *CRON, "--json")
    (made,) = the_json(here(*words))
    assert made["outcome"] == "created" and len(made["next"]) == 5
    assert made["next"][0].endswith(("T03:00:00+01:00", "T03:00:00+02:00"))
    (same,) = the_json(here(*words))
    assert (same["outcome"], same["changes"]) == ("unchanged", [])
    assert "outcome      unchanged" in here(*words[:-1], "--dry-run").stdout
    project("train.py", "print(2)")
    (dry,) = the_json(here(*words, "--overlap", "queue", "--dry-run"))
    assert (dry["outcome"], dry["trigger"]) == ("changed", None)
    assert the_json(here("schedule", "status", "weekly", "--json"))["overlap"] == "skip"
    (other,) = the_json(here(*words, "--overlap", "queue", "--", "--lr", "0.1"))
    assert other["outcome"] == "changed" and other["bundle"] != made["bundle"]
    for changes in (dry["changes"], other["changes"]):
        assert {"~ overlap: 'skip' -> 'queue'", "code: ~ train.py"} <= set(changes)
    assert any("--lr" in change for change in other["changes"])
    (listed,) = the_json(here("schedule", "list", "--json"))
    assert (listed["name"], listed["state"], listed["last"]) == ("weekly", "attention", None)
    shown = here("schedule", "status", "weekly").stdout
    assert "overlap      queue" in shown and "train.py --lr 0.1" in shown
    assert here("schedule", "remove", "weekly").code == 0
    assert the_json(here("schedule", "list", "--json")) == []


def test_a_dry_run_shows_the_next_slots_and_writes_nothing(here, project, root: Path) -> None:
    words = ("--cron", "30 2 * * *", "--time-zone", "Europe/Berlin", "--dry-run")
    shown = here("schedule", "create", "weekly", "train.py", *words)
    assert shown.code == 0 and shown.stdout.count("fires ") == 5
    assert "exists twice" in shown.stderr and "nearest safe hour is 3" in shown.stderr
    assert "outcome      created" in shown.stdout
    assert not root.exists()


def test_a_schedule_without_a_past_and_a_run_without_checkpoints_name_the_next_step(here, project, root: Path) -> None:
    assert here("schedule", "create", "weekly", "train.py", *CRON).code == 0
    assert "Next: podlift schedule run weekly" in here("schedule", "status", "weekly").stderr
    finished_run(root, "digits-aaaaaa")
    assert "There are no checkpoints. A training with fit" in here("checkpoints", "digits-aaaaaa").stderr


def test_a_schedule_pauses_and_a_named_one_is_simulated(here, project) -> None:
    here("schedule", "create", "weekly", "train.py", *CRON)
    assert here("schedule", "pause", "weekly").code == 0
    shown = the_json(here("schedule", "status", "weekly", "--json"))
    assert (shown["state"], shown["paused"], shown["next"]) == ("paused", "by hand", [])
    assert here("schedule", "list", "weekly", "--check") == (0, "", "")
    assert "fires next at" in here("schedule", "unpause", "weekly").stderr
    span = ("--from", "2027-01-01", "--to", "2028-01-01", "--json")
    slots = the_json(here("schedule", "simulate", "weekly", *span))
    assert len(slots) == 52 and slots[0]["slot"] == "2027-01-04T03:00:00+01:00"


def test_a_schedule_without_a_server_says_so_before_one_runs_and_after_it_has_ended(here, project, root: Path) -> None:
    class OneTick(SystemClock):
        def sleep(self, seconds: float) -> None:
            said.append(here("schedule", "list", "--check"))
            said.append(here("schedule", "create", "weekly", "train.py", *CRON))
            if len(said) == 4:
                with pytest.raises(KeyboardInterrupt):
                    Server(str(root), OneTick()).serve()
                said.append(here("schedule", "list", "--check"))
            raise KeyboardInterrupt

    said = [here("schedule", "create", "weekly", "train.py", *CRON), here("schedule", "list", "--check")]
    assert said[0].stderr.endswith("Nothing starts while no server runs. Next: podlift schedule serve\n")
    step = "Next: podlift schedule serve\n"
    assert said[1] == (1, f"weekly: nothing starts while no server runs. {step}", "")
    with pytest.raises(KeyboardInterrupt):
        Server(str(root), OneTick()).serve()
    assert said[2] == said[-1] == (0, "", "") and "server" not in said[3].stderr, "also after the end of another one"
    ended = here("schedule", "list")
    assert ended.stdout.split("\t")[3] == "attention"
    assert ended.stderr.startswith("podlift: weekly: no server has run since 20") and ended.stderr.endswith(step)


def test_a_server_begins_beside_a_damaged_schedule(here, project, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(server: Server) -> None:
        raise KeyboardInterrupt

    here("schedule", "create", "weekly", "train.py", *CRON)
    (root / "schedules/specs/odd.json").write_bytes(b"{")
    monkeypatch.setattr(Server, "serve", interrupted)
    served = here("schedule", "serve")
    assert (served.code, "Serving weekly below" in served.stderr) == (0, True)


@pytest.mark.process
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_terminated_says_so_at_once(here, project, root: Path, environment, by: int) -> None:
    here("schedule", "create", "weekly", "train.py", *CRON)
    serve = [sys.executable, "-m", "sdk", "schedule", "serve", *(["--root", str(root)] if by == signal.SIGINT else [])]
    with subprocess.Popen(serve, env=environment(), stderr=subprocess.PIPE, text=True) as server:
        until(lambda: here("schedule", "list", "--check").code == 0)
        server.send_signal(by)
        _, said = server.communicate(timeout=LIMIT_S)
        assert server.returncode == 0
    assert said.endswith(f"The server has ended; its runs continue. Next: podlift {' '.join(serve[3:])}\n")
    assert "no server has run since 20" in here("schedule", "list").stderr


def test_a_file_creates_several_schedules_or_none(here, write) -> None:
    write("jobs/train.py", "print(1)")
    file = write(
        "jobs/schedules.toml",
        """
        [daily]
        entry = "train.py"
        cron = "0 3 * * *"
        args = ["--day", "{slot:%d}"]
        [weekly]
        entry = "train.py"
        cron = "0 4 * * 1"
        time_zone = "America/New_York"
        workers = 2
        when = "older_than(20h)"
        """,
    )
    for outcome in ("created", "unchanged"):
        made = the_json(here("schedule", "create", "--file", str(file), "--json"))
        assert [each["outcome"] for each in made] == [outcome] * 2
    file.write_text('[one]\nentri = "train.py"\ncron = "0 3 * * *"\n[two]\nentry = "train.py"\ncron = "0 3 * *"\n')
    shown = here("schedule", "create", "--file", str(file))
    assert shown.code == 2
    holds(shown.stderr, "one: unknown key 'entri'. Did you mean 'entry'?", "one: entry is missing")
    assert "two: cron: expected five fields" in shown.stderr
    assert [each["name"] for each in the_json(here("schedule", "list", "--json"))] == ["daily", "weekly"]
    file.write_text("")
    assert "has no table" in here("schedule", "create", "--file", str(file)).stderr
    for more in (("daily",), ("--cron", "0 3 * * *"), ("--backend", "vertex")):
        refused = here("schedule", "create", "--file", str(file), *more)
        assert refused.code == 2 and "--file cannot be combined" in refused.stderr, more


def test_all_mistakes_of_a_schedule_are_named_at_once_and_nothing_is_written(here, project, root: Path) -> None:
    shown = here(
        "schedule", "create", "weekly", "train.py", "--cron", "0 3 * * MO", "--overlap", "ski", "--when", "data_change(rows)",
        "--notify", "https://hooks.example.com/secret", "--backend", "vertex",
    )  # fmt: skip
    assert shown.code == 2
    holds(shown.stderr, "Did you mean 'MON'?", "Did you mean 'skip'?", "Did you mean 'data_changed'?", "webhook:NAME")
    holds(shown.stderr, "No container image is configured for vertex", lacks=["secret\n", "hooks.example"])
    assert not root.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--when", "data_changed(rows)", "--input", "row=train.py"), "(rows): no such input. Did you mean 'row'?"),
        (("--when", "min_new_examples(rows)"), "Expected: min_new_examples(INPUT, N)"),
        (("--when", "trane:ready"), "the packaged code has no such module. Did you mean 'train'?"),
        (("--", "{slots}"), "Unknown template. Received: '{slots}'"),
        (("--notify", "webhook:projects/p/secrets/s/versions/1"), "Next: webhook:VARIABLE"),
        (("--location", "europe-west4"), "schedule serve, which has none. Received: 'europe-west4'. Next: omit it"),
    ],
)
def test_the_references_of_a_schedule_must_exist(here, project, words: tuple[str, ...], sentence: str) -> None:
    shown = here("schedule", "create", "weekly", "train.py", *CRON, *words)
    assert shown.code == 2 and sentence in shown.stderr


def test_a_list_in_the_wrong_root_names_that_root_and_the_root_of_the_schedule(
    here, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert here("schedule", "list", "--check").code == 1, "nothing was checked"
    nothing = here("schedule", "list").stderr
    assert nothing.startswith(f"There are no schedules below {root}. Next: podlift schedule create")
    named.remember("schedule", ["weekly"], "gs://bucket/podlift")
    step = "below gs://bucket/podlift. Next: --root gs://bucket/podlift\n"
    none = f"There are no schedules below {root}."
    assert here("schedule", "list").stderr == f"{none} This machine has used schedules {step}"
    unknown = here("schedule", "list", "weekly", "--check")
    none = f"No such schedule below {root}. Received: 'weekly'."
    assert (unknown.code, unknown.stderr.endswith(f"{none} This machine has used it {step}")) == (2, True)


def test_an_unknown_schedule_gets_the_nearest_one(here, project) -> None:
    assert "There is none. Next: podlift schedule create." in here("schedule", "status", "x").stderr
    here("schedule", "create", "weekly", "train.py", *CRON)
    assert "Received: 'wekly'. Did you mean 'weekly'?" in here("schedule", "status", "wekly").stderr
    slips = {"pose": "pause", "check": "list --check", "apply": "create --file", "history": "status"}
    for word, meant in slips.items():
        assert f"Did you mean: podlift schedule {meant}?" in here("schedule", word, "weekly").stderr


def test_a_program_schedules_itself_by_name_and_podlift_remove_keeps_its_code(project, root: Path) -> None:
    made = sdk.schedule("train.py", name="weekly", cron="0 3 * * 1", time_zone="Europe/Berlin", max_cost_usd=3)
    assert len(made.next(3)) == 3 and made.plan.job.limits.max_cost_usd == 3
    assert sdk.schedule(sdk.Job("train.py"), name="daily", cron="0 3 * * *").name == "daily"
    with pytest.raises(sdk.InputError, match="cannot be imported by name"):
        sdk.schedule("train.py", name="other", cron="0 3 * * *", when=[lambda firing: True])
    (bundle,) = (root / "bundles").iterdir()
    os.utime(bundle, (0, 0))

    def removed() -> list[str]:
        return [item.kind for item in remove.find(root, older_than_s=0, keep=0, now=time.time()).items]

    assert removed() == []
    made.remove()
    assert removed() == []
    sdk.Schedule("daily").remove()
    assert removed() == ["bundle"]


@pytest.mark.process
def test_a_submit_that_was_interrupted_before_its_supervisor_is_finished_once(project, monkeypatch) -> None:
    plan, runs = sdk.plan("train.py", name="weekly"), LocalRuns(SystemClock())

    def killed(self, request) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LocalBackend, "start", killed)
        runs.submit(plan)
    for _ in range(2):
        runs.submit(plan)
    status = sdk.attach(plan.run_id).wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 1)
    runs.submit(plan)
    assert runs.status(plan.url).attempts == 1


def test_a_schedules_model_has_its_name_and_its_gate_may_read_an_input_of_the_slot(project, here) -> None:
    project("quality.py", "def measure(model, data): return {}")
    gate = ("--gate-evaluate", "quality:measure", "--gate-metric", "accuracy")
    words = ("schedule", "create", "weekly", "train.py", "--cron", "0 3 * * 1", *gate)
    wrong = here(*words, "--input", "test=/data/{slot:%d}.csv", "--gate-data", "tset")
    assert (wrong.code, "gate_data: no such input. Received: 'tset'. Did you mean 'test'?" in wrong.stderr) == (2, True)
    made = here(*words, "--input", "test=/data/{slot:%d}.csv", "--gate-data", "test")
    assert made.code == 0, made.stderr
    plan = sdk.Schedule("weekly").plan
    assert (plan.model, plan.job.gate.data) == ("weekly", "test")
    again = here(*words, "--input", "test=/data/{slot:%d}.csv", "--gate-data", "test")
    assert "unchanged" in again.stdout + again.stderr
    changes = here(*words, "--model", "digits", "--input", "test=/data/{slot:%d}.csv", "--gate-data", "test")
    assert 'job: ~ model: "weekly" -> "digits"' in changes.stdout + changes.stderr


# --- schedule run --due: any trigger delivers a slot, and each slot starts one run


def minutes_ago() -> tuple[str, ...]:
    """An expression with its latest slot a moment ago."""
    return "--cron", f"{datetime.now(timezone.utc).minute} * * * *"


@pytest.mark.full
def test_two_triggers_and_a_server_that_fire_at_once_start_one_run(podlift, here, write, environment) -> None:
    write("train.py", "import sys; print(sys.argv[1])")
    made = here("schedule", "create", "hourly", "train.py", *minutes_ago(), "--", "{slot:%H%%}")
    assert made.code == 0, made.stderr
    command = [sys.executable, "-m", "sdk", "schedule", "run", "hourly", "--due"]
    begin = partial(subprocess.Popen, command, env=environment(), stderr=subprocess.PIPE, text=True)
    firing = [begin(), begin()]
    served = podlift("schedule", "serve", "--once")
    said = [each.communicate(timeout=LIMIT_S)[1] for each in firing]
    assert [each.returncode for each in firing] == [0, 0] and served.code == 0, (said, served.stderr)
    schedule = sdk.Schedule("hourly")
    (record,) = schedule.history()
    (run,) = sdk.runs()
    assert (record.state, record.cause, record.run) == ("SUCCEEDED", "schedule", run.id)
    assert [text.text for text in sdk.attach(run.id).logs()][-1] == f"{record.moment:%H}%"
    duplicate = f"hourly: the slot {record.slot} was delivered before: its run {run.id} is "
    assert any(duplicate in text for text in said), said


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


# --- The triggers of the guide, for cron, Kubernetes and GitHub: their commands fire a schedule

GUIDE = (REPO / "docs" / "how-to" / "schedules.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE, re.DOTALL)


def crontab() -> tuple[list[str], str]:
    (line,) = blocks("crontab")
    *fields, command = line.split(" ", 5)
    return fields, command.strip()


def in_yaml(key: str, value: str = "") -> dict[str, Any]:
    found = [yaml.safe_load(text) for text in blocks("yaml")]
    (one,) = [each for each in found if key in each and value in ("", each[key])]
    return one


def cron_job() -> dict[str, Any]:
    return in_yaml("kind", "CronJob")["spec"]


def workflow() -> dict[str, Any]:
    return in_yaml("jobs")


def test_each_has_the_slots_of_the_schedule_replaces_lost_pods_and_needs_few_rights() -> None:
    _, cron, _, zone = CRON
    assert (cron_job()["schedule"], cron_job()["timeZone"]) == (cron, zone)
    # YAML 1.1 reads the key `on` as a boolean.
    assert workflow()[True]["schedule"] == [{"cron": cron, "timezone": zone}]
    assert crontab()[0] == ["0", "*", "*", "*", "*"]  # every hour, at the minute of the slots
    assert f'--cron "{cron}" --time-zone {zone}' in GUIDE
    ignored, final = cron_job()["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert ignored["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert {1, 2, 4, 75} == set(final["onExitCodes"]["values"]), "a run that failed is not repeated"
    (job,) = workflow()["jobs"].values()
    assert workflow()["permissions"] == {} and job["permissions"] == {"contents": "read", "id-token": "write"}
    assert "secrets." not in str(workflow())


def commands() -> dict[str, str]:
    (container,) = cron_job()["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (job,) = workflow()["jobs"].values()
    words = [word.replace("$(PODLIFT_DELIVERY)", "$PODLIFT_DELIVERY") for word in container["command"]]
    return {"cron": crontab()[1], "kubernetes": " ".join(words), "github": job["steps"][-1]["run"]}


@pytest.mark.process
@pytest.mark.parametrize("trigger", ["cron", full_only("kubernetes"), full_only("github")])
def test_a_shell_that_runs_the_command_starts_the_run_of_the_slot(
    here, write, root: Path, environment, tmp_path: Path, trigger: str
) -> None:
    """The words come from the guide, except for the root, the file of the log, and a keeper, which a local run has none of."""
    write("train.py", "print('trained')")
    made = here("schedule", "create", "weekly", "train.py", *minutes_ago(), "--root", str(root))
    assert made.code == 0, made.stderr
    command = commands()[trigger].replace("gs://my-bucket/podlift", str(root)).replace(" --detach", "")
    command = command.replace("/home/me/.venv/bin", str(Path(sys.executable).parent)).replace("/home/me", str(tmp_path))
    names = {"PODLIFT_DELIVERY": "job-1", "GITHUB_RUN_ID": "17", "PODLIFT_ROOT": str(root)}
    variables = {**environment(), **names, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    shell = ["/bin/sh", "-c", command]
    done = subprocess.run(shell, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    (record,) = sdk.Schedule("weekly", root=root).history()
    assert record.state == "SUCCEEDED"
