"""`--render`: triggers of other services as text, which their own readers read back; what they could not do is refused."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support import needs

import sdk
from sdk import InputError
from sdk.schedules import creation, rendering, slots, yaml_text
from sdk.schedules.crontab import Machine
from sdk.spec.plan import Plan

needs("cronsim")
NOW = datetime(2026, 11, 23, tzinfo=timezone.utc)
HOSTILE = 'gs://my-bucket/it\'s "a" $(HOME) `id` ${{ secrets.TOKEN }} 100% # no: yes'
CRONJOB = """\
# podlift schedule weekly: 0 3 * * 1 in Europe/Berlin. Needs Kubernetes 1.31. Apply it with kubectl apply -f -
# Placeholders: the image, and the ServiceAccount podlift, which may read and write the bucket
# (Workload Identity).
# The values of HOOK come from the Secret podlift-weekly.
apiVersion: batch/v1
kind: CronJob
metadata:
  name: podlift-weekly
  labels:
    app.kubernetes.io/managed-by: podlift
    podlift-schedule: weekly
spec:
  schedule: "0 3 * * 1"
  timeZone: Europe/Berlin
  # What becomes of slots that overlap is podlift's to decide, so that each leaves a record.
  concurrencyPolicy: Allow
  startingDeadlineSeconds: 10800
  successfulJobsHistoryLimit: 3
  failedJobsHistoryLimit: 3
  jobTemplate:
    metadata:
      labels:
        app.kubernetes.io/managed-by: podlift
        podlift-schedule: weekly
    spec:
      # A pod that is lost is replaced, and goes on with its slot; a run that failed is not repeated.
      backoffLimit: 6
      podFailurePolicy:
        rules:
          - action: Ignore
            onPodConditions:
              - type: DisruptionTarget
                status: "True"
          - action: FailJob
            onExitCodes:
              operator: In
              values:
                - 1
                - 2
                - 4
                - 75
      template:
        metadata:
          labels:
            app.kubernetes.io/managed-by: podlift
            podlift-schedule: weekly
        spec:
          restartPolicy: Never
          serviceAccountName: podlift
          automountServiceAccountToken: false
          containers:
            - name: fire
              # One with podlift[schedule]==0.1.0 and the packages of the program, which runs in it.
              image: IMAGE-WITH-PODLIFT
              command:
                - podlift
                - schedule
                - fire
                - weekly
                - "--root"
                - "gs://my-bucket/podlift"
                - "--id"
                - "$(PODLIFT_DELIVERY)"
              env:
                - name: PODLIFT_DELIVERY
                  valueFrom:
                    fieldRef:
                      fieldPath: "metadata.labels['batch.kubernetes.io/job-name']"
                - name: HOOK
                  valueFrom:
                    secretKeyRef:
                      name: podlift-weekly
                      key: HOOK
              securityContext:
                allowPrivilegeEscalation: false
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text("print(1)\n")
    plan = sdk.plan(folder / "train.py", root=folder / "root", name="weekly", env={"TOKEN": "x"})
    return replace(plan, root="gs://my-bucket/podlift")


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text("print(1)\n")
    target = sdk.Vertex(project="podlift", regions=("us-central1",), bucket="my-bucket", image="image")
    return sdk.plan(folder / "train.py", accelerator="t4", backend=target, timeout="2h", name="weekly")


def machine(zone: tzinfo = timezone.utc, *, knows_zones: bool = False, home: str = "/home/me") -> Machine:
    command = ["/venv of mine/bin/podlift"]
    return Machine(zone=zone, knows_zones=knows_zones, command=command, path="/venv/bin:/usr/bin", home=Path(home))


def render(form: str, plan: Plan, where: Machine | None = None, **fields: Any) -> str:
    spec = creation.draft(**{"name": "weekly", "cron": "0 3 * * 1", "time_zone": "Europe/Berlin", **fields})
    return rendering.render(form, spec, plan, now=NOW, version="0.1.0", machine=where or machine()).text


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def test_the_whole_cron_job_of_kubernetes(template: Plan) -> None:
    """`kubernetes-validate --strict` accepts this text for 1.31 to 1.37."""
    assert render("kubernetes", template, notify=("webhook:HOOK",)) == CRONJOB


