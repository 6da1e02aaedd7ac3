"""Prices that are read from Google's catalog into the cache, and from there into plans."""

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from support import FakeClock

import sdk
from sdk.backends.vertex import client
from sdk.backends.vertex.account import prices
from sdk.clock import SystemClock
from sdk.errors import PodliftError, UnavailableError
from sdk.hardware.catalog import SERVICES, PriceTable
from sdk.job import plan_text
from sdk.records import spending
from sdk.storage.emulator import EMULATOR

DAY_S = 86400.0
KEPT = {"keeper": True, "keeper_service_account": "keeper@my-project.iam.gserviceaccount.com"}
VERTEX, ENGINE, TPU = SERVICES
TRAINING = "Vertex AI: Training/Pipelines"
# By service: description, resource group, region, US dollars.
SKUS = {
    VERTEX: [
        (f"{TRAINING} on N1 Predefined Instance Core running in Iowa", "", "us-central1", 0.036),
        (f"{TRAINING} on N1 Predefined Instance Ram running in Iowa", "", "us-central1", 0.005),
        (f"{TRAINING} on SSD backed PD Capacity", "", "us-central1", 0.2),
    ],
    ENGINE: [
        ("TpuV5e running in Iowa", "TPU", "us-central1", 1.2),
        ("TpuV5e running in Oregon", "TPU", "us-west1", 1.176),
        ("TpuV5e running in Las Vegas", "TPU", "us-west4", 1.356),
        ("N1 Predefined Instance Core running in Las Vegas", "N1Standard", "us-west4", 0.04),
        ("N1 Predefined Instance Core running in Nevada", "N1Standard", "us-west4", 0.05),
    ],
    TPU: [("TPU-v2 Accelerator USA", "TPU", "us-central1", 4.5)],
}


def sku(text: str, group: str, region: str, usd: float) -> dict[str, Any]:
    price = {"currencyCode": "USD", "units": str(int(usd)), "nanos": round(usd % 1 * 10**9)}
    unit = "GiBy.h" if "Ram" in text else "h"
    return {
        "skuId": text,
        "description": text,
        "category": {"resourceGroup": group, "usageType": "OnDemand"},
        "serviceRegions": [region],
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [{"unitPrice": price}]}}],
    }


