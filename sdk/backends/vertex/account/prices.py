"""Google's list prices: read from the Cloud Billing catalog, kept in podlift's cache folder, and narrowed for a plan.

Source: REST reference of Cloud Billing v1, services.skus.list.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ....clock import Clock, SystemClock
from ....errors import InputError, PodliftError
from ....hardware import accelerators, catalog, pricing
from ....hardware.catalog import PriceTable
from ....job.job import Job
from ....job.targets import Target
from ....job.wire import decode
from ....logs import logger
from ....storage import emulator, small_files
from ....storage.cache import cache_folder
from ....text import emulator_at
from ..service import sentence

_log = logger("vertex")
VERSION = 1
_NAME, _HOST = "the Cloud Billing catalog", "cloudbilling.googleapis.com"
# A page of 5,000 SKUs has some MB.
_PAGE, _MAX_PAGES, _TIMEOUT_S = "5000", 1000, 60.0
_SLOW_DOWN, _NO_LOGIN = 429, 401
_OFF = re.compile(r"SERVICE_DISABLED|has not been used in project|is disabled")


class VertexPrices:
    """The prices of the backend called "vertex"."""

    def refresh(self, project: str | None, environ: Mapping[str, str], clock: Clock) -> str:
        if not project:
            raise InputError(
                "The catalog is read in the name of a project, which is not known. Next: --vertex-project ID, or "
                "vertex_project in the project's file."
            )
        if address := emulator.endpoint(environ):
            raise InputError(
                f"The {emulator_at(address)} has no catalog of prices. Next: unset {emulator.EMULATOR} and "
                f"{emulator.STORAGE_EMULATOR}."
            )
        file, skus = path(environ), list(_skus(project, clock))
        units, doubtful = catalog.units(skus)
        if not units:
            raise PodliftError(
                f"No SKU of {len(skus)} in {_NAME} has a description that podlift knows. Nothing was stored. Next: a newer "
                "podlift."
            )
        today = datetime.fromtimestamp(clock.now(), timezone.utc).date()
        return _store(PriceTable(date=today.isoformat(), units=units, doubtful=tuple(doubtful)), file)

    def cached(self, environ: Mapping[str, str]) -> PriceTable | None:
        """Return the stored table; None if there is none, or it is damaged."""
        file = path(environ)
        try:
            data = json.loads(small_files.read(file))
            if data["version"] != VERSION:
                raise ValueError("prices of another version of podlift")
            return decode(PriceTable, data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            _log.warning("The stored prices in %s cannot be read: they are not used. Next: %s", file, pricing.REFRESH)
            return None


def for_job(job: Job, target: Target, environ: Mapping[str, str]) -> PriceTable | None:
    """Return the stored prices of the machines that a job may rent, and of a keeper; None if none are stored."""
    table = VertexPrices().cached(environ)
    if table is None:
        return None
    rented = [pool for rental in target.rentals(job.resources, job.limits) for pool in rental.pools]
    age_days = catalog.age_days(table.date, SystemClock().now())
    return pricing.narrowed(table, [*rented, *accelerators.pools("cpu")], age_days)


def path(environ: Mapping[str, str]) -> Path:
    try:
        return cache_folder(environ) / "prices.json"
    except RuntimeError:
        raise InputError(
            "Prices are stored in a cache folder, but there is no home directory. Next: set XDG_CACHE_HOME."
        ) from None


def _store(table: PriceTable, file: Path) -> str:
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = file.with_name(f".{file.name}.{os.getpid()}.part")
        part.write_text(json.dumps({"version": VERSION, **asdict(table)}, sort_keys=True))
        part.replace(file)
    except OSError as error:
        raise InputError(f"The prices cannot be stored in {str(file)!r}: {error.strerror}.") from error
    return str(file)


def _skus(project: str, clock: Clock) -> Iterator[tuple[catalog.Service, catalog.Sku]]:
    """Yield the SKUs of each service, from every page of its list."""
    for id, service in catalog.SERVICES.items():
        token, page_tokens = "", set[str]()
        while token not in page_tokens and len(page_tokens) < _MAX_PAGES:
            page_tokens.add(token)
            page = _page(project, id, token, clock)
            listed = page.get("skus")
            read = map(catalog.read_sku, listed if isinstance(listed, list) else ())
            yield from ((service, sku) for sku in read if sku is not None)
            token = str(page.get("nextPageToken") or "")
            if not token:
                break
        else:
            raise PodliftError(f"{sentence(_NAME)} never ends its list: it gave the same page twice. Next: try again.")


def _page(project: str, service: str, token: str, clock: Clock) -> Mapping[str, object]:
    # A plan must not import requests.
    from .. import client

    query = {"pageSize": _PAGE, "currencyCode": "USD", **({"pageToken": token} if token else {})}
    url = f"https://{_HOST}/v1/services/{service}/skus"

    def call() -> Mapping[str, object]:
        try:
            return client.exchange("GET", url, _listed, _TIMEOUT_S, query=query, service=_NAME, project=project)
        except client.VertexRejectedError as error:
            if error.status == _SLOW_DOWN:
                raise client.OutcomeUnknownError(
                    f"{sentence(_NAME)} asks to slow down: {error}", error.wait_s
                ) from error
            raise PodliftError(_refusal(project, str(error), error.status)) from error

    return client.repeated("read prices", call, clock)


def _listed(answer: Any) -> Mapping[str, object]:
    """Return a page that has a list; ValueError for any other answer, which would end the list and leave prices out."""
    if not isinstance(answer, dict) or not isinstance(answer.get("skus"), list):
        raise ValueError("a page without a list of SKUs")
    return answer


def _refusal(project: str, text: str, status: int) -> str:
    if "Next: " in text:
        return text
    step = f"check that {project} is a project of yours"
    if _OFF.search(text):
        step = shlex.join(["gcloud", "services", "enable", _HOST, "--project", project])
    elif status == _NO_LOGIN:
        step = "gcloud auth application-default login"
    return f"{sentence(_NAME)} refuses to answer ({status}): {text.rstrip('. ')}. Next: {step}."
