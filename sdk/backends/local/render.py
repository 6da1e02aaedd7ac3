"""The commands and environments of local tasks as a printable request."""

from __future__ import annotations

from dataclasses import asdict

from ...process.task_environment import environment
from ...spec import cluster
from ...spec.plan import Plan
from . import interpreter
from .interpreter import Interpreter


def body(plan: Plan) -> dict[str, object]:
    """Return the commands and variables of attempt 1 as shown in a plan, with "<port>" for each port.

    If an environment is built from the requirements, its interpreter replaces the one shown.
    """
    addresses = {task.name: f"{cluster.host_name(task, plan.run_id)}:<port>" for task in plan.members}
    isolated = plan.job.code.isolated
    return {
        **({"environment": asdict(plan.code.requirements)} if isolated else {}),
        "tasks": [
            {
                "name": task.name,
                "command": command(plan, 1, task.name, interpreter.current(plan)),
                "env": environment(plan, 1, task, addresses, plan.paths.temporary),
                "copied": plan.job.copied,
            }
            for task in plan.members
        ],
    }


def command(plan: Plan, attempt: int, task: str, starter: Interpreter) -> list[str]:
    """Return the command that starts a task."""
    return [starter.python, starter.task_main, plan.paths.payload(attempt), task]
