"""docs/reference/fidelity.md claims only behaviour that a test shows.

The marks `@pytest.mark.fidelity(NAME, WHERE)` are read without an import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from sources import files_with, nodes_of
from support import REPO

pytestmark = pytest.mark.xdist_group("imports")


def rows() -> dict[str, tuple[str, str]]:
    """Return the page's claims about local runs and the emulator, by name."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (REPO / "docs" / "reference" / "fidelity.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    return {name: (local, emulator) for name, _, _, local, emulator, *_ in cells[1:]}


def marks() -> Iterator[tuple[str, str]]:
    for path in files_with("mark.fidelity"):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.fidelity":
                        name, where = (ast.literal_eval(argument) for argument in call.args)
                        yield name, where


@pytest.mark.shows("Known differences")
def test_the_page_says_yes_where_a_test_shows_a_behaviour_and_no_elsewhere() -> None:
    shown = set(marks())
    assert shown <= {(name, where) for name in rows() for where in ("local", "emulator")}
    assert rows() == {
        name: ("yes" if (name, "local") in shown else "no", "yes" if (name, "emulator") in shown else "no")
        for name in rows()
    }
