"""The seam between registered models and a service that has a registry of models of its own, to which they are mirrored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..clock import Clock
from ..spec.policies import Target


@dataclass(frozen=True, kw_only=True)
class MirrorPlace:
    """Where a model is mirrored."""

    backend: str  # whose service it is
    model: str  # full name of the model there
    image: str = ""  # container image that serves its versions there
    emulator: str = ""  # the address of the emulator that stands in for the service


@dataclass(frozen=True, kw_only=True)
class MirroredVersion:
    """A version of that model as the service has it."""

    id: str
    root: str = ""  # the digest of the root from which it was mirrored; "" if podlift did not make it
    number: int = 0  # its number in that root
    manifest: str = ""  # the first characters of the digest of its files
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MirrorDraft:
    """A version that is to be mirrored."""

    place: MirrorPlace
    name: str  # of the model
    root: str  # the digest of its root
    number: int
    run: str
    manifest: str  # the digest of its files
    files: str  # the folder at which the service finds them
    about: str  # one line that says where it comes from

    def is_of(self, found: MirroredVersion) -> bool:
        return (found.root, found.number) == (self.root, self.number)


class MirrorService(Protocol):
    """Keeps models with versions and aliases. Errors are PodliftErrors, which name the right that is missing."""

    @property
    def title(self) -> str:
        """What a sentence calls the service."""

    def place(self, target: Target, name: str, image: str) -> MirrorPlace:
        """Return where a model of this name is mirrored; InputError if the target does not tell. Pure."""

    def versions(self, place: MirrorPlace, clock: Clock) -> Sequence[MirroredVersion]:
        """Return the versions there, the oldest first; none if there is no such model."""

    def upload(self, draft: MirrorDraft, clock: Clock) -> MirroredVersion:
        """Make a version that is not there, exactly once: a lost reply is looked up, and of two uploads one remains."""

    def set_alias(self, place: MirrorPlace, version: MirroredVersion, alias: str, clock: Clock) -> None:
        """Let an alias name a version, and no other."""
