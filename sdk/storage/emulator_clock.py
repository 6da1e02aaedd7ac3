"""The time of a service: that of this machine, or of the emulator that stands in for it, whose clock may have been moved."""

from __future__ import annotations

import json
import time

import requests

from ..clock import Clock, SystemClock
from ..errors import UnavailableError
from ..text import emulator_at
from . import emulator, emulator_proof

_LIMIT_S = 10.0
# How long the clock is taken to run as it did, although it may be moved.
_FRESH_S = 1.0


class EmulatorTime(SystemClock):
    """The clock of the emulator at an address. It is asked about once a second."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._session = emulator_proof.session(address)
        self._asked, self._now, self._frozen = float("-inf"), 0.0, False

    def now(self) -> float:
        passed_s = time.monotonic() - self._asked
        if passed_s > _FRESH_S:
            self._ask()
            passed_s = time.monotonic() - self._asked
        return self._now + (0.0 if self._frozen else passed_s)

    def _ask(self) -> None:
        try:
            found = json.loads(self._session.get(f"{self._address}/_clock", timeout=_LIMIT_S).content)
            self._now, self._frozen = float(found["now"]), bool(found["frozen"])
        except (requests.RequestException, ValueError, LookupError, TypeError) as error:
            where = emulator_at(emulator.asked())
            raise UnavailableError(f"The {where} does not tell its time: {type(error).__name__}.") from error
        self._asked = time.monotonic()


def service_clock() -> Clock:
    """Return the clock by which Google Cloud acts, or the emulator that stands in for it here."""
    address = emulator.checked_address()
    return EmulatorTime(address) if address else SystemClock()
