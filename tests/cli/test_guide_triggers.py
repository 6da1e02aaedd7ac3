"""The triggers of the guide to schedules, for cron, Kubernetes and GitHub: their commands fire a schedule."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import LIMIT_S, REPO, full_only, needs

import sdk

needs("cronsim")
GUIDE = (REPO / "docs" / "how-to" / "schedules.md").read_text()
CRON, ZONE = "0 3 * * 1", "Europe/Berlin"


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
    assert (cron_job()["schedule"], cron_job()["timeZone"]) == (CRON, ZONE)
    # YAML 1.1 reads the key `on` as a boolean.
    assert workflow()[True]["schedule"] == [{"cron": CRON, "timezone": ZONE}]
    assert crontab()[0] == ["0", "*", "*", "*", "*"]  # every hour, at the minute of the slots
    assert f'--cron "{CRON}" --time-zone {ZONE}' in GUIDE
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
    minute = datetime.now(timezone.utc).minute
    made = here("schedule", "create", "weekly", "train.py", "--cron", f"{minute} * * * *", "--root", str(root))
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
