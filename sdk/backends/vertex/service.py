"""The service that runs a job: Vertex AI, or the emulator that stands in for it here."""

from __future__ import annotations

import re

from ...errors import InputError
from ...storage import emulator
from ...text import emulator_at

VERTEX_AI = "Vertex AI"
_CONSOLE_LINK = re.compile(r"[:,]?\s*https://console\.cloud\.google\.com/[^\s\"]*[^\s\".,;]")


def named(address: str, service: str = VERTEX_AI) -> str:
    """Return the name of the service at an emulator's address, or at Google's for "", for a sentence."""
    return f"the {emulator_at(address)}" if address else service


def stand_in() -> str:
    """Return the address of the emulator that this process uses in place of Google Cloud, "" for none."""
    return emulator.endpoint()


def url(google: str) -> str:
    """Return the URL of a service of Google, or of the emulator, which answers for all of them."""
    return emulator.checked_address() or google


def service_name(service: str = VERTEX_AI) -> str:
    """Return the name of a service that this process uses, for a sentence."""
    return named(stand_in(), service)


def sentence(text: str) -> str:
    """Return a sentence that may begin with such a name."""
    return f"{text[:1].upper()}{text[1:]}"


def quoted(text: str) -> str:
    """Return a text about a job in an emulator's name, without links to the console, which does not show such a job."""
    if not stand_in():
        return text
    name, unlinked = service_name(), _CONSOLE_LINK.sub("", text)
    at_start = re.sub(r"(^|\. )Vertex AI reports", rf"\1{sentence(name)} reports", unlinked)
    return re.sub(r"Vertex AI (?=reports|does not report)", f"{name} ", at_start)


def check() -> None:
    """Raise InputError if only the bucket is emulated: Vertex AI would run a real job, which cannot see that bucket."""
    if emulator.endpoint() and not emulator.address():
        raise InputError(
            f"{emulator.STORAGE_EMULATOR} names the {emulator_at(emulator.endpoint())}, but {emulator.EMULATOR} is not set: "
            f"Vertex AI would run a real job, which cannot see an emulated bucket. Next: set {emulator.EMULATOR} too, or unset "
            f"{emulator.STORAGE_EMULATOR}."
        )
