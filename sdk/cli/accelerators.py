"""The verb that lists the available hardware: accelerators."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .. import backends
from ..backends.services import PriceService
from ..clock import Clock, SystemClock
from ..errors import Problems, nearest
from ..hardware import PRICES_READ, Provisioning, pricing, regions
from ..hardware.accelerators import ROWS, Accelerator, pools
from ..hardware.catalog import PriceTable, age_days, old
from ..planning.settings.merge import UNNAMED, Destination, gather
from ..text import counted
from .output import answer, as_json, say
from .parameters import FAMILIES, Family, Json, PriceProject, Refresh, Region
from .screen import on_terminal, table

_UNKNOWN = "unknown"
_SHOWN = 3


@dataclass(frozen=True)
class _Prices:
    """The prices to show: from a table that was read, or from this package."""

    table: PriceTable | None
    region: str

    def of(self, row: Accelerator, provisioning: Provisioning) -> pricing.Price:
        rented = pricing.Rental(pools=pools(row.name), provisioning=provisioning, table=self.table)
        return pricing.price(rented, self.region)


def accelerators(
    family: Family = None,
    region: Region = None,
    refresh: Refresh = False,
    vertex_project: PriceProject = None,
    json_output: Json = False,
) -> None:
    """List accelerators with their machines, prices and regions.

    "unknown" means that no source gives the value, "~" an estimate, "at least" that a part of the price is
    unknown. --refresh reads Google's Cloud Billing catalog; plans then use these prices, too.
    """
    problems = Problems()
    if family is not None and family not in FAMILIES:
        problems.add(f"Unknown family. Received: {family!r}. {nearest(family, FAMILIES)}")
    if region is not None and not regions.is_region(region):
        problems.add(f"Not a region. Received: {region!r}. {nearest(region, regions.KNOWN)}")
    if vertex_project is not None and not refresh:
        problems.add("--vertex-project is for --refresh. Next: add --refresh, or leave it out.")
    problems.raise_if_any()
    if region is not None and region not in regions.KNOWN:
        say(f"{region!r} is not a known region. {nearest(region, regions.KNOWN)}")
    clock = SystemClock()
    if refresh:
        for service in _services():
            _refresh(service, vertex_project, clock)
    prices = _Prices(_cached(), region or regions.DEFAULT)
    rows = [
        row for row in ROWS if family in (None, row.family) and (region not in regions.KNOWN or region in row.regions)
    ]
    if json_output:
        about = {"region": prices.region, "currency": "USD", "prices_read": _day(prices.table)}
        doubtful = {"doubtful": prices.table.doubtful} if prices.table else {}
        as_json({**about, **doubtful, "accelerators": [_object(row, prices) for row in rows]})
        return
    header = ["name", "machine", "hardware", "TensorFlow", "USD/h", "spot USD/h", "regions", "notes"]
    if not on_terminal():
        answer("\t".join(header))
    table(header, [_line(row, prices, brief=on_terminal()) for row in rows])
    _explain(prices, clock)


def _services() -> list[PriceService]:
    return [services.prices for _, services in backends.offered() if services.prices]


def _refresh(service: PriceService, project: str | None, clock: Clock) -> None:
    # Mistakes in other settings are reported by every verb.
    settings = gather(UNNAMED, {}, Destination(), os.environ, Problems())
    named = project or settings.values.get("vertex_project")
    say("Reading the Cloud Billing catalog...")
    path = service.refresh(str(named) if named else None, os.environ, clock)
    table = service.cached(os.environ)
    doubtful = table.doubtful if table else ()
    if doubtful:
        say(f"{counted(len(doubtful), 'price')} unknown, because more than one SKU matches, or one cannot be read:")
        for text in doubtful[:_SHOWN]:
            say(f"  {text}")
        if doubtful[_SHOWN:]:
            say(f"  and {len(doubtful) - _SHOWN} more: --json lists them all")
    say(f"Stored in {path}.")


def _cached() -> PriceTable | None:
    tables = [service.cached(os.environ) for service in _services()]
    return next((lines for lines in tables if lines is not None), None)


def _day(table: PriceTable | None) -> str:
    return table.date if table else PRICES_READ


def _explain(prices: _Prices, clock: Clock) -> None:
    """Say where the prices come from, and whether they are old."""
    read = prices.table
    say(f"Prices in {prices.region} for one machine without its boot disk; ~ is an estimate.")
    if read is None:
        say(f"Prices are from this package, of {PRICES_READ} or older. Next: {pricing.REFRESH}")
    else:
        say(f"Prices are from the Cloud Billing catalog on {read.date}.")
    day = _day(read)
    if why := old(day, age_days(day, clock.now())):
        say(f"They are of {why}. Next: {pricing.REFRESH}")


def _line(row: Accelerator, prices: _Prices, *, brief: bool) -> list[str]:
    # The reason of a refusal is long; a plan prints it.
    reason = "" if brief else f": {row.refused}"
    notes = [f"refused{reason}{',' if brief else ';'} nearest: {row.instead}"] if row.refused else []
    if row.own_tensorflow:
        notes = [f"needs vertex_own_tensorflow{'' if brief else f': {row.own_tensorflow}'}; nearest: {row.instead}"]
    return [
        row.name,
        row.machine or "none",
        _hardware(row),
        _releases(row) if row.runs_tensorflow is not False else "none",
        pricing.amount(prices.of(row, "standard")),
        pricing.amount(prices.of(row, "spot")),
        ", ".join(row.regions) or "none",
        "; ".join(filter(None, [*notes, row.notes])),
    ]


def _hardware(row: Accelerator) -> str:
    if not row.chips:
        return row.title
    memory = _UNKNOWN if row.memory_gib is None else f"{row.memory_gib} GiB"
    spread = f" in {row.hosts} machines" if row.hosts > 1 else ""
    laid_out = f", {row.topology}" if row.topology else ""
    return f"{row.chips} x {row.title}{laid_out}, {memory} each{spread}"


def _releases(row: Accelerator) -> str:
    if row.tensorflow is None:
        return "none released" if row.own_tensorflow else "any" if row.runs_tensorflow else _UNKNOWN
    oldest, newest, documented = (".".join(map(str, version)) for version in (*row.tensorflow, row.documented or ()))
    return f"{oldest} to {documented} documented, {newest} untried" if row.documented else f"{oldest} to {newest}"


def _object(row: Accelerator, prices: _Prices) -> dict[str, object]:
    names = (
        "name", "family", "backends", "title", "machine", "machines", "type", "count", "topology", "chips", "hosts",
        "memory_gib", "vcpus", "ram_gb", "regions", "runs_tensorflow", "flex", "quota", "reservation", "own_tensorflow",
        "refused", "instead", "notes",
    )  # fmt: skip
    standard, spot = prices.of(row, "standard"), prices.of(row, "spot")
    return {
        **{name: getattr(row, name) for name in names},
        "tensorflow": row.tensorflow and [".".join(map(str, release)) for release in row.tensorflow],
        "documented_tensorflow": row.documented and ".".join(map(str, row.documented)),
        "per_hour": standard.own,
        "spot_per_hour": spot.own,
        "at_least_per_hour": standard.at_least or None,
        "spot_at_least_per_hour": spot.at_least or None,
        "price_exact": standard.exact if standard.own is not None else None,
        "price_source": standard.source or None,
        "price_date": standard.date or None,
    }
