"""Each strategy, as `fit` and as a loop, with both Keras: the losses and weights of one device, or the reason why not.

The trainings are left to the full run, like the trainings of other networks in `gpu/test_gpu_stand_in.py`; the default run
compares the page with the measurements. `--strategies-file` writes them to docs/reference/strategies.md (`strategy_page.py`).
"""

import json
import re
from datetime import date
from pathlib import Path

import pytest
from strategy_cells import CASES, RUNS, cells
from strategy_page import MEASURED, page
from support import PROGRAMS, REPO, TRAINING_S, needs

import sdk

np = pytest.importorskip("numpy")
needs("tensorflow", "tf_keras")

SCRIPT = PROGRAMS / "strategy_matrix.py"
CELLS = [cell for cell in cells() if cell.run]


def marked(cell):
    """One device is trained once for each Keras. What the mission names is tried with the oldest TensorFlow, too."""
    name = f"{cell.name} ({cell.run})"
    oldest = [pytest.mark.oldest] if re.search("mirrored|tpu", name, re.IGNORECASE) else []
    return pytest.param(cell, id=name, marks=[pytest.mark.xdist_group(f"strategies, {cell.keras}"), *oldest])


def trained(folder, run, keras):
    """Return the results of each task, by column."""
    resources = sdk.Resources(accelerator=run.accelerator, workers=run.workers, ps=run.ps)
    code = sdk.Code(keras="legacy" if keras == "tf_keras" else "auto")
    job = sdk.Job(SCRIPT, args=[",".join(run.columns)], resources=resources, code=code)
    with pytest.MonkeyPatch.context() as shell:
        shell.setenv("PODLIFT_TPU_REPLICAS", str(run.tpu_replicas or ""))
        written = Path(sdk.submit(job, root=folder).result(TRAINING_S).model_dir)
    seen = {
        column: [json.loads(path.read_text()) for path in sorted(written.glob(f"{column}-[a-z]*.json"))]
        for column in run.columns
    }
    return seen | {"on": date.today().isoformat()}


@pytest.fixture(scope="module")
def seen(tmp_path_factory, request):
    """Return a function that gives the results of a run; each run happens once, or did so in a piece before."""
    kept = request.config.getoption("--strategies-runs")
    kept = Path(kept) if kept else tmp_path_factory.mktemp("runs")

    def find(name, keras):
        path = kept / f"{name}-{keras}.json"
        if not path.exists():
            found = trained(tmp_path_factory.mktemp(name), RUNS[name], keras)
            path.write_text(json.dumps(found))
        return json.loads(path.read_text())

    return find


def difference(one, found):
    """Return the largest difference from one device, relative to the largest value of each array."""
    assert found.keys() == one.keys(), found
    return max(
        float(np.max(np.abs(np.asarray(found[name]) - value)) / max(np.max(np.abs(value)), 1e-12))
        for name, value in one.items()
    )


def differences(cell, one, tasks):
    """Compare all tasks of a column with one device, for each case of a cell; they must be within its tolerance."""
    found = {}
    for case in CASES:
        expected, *given = (task[f"{cell.style} {case}"] for task in (one[0], *tasks))
        if cell.error:
            assert all(re.search(cell.error, each["error"]) for each in given), given
            continue
        assert all(each == given[0] for each in given[1:]), "tasks differ"
        found[case] = difference(expected, given[0])
        if cell.tolerance:
            assert found[case] <= cell.tolerance[case], (case, found[case])
        else:
            assert given[0]["loss"][-1] < given[0]["loss"][0]
        assert found[case] >= cell.least.get(case, 0), (
            f"{case}: upstream is mended, and the note {cell.note!r} has to go"
        )
    return found


@pytest.mark.tensorflow
@pytest.mark.full
@pytest.mark.parametrize("cell", [marked(cell) for cell in CELLS])
def test_a_cell_gives_the_numbers_of_one_device_or_fails_as_the_page_says(seen, cell, record_property):
    run = seen(cell.run, cell.keras)
    tasks = run[cell.column]
    found = differences(cell, seen("one", cell.keras)["one"], tasks)
    versions = tasks[0]["versions"]
    record_property("strategies", {cell.name: {"differences": found, "on": run["on"], **versions}})


# --- The page ---------------------------------------------------------------------------------------------------------


def test_the_page_equals_the_measurements():
    assert (REPO / "docs" / "reference" / "strategies.md").read_text() == page(json.loads(MEASURED.read_text()))


def test_every_cell_was_measured_and_is_within_its_tolerance():
    measured, every = json.loads(MEASURED.read_text()), {cell.name: cell for cell in CELLS}
    assert measured.keys() == every.keys()
    for name, row in measured.items():
        cell, found = every[name], row["differences"]
        assert set(found) == (set() if cell.error else set(CASES))
        assert all(found[case] <= limit for case, limit in cell.tolerance.items() if found)
        assert all(found[case] >= least for case, least in cell.least.items())
