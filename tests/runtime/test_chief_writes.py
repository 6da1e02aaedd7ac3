"""Only the chief writes what all tasks of a gang save to one path; the rules as tables, and real gangs that save."""

import importlib.metadata
import importlib.util
import io
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import task_processes
from hypothesis import given
from hypothesis import strategies as st
from support import PROGRAMS, heard

from sdk.runtime.patches import chief_writes
from sdk.runtime.patches.task_files import ChiefFiles, TaskFiles, as_text, copy_path, is_own_already

letters = st.characters(exclude_characters="/\0", exclude_categories=["Cs"])
parts = st.text(letters, max_size=5) | st.sampled_from(["", ".", "..", "%"])
rests = st.lists(parts, min_size=1, max_size=5).map("/".join)


# --- Where a copy lives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "copy"),
    [
        ("/data/model.keras", "file/data/model.keras"),
        ("model.keras", "file/home/me/model.keras"),
        ("../x/./model.keras", "file/home/x/model.keras"),
        ("//data/run", "file/data/run"),
        ("file:///data/run", "file/data/run"),
        ("/gs/bucket/run", "file/gs/bucket/run"),
        ("GS://bucket/run/", "gs/bucket/run"),
        ("gs://bucket/a//b", "gs/bucket/a/%/b"),
        ("gs://bucket/../../b", "gs/bucket/%../%../b"),
        ("gs://bucket/%../b", "gs/bucket/%%../b"),
        ("/", "file/%"),
    ],
)
def test_a_copy_mirrors_the_place_that_the_program_named(path, copy):
    assert copy_path(path, "/temp", "/home/me") == f"/temp/{copy}"


@given(rests, rests)
def test_two_objects_of_a_bucket_or_two_local_files_never_share_a_copy(one, other):
    places = [os.path.normpath(f"/{rest}").lstrip("/") for rest in (one, other)]
    for start, is_same in (("gs://", one.rstrip("/") == other.rstrip("/")), ("/", places[0] == places[1])):
        copies = [copy_path(start + rest, "/temp", "/") for rest in (one, other)]
        assert (copies[0] == copies[1]) == is_same


@given(st.sampled_from(["", "/", "gs://", "file://", "S3://"]), rests)
def test_every_copy_is_below_the_temporary_folder_and_has_no_copy_itself(scheme, rest):
    copy = copy_path(scheme + rest, "/temp", "/work")
    assert os.path.normpath(copy).startswith("/temp/")
    assert is_own_already(copy, {"/temp"}, "/work")


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/shared/model.keras", False),
        ("/temp", True),
        ("/temporary/x", False),
        ("/temp/../shared", False),
        ("../temp/x", True),
        ("/shared/workertemp_1/model.keras", True),
        ("/shared/workertemp/model.keras", False),
        ("ram://model", True),
        ("gs://temp/x", False),
    ],
)
def test_a_place_that_no_other_task_can_mean_is_left_alone(path, own):
    assert is_own_already(path, {"/temp"}, "/work") is own


@pytest.mark.parametrize(
    ("given", "text"), [("a", "a"), (Path("a/b"), "a/b"), (b"a", None), (io.BytesIO(), None), (None, None), (3, None)]
)
def test_only_paths_count_as_paths(given, text):
    assert as_text(given) == text


# --- The copies of one task ---------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    return SimpleNamespace(task=TaskFiles(str(tmp_path / "temp")), lines=heard(), shared=tmp_path / "shared")


def save(files, name):
    target = files.task.target(files.shared / name)
    Path(target).write_text("content")
    files.task.saved(target)
    return target


def test_a_task_reads_the_shared_file_until_it_has_saved_its_own(files):
    path = files.shared / "model.keras"
    assert files.task.source(path) == path
    files.task.target(path)
    assert files.task.source(path) == path
    assert files.task.source(path) != save(files, "model.keras") == files.task.source(path)


def test_a_new_process_reads_the_shared_file_although_a_copy_is_left_from_a_kill(files, tmp_path):
    save(files, "model.keras")
    assert TaskFiles(str(tmp_path / "temp")).source(files.shared / "model.keras") == files.shared / "model.keras"


def test_a_folder_around_its_copies_is_not_taken_for_a_copy(files):
    save(files, "run/model.keras")
    assert files.task.source(files.shared / "run") == files.shared / "run"


def test_files_for_a_private_folder_of_the_task_stay_there(files):
    files.task.leave_alone(str(files.shared / "work"))
    assert files.task.target(files.shared / "work" / "model.keras") == files.shared / "work" / "model.keras"
    assert files.task.target(files.shared / "working") != files.shared / "working"


