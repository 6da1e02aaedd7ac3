"""The time of a service: this machine's time, or the time of its emulator, with a clock that may have been moved."""

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
    """The clock of the emulator at an address. It is queried about once a second."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._session = emulator_proof.session(address)
        self._last_reply, self._now, self._frozen = float("-inf"), 0.0, False

    def now(self) -> float:
        passed_s = time.monotonic() - self._last_reply
        if passed_s > _FRESH_S:
            self._now, self._frozen, _ = _answer(self._session, self._address, {})
            self._last_reply, passed_s = time.monotonic(), 0.0
        return self._now + (0.0 if self._frozen else passed_s)


def of_machine(clock: Clock) -> Clock:
    """Return the clock for runs of a schedule that goes by this clock: processes have the time of this machine."""
    return SystemClock() if isinstance(clock, EmulatorTime) else clock


def ahead_s(time: float) -> float:
    """Return the seconds by which the emulator's clock was ahead, at one of its own times; 0 without an emulator.

    Its jobs have times of its clock, and the records of their processes have times of this machine.
    """
    address = emulator.checked_address()
    return _answer(emulator_proof.session(address), address, {"at": time})[2] if address else 0.0


def _answer(session: requests.Session, address: str, query: dict[str, float]) -> tuple[float, bool, float]:
    """Return the time, whether it stands, and how far it is ahead."""
    try:
        reply = json.loads(session.get(f"{address}/_clock", params=query, timeout=_LIMIT_S).content)
        return float(reply["now"]), bool(reply["frozen"]), float(reply["ahead_s"])
    except (requests.RequestException, ValueError, LookupError, TypeError) as error:
        where = emulator_at(emulator.endpoint())
        raise UnavailableError(f"The {where} does not tell its time: {type(error).__name__}.") from error


def service_clock() -> Clock:
    """Return the clock by which Google Cloud acts, or the emulator that stands in for it here."""
    address = emulator.checked_address()
    return EmulatorTime(address) if address else SystemClock()
