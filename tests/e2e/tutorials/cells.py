"""Every code cell of the tutorials, by where it stands. Their text stays where it is: here are lines and our titles."""

from __future__ import annotations

from dataclasses import dataclass

PYTHON, SHELL = "python", "shell"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One code cell."""

    id: str  # the seed's number, and the cell's place in it
    lines: tuple[int, int]  # first and last line in the seed's file, from 1
    title: str
    technique: str
    kind: str = PYTHON  # or "shell" (commands, notebook magics), or the file that a notebook writes it to
    # A cell that lost its line breaks: which words of the line, from 0, and the (indent, number of words) of each line.
    words: tuple[int, tuple[tuple[int, int], ...]] | None = None
    instead: str = ""  # a person's code with podlift where the cell is no part of a training program

    @property
    def seed(self) -> str:
        """The number that the seed's file name starts with."""
        return self.id.partition("-")[0]


def _c(number: str, first: int, last: int, title: str, technique: str, **more: object) -> Cell:
    return Cell(id=number, lines=(first, last), title=title, technique=technique, **more)  # type: ignore[arg-type]


_MIRRORED, _MULTI, _SAVE, _BACKUP = "MirroredStrategy", "MultiWorkerMirroredStrategy", "one writer", "BackupAndRestore"
_SUBMIT = '`sdk.submit("main.py", workers=2)` with `local_cluster="workers"`'
_LOGS = '`for line in run.logs("worker-0")`'
_CONFIG = "podlift sets TF_CONFIG for every task"

# A table is read line by line: one cell, one line.
# fmt: off
_GUIDE = [
    _c("000-01", 22, 23, "imports", "setup"),
    _c("000-02", 51, 66, "outline of the Mirrored pattern", _MIRRORED),
    _c("000-03", 70, 107, "dense model and MNIST pipelines", "tf.data, Keras functional model"),
    _c("000-04", 110, 125, "fit and evaluate on all devices", _MIRRORED),
    _c("000-05", 144, 162, "newest checkpoint or a fresh model", "load_model"),
    _c("000-06", 165, 193, "train, then resume from the last epoch's folder", "ModelCheckpoint"),
    _c("000-07", 265, 270, "TF_CONFIG written by hand", "TF_CONFIG", instead=_CONFIG),
    _c("000-08", 296, 318, "outline of the chief's program", f"{_MULTI}, ModelCheckpoint, TensorBoard"),
    _c("000-09", 322, 344, "outline of the other workers' program", f"{_MULTI}, ModelCheckpoint, TensorBoard"),
    _c("000-10", 348, 352, "evaluator", f"{_MIRRORED}, evaluate"),
]

_RAY = [
    _c("002-01", 11, 82, "trainer around a Keras fit", "Ray Train", instead='`sdk.submit("train.py", workers=2)`'),
    _c("002-02", 98, 100, "outline: a model below a strategy", _MULTI),
    _c("002-03", 106, 107, "patch: batch size times workers", "global batch", instead="`64 * strategy.num_replicas_in_sync`"),
    _c("002-04", 117, 124, "trainer with two workers", "Ray Train", instead="`sdk.Resources(workers=2)`"),
    _c("002-05", 128, 135, "outline: trainer with a backend config", "Ray Train", instead="`sdk.Resources(workers=2)`"),
    _c("002-06", 143, 143, "start the training", "Ray Train", instead='`sdk.submit("train.py", workers=2).result()`'),
    _c("002-07", 155, 190, "shard of a Ray data set", "Ray Data", instead="give `fit` a `tf.data.Dataset`: it is sharded"),
    _c("002-08", 198, 203, "outline: report every epoch", "Ray Train", instead="nothing: `run.metrics()` has them"),
    _c("002-09", 219, 262, "save every epoch and report it", "Ray Train",
       instead="`ModelCheckpoint` below `AIP_CHECKPOINT_DIR`"),
    _c("002-10", 268, 328, "go on from a reported checkpoint", "Ray Train", instead="`load_model` below `AIP_CHECKPOINT_DIR`"),
]

