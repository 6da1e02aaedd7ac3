"""Triggers of a schedule elsewhere, as text: a CronJob of Kubernetes, a workflow of GitHub, a line of cron. Pure.

Each runs `podlift schedule fire`, which takes the slot: two of them, or one beside a server, start one run. None holds a
secret, only the names of those that it needs.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ..errors import InputError, Problems, nearest
from ..planning.roots import in_cloud_storage
from ..spec.plan import Plan
from . import slots, triggered, yaml_text
from .crontab import Machine, lines
from .records import ScheduleSpec
from .yaml_text import Value

FORMS = ("kubernetes", "github", "crontab")
# A trigger that comes later than this says nothing about the slot any more.
_LONGEST_LATE_S = 3 * 3600
_MOST_MINUTES, _MINUTES = 360, 15
_SHORTEST_S = 300.0
# Exit codes of `podlift schedule fire` that stay the same when it is repeated.
_FINAL = (1, 2, 4, 75)
_DELIVERY = "PODLIFT_DELIVERY"


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A trigger as text, and what is to be said about it."""

    text: str
    remarks: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class _ScheduleToRender:
    """A schedule that is to be fired from elsewhere."""

    spec: ScheduleSpec
    plan: Plan
    now: datetime
    version: str
    machine: Machine

    @property
    def variables(self) -> list[str]:
        """The environment variables that a firing needs: their values are secrets."""
        hooks = [text.partition(":")[2] for text in self.spec.notify if text.startswith("webhook:") and "/" not in text]
        return sorted({*self.plan.job.copied, *hooks})

    @property
    def words(self) -> list[str]:
        return ["podlift", "schedule", "fire", self.spec.name, "--root", self.plan.root]

    @property
    def about(self) -> str:
        return f"podlift schedule {self.spec.name}: {' '.join(self.spec.cron.split())} in {self.spec.time_zone}"

    @property
    def period_s(self) -> float:
        return triggered.period_s(self.spec.slots, self.now)


def render(form: str, spec: ScheduleSpec, plan: Plan, *, now: datetime, version: str, machine: Machine) -> Rendered:
    """Return a trigger in one of FORMS; InputError with every reason why it could not work."""
    known: Mapping[
        str, tuple[str, Callable[[_ScheduleToRender], list[str]], Callable[[_ScheduleToRender], Rendered]]
    ] = {
        FORMS[0]: ("Kubernetes", _far_problems, _kubernetes),
        FORMS[1]: ("GitHub", _github_problems, _github),
        FORMS[2]: ("cron", lambda wanted: [], _crontab),
    }
    if form not in known:
        raise InputError(f"--render: unknown. Received: {form!r}. {nearest(form, FORMS)}")
    title, problems, make = known[form]
    wanted, found = _ScheduleToRender(spec=spec, plan=plan, now=now, version=version, machine=machine), Problems()
    with found.collect():
        slots.check_portable(spec.cron, title)
    found.found += problems(wanted)
    found.raise_if_any()
    return make(wanted)


def _far_problems(wanted: _ScheduleToRender) -> list[str]:
    found, spec, plan = [], wanted.spec, wanted.plan
    if not in_cloud_storage(plan.root):
        found.append(
            f"--render: the root is a folder of this machine, which a firing elsewhere cannot see. Received: {plan.root!r}. "
            "Next: --root gs://BUCKET/podlift, or --render crontab."
        )
    found += [
        f"--render: the input {name} is on this machine's disk. Received: {place!r}. Next: upload it: gs://BUCKET/PATH."
        for name, place in spec.inputs.items()
        if "://" not in place
    ]
    if any(text.startswith("command:") for text in spec.notify):
        found.append("--render: a command of notify is one of this machine. Next: webhook:VARIABLE.")
    day, weekday = spec.cron.split()[-3], spec.cron.split()[-1]
    if (day.startswith("*/") and weekday != "*") or (weekday.startswith("*/") and day != "*"):
        # Debian's cron joins them by AND, Kubernetes by OR.
        found.append(
            f"--render: cron programs do not agree about a day with a step beside another day. Received: {spec.cron!r}. "
            "Next: a list of days instead of the step."
        )
    return found


def _github_problems(wanted: _ScheduleToRender) -> list[str]:
    found = _far_problems(wanted)
    if wanted.period_s < _SHORTEST_S:
        found.append(f"--render: GitHub starts a workflow every five minutes at most. Received: {wanted.spec.cron!r}.")
    return found


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def _kubernetes(wanted: _ScheduleToRender) -> Rendered:
    spec = wanted.spec
    name = f"podlift-{spec.name}"
    labels: Mapping[str, Value] = {"app.kubernetes.io/managed-by": "podlift", "podlift-schedule": spec.name}
    rules: Sequence[Value] = (
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": _FINAL}},
    )
    job: Mapping[str, Value] = {
        "# A pod that is lost is replaced, and goes on with its slot; a run that failed is not repeated.": "",
        "backoffLimit": 6,
        "podFailurePolicy": {"rules": rules},
        "template": {"metadata": {"labels": labels}, "spec": _pod(wanted, name)},
    }
    manifest: Mapping[str, Value] = {
        f"# {wanted.about}. Needs Kubernetes 1.31. Apply it with kubectl apply -f -": "",
        "# Placeholders: the image, and the ServiceAccount podlift, which may read and write the bucket": "",
        f"# (Workload Identity){' and start jobs there' if not wanted.plan.capabilities.runs_here else ''}.": "",
        **_secrets_remark(wanted, f"the Secret {name}"),
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "schedule": " ".join(slots.plain_fields(spec.cron)),
            "timeZone": spec.time_zone,
            "# What becomes of slots that overlap is podlift's to decide, so that each leaves a record.": "",
            "concurrencyPolicy": "Allow",
            "startingDeadlineSeconds": max(10, int(min(wanted.period_s / 2, _LONGEST_LATE_S))),
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {"metadata": {"labels": labels}, "spec": job},
        },
    }
    return Rendered(
        text=yaml_text.text(manifest),
        remarks=["Kubernetes: replace the placeholders image and serviceAccountName before kubectl apply -f FILE"],
    )


