"""Reads list prices from the Cloud Billing catalog, and machine types from Compute Engine and Cloud TPU.

Sources: REST references of Cloud Billing v1 (services.list, services.skus.list), Compute Engine v1
(machineTypes.aggregatedList, acceleratorTypes.aggregatedList) and Cloud TPU v2 (locations, acceleratorTypes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

from ...clock import Clock, SystemClock
from ...errors import InputError, PodliftError
from ...hardware import catalog
from ...hardware.price_table import PriceTable, Shape
from ...storage import emulator
from ..prices import Refreshed
from . import price_cache
from .price_calls import BILLING, KEY, PriceCalls, RefusedError

_PAGE = "5000"
_COMPUTE_PAGE = "500"
# Zones of one kind of answers are left out of the list if they have none.
_NOTHING_THERE = "NO_RESULTS_ON_PAGE"
_ZONE = re.compile(r"(?:zones/)?([a-z]+-[a-z]+\d+)-[a-z]+\d*")
_GIB = 1024
_SSD_GIB = 375  # of one partition
_TPU_TYPE = re.compile(r"(v\d+[a-z]*)-\d+")
_TPU_NAMES = {"v5litepod": "v5e"}
_WORKERS = 8


class VertexPrices:
    """The prices of the backend called "vertex"."""

    def refresh(self, project: str | None, environ: Mapping[str, str], clock: Clock) -> Refreshed:
        if not project:
            raise InputError(
                "The catalog is read in the name of a project, which is not known. Next: --vertex-project ID, or "
                "vertex_project in the project's file."
            )
        path = price_cache.path(environ)
        calls = PriceCalls(project, environ.get(KEY, "").strip(), SystemClock())
        found = _Read(calls)
        table = PriceTable(
            date=datetime.fromtimestamp(clock.now(), timezone.utc).date().isoformat(),
            units=found.units,
            shapes=found.shapes,
            offered={name: tuple(sorted(regions)) for name, regions in found.offered.items()},
            surveyed={kind: tuple(sorted(regions)) for kind, regions in found.surveyed.items()},
            emulator=emulator.asked(environ),
            doubtful=tuple(found.doubtful),
        )
        price_cache.store(table, environ)
        return Refreshed(table=table, path=str(path), notes=tuple(found.notes))

    def cached(self, environ: Mapping[str, str]) -> PriceTable | None:
        return price_cache.load(environ)

    def age_days(self, table: PriceTable, clock: Clock) -> int:
        return price_cache.age_days(table, clock.now())


class _Read:
    """The content of all services, which are read at the same time; every refusal in one error."""

    def __init__(self, calls: PriceCalls) -> None:
        self._calls = calls
        self.notes: list[str] = []
        self.offered: dict[str, set[str]] = {}
        self.surveyed: dict[str, set[str]] = {}
        self.shapes: dict[str, Shape] = {}
        with ThreadPoolExecutor(_WORKERS) as pool:
            skus = pool.submit(self._skus)
            machines = pool.submit(self._zones, "machineTypes", "machineTypes")
            gpus = pool.submit(self._zones, "acceleratorTypes", "acceleratorTypes")
            tpus = pool.submit(self._tpus)
        problems = [str(error) for each in (skus, machines, gpus) if (error := each.exception())]
        # Errors of our own making are not the service's.
        for each in (skus, machines, gpus, tpus):
            if (error := each.exception()) and not isinstance(error, PodliftError):
                raise error
        if problems:
            raise RefusedError(list(dict.fromkeys(problems)))
        self.units, self.doubtful = catalog.units(skus.result())
        self._add_machines(machines.result())
        self._add_gpus(gpus.result())
        if tpus.exception():
            self.notes.append(f"Regions of TPUs are not narrowed. {tpus.exception()}")
        else:
            self._add_tpus(tpus.result())

    def _skus(self) -> list[tuple[catalog.Service, catalog.Sku]]:
        found: list[tuple[catalog.Service, catalog.Sku]] = []
        ids = self._services()
        for service, name in ids.items():
            query = {"pageSize": _PAGE, "currencyCode": "USD"}
            for page in self._calls.pages(BILLING, f"/v1/{name}/skus", query):
                listed = page.get("skus")
                for data in listed if isinstance(listed, list) else ():
                    sku = catalog.read_sku(data)
                    found += [(service, sku)] if sku is not None else []
        return found

    def _services(self) -> dict[catalog.Service, str]:
        """Return the resource names of the services, found by their display names."""
        found: dict[catalog.Service, set[str]] = {}
        for page in self._calls.pages(BILLING, "/v1/services", {"pageSize": _PAGE}):
            listed = page.get("services")
            for each in listed if isinstance(listed, list) else ():
                if isinstance(each, Mapping) and each.get("displayName") in catalog.SERVICES:
                    name = str(each.get("name", ""))
                    if re.fullmatch(r"services/[\w-]+", name, re.ASCII):
                        found.setdefault(catalog.SERVICES[each["displayName"]], set()).add(name)
        for wanted in dict.fromkeys(catalog.SERVICES.values()):
            names = found.get(wanted, set())
            called = " or ".join(repr(name) for name, each in catalog.SERVICES.items() if each == wanted)
            if len(names) != 1:
                self.notes.append(
                    f"The catalog has {len(names) or 'no'} services called {called}: their prices are unknown."
                )
        return {service: names.pop() for service, names in found.items() if len(names) == 1}

    def _zones(self, path: str, kind: str) -> list[tuple[str, list[Mapping[str, object]], bool]]:
        """Return what each zone of an aggregated list has: its region, the items, and whether it answered."""
        found = list[tuple[str, list[Mapping[str, object]], bool]]()
        query = {"maxResults": _COMPUTE_PAGE, "returnPartialSuccess": "true"}
        for page in self._calls.compute(path, query):
            items = page.get("items")
            for scope, each in items.items() if isinstance(items, Mapping) else ():
                zone = _ZONE.fullmatch(str(scope))
                if zone is None or not isinstance(each, Mapping):
                    continue
                listed, warning = each.get(kind), each.get("warning")
                code = warning.get("code") if isinstance(warning, Mapping) else _NOTHING_THERE
                kept = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
                found.append((zone[1], kept, code == _NOTHING_THERE))
        return found

    def _survey(self, kind: str, answers: Iterator[tuple[str, bool]] | list[tuple[str, bool]]) -> None:
        silent = {region for region, answered in answers if not answered}
        self.surveyed[kind] = {region for region, _ in answers} - silent

    def _add_machines(self, zones: list[tuple[str, list[Mapping[str, object]], bool]]) -> None:
        different = set[str]()
        for region, listed, _ in zones:
            for each in listed:
                name, shape = str(each.get("name", "")), _shape(each)
                if shape is None:
                    different.add(name)
                    continue
                self.offered.setdefault(name, set()).add(region)
                # A name that means two machines has no price.
                different |= {name} if self.shapes.setdefault(name, shape) != shape else set()
        self.shapes = {name: shape for name, shape in self.shapes.items() if name not in different}
        self._survey("machines", [(region, ok) for region, _, ok in zones])

    def _add_gpus(self, zones: list[tuple[str, list[Mapping[str, object]], bool]]) -> None:
        for region, listed, _ in zones:
            for each in listed:
                self.offered.setdefault(f"gpu:{each.get('name', '')}", set()).add(region)
        self._survey("gpus", [(region, ok) for region, _, ok in zones])

    def _tpus(self) -> list[tuple[str, list[str], bool]]:
        """Return the generations of TPUs in each zone. A zone without any has perhaps hidden them."""
        zones = [str(each.get("locationId", "")) for each in self._calls.tpu("", "locations")]
        with ThreadPoolExecutor(_WORKERS) as pool:
            types = pool.map(lambda zone: self._calls.tpu(f"/{zone}/acceleratorTypes", "acceleratorTypes"), zones)
            return [
                (match[1], [_generation(str(each.get("type", ""))) for each in listed], bool(listed))
                for zone, listed in zip(zones, types, strict=True)
                if (match := _ZONE.fullmatch(zone))
            ]

    def _add_tpus(self, zones: list[tuple[str, list[str], bool]]) -> None:
        for region, names, _ in zones:
            for name in names:
                self.offered.setdefault(f"tpu:{name}", set()).add(region)
        self._survey("tpus", [(region, ok) for region, _, ok in zones])


def _generation(kind: str) -> str:
    """Return the generation of a type such as "v5litepod-4", as our table has it."""
    found = _TPU_TYPE.fullmatch(kind)
    return _TPU_NAMES.get(found[1], found[1]) if found else kind


def _shape(data: Mapping[str, object]) -> Shape | None:
    """Return what a machine type consists of; None if it cannot be read."""
    vcpus, memory_mb, bundled = data.get("guestCpus"), data.get("memoryMb"), data.get("bundledLocalSsds")
    gpus, ssd = data.get("accelerators", []), bundled.get("partitionCount", 0) if isinstance(bundled, Mapping) else 0
    if type(vcpus) is not int or type(memory_mb) is not int or type(ssd) is not int or not isinstance(gpus, list):
        return None
    counts = [each.get("guestAcceleratorCount") if isinstance(each, Mapping) else None for each in gpus]
    numbers = [count for count in counts if type(count) is int and count > 0]
    if vcpus < 1 or memory_mb < 1 or ssd < 0 or len(numbers) != len(counts):
        return None
    return Shape(vcpus=vcpus, ram_gib=memory_mb / _GIB, gpus=sum(numbers), ssd_gib=ssd * _SSD_GIB)
