"""Runs a plan on a Kubernetes cluster that exists, as one Job or JobSet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from ...checks import Facts, Finding, communication, strategies
from ...clock import Clock
from ...errors import InputError
from ...job.capabilities import CLUSTER
from ...job.findings import warning
from ...job.job import Job
from ...job.plan import Plan
from ...job.targets import Target
from ..base import Request, RunHandle, own_facts
from . import objects
from .checks import of_kubernetes
from .manifests import KubernetesServices
from .options import Kubernetes

if TYPE_CHECKING:  # it parses programs
    from ...packaging.audit.environment import Preload


class KubernetesBackend:
    """The backend called "kubernetes". Planning imports no client, and reads the kubeconfig only."""

    capabilities = CLUSTER
    services = KubernetesServices()

    def probe(self, job: Job, target: Target, *, root: str, online: bool) -> Facts:
        """Read the kubeconfig; with `online`, the labels of the nodes. Tasks do not see this machine's Python."""
        options = Kubernetes.of(target)
        about: dict[str, object] = {}
        if options.claim:
            # The pods write into the same volume as this user.
            about["user"] = os.getuid()
        try:
            from . import client

            chosen = client.configured(options)
            about |= {"context": chosen.context_name, "namespace": chosen.namespace}
            if online:
                about |= client.devices_of_nodes(options)
        except InputError as error:
            about["problem"] = str(error).rstrip(".")
        return own_facts(disk=False, online={"kubernetes": about})

    def review(self, plan: Plan, program: Preload, *, starting: bool) -> list[Finding]:
        """Return the findings: missing settings, notes, and parts of the job that Kubernetes cannot run."""
        level: Literal["error", "warning"] = "error" if starting else "warning"
        job, target = plan.job, Kubernetes.of(plan.target)
        problem = plan.facts.online.get("kubernetes", {}).get("problem", "")
        return [
            *(Finding(level, text) for text in objects.missing(target, plan.root)),
            # A start refuses it; a run that is only stored needs no cluster.
            *([warning(problem)] if problem else []),
            *objects.findings(plan),
            *of_kubernetes(plan),
            *objects.nodes_without_device(plan),
            *communication.run(job, program.communications, stands_in=False),
            *strategies.roles(job, program.strategies),
            *strategies.of_fit(job, program.strategies, program.fits),
        ]

    def render(self, plan: Plan) -> Request:
        return Request(plan=plan, body=objects.render(plan))

    def check(self, request: Request) -> None:
        from . import start_run

        start_run.check(request)

    def start(self, request: Request) -> None:
        """Write the files that the agents need, and create the job, once."""
        from . import start_run

        start_run.start(request)

    def open(self, plan: Plan, clock: Clock) -> RunHandle:
        from .run import KubernetesRun

        return KubernetesRun(plan, clock)
