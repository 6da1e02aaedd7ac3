"""Prices that are read over HTTP: from the emulator's catalog into the cache, and from there into plans."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock

import sdk
from sdk.backends.vertex import price_cache
from sdk.backends.vertex.price_calls import KEY, RefusedError
from sdk.backends.vertex.price_refresh import VertexPrices
from sdk.clock import SystemClock
from sdk.errors import UnavailableError
from sdk.hardware import FEE, accelerators
from sdk.hardware.price_table import PriceTable
from sdk.storage.emulator import EMULATOR
from sdk.testing.vertex import Cloud

SECRET = "AIzaSy-not-a-real-key-0123456789"
DAY_S = 86400.0


def refresh(clock: Any = None) -> PriceTable:
    return VertexPrices().refresh("podlift", os.environ, clock or SystemClock()).table


def fault(operation: str, **more: Any) -> dict[str, Any]:
    return {"api": "vertex", "kind": "status_before", "operation": operation, "status": 403, **more}


@pytest.fixture
def cloud(podlift_vertex: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return podlift_vertex


@pytest.fixture
def googles(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what stores the emulator's prices as if they were Google's, and leaves the emulator."""

    def take(age_days: int = 0) -> None:
        clock = FakeClock(SystemClock().now() - age_days * DAY_S)
        table = refresh(clock)
        monkeypatch.delenv(EMULATOR)
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        price_cache.store(PriceTable(**{**vars(table), "emulator": ""}), os.environ)

    return take


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., sdk.Plan]:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("program.py").write_text("print('here')")

    def make(**fields: Any) -> sdk.Plan:
        given = {
            name: fields.pop(name) for name in ("accelerator", "max_cost_usd", "timeout", "workers") if name in fields
        }
        about = {
            "project": "my-project",
            "bucket": "mine",
            "image": "us-docker.pkg.dev/my-project/images/tf:1",
            **fields,
        }
        return sdk.plan("program.py", backend=sdk.Vertex(**about), **{"timeout": "10h", **given})

    return make


def lines(made: sdk.Plan, label: str) -> list[str]:
    from sdk.job import plan_text

    return [text for name, text in plan_text.lines(made) if name == label]


def test_a_refresh_reads_every_page_and_keeps_the_table_with_its_date(cloud: Cloud) -> None:
    table = refresh()
    stored = json.loads((Path(os.environ["XDG_CACHE_HOME"]) / "podlift" / "prices-emulator.json").read_text())
    assert cloud.requests().operations["skus.list"] > 3, "the catalog comes in pages"
    assert stored["date"] == table.date
    assert price_cache.load(os.environ) == table
    n1 = table.machine(accelerators.row("cpu"), "n1-standard-4")
    assert n1.standard["us-central1"] == pytest.approx((4 * 0.031611 + 15 * 0.004237) * FEE)
    assert n1.estimated == ()
    l4 = table.machine(accelerators.row("l4"), "g2-standard-4")
    assert l4.spot["us-central1"] == pytest.approx(
        4 * (0.01 + 0.15 * 0.02499) + 16 * (0.00117 + 0.15 * 0.00293) + 0.224 + 0.15 * 0.56004
    )
    assert "us-west4" not in l4.standard, "two SKUs match there"
    assert [text for text in table.doubtful if text.startswith("us-west4: 'Nvidia L4 GPU running in Las Vegas' and")]


def test_regions_become_fewer_by_it_and_a_zone_that_did_not_answer_rules_nothing_out(cloud: Cloud) -> None:
    table = refresh()
    assert table.absent(accelerators.row("l4"), "g2-standard-4") == ["us-west2"], "europe-west9 did not answer"
    assert "us-east1" in table.absent(accelerators.row("v5e-8"), "ct5lp-hightpu-8t")
    assert table.machine(accelerators.row("v2-8"), "cloud-tpu").absent == ("us-east1", "us-west1", "us-west4")
    assert "asia-east1" not in table.absent(accelerators.row("v2-8"), "cloud-tpu"), "its zone hides its TPUs"


@pytest.mark.parametrize("operation", ["services.list", "skus.list", "machineTypes.list", "acceleratorTypes.list"])
def test_nothing_is_stored_unless_all_that_prices_need_could_be_read(cloud: Cloud, operation: str) -> None:
    before = refresh(FakeClock(SystemClock().now() - 5 * DAY_S))
    cloud.faults(fault(operation, nth=2 if operation == "skus.list" else 1))
    with pytest.raises(RefusedError, match=r"refuses to answer \(403\): Injected fault"):
        refresh()
    assert price_cache.load(os.environ) == before


def test_every_refusal_is_in_one_error_with_its_next_step(cloud: Cloud) -> None:
    denied = {"api": "vertex", "kind": "deny"}
    cloud.faults({**denied, "operation": "services.list"}, {**denied, "operation": "machineTypes.list"})
    with pytest.raises(RefusedError) as caught:
        refresh()
    told = str(caught.value)
    assert told.startswith("2 problems:")
    assert "The Cloud Billing catalog refuses to answer (403): Permission 'billing.services.list' denied" in told
    assert "Compute Engine refuses to answer (403)" in told
    assert "Next: ask for roles/compute.viewer in podlift." in told


def test_tpus_that_may_not_be_listed_are_not_narrowed_and_that_is_said(cloud: Cloud) -> None:
    cloud.faults({"api": "vertex", "kind": "deny", "operation": "tpuLocations.list"})
    found = VertexPrices().refresh("podlift", os.environ, SystemClock())
    assert found.table.absent(accelerators.row("v5e-8"), "ct5lp-hightpu-8t") == []
    assert found.notes[0].startswith("Regions of TPUs are not narrowed. Cloud TPU refuses to answer (403)")