_OVERVIEW = [
    _c("003-01", 27, 27, "all devices", _MIRRORED, words=(0, ((0, 3),))),
    _c("003-02", 27, 27, "two GPUs by name", _MIRRORED, words=(3, ((0, 13), (0, 4)))),
    _c("003-03", 27, 27, "hierarchical all-reduce", f"{_MIRRORED}, cross-device ops", words=(20, ((0, 8), (0, 5), (0, 4)))),
    _c("003-04", 37, 37, "TPU system and strategy", "TPUStrategy", words=(0, ((0, 4), (0, 1), (0, 1), (0, 3)))),
    _c("003-05", 51, 51, "defaults", _MULTI, words=(0, ((0, 3),))),
    _c("003-06", 51, 51, "NCCL asked for", f"{_MULTI}, communication", words=(3, ((0, 4), (0, 4), (0, 4)))),
    _c("003-07", 69, 69, "strategy and coordinator", "ParameterServerStrategy", words=(0, ((0, 5), (0, 4)))),
    _c("003-08", 79, 79, "variables on one device", "CentralStorageStrategy", words=(0, ((0, 3),))),
    _c("003-09", 91, 91, "model below a scope", _MIRRORED, words=(0, ((0, 3), (0, 2), (4, 4), (4, 2)))),
    _c("003-10", 100, 100, "global batch and its learning rate", "global batch",
       words=(0, ((0, 11), (0, 3), (0, 5), (0, 4), (0, 3), (0, 6), (0, 3)))),
    _c("003-11", 120, 120, "train step, run and reduce", "custom loop",
       words=(0, ((0, 5), (0, 3), (4, 4), (4, 3), (0, 2), (4, 4), (4, 4), (8, 4), (8, 4), (4, 4), (4, 2), (4, 2),
                  (0, 1), (0, 2), (4, 4), (4, 3)))),
]

_KILLS = "nothing: the supervisor ends its tasks"
_TUTORIAL = [
    _c("004-01", 25, 27, "standard library", "setup"),
    _c("004-02", 32, 32, "no GPU", "setup"),
    _c("004-03", 34, 34, "no TF_CONFIG yet", "TF_CONFIG"),
    _c("004-04", 36, 37, "current folder first on the path", "setup"),
    _c("004-05", 41, 41, "a nightly TensorFlow", "setup", kind=SHELL,
       instead="nothing: it was for a feature of TensorFlow 2.10"),
    _c("004-06", 45, 45, "import of TensorFlow", "setup"),
    _c("004-07", 52, 81, "data set and compiled CNN", "a module beside the script", kind="mnist_setup.py"),
    _c("004-08", 88, 93, "one worker, no strategy", "fit"),
    _c("004-09", 125, 130, "cluster of two as a dict", "TF_CONFIG"),
    _c("004-10", 134, 134, "the dict as JSON", "TF_CONFIG"),
    _c("004-11", 150, 150, "an environment variable", "TF_CONFIG"),
    _c("004-12", 154, 154, "the variable in a child process", "TF_CONFIG", kind=SHELL),
    _c("004-13", 163, 163, "strategy of one worker", _MULTI),
    _c("004-14", 171, 173, "model below the scope", _MULTI),
    _c("004-15", 181, 203, "the workers' program", f"{_MULTI}, TF_CONFIG", kind="main.py"),
    _c("004-16", 210, 210, "list the two files", "shell", kind=SHELL),
    _c("004-17", 216, 216, "TF_CONFIG of the first worker", "TF_CONFIG"),
    _c("004-18", 220, 223, "start the first worker", "shell", kind=SHELL, instead=_SUBMIT),
    _c("004-19", 234, 235, "wait for it", "shell", instead="`run.wait(timeout_s=60)`"),
    _c("004-20", 239, 239, "its log", "shell", kind=SHELL, instead=_LOGS),
    _c("004-21", 247, 248, "TF_CONFIG of the second worker", "TF_CONFIG"),
    _c("004-22", 252, 252, "start the second worker", "shell", kind=SHELL, instead=_SUBMIT),
    _c("004-23", 341, 341, "the first worker's log again", "shell", kind=SHELL, instead=_LOGS),
    _c("004-24", 430, 431, "forget TF_CONFIG", "TF_CONFIG"),
    _c("004-25", 432, 432, "kill background processes", "shell", kind=SHELL, instead=_KILLS),
    _c("004-26", 449, 454, "automatic sharding off", "AutoShardPolicy"),
    _c("004-27", 478, 478, "NCCL asked for", f"{_MULTI}, communication"),
    _c("004-28", 527, 556, "paths for chief and workers", _SAVE),
    _c("004-29", 560, 560, "every worker saves the model", _SAVE),
    _c("004-30", 567, 568, "workers remove their copy", _SAVE),
    _c("004-31", 574, 577, "load it and go on", "load_model"),
    _c("004-32", 590, 595, "checkpoint manager", "CheckpointManager"),
    _c("004-33", 599, 601, "save, workers remove theirs", f"CheckpointManager, {_SAVE}"),
    _c("004-34", 605, 607, "restore the newest and go on", "CheckpointManager"),
    _c("004-35", 708, 718, "backup at the end of each epoch", _BACKUP),
    _c("004-36", 804, 813, "the same, said explicitly", _BACKUP),
    _c("004-37", 901, 910, "backup every 30 steps", _BACKUP),
]
# fmt: on

CELLS = {cell.id: cell for cell in (*_GUIDE, *_RAY, *_OVERVIEW, *_TUTORIAL)}
# Of the text of all cells: a seed that changed is noticed before its cells are run.
DIGEST = "bc50e825ff382ed52716a46ccdbe015476b7f92bd08bc3f513be38dad73b9899"
