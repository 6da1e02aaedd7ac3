"""The programs that a reader of the tutorials would end up with, and the outcome of each one today."""

from __future__ import annotations

from typing import Any

from .parts import RUNS, Fails, Ours, Outcome, Part, Program


def _cells(seed: str, *numbers: int) -> tuple[Part, ...]:
    return tuple(Part(f"{seed}-{number:02d}") for number in numbers)


def _program(name: str, *parts: Part | Ours, **more: Any) -> Program:
    return Program(name=name, parts=parts, **more)


_DATA = "generated data instead of a download"
_OFFLINE = Ours("import mnist_offline")
_TF = Ours("import tensorflow as tf")
_KERAS_FILE = "file names end in `.keras`"

# --- 000: the guide to several GPUs ----------------------------------------------------------------------------------

_DATASETS = Part("000-04", (12, 12))
_BY_INDEX = "task = json.loads(os.environ['TF_CONFIG'])['task']\nif task['index'] == 0:"
_NO_SUFFIX = "The filepath provided must end in `.keras`"


def _pair(name: str, *edits: tuple[str, str], **ends: Any) -> Program:
    """The outlines of both programs of the guide, as one program of two workers."""
    fill = (("...", ""), *edits)
    parts = (
        Ours("import json"), _OFFLINE, *_cells("000", 1, 3, 5), Ours(_BY_INDEX),
        Part("000-08", (1, 13), 4), Ours("else:"), Part("000-09", (1, 15), 4), _DATASETS,
        Ours("if task['index'] == 0:"), Part("000-08", (15, 23), 4, fill), Ours("else:"), Part("000-09", (17, 23), 4, fill),
    )  # fmt: skip
    workers = {"workers": 2, "network": "isolated", "says": "sparse_categorical_accuracy"}
    return Program(name=name, parts=parts, notes=f"{_DATA}; {_OUTLINES}", **workers, **ends)


# TensorFlow 2.21 no longer brings the package that the callback needs.
_NO_BOARD = ("keras.callbacks.TensorBoard(", "# keras.callbacks.TensorBoard(")
_BOARD_LEFT_OUT = "the TensorBoard callback is left out"
_OUTLINE = "an outline: `...` stands where code would"
_OUTLINES = "the `...` of the two outlines left out; their own TF_CONFIG and ports, in a network of the job's own"

_NO_KERAS_FILE = Fails("ValueError", _NO_SUFFIX, "000-08 000-09")
_UNFINISHED = Fails("InputError", "positional argument follows keyword argument", "000-02")

_GUIDE = [
    _program("guide", _OFFLINE, *_cells("000", 1, 3, 4), says="Epoch 2/2", notes=_DATA),
    _program("guide-outline", *_cells("000", 1, 2), notes=_OUTLINE, keras3=_UNFINISHED, legacy=_UNFINISHED),
    _program(
        "guide-resume",
        *(_OFFLINE, *_cells("000", 1, 3), _DATASETS, *_cells("000", 5, 6, 10)),
        notes=_DATA,
        keras3=Fails("ValueError", _NO_SUFFIX, "000-06"),
        says="Restoring from ./ckpt/ckpt-1",
    ),
    _program(
        "guide-resume-file",
        *(
            _OFFLINE,
            *_cells("000", 1, 3),
            _DATASETS,
            *_cells("000", 5),
            Part("000-06", edits=(("-{epoch}", "-{epoch}.keras"),)),
            *_cells("000", 10),
        ),
        notes=_DATA,
        changed=_KERAS_FILE,
        says="Restoring from ./ckpt/ckpt-1.keras",
    ),
    _program(
        "guide-evaluator",
        *(_OFFLINE, *_cells("000", 1, 3), _DATASETS, *_cells("000", 5, 10)),
        says="Creating a new model",
        notes=f"{_DATA}; runs as a separate job, without a checkpoint",
    ),
    _program("guide-config", Ours("import json, os"), *_cells("000", 7)),
    _pair(
        "guide-cluster",
        absent="tensorboard",
        keras3=_NO_KERAS_FILE,
        legacy=Fails("TBNotInstalledError", "TensorBoard is not installed", "000-08 000-09"),
    ),
    _pair("guide-cluster-no-board", _NO_BOARD, keras3=_NO_KERAS_FILE, changed=f"{_BOARD_LEFT_OUT} (legacy)"),
    _pair("guide-cluster-file", _NO_BOARD, ("/ckpt'", "/ckpt.keras'"), changed=f"{_KERAS_FILE} and {_BOARD_LEFT_OUT}"),
]

# --- 002: Ray Train ---------------------------------------------------------------------------------------------------


def _same(fails: Fails) -> dict[str, Outcome]:
    return {"keras3": fails, "legacy": fails}


def _needs_ray(number: int, module: str) -> Program:
    fails = Fails("InputError", f"imports '{module}'", f"002-{number:02d}")
    return _program(f"ray-{number:02d}", *_cells("002", number), notes="needs Ray", absent="ray", **_same(fails))