def test_a_service_that_is_busy_is_asked_again(cloud: Cloud) -> None:
    cloud.faults(fault("skus.list", status=503, nth=[1, 2]), fault("machineTypes.list", status=429, times=1))
    assert refresh().units["whole"]["core:n1"]


def test_a_key_is_sent_in_a_header_and_is_in_no_url_log_cache_or_error(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(sdk.InputError, match="in the name of a project"):
        VertexPrices().refresh(None, os.environ, SystemClock())
    refresh()
    cloud.faults(fault("skus.list", status=400))
    with pytest.raises(RefusedError) as caught:
        refresh()
    assert f"Next: check the key in {KEY}, and that it may call cloudbilling.googleapis.com" in str(caught.value)
    everywhere = [
        str(caught.value),
        caplog.text,
        json.dumps(cloud.requests().recent),
        price_cache.path(os.environ).read_text(),
    ]
    assert all(SECRET not in text for text in everywhere)
    assert "cloudbilling" not in SECRET and "skus" in caplog.text, "the log has the URLs"


def test_a_service_that_cannot_be_reached_is_said_without_the_token(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sdk.backends.vertex import price_calls

    monkeypatch.setattr(price_calls, "_RETRY_S", 0.2)
    cloud.faults({"api": "vertex", "kind": "drop_before", "operation": "services.list"})
    with pytest.raises(RefusedError, match="The Cloud Billing catalog cannot be reached: ConnectionError") as caught:
        refresh()
    assert cloud.url.rpartition("/")[2] not in str(caught.value)
    assert issubclass(UnavailableError, sdk.PodliftError)


def test_prices_of_an_emulator_are_never_taken_for_googles(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, plan: Callable[..., sdk.Plan]
) -> None:
    refresh()
    made_up = price_cache.path(os.environ).read_bytes()
    monkeypatch.delenv(EMULATOR)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    assert price_cache.load(os.environ) is None
    price_cache.path(os.environ).write_bytes(made_up)
    assert price_cache.load(os.environ) is None, "not even under the other name"
    assert plan().facts.prices is None


@pytest.mark.parametrize(
    "damaged", [b"", b"[]", b"{", b'{"version": 1}', b'{"version": 2}', b'{"version": 1, "date": 5}']
)
def test_a_damaged_cache_is_no_cache(cloud: Cloud, damaged: bytes) -> None:
    file = price_cache.path(os.environ)
    file.parent.mkdir(parents=True)
    file.write_bytes(damaged)
    assert price_cache.load(os.environ) is None


def test_a_plan_has_the_read_prices_and_lists_the_regions_by_price(
    googles: Callable[..., None], plan: Callable[..., sdk.Plan]
) -> None:
    googles()
    made = plan(accelerator="v5e-4", regions=["us-west4", "us-central1"])
    assert made.target.regions == ("us-west4", "us-central1"), "the order that was given is kept"
    assert lines(made, "price 1")[0].startswith("6.24 USD an hour on demand in us-west4")
    assert "an estimate: Cloud Billing catalog, Compute Engine x 1.15" in lines(made, "price 1")[0]
    assert lines(made, "regions") == ["us-west1 ~5.41, us-central1 ~5.52, us-west4 ~6.24 USD an hour on demand"]
    again = sdk.Plan.from_json(made.to_json(), "plan.json")
    assert again.rentals == made.rentals, "what keepers book is the price of the plan"
    assert not [text for text in lines(plan(), "regions") if "it is unknown whether" in text]


def test_a_plan_warns_of_a_region_without_such_a_machine_and_of_old_prices(
    googles: Callable[..., None], plan: Callable[..., sdk.Plan]
) -> None:
    googles(age_days=91)
    made = plan(accelerator="v5e-4", regions=["us-east1"])
    told = [each.message for each in made.findings if each.level == "warning"]
    assert any(each.startswith("No zone of us-east1 listed v5e-4 (ct5lp-hightpu-4t) on ") for each in told)
    assert any("91 days ago, more than 90. Next: podlift accelerators --refresh." in each for each in told)


def test_a_limit_of_cost_is_compared_with_read_prices_and_refuses_unknown_ones(
    googles: Callable[..., None], plan: Callable[..., sdk.Plan]
) -> None:
    googles()
    made = plan(accelerator="v5e-4", max_cost_usd=60)
    assert [
        each for each in made.findings if "is compared with an estimate of the price in us-central1" in each.message
    ]
    with pytest.raises(sdk.InputError, match=r"may cost 55.20 USD, at 5.52 USD an hour for 10 h in us-central1"):
        plan(accelerator="v5e-4", max_cost_usd=50)
    exact = plan(accelerator="l4", max_cost_usd=60)
    assert not [each for each in exact.findings if "is compared with an estimate" in each.message]
    with pytest.raises(
        sdk.InputError, match="no source gives the price of l4 with g2-standard-4 on demand in us-west4"
    ):
        plan(accelerator="l4", max_cost_usd=60, regions=["us-west4"])


def test_the_cheapest_region_is_asked_for_and_the_bucket_decides(cloud: Cloud, plan: Callable[..., sdk.Plan]) -> None:
    refresh()
    cloud.client().create_bucket("far", location="us-west4")
    alone = plan(bucket="far", accelerator="v5e-4", regions="cheapest")
    assert alone.target.regions == ("us-west4",)
    named = plan(bucket="far", accelerator="v5e-4", regions="cheapest,us-west4,us-central1,us-west1")
    assert named.target.regions == ("us-west1", "us-central1", "us-west4")
    with pytest.raises(sdk.InputError, match="which is not known here") as caught:
        plan(bucket="nowhere", accelerator="v5e-4", regions="cheapest")
    assert "'cheapest'" in str(caught.value)
