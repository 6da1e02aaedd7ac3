"""Every code cell of the tutorials, by where it stands. Their text stays where it is: here are lines, hashes, our titles."""

from __future__ import annotations

from dataclasses import dataclass, replace

PYTHON, SHELL = "python", "shell"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One code cell.

    Args:
        id: the seed's number, and the cell's place in it.
        lines: first and last line in the seed's file, from 1.
        digest: first 12 hex digits of the sha256 of its normalised text.
        title: our words for it.
        technique: what it shows.
        kind: "python", "shell" (commands, notebook magics), or the file that a notebook writes it to.
        words: for a cell that lost its line breaks: which words of the line, from 0, and how they were laid out, as
            (indent, number of words) of each line.
        instead: what a person writes with podlift where the cell itself is no part of a training program.
    """

    id: str
    lines: tuple[int, int]
    digest: str = ""
    title: str
    technique: str
    kind: str = PYTHON
    words: tuple[int, tuple[tuple[int, int], ...]] | None = None
    instead: str = ""

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

# Made by `python -m tests.e2e.tutorials.write --digests`: a seed that changed is noticed before its cells are run.
_DIGESTS = {
    "000-01": "eaf8ab4295b2", "000-02": "d2707645abfc", "000-03": "63d2ab2aba94", "000-04": "7ad807a146c6",
    "000-05": "88212015b3b1", "000-06": "a9ea69395a48", "000-07": "a1dcfc87a8dc", "000-08": "2ba2decb73de",
    "000-09": "54777ac3d3a1", "000-10": "ad2132d98a44",
    "002-01": "521884d508ef", "002-02": "83f0ce30cd0e", "002-03": "83b3c7330e78", "002-04": "857bf0eeaa6e",
    "002-05": "bc5f24c26a15", "002-06": "c3d880539871", "002-07": "150f0e8c9b52", "002-08": "e3aea4ad4113",
    "002-09": "a27b59498c1e", "002-10": "0218382f36b5",
    "003-01": "7d0696f8547c", "003-02": "805c6e9d3291", "003-03": "58d8165d2529", "003-04": "992a862117bc",
    "003-05": "cb5e2d8b3f2c", "003-06": "0c0627f239ea", "003-07": "b47bbfc346df", "003-08": "6fe5264c9b61",
    "003-09": "11729e831319", "003-10": "50d1631f41cb", "003-11": "bd36e3f741d3",
    "004-01": "8fcdb56c14f6", "004-02": "2ca31799a29e", "004-03": "dffaca77e7f0", "004-04": "1595bbcedd60",
    "004-05": "58ff5c053da3", "004-06": "6d964a0918ce", "004-07": "b8acf0d46423", "004-08": "b860a7b20ffb",
    "004-09": "167449344d8c", "004-10": "26d93d1e8618", "004-11": "acc12595cb63", "004-12": "9199d1ed9cc8",
    "004-13": "cb5e2d8b3f2c", "004-14": "818ba0e725e6", "004-15": "db393403f52f", "004-16": "98269a00f3da",
    "004-17": "22bcc8829832", "004-18": "d34018f7457f", "004-19": "fb7f08c90f48", "004-20": "26ad16292c19",
    "004-21": "16543b5c3067", "004-22": "a6228c53b338", "004-23": "26ad16292c19", "004-24": "95355e582514",
    "004-25": "29984cfdf1f2", "004-26": "e4125d4868a9", "004-27": "fc68b6f3eb03", "004-28": "955b25be1c7f",
    "004-29": "29b7cb2836ef", "004-30": "4efe52941641", "004-31": "8a0627514deb", "004-32": "3245ce512c33",
    "004-33": "bdd4367d0b51", "004-34": "eabd61031689", "004-35": "2167453cfa61", "004-36": "44167177d655",
    "004-37": "9159dff8eb35",
}  # fmt: skip

CELLS = {cell.id: replace(cell, digest=_DIGESTS.get(cell.id, "")) for cell in (*_GUIDE, *_RAY, *_OVERVIEW, *_TUTORIAL)}
