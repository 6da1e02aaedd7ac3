"""The locations of a run on Vertex AI, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, get_args

from ..errors import InputError, nearest
from ..hardware import Provisioning, accelerators, regions
from .values import text_or_texts


def accelerator_name(value: str) -> str:
    return accelerators.lookup(value).name


@dataclass(frozen=True)
class Location:
    """Where a job may run: REGION[:PROVISIONING[:ACCELERATOR]]. None for the provisioning of the target, and for the
    accelerator of the job. A region that does not exist is a finding of the checks."""

    region: str
    provisioning: Provisioning | None = None
    accelerator: str | None = None

    @classmethod
    def parse(cls, text: str) -> Location:
        """Return the location that a text means; InputError with every mistake."""
        region, provisioning, accelerator, *_ = [*(part.strip() for part in text.lower().split(":", 2)), "", ""]
        choices, problems, name = get_args(Provisioning), [], None
        if provisioning and provisioning not in choices:
            problems.append(f"unknown provisioning. Received: {provisioning!r}. {nearest(provisioning, choices)}")
        try:
            name = accelerator_name(accelerator) if accelerator else None
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError([f"{text}: {problem}" for problem in problems])
        return cls(region, cast("Provisioning | None", provisioning or None), name)

    def __str__(self) -> str:
        return ":".join([self.region, self.provisioning or "", self.accelerator or ""]).rstrip(":")


def location_texts(value: object) -> object:
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else text_or_texts(value)


def some_locations(value: Sequence[str]) -> Sequence[str]:
    """Return the texts of locations, each in its shortest form; every mistake in them at once."""
    if not value:
        raise ValueError("must name one at least, such as us-central1")
    texts, problems = list[str](), list[str]()
    for text in value:
        try:
            texts.append(str(Location.parse(text)))
        except InputError as error:
            problems += error.problems
    if regions.CHEAPEST in {text.partition(":")[0] for text in texts} and ":" in "".join(texts):
        problems.append(f"{regions.CHEAPEST!r} compares regions, without a provisioning or an accelerator of their own")
    if problems:
        raise InputError([f"regions: {problem}" for problem in problems])
    return tuple(texts)
