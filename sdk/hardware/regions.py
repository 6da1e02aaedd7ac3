"""Regions of Vertex AI.

Sources: the regions that google-cloud-aiplatform 2.7.0 accepts (constants/base.py, read 2026-11-21), and the tables of
features and accelerators in the documentation of Vertex AI, general/locations (read 2026-11-28).
"""

from __future__ import annotations

import re
from difflib import get_close_matches

# fmt: off
KNOWN = (
    "africa-south1", "asia-east1", "asia-east2", "asia-northeast1", "asia-northeast2", "asia-northeast3", "asia-south1",
    "asia-south2", "asia-southeast1", "asia-southeast2", "australia-southeast1", "australia-southeast2", "europe-central2",
    "europe-north1", "europe-north2", "europe-southwest1", "europe-west1", "europe-west2", "europe-west3", "europe-west4",
    "europe-west6", "europe-west8", "europe-west9", "europe-west12", "me-central1", "me-central2", "me-west1",
    "northamerica-northeast1", "northamerica-northeast2", "southamerica-east1", "southamerica-west1", "us-central1",
    "us-east1", "us-east4", "us-east5", "us-east7", "us-south1", "us-west1", "us-west2", "us-west3", "us-west4", "us-west8",
)
# Those without custom training in the table of features and without an accelerator for it.
_NO_TRAINING = ("europe-north2", "us-east7", "us-west8")
TRAINING = tuple(region for region in KNOWN if region not in _NO_TRAINING)
# By accelerator: the regions in which training has it. A dagger in Google's table means "not for training": those are left out.
ACCELERATORS: dict[str, tuple[str, ...]] = {
    "l4": (
        "us-central1", "us-east1", "us-east4", "us-west1", "northamerica-northeast2", "europe-west2", "europe-west4",
        "asia-northeast3", "asia-south1", "asia-southeast1", "me-central2",
    ),
    "t4": (
        "us-central1", "us-east1", "us-east4", "us-west1", "us-west2", "us-west4", "northamerica-northeast1",
        "southamerica-east1", "europe-central2", "europe-west1", "europe-west2", "europe-west3", "europe-west4", "asia-east1",
        "asia-east2", "asia-northeast1", "asia-northeast3", "asia-south1", "asia-southeast1", "asia-southeast2",
        "australia-southeast1",
    ),
    "v100": ("us-central1", "us-east1", "us-west1", "europe-west4", "asia-east1"),
    "p4": (
        "us-central1", "us-east4", "us-west2", "northamerica-northeast1", "europe-west4", "asia-southeast1",
        "australia-southeast1",
    ),
    "a100": (
        "us-central1", "us-east1", "us-west3", "us-west4", "europe-west4", "asia-northeast3", "asia-southeast1", "me-west1",
    ),
    "a100-80gb": ("us-central1", "us-east4", "us-east5", "europe-west4", "asia-southeast1"),
    "h100": (
        "us-central1", "us-east4", "us-east5", "us-west1", "us-west4", "northamerica-northeast2", "europe-west1",
        "europe-west2", "europe-west3", "europe-west4", "asia-northeast1", "asia-northeast3", "asia-south1", "asia-southeast1",
    ),
    "h100-mega": (
        "us-central1", "us-east4", "us-east5", "us-west1", "us-west4", "europe-north1", "europe-west1", "europe-west3",
        "europe-west4", "asia-east1", "asia-northeast1", "asia-southeast1", "australia-southeast1",
    ),
    "h200": (
        "us-central1", "us-east4", "us-east5", "us-south1", "us-west1", "europe-west1", "europe-west4", "asia-south1",
        "asia-south2",
    ),
    "rtx-pro-6000": ("us-central1", "us-east1", "us-east4", "europe-west4", "asia-south2", "asia-southeast1"),
    "b200": (
        "us-central1", "us-east1", "us-east4", "us-south1", "us-west2", "us-west3", "europe-west4", "asia-northeast1",
        "asia-southeast1",
    ),
    "gb200": ("us-central1", "us-east4"),
    "v2": ("us-central1", "europe-west4", "asia-east1"),
    "v2 pod": ("us-central1", "europe-west4"),
    "v3": ("us-central1", "europe-west4"),
    "v3 pod": ("europe-west4",),
    "v5e": ("us-central1", "us-east1", "us-west1", "us-west4"),
    "v6e": (
        "us-central1", "us-east1", "us-east5", "us-south1", "europe-west4", "asia-northeast1", "southamerica-west1",
    ),
    "tpu7x": ("us-central1",),
}
# fmt: on
# In every list above except "v3 pod".
DEFAULT = "us-central1"
# Vertex AI's regions without Cloud Scheduler, by the latter's list of locations (read 2026-11).
WITHOUT_SCHEDULER = ("europe-north2", "me-central2", "us-east7", "us-west8", "us-west9")
# Requests the regions in the order of their prices.
CHEAPEST = "cheapest"
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")


def is_region(text: str) -> bool:
    """True for the form of a region: `us-central1`, but neither `us` nor the zone `us-central1-a`."""
    return _REGION.fullmatch(text) is not None


def nearby(region: str, names: tuple[str, ...]) -> str:
    """Return a region of `known` on the same continent, else the first one."""
    continent = region.partition("-")[0]
    return next((name for name in names if name.partition("-")[0] == continent), names[0])


def meant(name: str) -> str:
    """Return the most likely region for a wrong name: the region of a zone, or one on a continent."""
    text = name.strip().lower().replace("_", "-")
    near = [text] if text in KNOWN else get_close_matches(text, (DEFAULT, *TRAINING), n=1)
    return near[0] if near else nearby({"eu": "europe"}.get(text, text), (DEFAULT, *TRAINING))
