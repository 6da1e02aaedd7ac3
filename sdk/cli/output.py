"""The output of the command: messages on stderr, results on stdout, one JSON object for programs."""

from __future__ import annotations

import io
import json
import os
import select
import stat
import sys
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from ..errors import InputError
from ..logs import heard
from ..records.machine import MachineUse, machine_use
from ..records.spending import Spent
from ..run import Run
from ..status import EXIT_CANCELLED, EXIT_INPUT, EXIT_USER, Goodput, Reason, Status
from ..text import counted, duration, harmless, parse_duration
from ..ui.model import uses

# The shell's code for Ctrl-C. The run itself continues.
EXIT_DETACHED = 130
# The shell's code for SIGPIPE: the reader of stdout is gone.
EXIT_READER_LEFT = 141
# The version of every object that --json prints. Within a version, keys are only added.
JSON_VERSION = 1
# Parts of the goodput that are shorter are not shown.
_SHOWN_S = 0.1


def prepare_streams() -> None:
    """Escape characters that the terminal's encoding lacks, so that every text can be printed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def settle_streams() -> bool:
    """Drop output for a closed stream, which would make the interpreter exit with 120; True if stdout's reader is gone."""
    reader_gone = False
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            reader_gone = reader_gone or (stream is sys.stdout and isinstance(error, BrokenPipeError))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
    return reader_gone


def end_with_reader() -> None:
    """Exit when the reader of stdout does, as `tail -f` does: a followed run may print nothing for hours."""

    def watch() -> None:
        poll = select.poll()
        # POLLERR and POLLHUP are reported even with an empty mask.
        poll.register(stdout, 0)
        poll.poll()
        os._exit(EXIT_READER_LEFT)

    try:
        stdout = sys.stdout.fileno()
        piped = stat.S_ISFIFO(os.fstat(stdout).st_mode)
    except (AttributeError, OSError, ValueError):
        return
    if piped:
        threading.Thread(target=watch, daemon=True).start()


def say(text: str) -> None:
    try:
        # With stderr closed, print would use stdout.
        if sys.stderr is not None:
            print(harmless(text), file=sys.stderr, flush=True)
    except OSError:
        pass


def relayed(room: str) -> AbstractContextManager[None]:
    """Say each message that a room logs inside this context."""
    return heard(lambda text: say(f"podlift: {text}"), room)


def answer(text: str, *, colours: bool = False) -> None:
    print(harmless(text, colours=colours), flush=True)


def as_json(value: Any) -> None:
    """Print one line of JSON on stdout; each object has a version, see docs/reference/json.md."""
    # Plans and reports have their own version.
    objects = [{"version": JSON_VERSION, **item} for item in (value if isinstance(value, list) else [value])]
    document = objects if isinstance(value, list) else objects[0]
    try:
        text = json.dumps(document, sort_keys=True, allow_nan=False)
    except ValueError:
        # A record that podlift did not write may hold NaN, which most readers of JSON refuse.
        text = json.dumps(json.loads(json.dumps(document), parse_constant=lambda name: None), sort_keys=True)
    answer(text)


def summary(run: Run, status: Status) -> dict[str, object]:
    position = run.progress()
    return {
        "url": run.url,
        "id": run.id,
        "state": status.state.value,
        "reason": status.reason.value,
        "exit_code": status.exit_code,
        "attempts": status.attempts,
        "restarted_alone": status.restarted_alone,
        "saved_step": status.saved_step,
        "saved_at": status.saved_at,
        "saved_every_s": status.saved_every_s,
        "continued_step": status.continued_step,
        "progress": None if position is None else asdict(position),
        "metrics": run.last_metrics(),
        "timings": status.timings,
        "backend": run.plan.backend,
        "emulator": run.plan.emulator,
        "vendor": status.vendor,
        "console": status.console,
        "registered": asdict(status.registered) if status.registered else None,
        "findings": list(status.findings),
        "spent": spent(status),
        "goodput": goodput_data(run.goodput()),
        "machine": machine_data(run),
    }


def machine_data(run: Run) -> dict[str, object]:
    """Return each task's use of its machine, for --json; a task without samples is left out."""
    used = [use for task in run.plan.tasks if (use := machine_use(run.plan.paths, task)) is not None]
    return {
        use.task: {
            **asdict(use.last),
            "mean_cpu_cores": round(use.mean_cpu_cores, 3),
            "peak_memory_bytes": use.peak_memory_bytes,
            "mean_gpu_use": use.mean_gpu_use,
            "samples": len(use.samples),
        }
        for use in used
    }


def machine_line(use: MachineUse, *, ended: bool = False) -> str:
    """Return the use in one line, see `uses`: "CPU 1.5 cores, memory 1.2 GB, disk 0 bytes/s, network 9 bytes/s"."""
    return ", ".join(f"{each.name} {each.last}" for each in uses(use, ended=ended))


def goodput_data(goodput: Goodput | None) -> dict[str, object] | None:
    """Return the parts of a run's time, for --json; None if it is not recorded."""
    shares = {} if goodput is None else {"share": goodput.goodput, "program_share": goodput.program_share}
    return None if goodput is None else {**shares, **asdict(goodput)}


def goodput_line(goodput: Goodput) -> str:
    """Return it in one line, without the parts that took no time."""
    parts = [
        f"{name.replace('_', ' ')} {duration(spent)}" for name, spent in goodput.parts.items() if spent >= _SHOWN_S
    ]
    steps = f" ({counted(goodput.steps_lost, 'step')} again)" if goodput.steps_lost else ""
    parts = [f"{part}{steps}" if part.startswith("lost") else part for part in parts]
    return f"{goodput.goodput:.1%} of {duration(goodput.total_s)}{': ' if parts else ''}{', '.join(parts)}"


def spent(status: Status) -> dict[str, object] | None:
    """Return the cost of a run so far, for --json; None where nothing is billed or no price is known."""
    used = Spent.of(status)
    return None if used.usd is None else asdict(used)


def refusal(problems: tuple[str, ...], exit_code: int) -> dict[str, object]:
    """Return the object of `--json` for a command that failed: the same keys, and the problems."""
    ended = {EXIT_USER: Reason.USER_ERROR.value, EXIT_CANCELLED: Reason.CANCELLED.value}
    reasons = {EXIT_INPUT: "bad_input", EXIT_DETACHED: "interrupted", **ended}
    unknown = (
        "url", "id", "state", "saved_step", "saved_at", "saved_every_s", "continued_step", "progress", "spent", "goodput",
        "registered",
    )  # fmt: skip
    empty = dict.fromkeys(("backend", "emulator", "vendor", "console"), "")
    none = {"attempts": 0, "restarted_alone": {}, "machine": {}, "metrics": {}, "timings": {}, **empty, "findings": []}
    reason = reasons.get(exit_code, Reason.INFRASTRUCTURE.value)
    return {**dict.fromkeys(unknown), **none, "reason": reason, "exit_code": exit_code, "problems": list(problems)}


def seconds(option: str, text: str, *, unit_required: bool = False) -> float:
    try:
        return parse_duration(text, unit_required=unit_required)
    except ValueError as error:
        raise InputError(f"{option}: {error} Received: {text!r}.") from None


def number(value: float | None) -> str:
    """Return a metric with four digits; a learning rate of 1e-05 is not 0.0000."""
    if value is None:
        return "nan"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"


def numbers(metrics: Mapping[str, float | None], between: str = "  ") -> str:
    return between.join(f"{name}: {number(value)}" for name, value in sorted(metrics.items()))
