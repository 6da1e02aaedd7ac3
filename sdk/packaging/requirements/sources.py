"""What a plan says of the places from which requirements are installed, and of packages that can be replaced on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...spec.findings import Finding, note, warning
from ...text import joined
from .collector import redacted

_PLACES = ("--index-url", "--extra-index-url", "--find-links", "--trusted-host", "--no-index")
_PLAIN = re.compile(r"(?:\w+\+)?\b(?:http|git|ftp|svn)://\S+", re.IGNORECASE)


def findings(options: Sequence[str], lines: Sequence[str]) -> Iterator[Finding]:
    """Yield what pip's options and the requirements say of where packages come from."""
    places = [redacted(option) for option in options if option.partition(" ")[0] in _PLACES]
    if places:
        yield note(f"Where packages come from is named by the requirements: {joined(places, 'and')}")
    for text in (*options, *lines):
        if plain := _PLAIN.search(text):
            yield warning(
                f"Packages come from {redacted(plain[0])} without TLS: anyone on the way can replace them, and their code runs "
                "in the training. Next: name an https:// URL"
            )
        if text.startswith("--trusted-host "):
            yield warning(
                f"{redacted(text)}: the certificate of that host is not checked, so that anyone on the way can replace its "
                "packages. Next: remove it, and name the authority of the host by PIP_CERT"
            )
