"""Credentials are recognized by documented formats and common names, never by looking random."""

from __future__ import annotations

import pytest

from sdk.job.credentials import formats_in, kind_of

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
