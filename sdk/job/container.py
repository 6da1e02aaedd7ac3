"""What a service that runs containers does with them, as far as the agent in a container has to know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# The variable in which a backend tells a container the exit code after which the service starts it again: what runs before the
# launch spec is read needs it, too.
RESTART_CODE = "PODLIFT_RESTART_CODE"


@dataclass(frozen=True, kw_only=True)
class ContainerTerms:
    """The terms of one service. A backend writes them into the launch spec."""

    restart_code: int  # the exit code after which the service starts a container again
    # All exit codes that it treats like that one. An agent exits with another code if nothing is to be started again.
    restarting_codes: tuple[int, ...]
    # The variables that tell a container which task it is; the first one that does so counts.
    identity: tuple[str, ...]
    notice_s: float  # how long uploads may take after SIGTERM
    # The variable with the address of this machine, if the tasks tell each other where they are; "" if the service tells them.
    host: str = ""
    keeps_logs: bool = True  # the service keeps the whole output of a container
    # The task of each replica that these variables name differently, such as {"workerpool1-0": "worker-0"}.
    tasks: Mapping[str, str] = field(default_factory=dict)
