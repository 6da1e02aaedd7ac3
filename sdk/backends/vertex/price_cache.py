"""The prices that were read last, in podlift's cache folder: one file for Google's, one for what an emulator made up."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date, datetime, timezone
from pathlib import Path

from ...clock import SystemClock
from ...errors import InputError
from ...hardware import machines
from ...hardware.price_table import KnownPrices, PriceTable
from ...job.job import Job
from ...job.policies import Target
from ...job.wire import decode
from ...storage import emulator, small_files
from ...storage.cache import cache_folder

VERSION = 1


def path(environ: Mapping[str, str]) -> Path:
    """Return the file: prices of an emulator must never be taken for Google's."""
    name = "prices-emulator.json" if emulator.asked(environ) else "prices.json"
    try:
        return cache_folder(environ) / name
    except RuntimeError:
        raise InputError(
            "Prices are stored in a cache folder, but there is no home directory. Next: set XDG_CACHE_HOME."
        ) from None


def store(table: PriceTable, environ: Mapping[str, str]) -> Path:
    file = path(environ)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = file.with_name(f".{file.name}.{os.getpid()}.part")
        part.write_text(json.dumps({"version": VERSION, **asdict(table)}, sort_keys=True))
        part.replace(file)
    except OSError as error:
        raise InputError(f"The prices cannot be stored in {str(file)!r}: {error.strerror}.") from error
    return file


def load(environ: Mapping[str, str]) -> PriceTable | None:
    """Return the stored table; None if there is none, it is damaged, or it belongs to the other kind of service."""
    try:
        data = json.loads(small_files.read(path(environ)))
        if data["version"] != VERSION:
            return None
        table = decode(PriceTable, data)
        date.fromisoformat(table.date)
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    return table if bool(table.emulator) == bool(emulator.asked(environ)) else None


def age_days(table: PriceTable, now: float) -> int:
    today = datetime.fromtimestamp(now, timezone.utc).date()
    return max((today - date.fromisoformat(table.date)).days, 0)


def for_job(job: Job, target: Target, environ: Mapping[str, str]) -> KnownPrices | None:
    """Return the stored prices of the machines that a job may rent, and of a keeper; None if none are stored."""
    table = load(environ)
    if table is None:
        return None
    rentals = target.rentals(job.resources, job.limits)
    wanted = [(pool.accelerator.name, pool.machine) for rented in rentals for pool in rented.pools]
    return table.known([*wanted, ("cpu", machines.DEFAULT)], age_days(table, SystemClock().now()))