_RAY = [
    *(_needs_ray(number, "ray") for number in (1, 7, 9, 10)),
    *(_needs_ray(number, "ray.train") for number in (4, 5)),
    _needs_ray(8, "ray.train.tensorflow.keras"),
    _program(
        "ray-02",
        *(_TF, *_cells("002", 2)),
        notes=_OUTLINE,
        **_same(Fails("AttributeError", "'ellipsis' object has no attribute 'compile'", "002-02")),
    ),
    _program(
        "ray-03",
        *_cells("002", 3),
        notes="an outline: lines of a patch",
        **_same(Fails("InputError", "cannot assign to expression", "002-03")),
    ),
    _program(
        "ray-06",
        *_cells("002", 6),
        notes="needs Ray; the trainer is defined in another cell",
        **_same(Fails("NameError", "name 'trainer' is not defined", "002-06")),
    ),
]

# --- 003: the overview of strategies ----------------------------------------------------------------------------------

_ONE = """
with mirrored_strategy.scope():
    total = tf.Variable(1.0)
print('sum', float(mirrored_strategy.reduce('SUM', mirrored_strategy.run(total.read_value), axis=None)))"""
_GLOBAL_SUM = """
ones = strategy.run(lambda: tf.constant(1.0))
print('sum', float(strategy.reduce('SUM', ones, axis=None)))"""
_LOOP = """
for inputs in mirrored_strategy.experimental_distribute_dataset(dataset):
    loss = distributed_train_step(inputs)
print('loss', float(loss))"""
_CENTRAL = """
with central_storage_strategy.scope():
    line = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    line.compile(optimizer='sgd', loss='mae')
line.fit(tf.ones((8, 1)), tf.ones((8, 1)), batch_size=4)"""
_OPTIMIZER = "with mirrored_strategy.scope():\n    optimizer = tf.keras.optimizers.SGD(learning_rate)"
_SERVE = """
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
print('task', resolver.task_type, resolver.task_id, flush=True)
if resolver.task_type in ('worker', 'ps'):
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol='grpc'
    ).join()
variable_partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner()"""
_SCHEDULED = """
with strategy.scope():
    total = tf.Variable(0.0)
for _ in range(4):
    coordinator.schedule(tf.function(lambda: total.assign_add(1.0)))
coordinator.join()
assert float(total) == 4.0 and total.device.startswith('/job:ps/'), total"""

_OVERVIEW = [
    _program(
        "overview-mirrored", *(_TF, *_cells("003", 1, 9, 10), Ours("model.fit(dataset, epochs=2)")), says="Epoch 2/2"
    ),
    _program("overview-two-gpus", _TF, *_cells("003", 2), Ours(_ONE), accelerator="t4:2", says="sum 2.0"),
    _program("overview-hierarchical", _TF, *_cells("003", 3), Ours(_ONE), accelerator="t4:2", says="sum 2.0"),
    _program(
        "overview-tpu",
        *(_TF, Ours("tpu_address = ''"), *_cells("003", 4)),
        notes="no TPU",
        **_same(Fails("ValueError", "Please provide a TPU Name to connect to.", "003-04")),
    ),
    _program("overview-multi-worker", _TF, *_cells("003", 5), Ours(_GLOBAL_SUM), workers=2, says="sum 2.0"),
    _program(
        "overview-nccl", *(_TF, *_cells("003", 6), Ours(_GLOBAL_SUM)), workers=2, accelerator="t4:2", says="sum 4.0"
    ),
    _program(
        "overview-parameter-server",
        *(_TF, Ours(_SERVE), *_cells("003", 7), Ours(_SCHEDULED)),
        workers=2,
        ps=1,
        cluster="chief",
        says="task",
        notes="workers and servers run `tf.distribute.Server`, as the text asks for",
    ),
    _program("overview-central-storage", _TF, *_cells("003", 8), Ours(_CENTRAL), says="loss"),
    _program(
        "overview-loop", *(_TF, *_cells("003", 9, 10), Ours(_OPTIMIZER), *_cells("003", 11), Ours(_LOOP)), says="loss"
    ),
]

# --- 004: the multi-worker tutorial -----------------------------------------------------------------------------------

_MODULE = {"mnist_setup.py": (_OFFLINE, *_cells("004", 7))}
_BOTH = {**_MODULE, "main.py": _cells("004", 15)}
_SAVED = (Part("004-28", edits=(("keras-model'", "keras-model.keras'"),)), *_cells("004", 29, 30, 31))
_NO_BARRIER = (
    "each worker loads what the first one saves, and does not wait for it: on a busy machine it may come too early"
)
_FOLDERS = f"{_DATA}; /tmp is replaced by a temporary folder"
_ONE_COUNTED = f"{_DATA}; with a chief the program counts one of two workers, which halves the global batch"
_NO_EXTENSION = Fails("ValueError", "Invalid filepath extension for saving", "004-29")
_SHELL_CELLS = "12 and 16 by `subprocess`; 05, 18, 20, 22, 23 and 25 left out"
_ONE_WORKER_DATA = Part("004-08", (3, 4))


