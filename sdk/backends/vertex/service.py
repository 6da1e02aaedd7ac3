"""Who is asked to run a job: Vertex AI, or the emulator that stands in for it here."""

from __future__ import annotations

import re

from ...errors import InputError
from ...storage import emulator
from ...text import emulator_at

VERTEX_AI = "Vertex AI"
_CONSOLE_LINK = re.compile(r"[:,]?\s*https://console\.cloud\.google\.com/[^\s\"]*[^\s\".,;]")


def named(address: str, service: str = VERTEX_AI) -> str:
    """Return how a sentence calls the service at an emulator's address, or at Google's for ""."""
    return f"the {emulator_at(address)}" if address else service


def service_name() -> str:
    """Return how a sentence calls the service that this process asks."""
    return named(emulator.asked())


def sentence(text: str) -> str:
    """Return a sentence that may begin with such a name."""
    return f"{text[:1].upper()}{text[1:]}"


def quoted(text: str, address: str) -> str:
    """Return a text about a job in an emulator's name, without links to the console, which knows nothing of such a job."""
    if not address:
        return text
    at_start = re.sub(
        r"(^|\. )Vertex AI reports", rf"\1{sentence(named(address))} reports", _CONSOLE_LINK.sub("", text)
    )
    return re.sub(r"Vertex AI (?=reports|does not report)", f"{named(address)} ", at_start)


def check_emulator() -> None:
    """Raise InputError if only the bucket is emulated: Vertex AI would run a real job, which cannot see that bucket."""
    if emulator.asked() and not emulator.address():
        raise InputError(
            f"{emulator.STORAGE_EMULATOR} names the {emulator_at(emulator.asked())}, but {emulator.EMULATOR} is not set: "
            f"Vertex AI would run a real job, which cannot see an emulated bucket. Next: set {emulator.EMULATOR} too, or unset "
            f"{emulator.STORAGE_EMULATOR}."
        )
