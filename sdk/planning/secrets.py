"""The secrets of a job: which versions its tasks will read."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from ..errors import PodliftError, Problems
from ..spec.secrets import Secret
from ..spec.values import changed
from ..storage import secret_manager
from .validate import Wanted


def pinned(wanted: Wanted, problems: Problems) -> Wanted:
    """Return what is wanted with a version of each secret, so that all attempts read the same value."""
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


def problems(wanted: Wanted, project: Path, packaged: Collection[str]) -> list[str]:
    """Return sentences about the files of secrets, which only runs of this machine read, and which no bundle may hold."""
    found = []
    for name, secret in wanted.job.secrets.items():
        if secret.file is None:
            continue
        path = project / secret.file
        if wanted.capabilities.runs_here and not os.access(path, os.R_OK):
            found.append(
                f"env: the file of the secret {name} cannot be read. Received: {str(secret.file)!r}, in {project}."
            )
        same = [
            each
            for each in packaged
            if path.exists() and os.path.exists(project / each) and path.samefile(project / each)
        ]
        found += [
            f"env: {each} holds the secret {name} and would be packaged. Next: code_exclude={each!r} (--code-exclude), or a "
            "place outside of the project."
            for each in same
        ]
    return found
