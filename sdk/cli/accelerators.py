"""The verb that lists the available hardware: accelerators."""

from __future__ import annotations

from ..errors import Problems, nearest
from ..hardware import Provisioning, pricing, regions
from ..hardware.accelerators import ROWS, Accelerator, pools
from .output import answer, as_json, on_terminal, say, table
from .parameters import FAMILIES, Family, Json, Region

_UNKNOWN = "unknown"


def accelerators(family: Family = None, region: Region = None, json_output: Json = False) -> None:
    """List accelerators with their machines, prices and regions.

    "unknown" means that no source gives the value.
    """
    problems = Problems()
    if family is not None and family not in FAMILIES:
        problems.found.append(f"Unknown family. Received: {family!r}. {nearest(family, FAMILIES)}")
    if region is not None and not regions.is_region(region):
        problems.found.append(f"Not a region. Received: {region!r}. {nearest(region, regions.KNOWN)}")
    problems.raise_if_any()
    if region is not None and region not in regions.KNOWN:
        say(f"{region!r} is not a known region. {nearest(region, regions.KNOWN)}")
    rows = [
        row
        for row in ROWS
        if family in (None, row.family) and (region is None or row.regions is None or region in row.regions)
    ]
    where = region or regions.DEFAULT
    if json_output:
        as_json({"region": where, "currency": pricing.CURRENCY, "accelerators": [_object(row, where) for row in rows]})
        return
    header = ["name", "machine", "hardware", "TensorFlow", "USD/h", "spot USD/h", "regions", "notes"]
    if not on_terminal():
        answer("\t".join(header))
    table(header, [_line(row, where, brief=on_terminal()) for row in rows])
    say(f"Prices in {where} for one machine without its boot disk; ~ is an estimate from Compute Engine's list.")


def _price(row: Accelerator, region: str, provisioning: Provisioning) -> pricing.Price:
    return pricing.price(pricing.Rental(pools=pools(row.name), provisioning=provisioning), region)


def _line(row: Accelerator, region: str, *, brief: bool) -> list[str]:
    # The reason of a refusal is long; a plan prints it.
    reason = "" if brief else f": {row.refused}"
    notes = [f"refused{reason}{',' if brief else ';'} nearest: {row.instead}"] if row.refused else []
    return [
        row.name,
        row.machine or "none",
        _hardware(row),
        _releases(row) if row.runs_tensorflow is not False else "none",
        _amount(_price(row, region, "standard")),
        _amount(_price(row, region, "spot")),
        ", ".join(row.regions) if row.regions is not None else ", ".join([*row.seen_in, f"others {_UNKNOWN}"]),
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
        return "any" if row.runs_tensorflow else _UNKNOWN
    return " to ".join(".".join(map(str, release)) for release in row.tensorflow)


def _amount(price: pricing.Price) -> str:
    if price.own is None:
        return f"{_UNKNOWN}, over {price.at_least:.2f}" if price.at_least else _UNKNOWN
    return f"{'' if price.exact else '~'}{price.own:.2f}"


def _object(row: Accelerator, region: str) -> dict[str, object]:
    names = (
        "name", "family", "backends", "title", "machine", "machines", "type", "count", "topology", "chips", "hosts",
        "memory_gib", "vcpus", "ram_gb", "regions", "seen_in", "runs_tensorflow", "flex", "quota", "reservation", "refused",
        "instead", "notes",
    )  # fmt: skip
    standard, spot = _price(row, region, "standard"), _price(row, region, "spot")
    return {
        **{name: getattr(row, name) for name in names},
        "tensorflow": row.tensorflow and [".".join(map(str, release)) for release in row.tensorflow],
        "per_hour": standard.own,
        "spot_per_hour": spot.own,
        "price_exact": standard.exact if standard.own is not None else None,
        "price_source": standard.source or None,
        "price_date": standard.date or None,
    }
