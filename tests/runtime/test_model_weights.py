"""The weights of a saved model, in each format, get into a model of the same program: all of them, or none and one error."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
from registered_models import register
from support import Later, full_only, needs

pytestmark = [pytest.mark.tensorflow, pytest.mark.xdist_group("tensorflow")]

needs("numpy", "keras", "tf_keras", "tensorflow")
import numpy as np  # noqa: E402

from sdk.errors import CheckpointMismatchError, CorruptObjectError, InputError  # noqa: E402
from sdk.job.payload import InitialWeights  # noqa: E402
from sdk.model_registry.models import Model  # noqa: E402
from sdk.runtime.hooks.warm_start import WarmStart  # noqa: E402
from sdk.runtime.weights import by_name, model_files, structure  # noqa: E402

tf, keras3, legacy = Later("tensorflow"), Later("keras"), Later("tf_keras")
HEADLINE = "It does not fit ({})."
LIBRARIES = {"keras": keras3, "tf_keras": legacy}
# Layers made before in the process: Keras numbers its layers with them.
EARLIER = 3


def sequential(keras: Any, width: int = 4) -> Any:
    layers = keras.layers
    first = [layers.Dense(width, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.5)]
    return keras.Sequential([keras.Input((8,)), *first, layers.Dense(4), layers.Dense(3, name="head")])


def subclassed(keras: Any) -> Any:
    class Blocks(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, *self.blocks = (keras.layers.Dense(4) for _ in range(3))
            self.inner = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(4)])

        def call(self, x: Any, training: bool = False) -> Any:
            for block in (self.first, *self.blocks, self.inner):
                x = block(x)
            return x

    return Blocks()


def made(make: Any, keras: Any, *, trained: bool = False) -> Any:
    """A compiled model with random weights; one that is trained for a step has more to save than weights."""
    model = make(keras)
    model.compile("adam", "mse", metrics=["mae"])
    width = model(np.ones((2, 8), "f4")).shape[-1]
    if trained:
        model.fit(np.ones((2, 8), "f4"), np.ones((2, width), "f4"), verbose=0)
    model.set_weights([np.random.default_rng(i).random(w.shape) for i, w in enumerate(model.get_weights())])
    return model


def saved(model: Any, name: str, folder: Path) -> model_files.ModelFile:
    if name == "export":
        model.export(str(folder / name))
    elif "weights" in name:
        model.save_weights(str(folder / name))
    else:
        model.save(str(folder / name))
    found, _ = model_files.find(str(folder), "the folder")
    return found


def load(model: Any, file: model_files.ModelFile) -> int:
    return (by_name if by_name.is_named(file) else structure).load(model, file, HEADLINE)


def assert_same(weights: list[Any], model: Any) -> None:
    for one, other in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("library", "make", "name"),
    [
        ("keras", sequential, "model.keras"),
        ("keras", subclassed, "model.weights.h5"),
        full_only("keras", subclassed, "export"),
        full_only("keras", sequential, "model.h5"),
        full_only("tf_keras", sequential, "model.keras"),
        full_only("tf_keras", subclassed, "folder"),
        full_only("tf_keras", sequential, "model.h5"),
        full_only("tf_keras", sequential, "weights-of-a-checkpoint"),
    ],
)
def test_each_format_restores_every_weight_of_the_same_program(library, make, name, tmp_path) -> None:
    keras = LIBRARIES[library]
    for _ in range(EARLIER):
        make(keras)
    before = made(make, keras, trained=True)
    file = saved(before, name, tmp_path)
    # Another process has numbered its layers differently.
    keras.backend.clear_session()
    after = made(make, keras)
    steps = int(after.optimizer.iterations)
    after.set_weights([np.zeros_like(each) for each in after.get_weights()])
    assert load(after, file) == len(before.get_weights())
    assert_same(before.get_weights(), after)
    assert int(after.optimizer.iterations) == steps, "weights only"


@pytest.mark.parametrize(("library", "name"), [("keras", "model.keras"), full_only("tf_keras", "folder")])
def test_every_difference_is_named_in_one_error_and_nothing_is_loaded(library: str, name: str, tmp_path: Path) -> None:
    keras = LIBRARIES[library]
    file = saved(made(sequential, keras), name, tmp_path)
    keras.backend.clear_session()
    wider = keras.Sequential([*sequential(keras, width=6).layers[:-1]])
    wider.build((None, 8))
    before = wider.get_weights()
    with pytest.raises(CheckpointMismatchError) as raised:
        load(wider, file)
    first, *listed = raised.value.problems
    assert first == f"It does not fit ({len(listed)} differences)."
    # The width of a layer, the normalization after it and their readers; the head is missing here.
    assert len(listed) == 2 + 4 + 1 + 2, listed
    assert sum("in this program" in each for each in listed) == 7
    assert sum("only in the saved model" in each for each in listed) == 2
    assert any("[8, 6] in this program, [8, 4] in the saved model" in each for each in listed)
    assert_same(before, wider)


def test_more_weights_here_are_a_difference_and_a_new_layer_without_weights_is_none(tmp_path: Path) -> None:
    file = saved(made(sequential, keras3), "model.keras", tmp_path)
    # A random generator is no weight.
    load(keras3.Sequential([keras3.Input((8,)), keras3.layers.GaussianNoise(0.1), *sequential(keras3).layers]), file)
    model = sequential(keras3)
    model.add(keras3.layers.Dense(2))
    with pytest.raises(CheckpointMismatchError, match=r"layers/dense_3/vars/0 \[3, 2\]: only in this program"):
        load(model, file)


def test_two_swapped_layers_of_one_shape_are_not_mistaken_for_each_other(tmp_path: Path) -> None:
    def model(*names: str) -> Any:
        layers = [keras3.layers.Dense(8, name=name) for name in names]
        return keras3.Sequential([keras3.Input((8,)), *layers])

    file = saved(model("encoder", "decoder"), "model.keras", tmp_path)
    with pytest.raises(CheckpointMismatchError, match=r"layers/dense: the layer 'decoder' in this program, 'encoder'"):
        load(model("decoder", "encoder"), file)
    load(model("encoder", "decoder"), file)


def test_a_normalization_computes_with_its_loaded_weights(tmp_path: Path) -> None:
    def model(data: Any) -> Any:
        layer = keras3.layers.Normalization()
        layer.adapt(data)
        return keras3.Sequential([keras3.Input((1,)), layer])

    before, after = model(np.array([[1.0], [3.0]])), model(np.array([[10.0], [30.0]]))
    x = np.array([[2.0], [5.0]])
    load(after, saved(before, "model.keras", tmp_path))
    np.testing.assert_array_equal(after.predict(x, verbose=0), before.predict(x, verbose=0))


def test_the_replicas_of_a_strategy_get_the_same_weights(tmp_path: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    before = made(sequential, keras3)
    file = saved(before, "model.keras", tmp_path)
    with strategy.scope():
        after = sequential(keras3)
    load(after, file)
    assert_same(before.get_weights(), after)


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


def test_a_model_in_several_formats_is_read_from_keras_own(tmp_path: Path) -> None:
    write(tmp_path, "model.keras", "labels.txt", "export/saved_model.pb", "export/variables/variables.index")
    found, others = model_files.find(str(tmp_path), "version 1")
    assert (found.name, found.kind, others) == ("model.keras", "keras", ["export"])
    found, _ = model_files.find(str(tmp_path), "version 1", "export")
    assert (found.kind, found.path) == ("saved_model", str(tmp_path / "export"))


def test_several_models_are_not_chosen_from(tmp_path: Path) -> None:
    write(tmp_path, "best.keras", "last.keras", "x.weights.h5")
    with pytest.raises(InputError, match=r"version 1 has 2 model files: best.keras, last.keras. Next: .*'best.keras'"):
        model_files.find(str(tmp_path), "version 1")
    assert model_files.find(str(tmp_path), "version 1", "last.keras")[0].name == "last.keras"
    with pytest.raises(InputError, match=r"no such model file. Received: 'lst.keras'. Did you mean 'last.keras'"):
        model_files.find(str(tmp_path), "version 1", "lst.keras")


def test_a_folder_without_a_model_is_said_to_be_one(tmp_path: Path) -> None:
    write(tmp_path, "model.onnx")
    said = r"has no weights that can be read. Expected: a .keras file.* It has model.onnx."
    with pytest.raises(InputError, match=said):
        model_files.find(str(tmp_path), "version 1")


def start(root: Path, tmp_path: Path) -> WarmStart:
    """The warm start of a task from version 1 of the model "digits"."""
    record = Model(str(root), "digits").version(1).record
    initial = InitialWeights(choice="champion", model="digits", version=1, manifest=record.manifest)
    return WarmStart(initial, f"{root}/models", str(tmp_path))


def test_the_program_chooses_one_of_several_model_files_and_an_invalid_one_is_named(root: Path, tmp_path: Path) -> None:
    saved(made(sequential, keras3), "model.keras", tmp_path)
    register(root, "digits", {"best.keras": (tmp_path / "model.keras").read_bytes(), "last.keras": b"?"})
    with pytest.raises(InputError, match=r"has 2 model files: best.keras, last.keras. Next: "):
        start(root, tmp_path).load(sequential(keras3))
    unreadable = r"last.keras in version 1 of 'digits', the champion cannot be read.*BadZipFile"
    with pytest.raises(InputError, match=unreadable):
        start(root, tmp_path).load(sequential(keras3), "last.keras")
    assert start(root, tmp_path).load(sequential(keras3), "best.keras")


def test_the_tasks_of_a_machine_fetch_the_files_once_and_verify_them(root: Path, tmp_path: Path) -> None:
    before = made(sequential, keras3)
    saved(before, "model.keras", tmp_path)
    register(root, "digits", {"model.keras": (tmp_path / "model.keras").read_bytes()})
    tasks = [start(root, tmp_path) for _ in range(3)]
    (part,) = (root / "models" / "blobs").iterdir()
    data = part.read_bytes()
    part.write_bytes(data[:-1] + b"?")
    damaged = r"version 1 of 'digits', the champion is damaged.*Next: podlift models status"
    with pytest.raises(CorruptObjectError, match=damaged):
        tasks[0].load(sequential(keras3))
    part.write_bytes(data)
    assert tasks[1].load(sequential(keras3))
    part.unlink()
    after = sequential(keras3)
    assert tasks[2].load(after)
    assert_same(before.get_weights(), after)


@pytest.mark.parametrize(
    ("library", "name", "kind"),
    [
        ("keras", "model.weights.h5", "external storage"),
        ("keras", "model.h5", "a link"),
        full_only("keras", "model.weights.h5", "a link"),
        full_only("tf_keras", "model.h5", "a virtual dataset"),
        full_only("keras", "model.keras", "external storage"),
    ],
)
def test_weights_that_lie_in_another_file_of_the_machine_are_not_read(library, name, kind, tmp_path) -> None:
    """HDF5 follows them: a model of somebody else would carry off any file that the task may read."""
    import h5py

    private = tmp_path / "private"
    private.write_bytes(b"p" * 4096)
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["values"] = np.ones((8, 4), "f4")
    folder = tmp_path / "model"
    folder.mkdir()
    keras = LIBRARIES[library]
    file = saved(made(sequential, keras), name, folder)
    place = Path(file.path)
    if name == "model.keras":
        with zipfile.ZipFile(place) as archive:
            members = {each: archive.read(each) for each in archive.namelist()}
        place = tmp_path / "inner.h5"
        place.write_bytes(members["model.weights.h5"])
    with h5py.File(place, "r+") as opened:
        arrays = list[str]()
        opened.visititems(lambda path, item: arrays.append(path) if hasattr(item, "shape") else None)
        wanted = next(each for each in arrays if opened[each].shape == (8, 4) and "optimizer" not in each)
        del opened[wanted]
        if kind == "external storage":
            opened.create_dataset(wanted, (8, 4), "f4", external=[(str(private), 0, 128)])
        elif kind == "a link":
            opened[wanted] = h5py.ExternalLink(str(tmp_path / "other.h5"), "values")
        else:
            layout = h5py.VirtualLayout((8, 4), "f4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "values", (8, 4))
            opened.create_virtual_dataset(wanted, layout)
    if name == "model.keras":
        with zipfile.ZipFile(file.path, "w") as archive:
            for each, data in {**members, "model.weights.h5": place.read_bytes()}.items():
                archive.writestr(each, data)
    model = sequential(keras)
    before = model.get_weights()
    # A link is no array of this file: Keras 3 misses one.
    with pytest.raises(InputError, match=r"names another file for its values|only in this program"):
        load(model, file)
    assert_same(before, model)


def test_code_in_a_saved_model_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Lambda layer is bytecode in the file. A warm start reads weights alone, into the program's own layers."""
    monkeypatch.chdir(tmp_path)
    owns = keras3.layers.Lambda(lambda x: (open("owned", "w").close(), x)[1])
    evil = keras3.Sequential([keras3.Input((8,)), keras3.layers.Dense(4), owns])
    evil.save(tmp_path / "model.keras")
    Path("owned").unlink()
    file, _ = model_files.find(str(tmp_path), "the folder")
    mine = keras3.Sequential([keras3.Input((8,)), keras3.layers.Dense(4)])
    assert load(mine, file) == 2 and not Path("owned").exists()