def test_at_exit_only_the_copies_go(files, tmp_path):
    copy = save(files, "a")
    (tmp_path / "temp" / "somebody's").write_text("")
    files.task._remove()
    assert not Path(copy).exists()
    assert (tmp_path / "temp" / "somebody's").exists()


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("/shared/workertemp_0/model.keras", "/shared/model.keras"),
        ("gs://bucket/workertemp_3/model", "gs://bucket/model"),
        ("/shared/model.keras", "/shared/model.keras"),
        (Path("/shared/model.keras"), Path("/shared/model.keras")),
    ],
)
def test_the_chief_writes_the_shared_file_whatever_the_program_takes_it_for(asked, written):
    lines = heard()
    chief = ChiefFiles()
    assert chief.target(asked) == chief.target(asked) == written
    assert len(lines) == (asked != written)


def test_the_log_gets_one_line_that_tells_how_to_opt_out(files):
    save(files, "a")
    save(files, "b")
    (line,) = files.lines
    assert 'Code(writes="all")' in line and "--code-writes all" in line


def test_a_function_that_another_package_has_wrapped_is_called_as_it_is(files, monkeypatch):
    """A wrapper without `functools.wraps` has no argument of that name."""
    written = []
    names = ("keras", "keras.src", "keras.src.saving", "keras.src.saving.saving_api")
    package, *folders, module = map(ModuleType, names)
    for made in (package, *folders, module):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    package.__version__ = "3.9.0"
    module.save_model = lambda *args, **kwargs: written.append((args, kwargs))
    module.load_model = lambda *args, **kwargs: args
    cure = next(patch for patch in chief_writes.patches(str(files.shared)) if patch.module == "keras")
    cure.apply(package)
    module.save_model("model", "/shared/model.keras", overwrite=True)
    assert written == [(("model", "/shared/model.keras"), {"overwrite": True})]
    assert module.load_model("/shared/model.keras") == ("/shared/model.keras",)
    assert any("has no argument 'filepath'. All tasks write there." in line for line in files.lines)


def test_forgetting_a_checkpoint_leaves_its_neighbours(files):
    mine, other = save(files, "w-1"), save(files, "w-10")
    for part in ("index", "data-00000-of-00001"):
        Path(f"{mine}.{part}").write_text("")
        Path(f"{other}.{part}").write_text("")
    files.task.forget(mine)
    left = ["w-10", "w-10.data-00000-of-00001", "w-10.index"]
    assert sorted(path.name for path in Path(other).parent.iterdir()) == left
    assert files.task.source(files.shared / "w-1") == files.shared / "w-1"


def test_nothing_outside_the_temporary_folder_is_ever_forgotten(files):
    files.shared.mkdir()
    (files.shared / "model.keras").write_text("the chief's")
    files.task.forget(str(files.shared / "model.keras"))
    assert (files.shared / "model.keras").exists()


# --- Real programs ------------------------------------------------------------------------------------------------


def real(test):
    installed = importlib.util.find_spec("tensorflow") is not None
    return pytest.mark.full(pytest.mark.tensorflow(pytest.mark.skipif(not installed, reason="needs TensorFlow")(test)))


def train(program, folder, tasks, *words, shared="shared", **environment):
    """Run a program with a shared folder and the folder of a task that is not the chief; return codes and outputs."""
    arguments = [str(folder / shared), str(folder / "temp"), *words]
    return task_processes.run(PROGRAMS / program, arguments, folder / "-".join(["run", *words]), tasks, **environment)


@pytest.fixture(scope="module", params=["0", "1"], ids=["Keras 3", "tf_keras"])
def job(request, tmp_path_factory):
    """Two tasks that save in every way; they were killed and have started again."""
    folder = tmp_path_factory.mktemp("job")
    shared, environment = folder / "shared", {"TF_USE_LEGACY_KERAS": request.param, "timeout_s": 400}
    first = train("sharing.py", folder, 2, "die", **environment)
    left = [path for path in shared.rglob("*") if not path.is_relative_to(shared / "backup")]
    second = train("sharing.py", folder, 2, **environment)
    assert [code for code, _ in first] == [-9, -9], first
    assert [code for code, _ in second] == [0, 0], second
    chief, worker = (json.loads((folder / "run" / f"{task}.json").read_text()) for task in ("chief", "worker"))
    return SimpleNamespace(folder=folder, shared=shared, chief=chief, worker=worker, left_by_kill=left)