def container_of(text: str) -> dict[str, Any]:
    (found,) = yaml.safe_load(text)["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return found


def test_hostile_names_stay_words_of_the_command(template: Plan) -> None:
    words = container_of(render("kubernetes", replace(template, root=HOSTILE)))["command"]
    # Kubernetes turns $$(NAME) into $(NAME), and replaces $(NAME).
    assert words[5] == HOSTILE.replace("$(", "$$(")


@pytest.mark.parametrize(
    ("cron", "deadline_s"), [("* * * * *", 30), ("*/5 * * * *", 150), ("0 * * * *", 1800), ("0 3 * * 1", 10800)]
)
def test_a_late_start_still_belongs_to_its_slot(template: Plan, cron: str, deadline_s: int) -> None:
    assert yaml.safe_load(render("kubernetes", template, cron=cron))["spec"]["startingDeadlineSeconds"] == deadline_s


@pytest.mark.parametrize(
    ("cron", "plain"),
    [
        ("0 3 * * 7", "0 3 * * 0"),
        ("0 3 * * 5-7", "0 3 * * 0,5,6"),
        ("0 3 * * mon-fri", "0 3 * * MON-FRI"),
        ("5/20 3 * * *", "5,25,45 3 * * *"),
        ("*/15 1-5/2 1,15 * *", "*/15 1-5/2 1,15 * *"),
    ],
)
def test_an_expression_is_one_that_every_cron_reads(template: Plan, cron: str, plain: str) -> None:
    assert yaml.safe_load(render("kubernetes", template, cron=cron))["spec"]["schedule"] == plain
    both = [slots.Cron(each).next(20, NOW) for each in (cron, plain)]
    assert both[0] == both[1]


def test_a_run_elsewhere_needs_a_small_machine_to_follow_it(elsewhere: Plan) -> None:
    text = render("kubernetes", elsewhere)
    assert container_of(text)["resources"] == {"requests": {"cpu": "250m", "memory": "512Mi"}}
    assert "start jobs there" in text


# --- GitHub -----------------------------------------------------------------------------------------------------------


def test_a_workflow_fires_in_its_zone_with_the_least_rights_and_secrets_by_name(elsewhere: Plan) -> None:
    text = render("github", elsewhere, notify=("webhook:HOOK",))
    found = yaml.safe_load(text)
    # YAML 1.1 reads the key `on` as a boolean.
    assert found[True] == {
        "schedule": [{"cron": "0 3 * * 1", "timezone": "Europe/Berlin"}],
        "workflow_dispatch": {},
    }
    assert found["permissions"] == {}
    (job,) = found["jobs"].values()
    assert job["permissions"] == {"contents": "read", "id-token": "write"}
    assert job["env"] == {"HOOK": "${{ secrets.HOOK }}"}
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [
        'python -m pip install "podlift[schedule]==0.1.0"',
        'podlift schedule fire weekly --root gs://my-bucket/podlift --id "github-$GITHUB_RUN_ID" --detach',
    ]
    (auth,) = (step["with"] for step in job["steps"] if "auth@" in step.get("uses", ""))
    assert auth["workload_identity_provider"] == "${{ vars.PODLIFT_WORKLOAD_IDENTITY_PROVIDER }}"
    assert "fires late when it is busy, may drop a firing" in text


def test_a_run_of_the_workflows_own_machine_has_the_time_that_github_gives(template: Plan) -> None:
    (job,) = yaml.safe_load(render("github", template))["jobs"].values()
    assert job["timeout-minutes"] == 360
    assert "--detach" not in job["steps"][-1]["run"]


def test_no_expression_of_github_is_in_a_hostile_root(template: Plan) -> None:
    (job,) = yaml.safe_load(render("github", replace(template, root=HOSTILE)))["jobs"].values()
    command = job["steps"][-1]["run"]
    # GitHub replaces an expression by its value, here a text.
    replaced = command.replace("${{ '${{' }}", "\0")
    assert "${{" not in replaced
    assert shlex.split(replaced.replace("\0", "${{"))[5] == HOSTILE


# --- cron -------------------------------------------------------------------------------------------------------------


def fields_of(text: str) -> str:
    return " ".join(text.splitlines()[-1].split(" ")[:5])


def test_a_line_of_a_machine_in_the_zone_of_the_schedule_has_its_fields(template: Plan) -> None:
    text = render("crontab", template, machine(ZoneInfo("Europe/Rome")))
    assert fields_of(text) == "0 3 * * 1" and "CRON_TZ" not in text and "--within 10m" in text


def test_a_cron_that_knows_zones_is_told_the_zone(template: Plan) -> None:
    text = render("crontab", template, machine(knows_zones=True))
    assert text.splitlines()[-2] == "CRON_TZ=Europe/Berlin" and fields_of(text) == "0 3 * * 1"


@pytest.mark.parametrize(
    ("schedule", "here", "minutes"),
    [("Europe/Berlin", "UTC", "15"), ("Asia/Kolkata", "UTC", "45"), ("Australia/Lord_Howe", "UTC", "15,45")],
)
def test_any_other_cron_fires_every_hour_and_the_command_knows_the_slot(
    template: Plan, schedule: str, here: str, minutes: str
) -> None:
    """Lord Howe moves its clocks by half an hour."""
    text = render("crontab", template, machine(ZoneInfo(here)), cron="15 3 * * *", time_zone=schedule)
    assert fields_of(text) == f"{minutes} * * * *" and "--within 59m" in text


@pytest.mark.process
def test_a_shell_runs_the_words_of_the_line_as_cron_hands_them_over(template: Plan, tmp_path: Path) -> None:
    """cron replaces an escaped % and gives the rest to a shell; a program that prints its words stands in for podlift."""
    home = tmp_path / "my $HOME's 50%"
    home.mkdir()
    shown = home / "podlift"
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$TOKEN" "$PATH" "$@"\n')
    shown.chmod(0o700)
    (home / ".config" / "podlift").mkdir(parents=True)
    (home / ".config" / "podlift" / "weekly.env").write_text("TOKEN='a b'\n")
    where = replace(machine(home=str(home)), command=[str(shown)])
    root = HOSTILE.removeprefix("gs:/")
    plan = replace(template, root=root, job=replace(template.job, env={"TOKEN": sdk.FromCaller()}))
    line = render("crontab", plan, where).splitlines()[-1]
    command = line.split(" ", 5)[5]
    assert "%" not in command.replace(r"\%", "")
    handed = command.replace(r"\%", "%")
    subprocess.run(["/bin/sh", "-c", handed], check=True, env={"PATH": os.defpath, "HOME": str(home)}, cwd="/")
    log = (home / ".local" / "state" / "podlift" / "weekly.log").read_text()
    assert log.splitlines() == [
        "a b", "/venv/bin:/usr/bin", "schedule", "fire", "weekly", "--root", root, "--within", "59m",
    ]  # fmt: skip


# --- What is refused --------------------------------------------------------------------------------------------------


def test_what_another_machine_cannot_see_is_refused_at_once(template: Plan) -> None:
    with pytest.raises(InputError) as caught:
        render(
            "github",
            replace(template, root="/home/me/runs"),
            cron="*/2 * */2 * 1",
            notify=("command:say done",),
            inputs={"rows": "rows.csv"},
        )
    first, second, third, fourth, fifth = caught.value.problems
    assert "the root is a folder of this machine" in first and "'/home/me/runs'" in first
    assert "the input rows is on this machine's disk" in second
    assert "a command of notify is one of this machine" in third
    assert "a list of days instead of the step" in fourth
    assert "GitHub starts a workflow every five minutes at most" in fifth


@pytest.mark.parametrize(
    ("form", "fields", "sentence"),
    [
        ("kubernets", {}, "Did you mean 'kubernetes'?"),
        ("kubernetes", {"cron": "0 3 * * 5#2"}, "Kubernetes knows no nth weekday"),
        ("crontab", {"cron": "0 0 3 * * 1"}, "cron knows no seconds (use '0 3 * * 1')"),
    ],
)
def test_a_mistake_is_refused_with_the_next_step(
    template: Plan, form: str, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        render(form, template, **fields)
    assert sentence in str(caught.value)


def test_a_line_that_cron_cannot_hold_is_refused(template: Plan) -> None:
    for root, sentence in (("/a\nb", "no line breaks"), ("/" + "a" * 1000, "at most 998 characters")):
        with pytest.raises(InputError, match=sentence):
            render("crontab", replace(template, root=root))


# --- YAML -------------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)
VALUES: Any = st.recursive(
    TEXTS | st.integers(-1000, 1000) | st.booleans(),
    lambda inner: (
        st.lists(st.dictionaries(TEXTS.filter(lambda key: not key.startswith("#")), inner, min_size=1), max_size=3)
        | st.dictionaries(TEXTS.filter(lambda key: not key.startswith("#")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS.filter(lambda key: not key.startswith("#")), VALUES))
def test_a_reader_of_yaml_gets_the_same_values_back(value: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_text.text({"# a remark": "", **value})) == (value or None)
