"""What reading a bucket from another region costs. Pure data.

Source: the matrix of "Data transfer within Google Cloud" on cloud.google.com/storage/pricing, in two stored copies of that page
that agree. Writing is free for Cloud Storage itself; no source tells what Vertex AI charges for what its machines send.
"""

from __future__ import annotations

from . import PriceSource

SOURCE = PriceSource(name="price page of Cloud Storage", date="2026", fee=1.0, exact=True)
_AREAS = {
    "us": "America", "northamerica": "America", "europe": "Europe", "asia": "Asia", "australia": "Oceania", "me": "Middle East",
    "southamerica": "Latin America", "africa": "Africa",
}  # fmt: skip
_INDONESIA = "asia-southeast2"
_TO = ("America", "Europe", "Asia", "Indonesia", "Oceania", "Middle East", "Latin America", "Africa")
# US dollars for one GiB, from the bucket's area.
_FROM: dict[str, tuple[float | None, ...]] = {
    "America": (0.02, 0.05, 0.08, 0.10, 0.10, 0.11, 0.14, 0.11),
    "Europe": (0.05, 0.02, 0.08, 0.10, 0.10, 0.11, 0.14, 0.11),
    "Asia": (0.08, 0.08, 0.08, 0.10, 0.10, 0.11, 0.14, 0.11),
    "Indonesia": (0.10, 0.10, 0.10, None, 0.08, 0.11, 0.14, 0.14),
    "Oceania": (0.10, 0.10, 0.10, 0.08, 0.08, 0.11, 0.14, 0.14),
    "Middle East": (0.11, 0.11, 0.11, 0.11, 0.11, 0.08, 0.14, 0.11),
    "Latin America": (0.14, 0.14, 0.14, 0.14, 0.14, 0.14, 0.14, 0.14),
    "Africa": (0.11, 0.11, 0.11, 0.14, 0.14, 0.11, 0.14, None),
}


def reading(bucket: str, region: str) -> float | None:
    """Return US dollars for a GiB that a job in a region reads from a bucket in another one; None if no source tells."""
    if bucket == region:
        return 0.0
    row, area = _FROM.get(_area(bucket)), _area(region)
    return row[_TO.index(area)] if row is not None and area in _TO else None


def _area(region: str) -> str:
    return "Indonesia" if region == _INDONESIA else _AREAS.get(region.partition("-")[0], "")