@real
def test_after_a_kill_both_tasks_resume_at_the_killed_epoch(job):
    assert job.chief["epochs"] == job.worker["epochs"] == [2, 3]
    assert not job.left_by_kill


@real
def test_after_a_kill_every_save_reads_as_it_was_saved(job):
    assert job.chief["read"] == job.worker["read"]
    older = sorted(file for file, same in job.worker["read"].items() if not same)
    # Of step 4 of the last epoch too, under Keras 3: the averages of BatchNormalization meet only after it.
    assert [file[:9] for file in older] in (["steps/3-4"], ["steps/3-4", "steps/4-4"])


@real
def test_after_a_kill_the_chief_has_written_every_shared_file(job):
    for path in job.shared.rglob("*"):
        assert path.stat().st_mode & 0o044, f"{path} was made by the worker"
    events = [path.name for path in (job.shared / "logs").rglob("events.*")]
    assert [re.search(r"\.(\d+)\.\d+\.v2$", name)[1] for name in events] == [str(job.chief["pid"])]
    assert [line.split(",")[0] for line in (job.shared / "log.csv").read_text().split()] == ["epoch", "2", "3"]
    assert not [path for path in job.shared.rglob("workertemp*")]
    assert all((job.shared / name).exists() for name in ("model.keras", "every/3.keras", "every/4.keras"))


@real
def test_after_a_kill_the_worker_has_cleaned_up_and_said_one_line(job):
    assert not (job.folder / "temp").exists()
    log = (job.folder / "run" / "worker-0.log").read_text()
    assert log.count("This task is not the chief: its saves to ") == 1
    kept = [name for name in job.worker["copies"] if "/every/" in name or "/steps/" in name]
    assert len(kept) == 2, "older checkpoints are the chief's to keep"


@real
def test_the_shared_model_holds_the_training_of_both_tasks(job):
    # Two of the weights are statistics of BatchNormalization.
    chief, worker = (task["weights"][:4] + task["weights"][6:] for task in (job.chief, job.worker))
    assert chief == worker != []


@real
def test_a_task_that_is_not_the_chief_leaves_the_shared_folder_empty(tmp_path):
    [(code, output)] = train("sharing.py", tmp_path, 1, "alone")
    assert code == 0, output
    assert list((tmp_path / "shared").rglob("*")) == []
    assert not (tmp_path / "temp").exists()


@real
def test_a_program_that_takes_worker_0_for_the_chief_still_leaves_its_model(tmp_path):
    results = train("sharing.py", tmp_path, 2, "mistaken")
    assert [code for code, _ in results] == [0, 0], results
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["model.keras"]


@real
@pytest.mark.parametrize("legacy", ["0", "1"])
def test_a_late_worker_restores_the_file_that_the_chief_restored_and_then_deleted(tmp_path, legacy):
    train("late.py", tmp_path, 2, "die", TF_USE_LEGACY_KERAS=legacy)
    results = train("late.py", tmp_path, 2, "late", TF_USE_LEGACY_KERAS=legacy)
    assert [code for code, _ in results] == [0, 0], results
    assert all("epochs: []" in output for _, output in results)


@real
def test_a_backup_on_a_disk_of_the_chief_alone_fails_with_a_reason(tmp_path):
    train("late.py", tmp_path, 2, "die", shared="{task}/shared")
    results = train("late.py", tmp_path, 2, shared="{task}/shared")
    assert all(code != 0 for code, _ in results)
    assert all("restored different epochs. Received: [2, 0]" in output for _, output in results), results


@real
def test_backups_that_are_damaged_interrupted_kept_or_removed(tmp_path):
    (tmp_path / "shared").mkdir()
    [(code, output)] = train("resuming.py", tmp_path, 1)
    assert code == 0, output
    assert not (tmp_path / "temp").exists()


CONVERT = """
import sys, keras, tensorflow as tf
from sdk.runtime.patches import chief_writes, install
install(chief_writes.patches(sys.argv[1]))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
assert tf.lite.TFLiteConverter.from_keras_model(model).convert()
model.export(sys.argv[2], verbose=False)
"""


@real
def test_tflite_conversion_still_finds_the_model_that_it_saves_in_between(tmp_path):
    if importlib.metadata.version("tensorflow") < "2.17":
        pytest.skip("that converter aborts on any Keras 3 model")
    script = tmp_path / "convert.py"
    script.write_text(CONVERT)
    folders = [str(tmp_path / "temp"), str(tmp_path / "exported")]
    [(code, output)] = task_processes.run(script, folders, tmp_path / "run", 1)
    assert code == 0, output
    assert not (tmp_path / "exported").exists()
