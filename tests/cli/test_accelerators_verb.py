"""podlift accelerators: the table, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import holds

import sdk
from sdk.backends.vertex.account import prices
from sdk.hardware import catalog
from sdk.hardware.accelerators import ROWS


def cells(stdout: str) -> dict[str, list[str]]:
    header, *lines = [line.split("\t") for line in stdout.splitlines()]
    assert all(len(line) == len(header) for line in lines)
    return {line[0]: line for line in lines}


def test_every_row_is_shown_and_values_without_a_source_are_unknown(here) -> None:
    shown = here("accelerators")
    table = cells(shown.stdout)
    assert (shown.code, list(table)) == (0, [row.name for row in ROWS])
    assert "unknown" not in "".join(line[6] for line in table.values())
    assert table["gb200:4"][4:6] == ["unknown", "unknown"]
    assert table["b200:8"][4:6] == ["unknown", "at least 37.50"], "a lower bound is a price"
    assert table["v6e-8"][3] == "none"
    assert table["v6e-8"][7].startswith("refused: Google's pages contradict each other: training-with-tpu-vm ends")
    assert table["v6e-8"][7].endswith("; nearest: v5e-8")
    assert table["b200:8"][3] == "none released"
    assert table["b200:8"][7].startswith("needs vertex_own_tensorflow: TensorFlow up to 2.21 has no kernels for")
    assert "for which there is no TensorFlow with CUDA; nearest: h100:4" in table["gb200:4"][7]
    assert "Prices in us-central1" in shown.stderr


def test_a_family_and_a_region_leave_out_the_others(here) -> None:
    table = cells(here("accelerators", "--family", "tpu", "--region", "us-west4").stdout)
    assert {name.partition("-")[0] for name in table} == {"v5e"}
    assert table["v5e-4"][4:6] == ["unknown", "~2.64"]
    there = cells(here("accelerators", "--region", "us-west4").stdout)
    assert {"v100", "l4", "t4"} & set(there) == {"t4"}, "an L4 is there, but not for training"


def test_json_holds_every_number_or_null(here) -> None:
    found = json.loads(here("accelerators", "--json").stdout)
    rows = {row["name"]: row for row in found["accelerators"]}
    assert (found["region"], found["currency"], len(rows)) == ("us-central1", "USD", len(ROWS))
    v5e, l4 = rows["v5e-4"], rows["l4"]
    assert v5e["per_hour"] == pytest.approx(4 * 1.20 * 1.15)
    kind = {"machine": "ct5lp-hightpu-4t", "topology": "2x2", "hosts": 1, "tensorflow": ["2.15", "2.20"]}
    assert v5e.items() >= kind.items()
    assert (v5e["vcpus"], v5e["ram_gb"], v5e["price_exact"], v5e["price_date"]) == (112, 192, False, "2026-11-20")
    assert (v5e["documented_tensorflow"], l4["documented_tensorflow"]) == ("2.18", None)
    assert (l4["ram_gb"], l4["tensorflow"]) == (None, None)
    b200 = rows["b200:8"]
    assert (b200["per_hour"], b200["at_least_per_hour"], b200["spot_per_hour"]) == (None, None, None)
    assert b200["spot_at_least_per_hour"] == pytest.approx(32.6064 * 1.15)
    assert "us-east4" in l4["regions"]


def test_mistakes_are_said_at_once_and_an_unknown_region_is_a_warning(here) -> None:
    shown = here("accelerators", "--family", "gpus", "--region", "us-central1-a", "--vertex-project", "mine")
    assert shown.code == 2
    holds(shown.stderr, "--vertex-project is for --refresh", "Unknown family. Received: 'gpus'. Did you mean 'gpu'?")
    assert "Not a region. Received: 'us-central1-a'. Did you mean 'us-central1'?" in shown.stderr
    warned = here("accelerators", "--region", "us-centrall1", "--family", "cpu")
    assert (warned.code, "Did you mean 'us-central1'?" in warned.stderr) == (0, True)
    assert cells(warned.stdout)["cpu"][4] == "unknown"


def test_the_page_about_accelerators_shows_the_table_as_it_is(here) -> None:
    page = (Path(sdk.__file__).parent.parent / "docs" / "reference" / "accelerators.md").read_text().splitlines()
    shown = [line for line in page if line.startswith("| ") and line.count(" | ") == 6]
    table = cells(here("accelerators").stdout)
    offered = [f"| {' | '.join(table[row.name][:7])} |" for row in ROWS if not row.refused]
    assert shown[1:] == offered


def test_a_refresh_shows_read_prices_and_names_old_or_doubtful_ones(here, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    refused = here("accelerators", "--refresh")
    assert refused.code == 2 and "Next: --vertex-project ID" in refused.stderr
    engine = {"us-central1": 0.036, "us-west1": 0.041}
    found = {"whole": {"core:n1": engine, "ram:n1": dict.fromkeys(engine, 0.005)}}, ["us-west4: 'One' and 'Two' match"]
    monkeypatch.setattr(catalog, "units", lambda _: found)
    monkeypatch.setattr(prices, "_skus", lambda *_: [])
    shown = here("accelerators", "--refresh", "--vertex-project", "mine", "--region", "us-west1", "--family", "cpu")
    assert shown.code == 0
    doubtful = "1 price unknown, because more than one SKU matches, or one cannot be read:\n  us-west4: 'One'"
    assert doubtful in shown.stderr
    assert "Prices are from the Cloud Billing catalog on 2" in shown.stderr
    assert cells(shown.stdout)["cpu"][4:6] == ["0.24", "unknown"]
    file = tmp_path / "cache" / "podlift" / "prices.json"
    assert f"Stored in {file}." in shown.stderr
    assert json.loads(here("accelerators", "--json").stdout)["doubtful"] == found[1]
    file.write_text(json.dumps({**json.loads(file.read_text()), "date": "2026-01-05"}))
    assert "days ago, more than 90. Next: podlift accelerators --refresh" in here("accelerators").stderr
