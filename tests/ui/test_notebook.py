"""Runs, plans and lists as the cells of a notebook show them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from page_runs import page_run
from support import FakeClock

import sdk
from sdk.checkpoint.catalog import CheckpointInfo
from sdk.ui import notebook
from sdk.ui.rows import CheckpointRows

HOSTILE = '"><script>alert(1)</script>'
RECORDS = [{"step": step, "metrics": {"loss": 1 / step, HOSTILE: 2.0}} for step in (1, 2, 3)]


def test_a_cell_shows_a_run_with_its_root_cause_and_curves_and_without_scripts(root: Path) -> None:
    page_run(root, "digits-aaaaaa", RECORDS, failure=f"ValueError: {HOSTILE}", traceback=f"T: {HOSTILE}")
    cell = sdk.attach("digits-aaaaaa")._repr_html_()
    assert "FAILED" in cell
    assert cell.count("<polyline") == 2
    assert "podlift logs digits-aaaaaa" in cell
    assert "<script" not in cell
    assert "ValueError: &#34;&gt;&lt;script&gt;" in cell


def test_a_cell_of_a_damaged_run_says_what_is_wrong(root: Path) -> None:
    run = page_run(root, "digits-aaaaaa")
    attached = sdk.attach("digits-aaaaaa")
    next(Path(run.events).glob("*.final.json")).write_text("no")
    assert "is damaged" in attached._repr_html_()


def test_the_list_of_runs_is_a_list_that_a_notebook_shows_as_a_table(root: Path) -> None:
    page_run(root, "digits-aaaaaa", RECORDS)
    (root / "runs" / f"broken-{HOSTILE[:9]}").mkdir()
    found = sdk.runs()
    assert isinstance(found, list)
    table = found._repr_html_()  # type: ignore[attr-defined]
    assert "SUCCEEDED" in table
    assert "is not a run of podlift" in table
    assert "broken-&#34;&gt;&lt;script" in table


def test_checkpoints_and_plans_are_tables(root: Path) -> None:
    entry = CheckpointInfo(key="k", step=7, epoch=0, serial=1, size=2_000_000, pinned=(HOSTILE,), metrics={"loss": 0.5})
    table = CheckpointRows([entry])._repr_html_()
    assert "2.0 MB" in table
    assert "<script" not in table
    page_run(root, "digits-aaaaaa")
    plan = sdk.attach("digits-aaaaaa").plan
    shown = replace(plan, inputs={"data": HOSTILE})._repr_html_()
    assert "digits-aaaaaa" in shown
    assert "<script" not in shown


class Cells:
    """What IPython's display module does with a cell."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    HTML = staticmethod(str)

    def display(self, html: str, *, display_id: bool) -> Cells:
        assert display_id
        return self.update(html)

    def update(self, html: str) -> Cells:
        self.shown.append(html)
        return self


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Cells:
    found = Cells()
    kernel = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel, display=found))
    return found


def test_watching_in_a_notebook_updates_one_cell_until_the_end(root: Path, cells: Cells) -> None:
    page_run(root, "digits-aaaaaa", RECORDS)
    sdk.attach("digits-aaaaaa").watch()
    assert len(cells.shown) == 2
    assert "SUCCEEDED" in cells.shown[-1]


def test_an_interrupt_of_the_kernel_ends_the_watching_and_leaves_the_run_alone(root: Path, cells: Cells) -> None:
    run = page_run(root, "digits-aaaaaa")
    watched = sdk.attach("digits-aaaaaa")

    def interrupted() -> Iterator[sdk.Status]:
        yield sdk.Status(state=sdk.State.RUNNING, reason=sdk.Reason.TRAINING)
        raise KeyboardInterrupt

    watched.following = interrupted  # type: ignore[assignment, method-assign]
    notebook.watch(watched, "digits-aaaaaa", FakeClock())
    assert "The run continues. Next: run.watch()" in cells.shown[-1]
    assert not Path(run.url, "control").exists()


@pytest.mark.process
def test_watching_without_a_notebook_shows_what_the_command_shows(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page_run(root, "digits-aaaaaa", failure="ValueError: bad")
    sdk.attach("digits-aaaaaa").watch()
    assert "ValueError: bad" in capfd.readouterr().err
