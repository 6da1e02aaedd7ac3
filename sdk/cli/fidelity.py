"""What of a vendor's service is reproduced before a run goes there: `podlift plan --fidelity`."""

from __future__ import annotations

from dataclasses import asdict

from .. import backends
from ..backends.fidelity import Behaviour
from ..errors import InputError
from ..spec.plan import Plan
from .output import answer, as_json, say
from .screen import on_terminal, table

_HEADER = ["local", "emulator", "what the service does"]


def fidelity_of(plan: Plan, *, json_output: bool) -> None:
    """Print each behaviour of the service that concerns a plan, and whether local runs and the emulator reproduce it."""
    found = backends.behaviours(plan)
    if found is None:
        raise InputError(
            f"The backend {plan.backend!r} runs on no service that could be reproduced. "
            "Next: podlift plan ... --backend vertex --fidelity."
        )
    if json_output:
        as_json({"backend": plan.backend, "behaviours": [asdict(each) for each in found]})
        return
    if not on_terminal():
        answer("\t".join(_HEADER))
    table(_HEADER, [_line(each) for each in found], whole=_HEADER[:2])
    local, emulated = (sum(each.reproduced(where) for each in found) for where in ("local", "emulator"))
    say(f"Of {len(found)} behaviours, tests show {local} for local runs and {emulated} for the emulator.")


def _line(each: Behaviour) -> list[str]:
    marks = ["yes" if each.reproduced(where) else "no" for where in ("local", "emulator")]
    return [*marks, f"{each.text} Try it: {each.attempt}" if each.attempt else each.text]
