"""The variables and secrets of a job: missing ones, the versions that its tasks read, and values that must not be stored."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from ..errors import PodliftError, Problems
from ..job.credentials import formats_in, kind_of
from ..job.job import Job
from ..job.secrets import Secret


def missing_variables(job: Job, environ: Mapping[str, str], *, here: bool) -> list[str]:
    """Return sentences about unset variables that a job takes from its caller.

    `here`: it runs on the caller's machine, and its secrets come from there.
    """
    copied = sorted(name for name in job.copied if name not in environ)
    sentences = [f"env: {', '.join(copied)} is to be copied from here, but is not set here."] if copied else []
    for name in sorted({*job.callers} - {*job.copied}) if here else []:
        if name not in environ:
            sentences.append(
                f"env: the secret {name} has no value here: {job.secrets[name].name} is read in the cloud only. Next: set "
                f"{name} in this shell, or name a file with its value: Secret({job.secrets[name].name!r}, file='...')."
            )
    return sentences


def pinned(job: Job) -> dict[str, Secret]:
    """Return the secrets of a job with their newest versions, by variable: all attempts read the same value."""
    if not job.secrets:
        return {}
    # It imports requests, and most jobs have no secrets.
    from ..storage import secret_manager

    problems, secrets_by_variable = Problems(), dict[str, Secret]()
    for name, secret in job.secrets.items():
        if not secret.is_pinned:
            try:
                secrets_by_variable[name] = Secret(secret_manager.newest(secret.name), file=secret.file)
            except PodliftError as error:
                problems.add(f"env: the newest version of the secret {name} is not known: {error}")
    problems.raise_if_any()
    return secrets_by_variable


def problems(job: Job, project: Path, packaged: Collection[str], *, here: bool) -> list[str]:
    """Return sentences about the files of secrets, which only runs of this machine read, and which no bundle may hold.

    `here`: the run is on the caller's machine.
    """
    sentences = []
    for name, secret in job.secrets.items():
        if secret.file is None:
            continue
        path = project / secret.file
        if here and not os.access(path, os.R_OK):
            sentences.append(
                f"env: the file of the secret {name} cannot be read. Received: {str(secret.file)!r}, in {project}."
            )
        same = [
            member
            for member in packaged
            if path.exists() and os.path.exists(project / member) and path.samefile(project / member)
        ]
        sentences += [
            f"env: {member} holds the secret {name} and would be packaged. Next: code_exclude={member!r} (--code-exclude), "
            "or a place outside of the project."
            for member in same
        ]
    return sentences


def stored(job: Job, environ: Mapping[str, str], *, here: bool) -> list[str]:
    """Return sentences about variables and arguments that look like credentials and would be stored.

    A plan stores texts. `here`: the run is on the caller's machine, where a copied variable is stored nowhere.
    """
    texts: dict[str, str | None] = {name: value for name, value in job.env.items() if isinstance(value, str)}
    if not here:
        texts |= {name: environ.get(name) for name in job.copied}
    sentences = []
    for name, value in texts.items():
        kind = kind_of(name, value)
        if kind and name not in job.code.allow_secret:
            where = "the request of the job" if name in job.copied else "the plan"
            copied = (
                ""
                if name in job.copied or not here
                else f"--env {name} (FromCaller()), which copies it from this shell; "
            )
            sentences.append(
                f"env: {name} looks like {kind}, and would be stored in {where}. Next: {copied}--secret {name}=projects/"
                f"PROJECT/secrets/SECRET (Secret(...)); or --allow-secret {name}, if it is not a secret."
            )
    kinds = dict.fromkeys(kind for word in job.argv() for kind, _ in formats_in(word))
    if kinds and "args" not in job.code.allow_secret:
        sentences.append(
            f"args: {' and '.join(kinds)} would be stored in the plan. Next: let the program read it from a variable, which "
            "--env NAME or --secret passes; or --allow-secret args, if it is not a secret."
        )
    return sentences
