"""Credentials are recognized by documented formats and common names; a secret has a name in Secret Manager."""

from __future__ import annotations

from dataclasses import asdict

import pytest

import sdk
from sdk.job.credentials import formats_in, kind_of
from sdk.job.wire import decode

# Put together here, so that no scanner takes them for real ones.
GITHUB = "ghp_" + "a1B2" * 9
AWS = "AKIA" + "ABCDEFGHIJKLMNOP"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (GITHUB, "a token of GitHub"),
        (AWS, "an access key of AWS"),
        ("AIza" + "x" * 35, "an API key of Google"),
        ("hf_" + "x" * 34, "a token of Hugging Face"),
        ("xoxb-" + "1234567890-abc", "a token of Slack"),
        ("-----BEGIN RSA " + "PRIVATE KEY-----\nMII", "a private key"),
        ("eyJhbGciOiJIUzI1" + ".eyJzdWIiOiIxMjM0" + ".SflKxwRJSMeKKF2", "a JSON web token"),
    ],
)
def test_documented_formats_are_found_anywhere_in_a_value(value: str, kind: str) -> None:
    assert kind_of("ANYTHING", value) == kind
    assert [*formats_in(f"key = '{value}'")] == [(kind, 7)]


@pytest.mark.parametrize("name", ["DB_PASSWORD", "WANDB_API_KEY", "hf_token"])
def test_common_names_with_a_value_are_credentials(name: str) -> None:
    assert kind_of(name, "correct horse battery") == "a credential, by its name"
    assert kind_of(name, None) == "a credential, by its name"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DIGEST", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
        ("PAD_TOKEN", "<pad>"),
        ("TOKENIZER", "bert-base-uncased"),
        ("DB_PASSWORD", ""),
        ("DB_PASSWORD", "none"),
        ("API_KEY", "$API_KEY_OF_SOMEBODY"),
        ("PRIVATE_KEY", "/run/secrets/key.pem"),
        ("API_KEY", "gs://bucket/key.txt"),
        ("MONKEY", "see no evil, hear no evil"),
        ("PASSWORD_FILE", "something long"),
    ],
)
def test_digests_places_settings_and_other_names_are_none(name: str, value: str) -> None:
    assert kind_of(name, value) == ""


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
