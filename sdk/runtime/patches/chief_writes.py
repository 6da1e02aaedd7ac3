"""Only the chief writes shared paths: the other tasks of a gang save to their own temporary folders.

Every task of a synchronous gang runs the same program, so all of them save to the same path. All must execute the save,
because reading a variable that is aggregated on read is a collective, but only one may write the file.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ...logs import logger
from ...storage import own_folders
from . import Function, Patch, around, is_supported_keras
from .task_files import ChiefFiles, TaskFiles, as_text

_log = logger("runtime")

# Runs in place of the function of that name, with the task's files and the original as its first arguments. Hooks that keep or
# drop copies need `TaskFiles`.
Hook = Callable[..., Any]
# Hooks by module and name.
Hooks = Mapping[str, Mapping[str, Hook]]
_SAVING = ("save_model", "save_weights", "Model.export", "save")


def patches(temp_dir: str, own_dirs: Sequence[str] = ()) -> list[Patch]:
    """Return the cure for a task that is not the chief."""
    files = TaskFiles(temp_dir)
    for own_dir in own_dirs:
        files.leave_alone(own_dir)
    watch = Patch(
        name="chief-writes (tempfile)",
        why="files that a task makes with `tempfile` are private",
        module="tempfile",
        needed=lambda module: not hasattr(module.mkdtemp, "__wrapped__"),
        apply=functools.partial(_watch, files),
        quiet=True,
    )
    return [watch, *_patches(files, _HOOKS)]


def chief_patches() -> list[Patch]:
    """Return the cure for the chief: it writes the shared files even if the program treats another task as the chief."""
    saving = {
        package: {
            module: {name: hook for name, hook in hooks.items() if name in _SAVING} for module, hooks in modules.items()
        }
        for package, modules in _HOOKS.items()
    }
    return _patches(ChiefFiles(), saving)


def _patches(files: ChiefFiles | TaskFiles, hooks: Mapping[str, Hooks]) -> list[Patch]:
    return [
        Patch(
            name=f"chief-writes ({package})",
            why="only the chief writes shared paths (keras#20585; required by TensorFlow's multi-worker guide)",
            module=package,
            applies=is_supported_keras,
            apply=functools.partial(_apply, hooks[package], files),
            quiet=True,  # the first redirected write logs a line
        )
        for package in hooks
    ]


def _apply(hooks: Hooks, files: ChiefFiles | TaskFiles, package: ModuleType) -> None:
    missing = [
        f"{module}.{name}"
        for module in hooks
        for name, hook in hooks[module].items()
        if not _install(module, name, functools.partial(hook, files), package.__name__)
    ]
    if missing:
        version = getattr(package, "__version__", "?")
        _log.info(f"Not found in {package.__name__} {version}: {', '.join(missing)}. All tasks write there.")


def _install(module: str, path: str, hook: Hook, package: str) -> bool:
    try:
        owner: Any = importlib.import_module(module)
        *holders, name = path.split(".")
        for holder in holders:
            owner = getattr(owner, holder)
        original = getattr(owner, name)
    except (ImportError, AttributeError):
        return False
    around(owner, name)(hook)
    if not holders:
        # The package's public modules have already imported the original under its name.
        for known_name, imported in list(sys.modules.items()):
            if known_name.partition(".")[0] == package and vars(imported).get(name) is original:
                setattr(imported, name, getattr(owner, name))
    return True


def _watch(files: TaskFiles, tempfile: ModuleType) -> None:
    """Do not redirect files that this process makes with `tempfile`: converters read them back directly."""

    def watch(name: str, path_of: Callable[[Any], Any]) -> None:
        @around(tempfile, name)
        def make(original: Function, *args: Any, **kwargs: Any) -> Any:
            temporary = original(*args, **kwargs)
            path = as_text(path_of(temporary))
            if path is not None:
                files.leave_alone(path)
            return temporary

    watch("mkdtemp", lambda temporary: temporary)
    watch("mkstemp", lambda temporary: temporary[1])
    watch("NamedTemporaryFile", lambda temporary: temporary.name)


def _writes(parameter: str) -> Hook:
    """Redirect a function's path argument, and mark the copy complete when the function returns."""

    def save(files: ChiefFiles | TaskFiles, function: Function, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(function).bind(*args, **kwargs)
        if parameter not in bound.arguments:
            _log.info(
                f"{getattr(function, '__name__', function)} has no argument {parameter!r}. All tasks write there."
            )
            return function(*args, **kwargs)
        path = bound.arguments[parameter]
        target = bound.arguments[parameter] = files.target(path)
        if target is not path and str(path).startswith("hf://"):
            bound.arguments["zipped"] = False  # the hub needs a folder, which is the default only for its own URL
        result = function(*bound.args, **bound.kwargs)
        files.saved(target)
        return result

    return save


def _reads(parameter: str) -> Hook:
    """Read this task's own copy of a path argument if it has one."""

    def load(files: TaskFiles, function: Function, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(function).bind(*args, **kwargs)
        if parameter in bound.arguments:
            bound.arguments[parameter] = files.source(bound.arguments[parameter])
        return function(*bound.args, **bound.kwargs)

    return load


def _attribute(name: str) -> Hook:
    """Redirect the path that a callback keeps as `name` while the method that opens it runs."""

    def opening(files: TaskFiles, method: Function, callback: Any, *args: Any, **kwargs: Any) -> Any:
        shared = getattr(callback, name)
        setattr(callback, name, files.target(shared))
        try:
            return method(callback, *args, **kwargs)
        finally:
            setattr(callback, name, shared)

    return opening


def _checkpoint_path(files: TaskFiles, method: Function, callback: Any, *args: Any, **kwargs: Any) -> Any:
    """Redirect each file of a `ModelCheckpoint` and keep the newest copy only.

    Older copies are not needed: there is a training step between two saves, which the chief begins after writing its file.
    """
    target = files.target(method(callback, *args, **kwargs))
    previous = vars(callback).get("_newest_copy")
    if previous not in (None, target):
        files.forget(previous)
    callback._newest_copy = target
    return target


def _backup_begin(files: TaskFiles, method: Function, callback: Any, *args: Any, **kwargs: Any) -> Any:
    """Point a `BackupAndRestore` at a private folder that starts as a copy of the shared one.

    Restoring may write too (it replaces a damaged file by the previous one), so it must not use the shared folder.
    """
    _point_back(callback)
    shared = os.fspath(callback.backup_dir)
    own = files.target(shared)
    if own != shared:
        _seed(shared, own)
        inside = {key: path for key, path in vars(callback).items() if (as_text(path) or "").startswith(shared)}
        callback._shared_paths = inside
        for key, path in inside.items():
            setattr(callback, key, str(Path(own, os.fspath(path)[len(shared) :].lstrip("/"))))
    return method(callback, *args, **kwargs)


def _backup_end(files: TaskFiles, method: Function, callback: Any, *args: Any, **kwargs: Any) -> Any:
    result = method(callback, *args, **kwargs)
    _point_back(callback)
    return result


def _point_back(callback: Any) -> None:
    vars(callback).update(vars(callback).pop("_shared_paths", {}))


def _seed(shared: str, own: str) -> None:
    """Copy the shared backup, unless this process has saved its own, which is as new and cannot be half-written."""
    file_utils: Any = importlib.import_module("keras.src.utils.file_utils")
    if not file_utils.exists(shared):
        own_folders.discard(own, private=False)  # the program removed the backup: it must not be restored
    elif not Path(own).exists():
        Path(own).mkdir()
        for name in file_utils.listdir(shared):
            if not file_utils.isdir(file_utils.join(shared, name)):
                file_utils.copy(file_utils.join(shared, name), str(Path(own, name.rstrip("/"))))


def _legacy_folder(files: TaskFiles, function: Function, dirpath: Any, strategy: Any) -> Any:
    """Move the per-task folders that tf_keras makes and removes inside the shared path out of it."""
    parent = files.target(dirpath)
    folder = dirpath if parent == dirpath else str(Path(parent, "workertemp"))
    Path(folder).mkdir(parents=True, exist_ok=True)
    return folder


_SAVING_API: dict[str, Hook] = {
    "save_model": _writes("filepath"),
    "save_weights": _writes("filepath"),
    "load_model": _reads("filepath"),
    "load_weights": _reads("filepath"),
}
_HOOKS: dict[str, dict[str, dict[str, Hook]]] = {
    "keras": {
        "keras.src.saving.saving_api": _SAVING_API,
        "keras.src.models.model": {"Model.export": _writes("filepath")},
        "keras.src.callbacks.model_checkpoint": {"ModelCheckpoint._get_file_path": _checkpoint_path},
        "keras.src.callbacks.backup_and_restore": {
            "BackupAndRestore.on_train_begin": _backup_begin,
            "BackupAndRestore.on_train_end": _backup_end,
        },
        "keras.src.callbacks.csv_logger": {"CSVLogger.on_train_begin": _attribute("filename")},
        "keras.src.callbacks.tensorboard": {"TensorBoard.set_model": _attribute("log_dir")},
    },
    "tf_keras": {
        "tf_keras.src.saving.saving_api": _SAVING_API,
        "tf_keras.src.callbacks": {
            "ModelCheckpoint._get_file_path": _checkpoint_path,
            "CSVLogger.on_train_begin": _attribute("filename"),
        },
        "tf_keras.src.distribute.distributed_file_utils": {
            "_get_temp_dir": _legacy_folder,
            "write_filepath": lambda files, function, filepath, strategy: filepath,
            "remove_temp_dir_with_filepath": lambda files, function, filepath, strategy: None,
        },
    },
    "tensorflow": {
        "tensorflow.python.saved_model.save": {"save": _writes("export_dir")},
        "tensorflow.python.saved_model.load": {"load": _reads("export_dir")},
    },
}
