"""Recognizes credentials by the formats that their issuers document and by common names of variables. Pure.

There is no guess by randomness: a digest or an id is no credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..text import without_users
from .findings import Finding, error

_FORMATS = {
    "an access key of AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a token of GitHub": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,})",
    "a token of GitLab": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "an API key of Google": r"\bAIza[0-9A-Za-z_-]{35}",
    "an access token of Google": r"\bya29\.[A-Za-z0-9_-]{20,}",
    "a token of Hugging Face": r"\bhf_[A-Za-z0-9]{30,}",
    "a key of OpenAI": r"\bsk-proj-[A-Za-z0-9_-]{20,}",
    "a token of PyPI": r"\bpypi-AgEI[A-Za-z0-9_-]{50,}",
    "a token of Slack": r"\bxox[abeprs]-[0-9A-Za-z-]{10,}",
    "a key of Stripe": r"\b[rs]k_live_[0-9A-Za-z]{20,}",
    "a JSON web token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
}
_FORMAT = re.compile("|".join(f"({pattern})" for pattern in _FORMATS.values()))
_NAME = re.compile(
    r"(?:.*_)?(?:PASSWORD|PASSWD|PASSPHRASE|API_?KEY|SECRET_(?:ACCESS_)?KEY|PRIVATE_KEY|CLIENT_SECRET|(?:API|AUTH|ACCESS|BEARER)_TOKEN)"
    r"|(?:HF|HUGGING_FACE_HUB|GITHUB|GH|GITLAB|SLACK|NPM|PYPI)_TOKEN",
    re.IGNORECASE,
)
# These values are settings, locations or placeholders.
_NO_VALUE = re.compile(r".{0,5}|(?:/|\./|~/|[a-z][a-z0-9+]*://)[^@]*|<.*>|\$.*|[xX*.]+", re.DOTALL)


def formats_in(text: str) -> Iterator[tuple[str, int]]:
    """Yield each likely credential in a text, with its position: ("a token of GitHub", 17)."""
    kinds = list(_FORMATS)
    for match in _FORMAT.finditer(text):
        yield kinds[(match.lastindex or 1) - 1], match.start()


def kind_of(name: str, value: str | None) -> str:
    """Return the kind of credential that a variable seems to hold, "" for none; `value` is None if it is unknown."""
    for kind, _ in formats_in(value or ""):
        return kind
    named = _NAME.fullmatch(name) is not None
    return "a credential, by its name" if named and (value is None or not _NO_VALUE.fullmatch(value)) else ""


def raw_credentials(setting: str, raw: Mapping[str, object]) -> Iterator[Finding]:
    """Yield an error for each text in a setting of raw JSON that looks like a credential."""
    for name, value in _texts("", raw):
        if kind := kind_of(name, value) or ("a URL with a password" if value != without_users(value) else ""):
            yield error(
                f"{setting}: {name} looks like {kind}, and would be stored in the plan. Next: --env {name}, which copies it "
                "from this shell; or --secret"
            )


def _texts(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield every text in a piece of JSON, with the nearest name above it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(str(key), inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(name, inner)
    elif isinstance(value, str):
        yield name, value
