"""The secrets of a job: which versions its tasks will read."""

from __future__ import annotations

from dataclasses import replace

from ..errors import PodliftError, Problems
from ..spec.secrets import Secret
from ..spec.values import changed
from ..storage import secret_manager
from .validate import Wanted


def pinned(wanted: Wanted, problems: Problems) -> Wanted:
    """Return what is wanted with a version of each secret, so that all attempts read the same value.

    Runs of this machine read none. Whoever names a version is not asked for the right to look for the newest one.
    """
    if wanted.capabilities.runs_here or not wanted.job.secrets:
        return wanted
    env = {**wanted.job.env}
    for name, secret in wanted.job.secrets.items():
        if not secret.is_pinned:
            try:
                env[name] = Secret(secret_manager.newest(secret.name), file=secret.file)
            except PodliftError as error:
                problems.found.append(f"env: the newest version of the secret {name} is not known: {error}")
    return replace(wanted, job=changed(wanted.job, env=env))
