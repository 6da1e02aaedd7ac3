"""Checks of what Vertex AI has no room for, and of settings that mean nothing there."""

from __future__ import annotations

from collections.abc import Sequence

from ..hardware import accelerators
from ..spec.findings import Finding, error, note, warning
from .strategies import PARAMETER_SERVER, SYNCHRONOUS
from .vertex_hardware import WEEK_S, Json

DISK_GB = (100, 64_000)
MAX_VARIABLES = 100
MAX_DISPLAY_NAME = 128
# Seconds that a spot machine's containers get at most before they are gone; Vertex AI promises none.
_NOTICE_S = 15.0
_OWN_VARIABLES = ("PODLIFT_RUN", "PODLIFT_TASKS")


def disk(job: Json, target: Json) -> list[Finding]:
    """A boot disk that is too small or too large."""
    low, high = DISK_GB
    asked = job["resources"].get("disk_gb", low)
    if low <= asked <= high:
        return []
    fits = {"resources.disk_gb": min(max(asked, low), high)}
    return [error(f"A boot disk has {low} to {high} GB. Received: disk_gb={asked}", fits)]


def variables(job: Json, target: Json) -> list[Finding]:
    """More environment variables than a container of Vertex AI may have."""
    row = accelerators.lookup(job["resources"]["accelerator"])
    own = {*_OWN_VARIABLES, *(name for name, _ in row.env)}
    own |= {"TF_USE_LEGACY_KERAS"} if job["code"].get("keras") == "legacy" else set()
    names = {*own, *job.get("env", {})}
    if len(names) <= MAX_VARIABLES:
        return []
    room = MAX_VARIABLES - len(own)
    kept = dict(list({name: text for name, text in job["env"].items() if name not in own}.items())[:room])
    return [
        Finding(
            "error",
            f"A container of Vertex AI has at most {MAX_VARIABLES} variables, and podlift sets {len(own)}. Received: "
            f"{len(job['env'])} in env. Nearest: {room} of them, and the others in a file of the project.",
            (("env", kept),),
        )
    ]


def display_name(run_id: str) -> list[Finding]:
    """A run's id that is too long to name a job."""
    if len(run_id) <= MAX_DISPLAY_NAME:
        return []
    return [error(f"A job's name has at most {MAX_DISPLAY_NAME} characters. Received: {len(run_id)}, {run_id!r}")]


def shape(job: Json, target: Json) -> list[Finding]:
    """Settings of local mode that Vertex AI cannot follow."""
    asked, found = job["resources"], []
    if asked.get("network", "host") != "host":
        said = f"network={asked['network']!r} is for local mode: on Vertex AI the tasks share the network of the project's jobs"
        found.append(error(said, {"resources.network": "host"}))
    if asked.get("cluster", "chief") != "chief":
        said = f"Vertex AI always gives a chief. Received: cluster={asked['cluster']!r}"
        found.append(error(said, {"resources.cluster": "chief"}))
    if job["code"].get("isolated"):
        said = (
            "isolated=True is for local mode: on Vertex AI the image is the environment, and what it lacks is installed"
        )
        found.append(error(said, {"code.isolated": False}))
    return found


def roles(job: Json, target: Json, strategies: Sequence[str] = ()) -> list[Finding]:
    """Parameter servers that nobody would use, and more than one evaluator."""
    asked, found = job["resources"], []
    servers, together = asked.get("ps", 0), [name for name in strategies if name in SYNCHRONOUS]
    if servers and together and PARAMETER_SERVER not in strategies:
        said = f"{', '.join(together)} trains without parameter servers: they would only cost money. Received: ps={servers}"
        found.append(error(said, {"resources.ps": 0}))
    if servers and asked.get("workers", 1) == 1:
        said = f"Parameter servers without workers: the chief only coordinates. Received: workers=1, ps={servers}"
        found.append(warning(f"{said}; workers=2 is the least that trains"))
    if int(asked.get("evaluator", False)) > 1:
        said = f"There is one evaluator at most. Received: evaluator={asked['evaluator']!r}"
        found.append(error(said, {"resources.evaluator": True}))
    return found


def times(job: Json, target: Json) -> list[Finding]:
    """How long the job may run, and how much of what was set Vertex AI keeps."""
    limits, found = job["limits"], []
    timeout_s = limits.get("timeout_s")
    if timeout_s is None:
        found.append(note("No timeout_s: Vertex AI stops the job after 7 days"))
    elif timeout_s > WEEK_S and job["resources"].get("provisioning") != "flex":
        found.append(
            warning(f"No source says that a job may run longer than 7 days. Received: timeout_s={timeout_s:g}")
        )
    if limits.get("hang_s") is not None:
        found.append(note("hang_s is for local mode: on Vertex AI a job that hangs goes on until its timeout"))
    exit_wait_s = limits.get("exit_wait_s", 0.0)
    if timeout_s is not None and exit_wait_s >= timeout_s:
        said = f"exit_wait_s={exit_wait_s:g} is as long as the job may run at all: timeout_s={timeout_s:g}"
        found.append(warning(said))
    if limits.get("grace_s", 0.0) > _NOTICE_S and job["resources"].get("provisioning") == "spot":
        said = f"grace_s={limits['grace_s']:g} is more than a spot machine gives: {_NOTICE_S:g} s at best"
        found.append(warning(said))
    return found
