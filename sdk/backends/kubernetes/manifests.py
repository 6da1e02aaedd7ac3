"""The objects of a run as a file for kubectl: the very ones that `submit` creates."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

from ...job.plan import Plan
from ...storage import cache
from .. import containers
from ..services import Services
from . import objects, start_run
from .client import plain_resource
from .options import Kubernetes


class Manifests:
    def manifest(self, plan: Plan) -> str:
        """Return the objects of the first job of a plan; its archives have the digests that `submit` will upload."""
        from ...packaging.runtime_archive import entrypoint_file, runtime_archive

        runtime = runtime_archive(cache.cache_folder(os.environ)).digest
        spec = start_run.launch_spec(plan, 1, runtime)
        digest = containers.digest_of_spec(spec)
        body = objects.render(plan, number=1, entrypoint=entrypoint_file().digest, spec_digest=digest)
        return _text(plan, body)

    def store(self, plan: Plan) -> str:
        """Write archives and launch spec, and return the manifest."""
        return _text(plan, start_run.written(plan, 1))

    def how_to_start(self, plan: Plan, path: str) -> str:
        return f"{_kubectl(plan)} apply -f {shlex.quote(path)}"


class KubernetesServices(Services):
    manifests = Manifests()


def _kubectl(plan: Plan) -> str:
    """Return kubectl with the cluster and the namespace of a plan."""
    target = Kubernetes.of(plan.target)
    chosen = (("--context", target.context), ("--namespace", target.namespace))
    return " ".join(["kubectl", *(f"{option}={shlex.quote(value)}" for option, value in chosen if value)])


def _text(plan: Plan, body: dict[str, Any]) -> str:
    head = f"# The run {plan.run_id}, as podlift submit starts it.\n"
    if hidden := objects.hidden_names(plan):
        literals = " ".join(f'--from-literal={name}="${name}"' for name in hidden)
        head += f"# It needs: {_kubectl(plan)} create secret generic {body['metadata']['name']} {literals}\n"
    try:
        from lightkube import codecs
    except ImportError:
        # JSON is YAML, too.
        return head + json.dumps(body, indent=1) + "\n"
    return head + str(codecs.dump_all_yaml([plain_resource(str(body["kind"]))(body)]))
