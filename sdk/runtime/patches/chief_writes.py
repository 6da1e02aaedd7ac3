"""Only the chief writes shared paths: the other tasks of a gang save to temporary folders of their own.

Every task of a synchronous gang runs the same program, so all of them save to the same path. All must execute the save,
because reading a variable that is aggregated on read is a collective, but only one may write the file.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ...logs import logger
from . import Patch
from .task_files import ChiefFiles, PathRedirection, TaskFiles, as_text

_log = logger("runtime")

Function = Callable[..., Any]
# Makes a wrapper from the task's `PathRedirection`; those that keep or drop copies need `TaskFiles`.
Wrap = Callable[[Any, Function], Function]


@dataclass(frozen=True, kw_only=True)
class Hook:
    module: str
    name: str
    wrap: Wrap


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
    return [watch, *_patches(files, _hooks())]


def chief_patches() -> list[Patch]:
    """Return the cure for the chief: it writes the shared files even if the program treats another task as the chief."""
    saving = {"save_model", "save_weights", "Model.export", "save"}
    hooks = {package: [hook for hook in all_ if hook.name in saving] for package, all_ in _hooks().items()}
    return _patches(ChiefFiles(), hooks)


def _patches(files: PathRedirection, hooks: dict[str, list[Hook]]) -> list[Patch]:
    return [
        Patch(
            name=f"chief-writes ({package})",
            why="only the chief writes shared paths (keras#20585; asked for by TensorFlow's multi-worker guide)",
            module=package,
            applies=_applies,
            apply=functools.partial(_apply, hooks[package], files),
            quiet=True,  # the first redirected write logs a line
        )
        for package in hooks
    ]


def _applies(module: ModuleType) -> bool:
    # Keras 2 under the name `keras` has another layout.
    return module.__name__ != "keras" or str(getattr(module, "__version__", "")).startswith("3.")


def _apply(hooks: Sequence[Hook], files: PathRedirection, module: ModuleType) -> None:
    missing = [hook for hook in hooks if not _install(hook, files, module.__name__)]
    if missing:
        names = ", ".join(f"{hook.module}.{hook.name}" for hook in missing)
        _log.info(
            f"Not found in {module.__name__} {getattr(module, '__version__', '?')}: {names}. All tasks write there."
        )


def _install(hook: Hook, files: PathRedirection, package: str) -> bool:
    try:
        owner: Any = importlib.import_module(hook.module)
        *holders, name = hook.name.split(".")
        for holder in holders:
            owner = getattr(owner, holder)
        original = getattr(owner, name)
    except (ImportError, AttributeError):
        return False
    replacement = hook.wrap(files, original)
    setattr(owner, name, replacement)
    if not holders:
        _rebind(package, name, original, replacement)
    return True


def _rebind(package: str, name: str, original: Function, replacement: Function) -> None:
    """Replace the names under which the package's public modules have already imported `original`."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == package and vars(module).get(name) is original:
            setattr(module, name, replacement)


def _watch(files: TaskFiles, tempfile: ModuleType) -> None:
    """Do not redirect files that this process makes with `tempfile`: converters read them back directly."""

    def watch(name: str, path_of: Callable[[Any], Any]) -> None:
        original = getattr(tempfile, name)

        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            path = as_text(path_of(made))
            if path is not None:
                files.leave_alone(path)
            return made

        setattr(tempfile, name, make)

    watch("mkdtemp", lambda made: made)
    watch("mkstemp", lambda made: made[1])
    watch("NamedTemporaryFile", lambda made: made.name)


def _writes(position: int, keyword: str) -> Wrap:
    """Redirect a function's path argument, and mark the copy complete when the function returns."""

    def wrap(files: PathRedirection, function: Function) -> Function:
        @functools.wraps(function)
        def save(*args: Any, **kwargs: Any) -> Any:
            path = args[position] if len(args) > position else kwargs.get(keyword)
            target = files.target(path)
            if target is not path and str(path).startswith("hf://"):
                kwargs["zipped"] = False  # the hub needs a folder, which is the default only for its own URL
            result = function(*_replaced(args, position, target), **_renamed(kwargs, keyword, target))
            files.saved(target)
            return result

        return save

    return wrap


def _reads(position: int, keyword: str) -> Wrap:
    """Read this task's own copy of a path argument if it has one."""

    def wrap(files: PathRedirection, function: Function) -> Function:
        @functools.wraps(function)
        def load(*args: Any, **kwargs: Any) -> Any:
            source = files.source(args[position] if len(args) > position else kwargs.get(keyword))
            return function(*_replaced(args, position, source), **_renamed(kwargs, keyword, source))

        return load

    return wrap


def _replaced(args: tuple[Any, ...], position: int, value: Any) -> tuple[Any, ...]:
    return (*args[:position], value, *args[position + 1 :]) if len(args) > position else args


def _renamed(kwargs: dict[str, object], keyword: str, value: Any) -> dict[str, object]:
    return {**kwargs, keyword: value} if keyword in kwargs else kwargs


