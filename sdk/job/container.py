"""The behaviour of a service that runs containers, for the agent in a container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# The variable with the exit code after which the service restarts a container. A backend sets it, because code that runs
# before the launch spec is read needs the exit code, too.
RESTART_CODE = "PODLIFT_RESTART_CODE"


@dataclass(frozen=True, kw_only=True)
class ContainerTerms:
    """The terms of one service. A backend writes them into the launch spec."""

    restart_code: int  # the exit code after which the service starts a container again
    # All exit codes that the service treats like `restart_code`. An agent exits with another code to prevent a restart.
    restarting_codes: tuple[int, ...]
    # The variables that identify a container's task; the first one that is set counts.
    identity: tuple[str, ...]
    notice_s: float  # how long uploads may take after SIGTERM
    # The variable with the address of this machine, if the tasks exchange their addresses; "" if the service provides them.
    host: str = ""
    keeps_logs: bool = True  # the service keeps the whole output of a container
    keeps_limit: bool = True  # the service ends a job at the time limit of its run; if not, the agents do
    # The task of each replica with another name in these variables, such as {"workerpool1-0": "worker-0"}.
    tasks: Mapping[str, str] = field(default_factory=dict)
