"""Runs, plans and lists as the cells of a notebook show them."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from page_runs import page_run
from registered_models import register
from support import REPO, FakeClock, holds

import sdk
from sdk.backends.base import LogLine
from sdk.checkpoint.catalog import CheckpointInfo
from sdk.ui import notebook
from sdk.ui.rows import CheckpointRows

HOSTILE = '"><script>alert(1)</script>'
RECORDS = [{"step": step, "metrics": {"loss": 1 / step, HOSTILE: 2.0}} for step in (1, 2, 3)]


def test_a_cell_shows_a_run_with_its_root_cause_curves_and_damage_without_scripts(root: Path) -> None:
    page_run(root, "digits-aaaaaa", RECORDS, failure=f"ValueError: {HOSTILE}", traceback=f"T: {HOSTILE}")
    run = sdk.attach("digits-aaaaaa")
    cell = run._repr_html_()
    assert cell.count("<polyline") == 2
    said = ("FAILED", "podlift logs digits-aaaaaa", "ValueError: &#34;&gt;&lt;script&gt;")
    holds(cell, *said, lacks=["<script"])
    next(Path(run.plan.paths.events).glob("*.final.json")).write_text("no")
    assert "is damaged" in run._repr_html_()


def test_lists_of_runs_and_checkpoints_and_plans_are_tables(root: Path) -> None:
    page_run(root, "digits-aaaaaa", RECORDS)
    (root / "runs" / f"broken-{HOSTILE[:9]}").mkdir()
    found = sdk.runs()
    assert isinstance(found, list)
    said = ("SUCCEEDED", "is not a run of podlift", "broken-&#34;&gt;&lt;script")
    holds(found._repr_html_(), *said, lacks=["<script"])  # type: ignore[attr-defined]
    entry = CheckpointInfo(key="k", step=7, epoch=0, serial=1, size=2_000_000, pinned=(HOSTILE,), metrics={"loss": 0.5})
    holds(CheckpointRows([entry])._repr_html_(), "2.0 MB", lacks=["<script"])
    plan = replace(sdk.attach("digits-aaaaaa").plan, inputs={"data": HOSTILE})
    holds(plan._repr_html_(), "digits-aaaaaa", lacks=["<script"])


def test_a_result_a_status_models_and_log_lines_are_shown_as_text_whatever_they_hold(root: Path) -> None:
    page_run(root, "digits-aaaaaa", RECORDS, log=f"{HOSTILE}\x1b[31m red\n")
    page_run(root, "digits-bbbbbb", failure=f"ValueError: {HOSTILE}", traceback=f"T: {HOSTILE}")
    register(root, "digits", {"model.keras": b"1"})
    ended, failed = sdk.attach("digits-aaaaaa"), sdk.attach("digits-bbbbbb")
    result, lines = ended.result(), ended.logs("chief-0")
    for shown, said in (
        (result, f"<td>{result.model_dir}</td>"),
        (replace(result, value=HOSTILE), "&gt;&lt;script"),
        (failed.status(), "FAILED (user_error)"),
        (failed.status(), "T: &quot;&gt;&lt;script"),
        (sdk.models(), '<th scope="row">digits</th><td>1</td><td>1</td>'),
        (lines, "<summary>chief-0, attempt 1</summary>"),
        (lines, '&gt;&lt;script&gt;alert(1)&lt;/script&gt;<span class="a31"> red</span>'),
        (LogLine(task="chief-0", attempt=1, text=HOSTILE), "<pre>chief-0: &quot;&gt;&lt;script"),
    ):
        cell = shown._repr_html_()  # type: ignore[attr-defined]
        assert said in cell and "<script" not in cell and "style" not in cell, cell
    assert [line.task for line in lines] == ["chief-0"], "showing them reads none"


def test_metrics_are_rows_with_epochs_from_1_and_a_programs_names_replace_no_field(root: Path) -> None:
    named = {"time": 7.0, "time_": 8.0, "loss": None}
    page_run(root, "digits-aaaaaa", [*RECORDS, {"step": 4, "epoch": 2, "metrics": named}])
    run = sdk.attach("digits-aaaaaa")
    first, *_, last = run.metrics()
    assert first == {"attempt": 1, "time": first["time"], "step": 1, "epoch": 1, "loss": 1.0, HOSTILE: 2.0}
    known = {"attempt": 1, "time": last["time"], "step": 4, "epoch": 2}
    assert last == {**known, "time_": 7.0, "time__": 8.0, "loss": None}
    assert run.metric_records()[-1]["metrics"] == named and run.last_metrics()["time"] == 7.0
    table = pytest.importorskip("pandas").DataFrame(run.metrics())
    assert table["loss"].min() == 1 / 3 and list(table["epoch"]) == [1, 1, 1, 2]


@pytest.mark.process  # without a cache, matplotlib asks a program for the fonts
def test_a_plot_has_the_axes_of_each_metric_and_names_its_requirement(root: Path, monkeypatch) -> None:
    hostile = {"$\\frac{$": 1.0, "_mine": 2.0, "gap": None}
    records = [{"step": step, "metrics": {"loss": 1 / step, "val_loss": 2 / step, **hostile}} for step in (1, 2)]
    page_run(root, "digits-aaaaaa", records)
    run = sdk.attach("digits-aaaaaa")
    with monkeypatch.context() as without, pytest.raises(sdk.InputError, match="Next: pip install matplotlib"):
        without.setitem(sys.modules, "matplotlib", None)
        run.plot()
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    axes = run.plot()
    assert axes.keys() == {"loss", "val_loss", *hostile} and axes["loss"] is axes["val_loss"] is not axes["gap"]
    assert [list(line.get_ydata()) for line in axes["loss"].lines] == [[1.0, 0.5], [2.0, 1.0]]
    axes["loss"].figure.canvas.draw()
    assert [text.get_text() for text in axes["_mine"].get_legend().texts] == [" _mine"]
    assert run.plot("val_loss").keys() == {"val_loss"}
    pyplot.close("all")
    with pytest.raises(sdk.InputError, match=r"has no metric 'los'\. Did you mean 'loss'"):
        run.plot("los")
    with pytest.raises(sdk.InputError, match=r"has no metric \"\['loss'\]\"\. Did you mean 'loss'"):
        run.plot(["loss"])  # type: ignore[arg-type]
    page_run(root, "digits-bbbbbb")
    with pytest.raises(sdk.InputError, match="has reported no metrics yet"):
        sdk.attach("digits-bbbbbb").plot()


CELLS = (
    "import sdk\nRATE = 0.5",
    """
