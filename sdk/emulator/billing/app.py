"""The Cloud Billing catalog, and the machine and accelerator types of Compute Engine and Cloud TPU, as an ASGI application.

All of it is read-only and made up: `catalog.json` says how. The answers have the documented shape.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ..answers import HARMLESS, answer_with_faults, check_parameters, serve
from ..connections import Journal
from ..errors import words
from ..faults import About, FaultRules
from ..vertex.errors import VertexApiError, invalid

_MADE: Mapping[str, Any] = json.loads(resources.files(__package__).joinpath("catalog.json").read_text())
_PLACES: Mapping[str, tuple[str, float]] = _MADE["places"]
_FEE = 0.15
_NANOS = 10**9
# Fewer than clients ask for, so that they meet several pages.
_PAGE, _COMPUTE_PAGE = 150, 60
_PROJECT = r"(?P<project>[^/:]+(?::[^/:]+)?)"
# Decoded path, operation.
_ROUTES = (
    (r"/v1/services", "services.list"),
    (r"/v1/services/(?P<id>[\w-]+)/skus", "skus.list"),
    (rf"/compute/v1/projects/{_PROJECT}/aggregated/machineTypes", "machineTypes.list"),
    (rf"/compute/v1/projects/{_PROJECT}/aggregated/acceleratorTypes", "acceleratorTypes.list"),
    (rf"/v2/projects/{_PROJECT}/locations", "tpuLocations.list"),
    (rf"/v2/projects/{_PROJECT}/locations/(?P<id>[a-z0-9-]+)/acceleratorTypes", "tpus.list"),
)
_PAGED = HARMLESS | words("pageSize pageToken")
_AGGREGATED = HARMLESS | words("maxResults pageToken filter returnPartialSuccess")
_PARAMETERS = {
    "skus.list": _PAGED | words("currencyCode startTime endTime"),
    "machineTypes.list": _AGGREGATED,
    "acceleratorTypes.list": _AGGREGATED,
}
_NAME_FILTER = re.compile(r'name eq "(.*)"')

Item = Mapping[str, Any]


class BillingApp:
    def __init__(self, faults: FaultRules, journal: Journal) -> None:
        self._faults, self._journal = faults, journal

    @staticmethod
    def serves(path: str) -> bool:
        return any(re.fullmatch(pattern, path) for pattern, _ in _ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await serve(scope, receive, send, self._journal, self._answer)

    async def _answer(self, request: Request, entry: dict[str, Any]) -> Response:
        query = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
        path = unquote(request.scope["raw_path"].decode("latin-1"))
        matches = ((re.fullmatch(pattern, path), name) for pattern, name in _ROUTES)
        match, operation = next((match, name) for match, name in matches if match)
        if request.method != "GET":
            text = f"podlift's emulator does not serve {request.method} {path[:200]}."
            raise VertexApiError(405, text, status="UNIMPLEMENTED")
        check_parameters(query, _PARAMETERS.get(operation, _PAGED))
        entry["operation"], entry["object"] = operation, match.groupdict().get("id", "")
        fired = self._faults.for_request(operation, About(entry["object"]))

        async def perform() -> Response:
            return JSONResponse(_list(operation, entry["object"], query))

        return await answer_with_faults(request, entry, fired, self._faults, self._journal, perform)


def _list(operation: str, name: str, query: Mapping[str, str]) -> dict[str, Any]:
    if operation == "services.list":
        found = [
            {
                "name": f"services/{each}",
                "serviceId": each,
                "displayName": title,
                "businessEntityName": "businessEntities/GCP",
            }
            for each, title in _MADE["services"]
        ]
        return _paged("services", found, query)
    if operation == "skus.list":
        titles = dict(_MADE["services"])
        if name not in titles:
            raise VertexApiError(404, f"Service services/{name} not found.")
        if query.get("currencyCode", "USD") != "USD":
            raise invalid([("currency_code", "podlift's emulator has prices in USD only.")])
        return _paged("skus", list(_skus(titles[name], name)), query)
    if operation == "tpuLocations.list":
        return _paged("locations", [{"name": f"locations/{zone}", "locationId": zone} for zone in _MADE["tpus"]], query)
    if operation == "tpus.list":
        types = [
            {"name": f"locations/{name}/acceleratorTypes/{each}", "type": each} for each in _MADE["tpus"].get(name, ())
        ]
        return _paged("acceleratorTypes", types, query)
    return _aggregated(operation.partition(".")[0], query)


def _paged(kind: str, items: Sequence[Item], query: Mapping[str, str]) -> dict[str, Any]:
    size = int(query.get("pageSize") or _PAGE)
    if not 1 <= size <= 5000:
        raise invalid([("page_size", "The page size must be between 1 and 5000.")])
    first = _position(query)
    rest = items[first + min(size, _PAGE) :]
    page = {kind: list(items[first : first + min(size, _PAGE)])}
    # The catalog answers with an empty token at the end.
    return {**page, "nextPageToken": str(first + min(size, _PAGE)) if rest else ""}


def _position(query: Mapping[str, str]) -> int:
    token = query.get("pageToken") or "0"
    if not token.isdecimal():
        raise invalid([("page_token", "The page token is not valid.")])
    return int(token)


def _skus(title: str, service: str) -> Iterator[dict[str, Any]]:
    numbers = itertools.count(1)

    def sku(text: str, family: str, group: str, usage: str, unit: str, usd: float, *regions: str) -> dict[str, Any]:
        number = f"{service[:4]}-0000-{next(numbers):04d}"
        return _sku(number, service, title, text, (family, group, usage), unit, usd, regions)

    for item in _MADE["items"]:
        for region in item.get("regions", _PLACES):
            place, factor = _PLACES[region]
            for text, usage, usd in _sold(title, item, place):
                family = "Compute" if title == "Compute Engine" else "ApplicationServices"
                group = item["group"] if title == "Compute Engine" else ""
                yield sku(text, family, group, usage, item["unit"], usd * factor, region)
    for owner, text, family, group, usage, unit, usd, where in _MADE["others"]:
        if owner == title:
            yield sku(text, family, group, usage, unit, usd, *(_PLACES if where == "*" else [where]))


def _sold(title: str, item: Item, place: str) -> Iterator[tuple[str, str, float]]:
    """Yield the description, the usage type and the price of what a service sells of an item."""
    name, gpu = item["engine"], item["group"] in ("GPU", "TPU")
    if title == "Compute Engine":
        yield f"{name} running in {place}", "OnDemand", item["usd"]
        spot = f"{name} attached to Spot Preemptible VMs" if gpu else f"Spot Preemptible {name}"
        yield f"{spot} running in {place}", "Preemptible", item["spot"]
    elif title == "Vertex AI" and not item.get("no_vertex"):
        fee = item.get("fee", name)
        on = f"{fee} in {place}" if gpu else f"{name} running in {place}"
        yield f"Vertex AI: Training/Pipelines on {on}", "OnDemand", item["usd"] * (1 + _FEE)
        yield f"Vertex AI: Training/Pipelines Management fee on {fee} in {place}", "OnDemand", item["usd"] * _FEE


def _sku(
    number: str,
    service: str,
    title: str,
    text: str,
    category: tuple[str, str, str],
    unit: str,
    usd: float,
    regions: Sequence[str],
) -> dict[str, Any]:
    family, group, usage = category
    units, nanos = divmod(round(usd * _NANOS), _NANOS)
    price = {"currencyCode": "USD", "units": str(units), "nanos": nanos}
    expression = {
        "usageUnit": unit,
        "displayQuantity": 1,
        "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}],
        "baseUnitConversionFactor": 3600,
    }
    return {
        "name": f"services/{service}/skus/{number}",
        "skuId": number,
        "description": text,
        "category": {
            "serviceDisplayName": title,
            "resourceFamily": family,
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": list(regions),
        "pricingInfo": [{"summary": "", "pricingExpression": expression, "currencyConversionRate": 1}],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "REGIONAL" if len(regions) == 1 else "MULTI_REGIONAL", "regions": list(regions)},
    }


class _InZone(NamedTuple):
    zone: str
    item: dict[str, Any]


def _aggregated(kind: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of a list over all zones; zones without an item on it have a warning instead."""
    wanted = re.compile(_filter(query.get("filter", "")))
    names = [(region, letter) for region, letters in _MADE["zones"].items() for letter in letters]
    zones = [f"{region}-{letter}" for region, letter in names]
    found = [
        _InZone(zone, item)
        for zone in zones
        if zone not in _MADE["silent_zones"]
        for item in _items(kind, zone)
        if wanted.fullmatch(item["name"])
    ]
    first = _position(query)
    size = min(int(query.get("maxResults") or _COMPUTE_PAGE), _COMPUTE_PAGE)
    items: dict[str, dict[str, Any]] = {f"zones/{zone}": {"warning": _warning(zone)} for zone in zones}
    for zone, entries in itertools.groupby(found[first : first + size], key=lambda each: each.zone):
        items[f"zones/{zone}"] = {kind: [each.item for each in entries]}
    token = {"nextPageToken": str(first + size)} if len(found) > first + size else {}
    return {"kind": f"compute#{kind[:-1]}AggregatedList", "items": items, **token}


