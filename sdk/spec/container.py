"""What a service that runs containers does with them, as far as the agent in a container has to know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ContainerTerms:
    """The terms of one service. A backend writes them into the launch spec."""

    restart_code: int  # the exit code after which the service starts a container again
    # All exit codes that it treats like that one. An agent exits with another code if nothing is to be started again.
    restarting_codes: tuple[int, ...]
    # The variables that tell a container which task it is; the first one that does so counts.
    identity: tuple[str, ...]
    notice_s: float  # how long uploads may take after SIGTERM
