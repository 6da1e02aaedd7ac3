"""Checks of a gate against the job that it belongs to."""

from __future__ import annotations

from collections.abc import Collection

from ..errors import nearest
from ..job.capabilities import Capabilities
from ..job.job import Job


def mistakes(job: Job, inputs: Collection[str], capabilities: Capabilities) -> list[str]:
    """Return the mistakes in a job's gate; `inputs` are the names of all inputs, including inputs located at each slot."""
    gate, problems = job.gate, list[str]()
    if not capabilities.last_phase and (job.model is not None or gate.evaluate is not None):
        name = "model" if job.model is not None else "gate_evaluate"
        problems.append(
            f"{name}: this backend does not register the models of its runs. Next: leave it out, and podlift models add RUN "
            "once the run has ended."
        )
    if gate.evaluate is None:
        return problems
    names = sorted(inputs)
    inputs_hint = f"Known: {', '.join(names)}." if names else "The job has no inputs. Next: --input NAME=URL."
    if gate.data is None:
        problems.append(f"gate_data: missing. It names the input with the data for the evaluation. {inputs_hint}")
    elif gate.data not in names:
        hint = nearest(gate.data, names) if names else inputs_hint
        problems.append(f"gate_data: no such input. Received: {gate.data!r}. {hint}")
    return problems
