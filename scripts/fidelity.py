"""Reads the marks `@pytest.mark.fidelity(NAME, WHERE)` of the tests, without importing them."""

import ast
import json
from pathlib import Path

from sdk.backends.vertex.fidelity import behaviours

REPO = Path(__file__).resolve().parent.parent
FILE = REPO / "sdk" / "backends" / "vertex" / "fidelity.json"
PAGE = REPO / "docs" / "reference" / "fidelity.md"
HEAD = """# What of Vertex AI is reproduced

What is known of Vertex AI's behaviour, and whether local runs and the [emulator](emulator.md) do the same.
`podlift plan --backend vertex --fidelity` shows the rows that concern a job. "yes" means that a test shows it; the tests
carry the mark `fidelity`, from which `scripts/reference` writes this page. What only the real service can show has the
command that tries it.

"""


def shown_by() -> dict[str, dict[str, list[str]]]:
    """Return the tests by the name of the behaviour and by where they show it."""
    known = {each.name for each in behaviours()}
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted((REPO / "tests").rglob("test_*.py")):
        for test in ast.walk(ast.parse(path.read_bytes())):
            for name, where in _marks(test):
                place = f"{path.relative_to(REPO).as_posix()}::{test.name}"
                if name not in known or where not in ("local", "emulator"):
                    raise SystemExit(
                        f"{place}: no such behaviour or place: {name!r}, {where!r}. Known: {sorted(known)}"
                    )
                found.setdefault(name, {}).setdefault(where, []).append(place)
    return {name: dict(sorted(found[name].items())) for name in sorted(found)}


def _marks(node: ast.AST) -> list[tuple[str, str]]:
    if not isinstance(node, ast.FunctionDef):
        return []
    calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    marks = [each for each in calls if ast.unparse(each.func) == "pytest.mark.fidelity"]
    return [tuple(ast.literal_eval(argument) for argument in each.args) for each in marks]


def page(shown: dict[str, dict[str, list[str]]]) -> str:
    lines = ["| Vertex AI | concerns | local | emulator | source | how to try it |", "|---|---|---|---|---|---|"]
    for each in behaviours():
        local, emulator = ("yes" if shown.get(each.name, {}).get(where) else "no" for where in ("local", "emulator"))
        attempt = f"`{each.attempt}`" if each.attempt else ""
        lines.append(f"| {each.text} | {each.concern} | {local} | {emulator} | {each.source} | {attempt} |")
    return HEAD + "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """Return the generated files with their text."""
    shown = shown_by()
    return {FILE: json.dumps(shown, indent=1) + "\n", PAGE: page(shown)}
