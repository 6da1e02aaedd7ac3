"""Writes docs/reference/strategies.md from the measurements of the matrix (`--strategies-file`).

A row that a run has not measured stays as it was, with its date: the cells may be run in pieces (`--strategies-runs`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from strategy_cells import CASES, EXACT, KERAS, NOTES, REPLICAS, STYLES, UNWEIGHTED, Cell, cells

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
from wrap import wrapped

TESTS = Path(__file__).parent
MEASURED = TESTS / "strategies.json"
PAGE = TESTS.parent / "docs" / "reference" / "strategies.md"

_HEAD = """# Strategies: what gives the numbers of one device

*Written by the tests of the matrix (`scripts/test --full`), not by hand. Measured {dates}, {versions}.*

Each cell trains the same small network for two epochs, on this machine. The loss of each step (custom loop) or epoch (`fit`)
and the final weights are compared with those of one device that has the same global batches. A cell has the largest difference
of three trainings, relative to the largest value of an array:

| training | tolerance |
|---|---|
| *even*: batches of 40 | {even:.0e} |
| *uneven*: a last batch of 27, weights of the examples | {uneven:.0e}; `fit` of tf_keras on several replicas {unweighted:.0e} |
| *BatchNorm*: batches of 40, `BatchNormalization(synchronized=True)` | {norm:.0e} |

GPUs and TPUs are [logical CPU devices](../how-to/gpu.md) here, and a [stand-in](tpu-stand-in.md). In the row of
ParameterServerStrategy, replicas are workers. A number in brackets refers to the notes below.
"""
_ONE_DEVICE = """
BatchNormalization without `synchronized=True` normalizes the examples of each replica by their own moments, in every Keras: it
then gives other numbers than one device, as intended. Why the numbers of Keras 3 are those of one device:
[Keras under distribution strategies](../explanation/decisions/keras-multi-worker.md).
"""


def page(measured: Mapping[str, Any]) -> str:
    """Return the page; `measured` is the content of MEASURED."""
    days = sorted({row["on"] for row in measured.values()})
    versions = sorted({f"TensorFlow {row['tensorflow']}" for row in measured.values()})
    keras = {row["keras"] for row in measured.values()}
    versions += sorted(f"{'tf_keras' if number.startswith('2') else 'Keras'} {number}" for number in keras)
    dates = days[0] if len(days) == 1 else f"from {days[0]} to {days[-1]}"
    numbers: dict[str, int] = {}
    lines = list(_tables(measured, numbers))
    head = _HEAD.format(
        dates=dates,
        versions=", ".join(versions),
        even=EXACT["even"],
        uneven=EXACT["uneven"],
        unweighted=UNWEIGHTED["uneven"],
        norm=EXACT["batch norm"],
    )
    notes = [f"{number}. {NOTES[name]}" for name, number in numbers.items()]
    return wrapped("\n".join([head, *lines, "## Notes", "", *notes, _ONE_DEVICE]))


def _tables(measured: Mapping[str, Any], numbers: dict[str, int]) -> Iterator[str]:
    every = list(cells())
    for keras, keras_title in KERAS.items():
        for style, title in STYLES.items():
            yield f"## {keras_title}, {title}\n"
            yield f"| strategy | {' | '.join(counted(count) for count in REPLICAS)} |"
            yield "|---" * (len(REPLICAS) + 1) + "|"
            rows = [cell for cell in every if (cell.keras, cell.style) == (keras, style)]
            for strategy in dict.fromkeys(cell.strategy for cell in rows):
                found = [_text(cell, measured, numbers) for cell in rows if cell.strategy == strategy]
                yield f"| {strategy} | {' | '.join(found)} |"
            yield ""


def counted(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _text(cell: Cell, measured: Mapping[str, Any], numbers: dict[str, int]) -> str:
    note = f" [{numbers.setdefault(cell.note, len(numbers) + 1)}]" if cell.note else ""
    if not cell.run:
        return f"-{note}"
    row = measured.get(cell.name)
    if row is None:
        return "not measured"
    if cell.error:
        return f"refused{note}"
    return f"{', '.join(_number(row['differences'][case]) for case in CASES)}{note}"


def _number(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-").removesuffix("e+00") if value else "0"


# --- The plugin -------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strategies-file", action="store_true", help="write what cells gave to docs/reference/strategies.md"
    )
    parser.addoption(
        "--strategies-runs", metavar="DIR", help="keep there what runs gave, and use what is there: for pieces"
    )


class _Measured:
    """Writes both files at the end: tests in other processes read them meanwhile."""

    def __init__(self) -> None:
        self._rows: dict[str, Any] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            found: Any = dict(report.user_properties).get("strategies")
            self._rows |= found or {}

    def pytest_sessionfinish(self) -> None:
        rows = self._rows
        if not rows:
            return
        known = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
        order = [cell.name for cell in cells()]
        found = {name: (known | rows)[name] for name in order if name in known or name in rows}
        rows_of_text = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in found.items()]
        MEASURED.write_text("{\n" + ",\n".join(rows_of_text) + "\n}\n")
        PAGE.write_text(page(found))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--strategies-file") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Measured(), "strategies")