def train(epochs, rate):
    for epoch in range(epochs):
        sdk.context().report({"loss": RATE ** (epoch + 1) + rate, "<b>": 1.0}, step=epoch + 1)
        print("epoch", epoch + 1, "<script>")
    return {"rate": rate}
""",
    "run = sdk.submit(train, args={'epochs': 3, 'rate': 0.1}, name='first', timeout='5m')\nrun.result(timeout_s=240)",
    """
kernel = get_ipython().kernel
for text in ("sdk.submit(acc", "sdk.plan(train, work", "sdk.schedule(train, max_cost", "run.plo"):
    print(kernel.do_complete(text, len(text))["matches"])
""",
    "print(kernel.do_inspect('sdk.submit(', 10)['data']['text/plain'])",
    "run.status()",
    "run.logs()",
    "sdk.models()",
    "run",
    "import pandas\npandas.DataFrame(run.metrics())",
    "run.plot('loss')",
    "sdk.submit(train, acelerator='cpu')",
)


@pytest.mark.full
@pytest.mark.process
def test_a_notebook_of_a_stranger_in_a_messy_folder_completes_explains_and_shows(root: Path, tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for module in ("ipykernel", "pandas", "matplotlib"):
        pytest.importorskip(module)
    folder = tmp_path / "Meine Übungen (neu)"
    mess = (".ipynb_checkpoints/alt.ipynb", "Untitled.ipynb", "data/raw/x.csv", "requirements.txt.bak", "modell.h5")
    for name in mess:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("no notebook, no requirements")
    (folder / "loop").symlink_to(folder)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    where = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(book, timeout=300, allow_errors=True, resources=where)
    client.execute(env={**os.environ, "PYTHONPATH": str(REPO)})
    texts, cells = [], []
    for cell in book.cells:
        texts.append("".join(out.get("text", "") or out.get("evalue", "") for out in cell.outputs))
        cells.append({kind: text for out in cell.outputs for kind, text in out.get("data", {}).items()})
    _, _, result, completed, explained, status, logs, models, run, table, plot, wrong = zip(texts, cells, strict=True)
    assert "0.225" in result[1]["text/html"] and "Result(value={'rate': 0.1}" in result[1]["text/plain"], texts
    completions = [ast.literal_eval(line) for line in completed[0].splitlines()]
    for name, found in zip(("accelerator=", "workers=", "max_cost_usd=", "plot"), completions, strict=True):
        assert any(one.endswith(name) for one in found), (name, found)
    plain = re.sub(r"\x1b\[[\d;]*m", "", explained[0])
    assert "accelerator: 'str | None' = None" in plain and "accelerator: hardware of each task" in plain, plain
    said = ("SUCCEEDED (done)", "epoch 3 &lt;script&gt;", "No models.", "<polyline")
    for shown, part in zip((status, logs, models, run), said, strict=True):
        holds(shown[1]["text/html"], part, lacks=["<script"])
    assert "<td>0.225" in table[1]["text/html"] and "image/png" in plot[1]
    assert "Unknown setting 'acelerator'. Did you mean 'accelerator'?" in wrong[0]


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
def test_watching_without_a_notebook_shows_the_output_of_the_command(root: Path, capfd) -> None:
    page_run(root, "digits-aaaaaa", failure="ValueError: bad")
    sdk.attach("digits-aaaaaa").watch()
    assert "ValueError: bad" in capfd.readouterr().err
