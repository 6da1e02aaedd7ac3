"""The seam to a catalog of prices: what a backend may offer whose machines cost money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..clock import Clock
from ..hardware.price_table import PriceTable


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """A table that was read, where it is stored, and what could not be read."""

    table: PriceTable
    path: str
    notes: tuple[str, ...]


class PriceService(Protocol):
    """Reads the list prices of a cloud, and keeps them on this machine."""

    def refresh(self, project: str | None, environ: Mapping[str, str], clock: Clock) -> Refreshed:
        """Read prices and regions, and store them; nothing is stored unless all that prices need could be read.

        Args:
            project: the project that asks.
            environ: names the cache folder, and may hold a key for the catalog.
            clock: gives the date.
        """

    def cached(self, environ: Mapping[str, str]) -> PriceTable | None:
        """Return the table that was stored last, None if there is none that can be read."""

    def age_days(self, table: PriceTable, clock: Clock) -> int:
        """Return how many days ago a table was read."""
