"""The cells of the matrix of strategies: the program of each one, and its expected numbers or the reason why it fails.

`runtime/test_strategy_matrix.py` runs them; `strategy_page.py` writes docs/reference/strategies.md from what they gave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

CASES = ("even", "uneven", "batch norm")
STYLES = {"fit": "`fit`", "loop": "custom loop"}
KERAS = {"keras3": "Keras 3", "tf_keras": "tf_keras"}
REPLICAS = (1, 2, 4)


@dataclass(frozen=True, kw_only=True)
class MatrixRun:
    """A job that gives columns: `strategy_matrix.py` trains in one process for all of them."""

    name: str
    columns: tuple[str, ...]
    accelerator: str = "cpu"
    workers: int = 1
    ps: int = 0
    tpu_replicas: int = 0


def _columns(kind: str) -> tuple[str, ...]:
    return tuple(f"{kind}-{count}" for count in REPLICAS)


RUNS = {
    run.name: run
    for run in (
        MatrixRun(name="one", columns=("one",)),
        MatrixRun(name="mirrored", accelerator="a100:4", columns=("one_device-1", *_columns("mirrored"))),
        MatrixRun(name="central", accelerator="a100:4", columns=_columns("central_storage")),
        MatrixRun(name="worker-of-4", accelerator="a100:4", columns=("multi_worker-4",)),
        MatrixRun(name="worker-of-1", accelerator="a100", columns=("multi_worker-1",)),
        MatrixRun(name="worker-of-2", accelerator="a100:2", columns=("multi_worker-2",)),
        MatrixRun(name="two-workers-of-1", accelerator="a100", workers=2, columns=("multi_worker-2",)),
        MatrixRun(name="two-workers-of-2", accelerator="a100:2", workers=2, columns=("multi_worker-4",)),
        *(
            MatrixRun(name=f"tpu-{count}", accelerator="v5e-4", tpu_replicas=count, columns=(f"tpu-{count}",))
            for count in REPLICAS
        ),
        *(
            MatrixRun(name=f"ps-{count}", workers=count + 1, ps=1, columns=(f"parameter_server-{count}",))
            for count in REPLICAS
        ),
    )
}

# The largest difference from one device, relative to the largest value of an array.
EXACT = {"even": 1e-6, "uneven": 1e-6, "batch norm": 2e-5}
# tf_keras gives all replicas the same weight, whatever they have of the last batch: a cell that is exact has been mended.
UNWEIGHTED, UNWEIGHTED_LEAST = EXACT | {"uneven": 5e-2}, 1e-4


@dataclass(frozen=True, kw_only=True)
class Cell:
    strategy: str  # a row of the page
    style: str
    keras: str
    replicas: int
    run: str = ""  # "" if nothing is run
    column: str = ""
    tolerance: dict[str, float] = field(default_factory=lambda: EXACT)
    least: dict[str, float] = field(default_factory=dict)  # what upstream still gets wrong; less is a reason to look
    error: str = ""  # a pattern of the message; the cell fails as soon as there is none
    note: str = ""  # a name of NOTES

    @property
    def name(self) -> str:
        return f"{self.strategy}, {self.style}, {self.keras}, {self.replicas}"


NOTES = {
    "single": "It has one replica.",
    "workers": "Two workers have at least two replicas.",
    "unweighted": (
        "tf_keras gives each replica the same weight, also where the last batch leaves them different numbers of examples. "
        "No report of it was found. The plan says so, and the test fails as soon as these numbers are those of one device. "
        "Use batches that the replicas divide, a custom loop, or Keras 3."
    ),
    "joined": (
        "Each step ends before the next one begins (`coordinator.join()`), so that the parameter servers see one order of "
        "updates. Without it, workers update independently of each other, and no order is promised."
    ),
    "asynchronous": (
        "Workers update the weights independently of each other: two runs differ from each other, and from one device. "
        "These are the differences of one run. They have no tolerance: the test asserts that the loss gets smaller."
    ),
    "served": (
        "`fit` of Keras 3 has no support for ParameterServerStrategy. No report of it was found. The plan says so, and names "
        "`--code-keras legacy` and the custom loop; the test fails as soon as Keras accepts it."
    ),
}


def cells() -> Iterator[Cell]:
    """Yield every cell of the page, in its order."""
    for strategy, kind, runs in _ROWS:
        for style in STYLES:
            for keras in KERAS:
                for replicas in REPLICAS:
                    yield _cell(strategy, kind, style, keras, replicas, runs)


def _cell(strategy: str, kind: str, style: str, keras: str, replicas: int, runs: dict[int, str]) -> Cell:
    place = {"strategy": strategy, "style": style, "keras": keras, "replicas": replicas}
    if replicas not in runs:
        return Cell(**place, note="single" if kind == "one_device" else "workers")  # type: ignore[arg-type]
    found = Cell(**place, run=runs[replicas], column=f"{kind}-{replicas}")  # type: ignore[arg-type]
    return _judged(found, kind)


def _judged(cell: Cell, kind: str) -> Cell:
    if kind == "parameter_server" and cell.style == "loop":
        return replace(cell, note="joined")
    if kind == "parameter_server" and cell.keras == "keras3":
        return replace(cell, error="create_per_worker_dataset|fit.. of Keras 3 cannot train", note="served")
    if kind == "parameter_server" and cell.replicas > 1:
        return replace(cell, tolerance={}, note="asynchronous")
    if cell.style == "fit" and cell.keras == "tf_keras" and cell.replicas > 1:
        return replace(cell, tolerance=UNWEIGHTED, least={"uneven": UNWEIGHTED_LEAST}, note="unweighted")
    return cell


_ROWS: tuple[tuple[str, str, dict[int, str]], ...] = (
    ("OneDeviceStrategy", "one_device", {1: "mirrored"}),
    ("MirroredStrategy", "mirrored", dict.fromkeys(REPLICAS, "mirrored")),
    ("MultiWorkerMirroredStrategy, 1 worker", "multi_worker", {1: "worker-of-1", 2: "worker-of-2", 4: "worker-of-4"}),
    ("MultiWorkerMirroredStrategy, 2 workers", "multi_worker", {2: "two-workers-of-1", 4: "two-workers-of-2"}),
    ("ParameterServerStrategy", "parameter_server", {count: f"ps-{count}" for count in REPLICAS}),
    ("CentralStorageStrategy", "central_storage", dict.fromkeys(REPLICAS, "central")),
    ("TPUStrategy", "tpu", {count: f"tpu-{count}" for count in REPLICAS}),
)