def _attribute(name: str) -> Wrap:
    """Redirect the path that a callback keeps as `name` while the method that opens it runs."""

    def wrap(files: TaskFiles, method: Function) -> Function:
        @functools.wraps(method)
        def opening(self: Any, *args: Any, **kwargs: Any) -> Any:
            shared = getattr(self, name)
            setattr(self, name, files.target(shared))
            try:
                return method(self, *args, **kwargs)
            finally:
                setattr(self, name, shared)

        return opening

    return wrap


def _checkpoint_path(files: TaskFiles, method: Function) -> Function:
    """Redirect each file of a `ModelCheckpoint` and keep the newest copy only.

    Older copies are not needed: there is a training step between two saves, which the chief begins after writing its file.
    """

    @functools.wraps(method)
    def file_path(self: Any, *args: Any, **kwargs: Any) -> Any:
        target = files.target(method(self, *args, **kwargs))
        previous = vars(self).get("_newest_copy")
        if previous not in (None, target):
            files.forget(previous)
        self._newest_copy = target
        return target

    return file_path


def _backup_begin(files: TaskFiles, method: Function) -> Function:
    """Point a `BackupAndRestore` at a private folder that starts as a copy of the shared one.

    Restoring may write too (it replaces a damaged file by the previous one), so it must not use the shared folder.
    """

    @functools.wraps(method)
    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        _point_back(self)
        shared = os.fspath(self.backup_dir)
        own = files.target(shared)
        if own != shared:
            _seed(shared, own)
            inside = {key: path for key, path in vars(self).items() if (as_text(path) or "").startswith(shared)}
            self._shared_paths = inside
            for key, path in inside.items():
                setattr(self, key, str(Path(own, os.fspath(path)[len(shared) :].lstrip("/"))))
        return method(self, *args, **kwargs)

    return on_train_begin


def _backup_end(files: TaskFiles, method: Function) -> Function:
    @functools.wraps(method)
    def on_train_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        _point_back(self)
        return result

    return on_train_end


def _point_back(callback: Any) -> None:
    vars(callback).update(vars(callback).pop("_shared_paths", {}))


def _seed(shared: str, own: str) -> None:
    """Copy the shared backup, unless this process has saved its own, which is as new and cannot be half-written."""
    file_utils: Any = importlib.import_module("keras.src.utils.file_utils")
    if not file_utils.exists(shared):
        shutil.rmtree(own, ignore_errors=True)  # the program removed the backup: it must not be restored
    elif not Path(own).exists():
        Path(own).mkdir()
        for name in file_utils.listdir(shared):
            if not file_utils.isdir(file_utils.join(shared, name)):
                file_utils.copy(file_utils.join(shared, name), str(Path(own, name.rstrip("/"))))


def _legacy_folder(files: TaskFiles, function: Function) -> Function:
    """Move the per-task folders that tf_keras makes and removes inside the shared path out of it."""

    @functools.wraps(function)
    def get_temp_dir(dirpath: Any, strategy: Any) -> Any:
        parent = files.target(dirpath)
        folder = dirpath if parent == dirpath else str(Path(parent, "workertemp"))
        Path(folder).mkdir(parents=True, exist_ok=True)
        return folder

    return get_temp_dir


def _hooks() -> dict[str, list[Hook]]:
    keras, legacy, tf = "keras.src", "tf_keras.src", "tensorflow.python.saved_model"
    saving = {"save_model": _writes(1, "filepath"), "save_weights": _writes(1, "filepath")}
    loading = {"load_model": _reads(0, "filepath"), "load_weights": _reads(1, "filepath")}
    places: dict[str, dict[str, dict[str, Wrap]]] = {
        "keras": {
            f"{keras}.saving.saving_api": {**saving, **loading},
            f"{keras}.models.model": {"Model.export": _writes(1, "filepath")},
            f"{keras}.callbacks.model_checkpoint": {"ModelCheckpoint._get_file_path": _checkpoint_path},
            f"{keras}.callbacks.backup_and_restore": {
                "BackupAndRestore.on_train_begin": _backup_begin,
                "BackupAndRestore.on_train_end": _backup_end,
            },
            f"{keras}.callbacks.csv_logger": {"CSVLogger.on_train_begin": _attribute("filename")},
            f"{keras}.callbacks.tensorboard": {"TensorBoard.set_model": _attribute("log_dir")},
        },
        "tf_keras": {
            f"{legacy}.saving.saving_api": {**saving, **loading},
            f"{legacy}.callbacks": {
                "ModelCheckpoint._get_file_path": _checkpoint_path,
                "CSVLogger.on_train_begin": _attribute("filename"),
            },
            f"{legacy}.distribute.distributed_file_utils": {
                "_get_temp_dir": _legacy_folder,
                "write_filepath": lambda files, function: lambda filepath, strategy: filepath,
                "remove_temp_dir_with_filepath": lambda files, function: lambda filepath, strategy: None,
            },
        },
        "tensorflow": {
            f"{tf}.save": {"save": _writes(1, "export_dir")},
            f"{tf}.load": {"load": _reads(0, "export_dir")},
        },
    }
    return {
        package: [Hook(module=where, name=name, wrap=wrap) for where in table for name, wrap in table[where].items()]
        for package, table in places.items()
    }
