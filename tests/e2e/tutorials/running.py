"""Assembles programs, runs them as jobs, and says what became of them."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from support import PROGRAMS

import sdk

from . import seeds
from .cells import CELLS, SHELL
from .parts import Ours, Outcome, Part, Program

MODES = {"keras3": "auto", "legacy": "legacy"}
TIMEOUT_S = 900
_SHELL = "import subprocess\nsubprocess.run({command!r}, shell=True, check=True, timeout=60)"


@dataclass(frozen=True)
class Measured:
    """What became of a run: the error's type ("" for none), its message, the cell it was raised in, the logs by task."""

    type: str
    message: str
    cell: str
    logs: dict[str, str]

    def as_expected(self, expected: Outcome) -> bool:
        """True if this is the outcome that the catalogue states."""
        if expected is None:
            return not self.type
        cells = expected.cell.split() or [""]
        return self.type == expected.type and self.cell in cells and expected.fragment in self.message


def assemble(parts: tuple[Part | Ours, ...], shared: str) -> tuple[str, list[str]]:
    """Return a program's text and the cell of each of its lines.

    Args:
        parts: the parts of the program.
        shared: stands in for /tmp, which is not ours alone.
    """
    lines: list[str] = []
    owners: list[str] = []
    for part in parts:
        if isinstance(part, Ours):
            found = part.code.splitlines()
        else:
            code = seeds.text(CELLS[part.cell])
            for old, new in part.edits:
                if old not in code:
                    raise AssertionError(f"{part.cell} has no {old!r}")
                code = code.replace(old, new)
            if CELLS[part.cell].kind == SHELL:
                code = _SHELL.format(command=code)
            first, last = part.lines or (1, None)
            found = [" " * part.indent + line for line in code.splitlines()[first - 1 : last]]
        lines += [line.replace("'/tmp/", f"'{shared}/") for line in found]
        owners += ["" if isinstance(part, Ours) else part.cell] * len(found)
    return "\n".join(lines) + "\n", owners


def write_project(program: Program, folder: Path) -> list[str]:
    """Write a program of cells as a project with the entry `program.py`, or `main.py` where the tutorial calls it so."""
    project, shared = folder / "project", folder / "shared"
    project.mkdir()
    shared.mkdir()
    for name, parts in program.files.items():
        (project / name).write_text(assemble(parts, str(shared))[0])
    shutil.copy(PROGRAMS / "mnist_offline.py", project)
    text, owners = assemble(program.parts, str(shared))
    (project / "program.py").write_text(text)
    return owners


def run_cells(program: Program, mode: str, folder: Path) -> Measured:
    """Run a program of cells."""
    owners = write_project(program, folder)
    resources = sdk.Resources(workers=program.workers, ps=program.ps, accelerator=program.accelerator)
    job = sdk.Job(str(folder / "project" / "program.py"), resources=resources, code=sdk.Code(keras=MODES[mode]))
    return run(job, folder / "root", owners, sdk.Local(cluster=program.cluster, network=program.network))


def run(job: sdk.Job, root: Path, owners: list[str], local: sdk.Local) -> Measured:
    """Run a job to its end.

    Args:
        job: with a script as its entry.
        root: where its run goes.
        owners: the cell of each line of that script.
        local: the shape of its cluster, and its network.
    """
    try:
        submitted = sdk.submit(job, root=root, backend=local)
    except sdk.InputError as error:
        found = re.search(r"\.py:(\d+)", str(error))
        return Measured("InputError", str(error), _owner(owners, int(found[1]) if found else 0), {})
    try:
        status = submitted.wait(TIMEOUT_S)
    except sdk.WaitTimeoutError:
        submitted.cancel(grace_s=0)
        status = submitted.wait(30)
    logs = {task: "\n".join(line.text for line in submitted.logs(task)) for task in submitted.plan.tasks}
    if status.failure is None:
        return Measured("" if status.state.value == "SUCCEEDED" else status.state.value, "", "", logs)
    kind, message, line = _last_error(status.failure.traceback, Path(job.entry).name)
    return Measured(kind or status.reason.value, message or status.failure.message, _owner(owners, line), logs)


def _last_error(traceback: str, script: str) -> tuple[str, str, int]:
    """Return type and message of the error that ended a program, and the script's line it came through."""
    last = traceback.rpartition("Traceback (most recent call last)")[2]
    error = re.search(r"^([A-Za-z_][\w.]*)(?:: (.*))?\Z", last, re.M | re.S)
    line = re.search(rf'File "(?:[^"]*/)?{re.escape(script)}", line (\d+), in <module>', last)
    if error is None:
        return "", "", 0
    return error[1].rpartition(".")[2], (error[2] or "").strip(), int(line[1]) if line else 0


def _owner(owners: list[str], line: int) -> str:
    return owners[line - 1] if 0 < line <= len(owners) else ""
