"""The tutorials' own cells, where the tutorials are on this machine: each has exactly the documented outcome."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from . import report, running, seeds
from .assemblies import PROGRAMS
from .cells import CELLS, DIGEST, SHELL

pytestmark = [pytest.mark.tensorflow, pytest.mark.full, pytest.mark.xdist_group("tutorials")]

_CASES = [
    pytest.param(program, mode, id=f"{program.name}-{mode}") for program in PROGRAMS.values() for mode in report.MODES
]
needs_seeds = pytest.mark.skipif(
    not seeds.here(), reason="TUTORIAL_SEEDS names no folder with the texts of the tutorials"
)


@pytest.mark.parametrize(("program", "mode"), _CASES)
def test_a_program_of_cells_has_the_documented_outcome(program, mode: str, tmp_path: Path, measurements) -> None:
    if program.cells and not seeds.here():
        pytest.skip("TUTORIAL_SEEDS names no folder with the texts of the tutorials")
    if program.absent and importlib.util.find_spec(program.absent):
        pytest.skip(f"{program.absent} is installed: what is documented is how the program fails without it")
    expected = getattr(program, mode)
    measured = running.run_cells(program, mode, tmp_path)
    assert measured.as_expected(expected), f"expected {expected}, got {measured}"
    silent = [task for task, log in measured.logs.items() if program.says not in log]
    assert expected or not silent, f"{program.says!r} is not in the log of {silent}"
    measurements.add(program.name, mode)


@needs_seeds
def test_every_cell_is_where_the_catalogue_says() -> None:
    assert seeds.digest(CELLS.values()) == DIGEST


@needs_seeds
def test_no_sentence_of_the_tutorials_is_in_the_repository() -> None:
    window = 10
    for path in [*Path(__file__).parent.rglob("*.py"), report.DOCUMENT]:
        words = _words(path.read_text())
        ours = {tuple(words[i : i + window]) for i in range(len(words) - window + 1)}
        for seed in seeds.FOLDER.glob("*.txt"):
            words = _words(seed.read_text(encoding="utf-8"))
            theirs = {tuple(words[i : i + window]) for i in range(len(words) - window + 1)}
            assert not ours & theirs, f"{path.name} repeats {seed.name}: {sorted(ours & theirs)[:3]}"


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def test_every_cell_is_run_or_has_something_in_its_place() -> None:
    run = {cell for program in PROGRAMS.values() for cell in program.cells}
    assert [cell.id for cell in CELLS.values() if cell.id not in run and not cell.instead] == []
    assert [cell.id for cell in CELLS.values() if cell.id not in run and cell.kind != SHELL] == []


def test_the_document_is_the_catalogue() -> None:
    assert report.DOCUMENT.read_text() == report.render(report.measured_with())
