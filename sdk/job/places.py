"""The places of a run on Vertex AI, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from ..errors import InputError, nearest
from ..hardware import Provisioning, accelerators, regions
from .values import Validator, Value, text_or_texts


def accelerator_name(value: str) -> str:
    return accelerators.lookup(value).name


def _region(value: str) -> str:
    if value not in regions.KNOWN:
        raise ValueError(f"Vertex AI has no such region. Nearest: {regions.meant(value)!r}")
    return value


@dataclass(frozen=True)
class Place(Value):
    """One place where a job may run: `Place("us-central1", "spot", "l4:2")`, or as text `"us-central1:spot:l4:2"`.

    Args:
        region: Region of the machines.
        provisioning: On-demand, spot or flex-start machines. None for that of the target.
        accelerator: Hardware of each task. None for that of the job.
    """

    region: Annotated[str, Validator(_region)]
    provisioning: Provisioning | None = None
    accelerator: Annotated[str, Validator(accelerator_name)] | None = None

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place of `REGION[:PROVISIONING[:ACCELERATOR]]`; InputError with every mistake."""
        region, *others = (part.strip() for part in text.split(":", 2))
        provisioning, accelerator = [*others, "", ""][:2]
        known = get_args(Provisioning)
        problems = []
        if provisioning and provisioning not in known:
            problems.append(f"unknown provisioning. Received: {provisioning!r}. {nearest(provisioning, known)}")
        # As text and JSON have them; the constructor checks the rest.
        given: dict[str, Any] = {"region": region}
        given |= {"provisioning": provisioning} if provisioning in known else {}
        given |= {"accelerator": accelerator} if accelerator else {}
        try:
            made = cls(**given)
        except InputError as error:
            problems = [*error.problems, *problems]
        if problems:
            raise InputError(problems)
        return made

    def __str__(self) -> str:
        return ":".join([self.region, self.provisioning or "", self.accelerator or ""]).rstrip(":")


def words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def region_names(value: object) -> object:
    return words(value) if isinstance(value, str) else text_or_texts(value)


def some_regions(value: Sequence[str]) -> Sequence[str]:
    if not value:
        raise ValueError("must name one at least, such as us-central1")
    return value


def parse_places(value: object) -> object:
    """Return the places of a list, or of one text; every mistake in them at once."""
    items = words(value) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise ValueError("must be a list of places, such as us-central1:spot")
    found, problems = list[Place](), list[str]()
    for item in items:
        try:
            found.append(_place(item))
        except InputError as error:
            problems += [f"places: {item!s}: {problem}" for problem in error.problems]
    if problems:
        raise InputError(problems)
    return tuple(found)


def _place(item: object) -> Place:
    if isinstance(item, Place):
        return item
    if isinstance(item, str):
        return Place.parse(item)
    if isinstance(item, Mapping):
        return Place(**item)
    raise InputError(f"Not a place, such as us-central1:spot. Received: {item!r}.")


def by_region(value: Mapping[str, str]) -> Mapping[str, str]:
    problems = [
        f"{name!r} is no region of Vertex AI, nearest {regions.meant(name)!r}"
        for name in sorted({*value} - {*regions.KNOWN})
    ]
    problems += [f"{name} has no bucket" for name, bucket in value.items() if not bucket]
    if problems:
        raise ValueError("; ".join(problems))
    return value
