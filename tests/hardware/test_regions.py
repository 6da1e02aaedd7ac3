"""The region that a mistake probably means."""

from __future__ import annotations

import pytest

from sdk.hardware import regions


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("us-central1-a", "us-central1"),
        (" Asia-East1-b", "asia-east1"),
        ("EUROPE_WEST4", "europe-west4"),
        ("us-sentral1", "us-central1"),
        ("africa-south7", "africa-south1"),
        ("us", regions.DEFAULT),
        ("global", regions.DEFAULT),
        ("", regions.DEFAULT),
    ],
)
def test_zones_continents_and_slips_lead_to_a_region(written: str, meant: str) -> None:
    assert regions.meant(written) == meant


@pytest.mark.parametrize("written", ["eu", "europe"])
def test_a_bucket_location_of_europe_leads_to_a_region_there(written: str) -> None:
    assert regions.meant(written).startswith("europe-")


@pytest.mark.parametrize("region", regions.KNOWN)
def test_a_region_that_exists_is_meant(region: str) -> None:
    assert regions.meant(region) == region