def _lesson(name: str, parts: tuple[Part | Ours, ...], **more: Any) -> Program:
    """A program beside the tutorial's module, by default of two workers."""
    usual = {"files": _MODULE, "workers": 2, "notes": _FOLDERS, "says": "Epoch 2/2"}
    return Program(name=f"tutorial-{name}", parts=parts, **{**usual, **more})


_TUTORIAL = [
    _lesson(
        "notebook",
        _cells("004", 1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19, 21, 24, *range(26, 38)),
        **{"files": _BOTH, "workers": 1, "accelerator": "t4", "says": "Epoch 3/3"},
        notes=f"{_FOLDERS}; {_SHELL_CELLS}",
        keras3=_NO_EXTENSION,
    ),
    _lesson("notebook-file", (*_cells("004", 1, 6, 8, 13, 14), *_SAVED), workers=1, changed=_KERAS_FILE),
    _lesson(
        "notebook-checkpoints", _cells("004", 1, 6, 8, 13, 14, 26, 28, *range(32, 38)), workers=1, says="Epoch 3/3"
    ),
    _lesson("main", _cells("004", 15), says="Epoch 3/3", notes=_DATA),
    _lesson("main-chief", _cells("004", 15), cluster="chief", says="Epoch 3/3", notes=_ONE_COUNTED),
    _lesson(
        "main-alone",
        _cells("004", 15),
        **{"workers": 1, "says": "", "notes": "a job of one task has no TF_CONFIG"},
        **_same(Fails("KeyError", "'TF_CONFIG'", "004-15")),
    ),
    _lesson("save", (*_cells("004", 15), _ONE_WORKER_DATA, *_cells("004", 28, 29, 30, 31)), keras3=_NO_EXTENSION),
    _lesson(
        "save-file",
        (*_cells("004", 15), _ONE_WORKER_DATA, *_SAVED),
        notes=f"{_FOLDERS}; {_NO_BARRIER}",
        changed=_KERAS_FILE,
    ),
    _lesson("checkpoints", _cells("004", 15, 28, 32, 33, 34)),
    _lesson("backup", _cells("004", 15, 35, 36, 37), says="Epoch 3/3"),
]

# --- 001: the talk, which has no code --------------------------------------------------------------------------------

_LINE = "line = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])"
_ONE_DEVICE = "tf.distribute.MirroredStrategy(['CPU:0'])"
_FIT = "instead: `fit` below MultiWorkerMirroredStrategy"
_CLUSTER = "tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))"


def _talk(name: str, line: str, notes: str, *ends: Outcome) -> Program:
    """A line that ends both programs in the same way, or each in its own."""
    keras3, legacy = (*ends, *ends)[:2]
    return Program(name=name, parts=(_TF, Ours(_LINE), Ours(line)), notes=notes, keras3=keras3, legacy=legacy)


_NO_ESTIMATOR = Fails("InputError", "uses tf.estimator, which left TensorFlow with 2.16")
_NO_CONTRIB = Fails("AttributeError", "has no attribute 'contrib'")
_ALL_REDUCE = "tf.contrib.distribute.CollectiveAllReduceStrategy(num_gpus_per_worker=0)"
_TALK = [
    _talk(
        "compile(distribute=)",
        f"line.compile(loss='mse', optimizer='sgd', distribute={_ONE_DEVICE})",
        "instead: build and compile below `strategy.scope()`",
        Fails("TypeError", "unexpected keyword argument 'distribute'"),
        Fails("ValueError", "`distribute` argument in compile is not available"),
    ),
    _talk("model_to_estimator", "tf.keras.estimator.model_to_estimator(line)", _FIT, _NO_ESTIMATOR),
    _talk(
        "RunConfig(train_distribute=)", f"tf.estimator.RunConfig(train_distribute={_ONE_DEVICE})", _FIT, _NO_ESTIMATOR
    ),
    _talk("CollectiveAllReduceStrategy", _ALL_REDUCE, _FIT, _NO_CONTRIB),
    _talk(
        "a client that sends the model to workers",
        "tf.contrib.distribute.DistributeConfig(remote_cluster={'worker': ['localhost:1']})",
        "instead: `sdk.submit` sends the program",
        _NO_CONTRIB,
    ),
    _talk(
        "TPUStrategy(steps_per_run=)",
        f"tf.distribute.TPUStrategy({_CLUSTER}, steps_per_run=100)",
        "instead: `compile(steps_per_execution=)`",
        Fails("TypeError", "unexpected keyword argument 'steps_per_run'"),
    ),
    _talk(
        "save to a SavedModel folder",
        "line.save('a-folder')",
        "instead: a name that ends in `.keras`, or `model.export`",
        Fails("ValueError", "Invalid filepath extension for saving"),
        RUNS,
    ),
]

PROGRAMS = {program.name: program for program in (*_GUIDE, *_RAY, *_OVERVIEW, *_TUTORIAL, *_TALK)}
