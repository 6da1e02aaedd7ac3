"""The kills of a drill beyond the processes of tasks: fault rules of the emulator, never anything real.

Each rule waits for the line in which a task announces that it has reached its kill point.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ....errors import InputError, PodliftError
from ....job.payload import Kill
from ....job.plan import Plan
from ....storage import emulator
from .. import client
from .request import replica_names

_ASK_S = 30.0
# Vertex AI tries as often to get the machines of a job.
_STOCKOUTS = 3

Rule = Mapping[str, object]


@contextmanager
def disturbed(plan: Plan, kills: Sequence[Kill]) -> Iterator[None]:
    """Let the emulator preempt the machines or regions of these kills, and nothing afterwards."""
    address = emulator.checked_address()
    if not address:
        raise InputError(
            "A drill takes machines away, which only the emulator of Vertex AI does on request, and none is configured here. "
            "Next: `podlift emulator --data DIR`, and the line that it prints."
        )
    if _ask("GET", address):
        raise InputError(
            "The emulator already disturbs its jobs by fault rules, and a drill sets its own. Nothing was changed. Next: "
            "remove them (`curl -d '[]' $PODLIFT_EMULATOR/_faults`), or leave out the kills of agents, machines and regions."
        )
    fault_rules = rules(plan, kills)
    if fault_rules:
        _ask("POST", address, fault_rules)
    try:
        yield
    finally:
        if fault_rules:
            with suppress(PodliftError):
                _ask("POST", address, [])


def rules(plan: Plan, kills: Sequence[Kill]) -> list[Rule]:
    """Return the fault rules for these kills of a run. A task kills its own process."""
    replicas = {task: replica for replica, task in replica_names(plan.tasks).items()}
    faults: list[Rule] = []
    for kill in kills:
        line = {
            "api": "vertex",
            "display_name": f"^{re.escape(plan.run_id)}$",
            "writer": replicas[kill.task],
            "log": f"^{re.escape(kill.announcement)}$",
        }
        if kill.what != "process":
            kind = "preempt" if kill.what == "machine" else "kill"
            faults.append({**line, "kind": kind, "replica": replicas[kill.task], "times": 1})
        if kill.what == "region":
            faults.append({**line, "kind": "stockout", "times": _STOCKOUTS})
    return faults


def _ask(method: str, address: str, body: Sequence[Rule] | None = None) -> Sequence[object]:
    """Send a request to the emulator itself, and return the rules that are in force then."""
    try:
        return client.exchange(
            method, f"{address}/_faults", lambda answer: list(answer.get("faults")), _ASK_S, body=body
        )
    except PodliftError as error:
        raise PodliftError(f"The fault rules of the emulator cannot be set. {error}") from error