class Catalog:
    """The catalog, in pages of two SKUs; `instead` has the next answers: (status, text), or an error."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.instead: list[tuple[int, str] | Exception | None] = []

    def request(self, method: str, url: str, *, params: dict[str, str], **_: Any) -> requests.Response:
        assert (method, params["currencyCode"]) == ("GET", "USD")
        self.urls.append(url)
        given = self.instead.pop(0) if self.instead else None
        if isinstance(given, Exception):
            raise given
        first = int(params.get("pageToken", "0"))
        found = [sku(*each) for each in SKUS[url.split("/")[-2]]]
        page = {"skus": found[first : first + 2], "nextPageToken": str(first + 2) if found[first + 2 :] else ""}
        answer = requests.Response()
        answer.status_code = given[0] if given else 200
        answer.raw = io.BytesIO(json.dumps({"error": {"message": given[1]}} if given else page).encode())
        return answer


@pytest.fixture
def google(tmp_path, monkeypatch) -> Catalog:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = Catalog()
    monkeypatch.setattr(client, "session", lambda *_: found)
    return found


def refresh(age_days: int = 0) -> PriceTable:
    prices.VertexPrices().refresh("mine", os.environ, FakeClock(SystemClock().now() - age_days * DAY_S))
    return prices.VertexPrices().cached(os.environ)


@pytest.fixture
def plan(project) -> Callable[..., sdk.Plan]:
    Path("program.py").write_text("print('here')")

    def make(regions: str = "us-central1", **given: Any) -> sdk.Plan:
        kept = {name: given.pop(name) for name in KEPT if name in given}
        cloud = sdk.Vertex(project="my-project", bucket="mine", image="image", regions=regions, **kept)
        return sdk.plan("program.py", backend=cloud, **{"timeout": "10h", **given})

    return make


def lines(made: sdk.Plan, label: str) -> list[str]:
    return [text for name, text in plan_text.lines(made) if name == label]


def test_a_refresh_reads_every_page_of_each_service_and_keeps_the_dated_table(google) -> None:
    table = refresh(age_days=3)
    assert [url.split("/")[-2] for url in google.urls] == [VERTEX] * 2 + [ENGINE] * 3 + [TPU]
    assert table.units["whole"] == {"core:n1": {"us-central1": 0.036}, "ram:n1": {"us-central1": 0.005}}
    assert table.units["standard"]["tpu:v2"] == {"us-central1": 4.5}
    assert len(table.doubtful) == 1 and table.doubtful[0].startswith("us-west4: 'N1 Predefined Instance Core")
    assert json.loads(prices.path(os.environ).read_text())["date"] == table.date


@pytest.mark.parametrize(
    ("status", "text", "step"),
    [
        (403, "Cloud Billing API has not been used in project 5 before or it is disabled.", "gcloud services enable"),
        (403, "The caller does not have permission", "check that mine is a project of yours"),
        (401, "Request had invalid authentication credentials.", "gcloud auth application-default login"),
    ],
)
def test_nothing_is_stored_unless_every_page_could_be_read(google, status, text, step) -> None:
    before = refresh(age_days=5)
    google.instead = [None, None, (status, text)]
    with pytest.raises(PodliftError, match=rf"^The Cloud Billing catalog refuses to answer \({status}\)") as caught:
        refresh()
    assert text.rstrip(".") in str(caught.value) and f"Next: {step}" in str(caught.value)
    assert prices.VertexPrices().cached(os.environ) == before


def test_a_service_that_is_busy_is_asked_again_and_not_for_ever(google) -> None:
    google.instead = [(503, "busy"), (429, "slow down"), requests.ConnectionError("reset")]
    assert refresh().units["whole"]
    google.instead = [requests.ConnectionError("no route")] * 99
    with pytest.raises(UnavailableError, match="The Cloud Billing catalog cannot be reached: ConnectionError"):
        refresh()


def test_an_emulator_has_no_catalog_of_prices(google, monkeypatch) -> None:
    monkeypatch.setenv(EMULATOR, "http://127.0.0.1:8123/" + 32 * "a")
    with pytest.raises(sdk.InputError, match=r"emulator at 127\.0\.0\.1:8123 has no catalog of prices\. Next: unset"):
        refresh()
    assert not google.urls


@pytest.mark.parametrize(
    "damaged",
    [
        b"", b"[]", b"{", b'{"version": 1}', b'{"version": 2, "date": "2026-11-01", "units": {}}',
        b'{"version": 1, "date": 5, "units": {}}', b'{"version": 1, "date": "yesterday", "units": {}}',
        b'{"version": 1, "date": "2026-11-01", "units": {"whole": {"core:n1": {"us-central1": 0}}}}',
    ],
)  # fmt: skip
def test_a_damaged_cache_is_no_cache_and_said_to_be(google, damaged, caplog) -> None:
    file = prices.path(os.environ)
    file.parent.mkdir(parents=True)
    file.write_bytes(damaged)
    assert prices.VertexPrices().cached(os.environ) is None
    assert f"The stored prices in {file} cannot be read: they are not used. Next: " in caplog.text


def test_a_plan_has_the_read_prices_and_lists_the_regions_by_price(google, plan) -> None:
    refresh(age_days=91)
    made = plan("us-west4,us-central1", accelerator="v5e-4")
    assert made.target.regions == ("us-west4", "us-central1"), "the order that was given is kept"
    assert lines(made, "price 1")[0].startswith("6.24 USD an hour on demand in us-west4; an estimate: Cloud Billing")
    priced = "us-west1 ~5.41, us-central1 ~5.52, us-west4 ~6.24 USD an hour on demand; price unknown in us-east1"
    assert lines(made, "regions") == [priced]
    again = sdk.Plan.from_json(made.to_json(), "plan.json")
    assert again.rentals == made.rentals, "keepers book the price of the plan"
    assert "91 days ago, more than 90. Next: podlift accelerators --refresh." in str(made.findings)
    assert plan("cheapest,us-west4,us-central1,us-west1", accelerator="v5e-4").target.regions[0] == "us-west1"
    refresh(age_days=-3)
    assert "which is in the future: their age is unknown. Next: podlift acc" in str(plan().findings)


def test_a_limit_of_cost_is_compared_with_read_prices_and_refuses_unknown_ones(google, plan) -> None:
    refresh()
    made = plan(accelerator="v5e-4", max_cost_usd=60)
    assert "is compared with an estimate of the price in us-central1" in str(made.findings)
    with pytest.raises(sdk.InputError, match=r"may cost 55.20 USD, at 5.52 USD an hour for 10 h in us-central1"):
        plan(accelerator="v5e-4", max_cost_usd=50)
    exact = plan(max_cost_usd=60)
    assert lines(exact, "cap")[0].startswith("2.19 USD at most, for 10 h"), 10 * (4 * 0.036 + 15 * 0.005)
    assert "is compared with an estimate" not in str(exact.findings)
    with pytest.raises(sdk.InputError, match="no source gives the price of n1-standard-4 on demand in us-west4"):
        plan("us-west4", max_cost_usd=60)
    # A keeper of unknown price counts as one too.
    with pytest.raises(sdk.InputError, match="price of n1-standard-4 of the keeper on demand in us-west4") as caught:
        plan("us-west4", accelerator="v5e-4", max_cost_usd=100, **KEPT)
    assert "Nearest: limit_allow_unknown_price=True" in str(caught.value)
    made = plan("us-west4", accelerator="v5e-4", max_cost_usd=100, limit_allow_unknown_price=True, **KEPT)
    assert made.keeper.price.cap is None
    month = spending.over_month(replace(made, job=plan("us-west4", accelerator="v5e-4").job), 100.0, 0.0, None)
    assert month.startswith("budget: no source gives the price of this job and its keeper")
