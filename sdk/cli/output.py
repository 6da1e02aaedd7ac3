"""What the command prints: words for people on stderr, results on stdout, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from typing import Any

from ..run import Run
from ..status import Status


def say(text: str) -> None:
    """Print for the person who watches."""
    print(text, file=sys.stderr, flush=True)


def answer(text: str) -> None:
    """Print what was asked for."""
    print(text, flush=True)


def as_json(value: Any) -> None:
    """Print one line of JSON on stdout."""
    answer(json.dumps(value, sort_keys=True))


def summary(run: Run, status: Status) -> dict[str, Any]:
    """Return the object of `--json`."""
    return {
        "url": run.url,
        "id": run.id,
        "state": status.state.value,
        "reason": status.reason.value,
        "exit_code": status.exit_code,
        "attempts": status.attempts,
        "metrics": run.last_metrics(),
        "run_dir": run.url,
        "timings": status.timings,
    }


def refusal(problems: tuple[str, ...], exit_code: int) -> dict[str, Any]:
    """Return the object of `--json` for a run that never came to be: the same keys, and the problems."""
    empty = dict.fromkeys(("url", "id", "state", "run_dir"))
    return {
        **empty,
        "reason": "bad_input",
        "exit_code": exit_code,
        "attempts": 0,
        "metrics": {},
        "timings": {},
        "problems": list(problems),
    }


def numbers(metrics: dict[str, Any], between: str = "  ") -> str:
    """Return metrics as `name: 0.1234`."""
    return between.join(
        f"{name}: {'nan' if value is None else f'{value:.4f}'}" for name, value in sorted(metrics.items())
    )