def _pod(wanted: _ScheduleToRender, name: str) -> Mapping[str, Value]:
    # Kubernetes replaces $(NAME) in the words of a command.
    words = [word.replace("$(", "$$(") for word in wanted.words]
    own: Value = {
        "name": _DELIVERY,
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-name']"}},
    }
    others: list[Value] = [
        {"name": each, "valueFrom": {"secretKeyRef": {"name": name, "key": each}}} for each in wanted.variables
    ]
    container: dict[str, Value] = {
        "name": "fire",
        f"# One with podlift[schedule]=={wanted.version}{_and_packages(wanted)}.": "",
        "image": "IMAGE-WITH-PODLIFT",
        "command": [*words, "--id", f"$({_DELIVERY})"],
        "env": [own, *others],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    if not wanted.plan.capabilities.runs_here:
        container["resources"] = {"requests": {"cpu": "250m", "memory": "512Mi"}}
    return {
        "restartPolicy": "Never",
        "serviceAccountName": "podlift",
        "automountServiceAccountToken": False,
        "containers": [container],
    }


def _and_packages(wanted: _ScheduleToRender) -> str:
    return " and the packages of the program, which runs in it" if wanted.plan.capabilities.runs_here else ""


def _secrets_remark(wanted: _ScheduleToRender, where: str) -> Mapping[str, Value]:
    if not wanted.variables:
        return {}
    return {f"# The values of {', '.join(wanted.variables)} come from {where}.": ""}


# --- GitHub -----------------------------------------------------------------------------------------------------------


def _github(wanted: _ScheduleToRender) -> Rendered:
    spec, here = wanted.spec, wanted.plan.capabilities.runs_here
    limit_s = wanted.plan.job.limits.timeout_s or math.inf
    minutes = int(min(_MOST_MINUTES, limit_s // 60 + _MINUTES)) if here else _MINUTES
    command = f'{shlex.join(wanted.words)} --id "github-$GITHUB_RUN_ID"{"" if here else " --detach"}'
    job: Mapping[str, Value] = {
        "runs-on": "ubuntu-latest",
        "timeout-minutes": minutes,
        "permissions": {"contents": "read", "id-token": "write"},
        **({"env": {each: f"${{{{ secrets.{each} }}}}" for each in wanted.variables} if wanted.variables else {}}),
        "# Nothing of the checkout is used, but the action for Google's credentials asks for one.": "",
        "steps": [
            {"uses": "actions/checkout@v4"},
            {
                "uses": "google-github-actions/auth@v3",
                "with": {
                    "workload_identity_provider": "${{ vars.PODLIFT_WORKLOAD_IDENTITY_PROVIDER }}",
                    "service_account": "${{ vars.PODLIFT_SERVICE_ACCOUNT }}",
                },
            },
            {
                "uses": "actions/setup-python@v5",
                "with": {"python-version": f"{sys.version_info.major}.{sys.version_info.minor}"},
            },
            {"run": f'python -m pip install "podlift[schedule{",tf" if here else ""}]=={wanted.version}"'},
            {"run": _literal(command)},
        ],
    }
    workflow: Mapping[str, Value] = {
        f"# {wanted.about}. Save it as .github/workflows/podlift-{spec.name}.yml on the default branch.": "",
        "# GitHub fires late when it is busy, may drop a firing, and stops after 60 days without activity in a public": "",
        "# repository: podlift records what was missed, and a second trigger of the same schedule does no harm.": "",
        "# Repository variables to set: PODLIFT_WORKLOAD_IDENTITY_PROVIDER (projects/.../providers/...) and": "",
        "# PODLIFT_SERVICE_ACCOUNT (its email).": "",
        **_secrets_remark(wanted, "secrets of the repository"),
        "name": f"podlift {spec.name}",
        "on": {
            "schedule": [
                {"cron": " ".join(slots.plain_fields(spec.cron)), "timezone": spec.time_zone},
            ],
            "# By hand it delivers the latest slot, if that has not run.": "",
            "workflow_dispatch": {},
        },
        "permissions": {},
        "jobs": {"fire": job},
    }
    # GitHub's own files have it unquoted, and no other key is called like that.
    text = re.sub(r'(?m)^"on":', "on:", yaml_text.text(workflow))
    remark = "GitHub: set the repository variables that the workflow names before you commit it"
    return Rendered(text=text, remarks=[remark])


def _literal(command: str) -> str:
    # GitHub would replace an expression, wherever it stands.
    return command.replace("${{", "${{ '${{' }}")


# --- cron -------------------------------------------------------------------------------------------------------------


def _crontab(wanted: _ScheduleToRender) -> Rendered:
    return Rendered(
        text=lines(wanted.spec, wanted.plan.root, wanted.variables, wanted.machine, wanted.now, wanted.period_s)
    )