def _filter(text: str) -> str:
    match = _NAME_FILTER.fullmatch(text)
    if text and match is None:
        raise invalid(
            [("filter", f'podlift\'s emulator knows filters of the form: name eq "REGEX". Received: {text[:100]}')]
        )
    return match[1] if match else ".*"


def _warning(zone: str) -> dict[str, Any]:
    code = "UNREACHABLE" if zone in _MADE["silent_zones"] else "NO_RESULTS_ON_PAGE"
    return {"code": code, "message": f"There are no results for scope 'zones/{zone}' on this page."}


def _items(kind: str, zone: str) -> Iterator[dict[str, Any]]:
    region = zone.rpartition("-")[0]
    if kind == "acceleratorTypes":
        for name in _MADE["accelerator_types"]:
            if region in _MADE["only_in"][name]:
                yield {"kind": "compute#acceleratorType", "name": name, "zone": zone, "maximumCardsPerInstance": 8}
        return
    for name, vcpus, memory_mb, gpu, count, ssds in _MADE["machine_types"]:
        if region in _MADE["only_in"].get(name.partition("-")[0], [region]):
            gpus = {"guestAcceleratorType": gpu, "guestAcceleratorCount": count}
            more: dict[str, Any] = {"accelerators": [gpus]} if gpu else {}
            more |= {"bundledLocalSsds": {"defaultInterface": "NVME", "partitionCount": ssds}} if ssds else {}
            yield {
                "kind": "compute#machineType",
                "name": name,
                "guestCpus": vcpus,
                "memoryMb": memory_mb,
                "zone": zone,
                **more,
            }
