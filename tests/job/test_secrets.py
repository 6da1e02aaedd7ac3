"""A secret by its name in Secret Manager."""

from __future__ import annotations

from dataclasses import asdict

import pytest

import sdk
from sdk.job.wire import decode

KEY = "projects/p/secrets/api-key"


@pytest.mark.parametrize(
    ("name", "kept", "version"),
    [
        (KEY, KEY, f"{KEY}/versions/latest"),
        (f"{KEY}/versions/latest", KEY, f"{KEY}/versions/latest"),
        (f"{KEY}/versions/12", f"{KEY}/versions/12", f"{KEY}/versions/12"),
    ],
)
def test_a_name_with_or_without_a_version(name: str, kept: str, version: str) -> None:
    secret = sdk.Secret(name)
    assert (secret.name, secret.version, secret.is_pinned) == (kept, version, kept == version)


@pytest.mark.parametrize(
    "name", ["api-key", "projects/p/secrets/a b", f"{KEY}/versions/0", f"{KEY}/versions/x", f"{KEY}\n"]
)
def test_anything_else_is_refused_with_the_form(name: str) -> None:
    with pytest.raises(sdk.InputError, match="must be projects/PROJECT/secrets/SECRET, or a version of it"):
        sdk.Secret(name)


def test_a_job_with_secrets_survives_json() -> None:
    env = {"A": sdk.Secret(KEY), "B": sdk.Secret(KEY, file="key.txt"), "C": "text", "D": sdk.FromCaller()}
    job = sdk.Job("train.py", env=env)
    assert decode(sdk.Job, asdict(job)) == job
    assert sdk.Job("train.py", env=asdict(job)["env"]) == job
    assert (set(job.secrets), job.callers) == ({"A", "B"}, ["D", "A"])
