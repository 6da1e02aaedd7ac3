"""A value that is kept in Secret Manager, and named in a job."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

from .values import PathText, Validator, Value

_NAME = re.compile(r"projects/[A-Za-z0-9:._-]+/secrets/[A-Za-z0-9_-]+(?:/versions/(?P<version>latest|[1-9][0-9]*))?")
_LATEST = "/versions/latest"


def _resource(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            "must be projects/PROJECT/secrets/SECRET, or a version of it: projects/PROJECT/secrets/SECRET/versions/3"
        )
    return name.removesuffix(_LATEST)


@dataclass(frozen=True, kw_only=True)
class Secret(Value):
    """Stands for a value in Secret Manager, which a task reads when it starts: stored nowhere, and hidden in logs.

    Usage: `Job("train.py", env={"API_KEY": Secret("projects/my-project/secrets/api-key")})`

    Args:
        name: The secret, or one of its versions. Without a version, the plan names the newest one.
        file: File with the value for runs on this machine, relative to the project. By default they take the variable of the
            same name from the caller's environment.
    """

    name: Annotated[str, Validator(_resource)] = field(kw_only=False)
    file: PathText | None = None

    @property
    def is_pinned(self) -> bool:
        """True if it names a version."""
        return "/versions/" in self.name

    @property
    def version(self) -> str:
        """Its version as a resource, the newest one if it names none."""
        return self.name if self.is_pinned else self.name + _LATEST
