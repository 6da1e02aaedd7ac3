"""Google's prebuilt TensorFlow images, which are all past their end of availability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...checks.vertex_target import RETIRED_IMAGE
from .errors import VertexApiError, invalid


def images(job: Mapping[str, Any]) -> list[str]:
    """Return the images of a job, each once."""
    pools = job.get("jobSpec", {}).get("workerPoolSpecs", [])
    found = [pool.get("containerSpec", {}).get("imageUri", "") for pool in pools]
    found += [pool.get("pythonPackageSpec", {}).get("executorImageUri", "") for pool in pools]
    return list(dict.fromkeys(filter(None, found)))


def retired_images(job: Mapping[str, Any]) -> list[str]:
    """Return the images of a job that Vertex AI no longer offers."""
    return [image for image in images(job) if RETIRED_IMAGE.match(image)]


def refusal(gone: list[str]) -> VertexApiError:
    return invalid(
        [
            (
                "",
                f"Image {image} was not found: it is past its end of availability, and can no longer be used or downloaded. "
                "Next: another image in a container_spec, or 'podlift emulator --allow-retired-images', which runs it here.",
            )
            for image in gone
        ]
    )


def warning(image: str) -> str:
    return (
        f"podlift emulator: Vertex AI no longer offers the image {image} and would refuse this job. It runs here, with the "
        "emulator's own Python, because of --allow-retired-images."
    )
