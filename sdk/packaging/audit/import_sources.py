"""Where the modules that a program imports come from in a task: Python, podlift, a requirement, the image, or nowhere."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ... import text
from ..requirements.read import TENSORFLOWS, Requirements
from ..tree import why_left_out
from .installed import Installed, ModuleLocation
from .program import Import, Program

Level = Literal["error", "warning", "note"]

_SHOWN = 3
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg")
# Distributions with other names than their modules, for modules that are not installed here.
_OTHER_NAMES = {
    "attr": ("attrs",), "bs4": ("beautifulsoup4",), "Crypto": ("pycryptodome",),
    "cv2": tuple(f"opencv-{kind}" for kind in (
        "python", "python-headless", "contrib-python", "contrib-python-headless",
    )),
    "dateutil": ("python-dateutil",), "docx": ("python-docx",), "dotenv": ("python-dotenv",),
    "faiss": ("faiss-cpu", "faiss-gpu"), "fitz": ("pymupdf",), "git": ("gitpython",), "google.protobuf": ("protobuf",),
    "googleapiclient": ("google-api-python-client",), "imblearn": ("imbalanced-learn",), "jwt": ("pyjwt",),
    "kafka": ("kafka-python",), "magic": ("python-magic",), "MySQLdb": ("mysqlclient",), "OpenSSL": ("pyopenssl",),
    "osgeo": ("gdal",), "PIL": ("pillow", "pillow-simd"), "pkg_resources": ("setuptools",),
    "psycopg2": ("psycopg2-binary",), "serial": ("pyserial",), "skimage": ("scikit-image",), "sklearn": ("scikit-learn",),
    "skopt": ("scikit-optimize",), "slugify": ("python-slugify",), "tensorflow": tuple(sorted(TENSORFLOWS)),
    "umap": ("umap-learn",), "usb": ("pyusb",), "vertexai": ("google-cloud-aiplatform",), "yaml": ("pyyaml",),
    "zmq": ("pyzmq",),
}  # fmt: skip
# From this version on, TensorFlow does not.
_TENSORBOARD, _WITHOUT_TENSORBOARD = "tensorboard", "2.21"
# Modules that every TensorFlow requires, for one that is not installed here.
_INSTALL_TENSORFLOW = "pip install 'podlift[tf]'"
_TENSORFLOW_BRINGS = {
    "absl", "google.protobuf", "h5py", "keras", "numpy", "six", _TENSORBOARD, "tensorflow_estimator", "wrapt",
}  # fmt: skip


@dataclass(frozen=True)
class ImportProblem:
    """The problem of an import."""

    name: str  # the module
    level: Level
    message: str  # follows "train.py:3 imports 'x': "
    # "missing": it is nowhere. "uninstalled": a requirement would install it. "outside": it is outside of all tasks' paths.
    # "unrequired": it is installed, but no requirement installs it. "misnamed": it is podlift, by the name of the command.
    kind: Literal["missing", "uninstalled", "outside", "unrequired", "misnamed"]
    group: str = ""  # the distribution: problems of all its modules are reported once


@dataclass(frozen=True, kw_only=True)
class TaskEnvironment:
    """The packages that tasks find besides the bundle."""

    requirements: Requirements
    isolated: bool = False  # exactly the requirements, and nothing that is installed here
    in_image: bool = False  # an image that installs the requirements and may contain more
    legacy: bool = False  # tf_keras
    pythonpath: bool = False  # the caller's PYTHONPATH
    dropped: Collection[str] = ()  # names of the caller's environment variables that no task gets


class ImportSources:
    """Finds problems of imports; `left_out` are the files that the bundle leaves out, with reasons."""

    def __init__(self, program: Program, environment: TaskEnvironment, left_out: Sequence[str] = ()) -> None:
        self._program = program
        self._left_out = left_out
        self._tasks = environment
        self._requirements = environment.requirements
        self._installed = Installed(pythonpath=environment.pythonpath)
        self._by_import: dict[tuple[str, tuple[str, ...]], tuple[ImportProblem, ...]] = {}
        self._required = self._requirements.here()
        self._names = {str(canonicalize_name(requirement.name)) for requirement in self._required}
        title = self._requirements.title
        self._no_requirement = f"no requirement of {title}" if title else "no requirement"

    @property
    def uses_this_machine(self) -> bool:
        """Whether tasks run with this machine's packages."""
        return not (self._tasks.isolated or self._tasks.in_image)

    def problems(self, statement: Import) -> Sequence[ImportProblem]:
        """Return the problems of an import."""
        key = (statement.name, statement.names)
        if key not in self._by_import:
            self._by_import[key] = tuple(self._problems(statement))
        return self._by_import[key]

    def _problems(self, statement: Import) -> Iterator[ImportProblem]:
        left_out = self._program.left_out(statement)
        if left_out is not None:
            name, path = left_out
            yield ImportProblem(name, "error", self._left_out_message(path), "missing")
        elif self._program.is_regular(statement.top):
            # A package of the bundle has precedence: its missing modules are not found elsewhere.
            if not self._program.has(statement.name):
                yield self._missing(statement.name)
        elif statement.top == "podlift" and self._program.find_anywhere(statement.top) is None:
            yield ImportProblem(
                statement.name, "error", "podlift's import name is sdk. Next: write import sdk.", "misnamed"
            )
        else:
            for module in self._installed.locate(statement.name, statement.names):
                # A folder without an `__init__.py` counts only if nothing else has its name.
                in_bundle = module.kind != "site" and self._program.has(module.name)
                problem = None if in_bundle else self._problem(module)
                if problem is not None:
                    yield problem

    def _problem(self, module: ModuleLocation) -> ImportProblem | None:
        if module.kind == "standard" or module.name.partition(".")[0] == "sdk":
            return None
        required = self._requirement_of(module.name)
        if module.kind == "missing":
            if not required:
                return self._unknown(module) or self._missing(module.name)
            if not self.uses_this_machine:
                return None
            message = (
                f"in the requirements ({required}, {self._requirements.title}), but not installed here. Next: pip install "
                f"{required}, or code_isolated=True (--code-isolated)."
            )
            return ImportProblem(module.name, "error", message, "uninstalled")
        if module.kind == "outside":
            return None if required and not self.uses_this_machine else self._outside(module, required)
        if required or (self.uses_this_machine and not self._requirements.source) or self._is_brought(module):
            return None
        return self._unknown(module) or self._unrequired(module)

    def _requirement_of(self, name: str) -> str:
        """Return the requirement with a module's name, "" if there is none."""
        distribution = _distribution_of(name, self._names)
        if distribution or not self._tasks.isolated:
            return distribution
        brings = [requirement for requirement in self._required if canonicalize_name(requirement.name) in TENSORFLOWS]
        if name.partition(".")[0] == _TENSORBOARD:
            brings = [requirement for requirement in brings if not requirement.specifier.contains(_WITHOUT_TENSORBOARD)]
        is_brought = any(part in _TENSORFLOW_BRINGS for part in _prefixes(name))
        return (
            min((str(canonicalize_name(requirement.name)) for requirement in brings), default="") if is_brought else ""
        )

    def _extra_of(self, module: ModuleLocation) -> str:
        """Return the extra of the project that brings a module, "" if there is none."""
        providers = self._installed.providers(module)
        for extra, lines in self._requirements.extras.items():
            requirements = [Requirement(line) for line in lines]
            names = {canonicalize_name(requirement.name) for requirement in requirements}
            if _distribution_of(module.name, names) or providers & self._installed.closure(requirements)[0]:
                return extra
        return ""

    def _is_brought(self, module: ModuleLocation) -> bool:
        """True if the requirements, or an image with TensorFlow, bring an installed module."""
        top = module.name.partition(".")[0]
        if not self._tasks.isolated and (top in ("tensorflow", "keras") or (top == "tf_keras" and self._tasks.legacy)):
            return True
        brought = self._closure[0] if self._tasks.isolated else self._closure[0] | self._image
        return bool(self._installed.providers(module) & brought)

    @cached_property
    def _closure(self) -> tuple[set[str], set[str]]:
        """The names of all distributions that the requirements bring, and of the ones with requirements unknown here."""
        if self._requirements.is_lock:
            # A lock names everything, but the modules are known only for installed distributions.
            return set(self._names), self._names - set(self._installed.versions)
        brought, unknown = self._installed.closure(self._required)
        other_version = {canonicalize_name(item.name) for item in self._required if not self._is_installed(item)}
        return brought, unknown | other_version

    def _is_installed(self, requirement: Requirement) -> bool:
        version = self._installed.versions.get(canonicalize_name(requirement.name))
        return version is not None and not requirement.url and requirement.specifier.contains(version, prereleases=True)

    @cached_property
    def _image(self) -> set[str]:
        """The names of all that an image with TensorFlow brings."""
        names = ["podlift", "keras", *sorted(TENSORFLOWS), *(["tf-keras"] if self._tasks.legacy else [])]
        return self._installed.closure([Requirement(name) for name in names if name in self._installed.versions])[0]

    def _left_out_message(self, path: str) -> str:
        entry = self._program.entry
        if entry.is_single_file:
            return (
                f"only the script is packaged, not {path!r}. Next: code_project={str(entry.home)!r} (--code-project)."
            )
        reason = why_left_out(path, self._left_out) or "it was created or removed while the project was read"
        return (
            f"it is {path!r} of the project, which the bundle leaves out: {reason}. "
            f"Next: code_include=[{self._relative(entry.project / path)!r}] (--code-include)."
        )

    def _missing(self, name: str) -> ImportProblem:
        guard = "or put an import that may fail into try/except ImportError."
        if self._tasks.in_image:
            message = (
                f"in no bundle, {self._no_requirement}, not installed here: the image must provide it. Next: add it to the "
                "requirements."
            )
            return ImportProblem(name, "warning", message, "missing")
        if self._tasks.isolated:
            message = (
                f"in no bundle, {self._no_requirement}, not in the standard library. Next: add it to the requirements, "
                f"{guard}"
            )
        elif self._requirements.source:
            message = f"in no bundle, {self._no_requirement}, not installed here. Next: add and install it, {guard}"
        else:
            is_tensorflow = name.partition(".")[0] in ("tensorflow", "keras", "tf_keras")
            where = "not installed here" if is_tensorflow else "neither in the project nor installed here"
            message = f"{where}. Next: {_INSTALL_TENSORFLOW if is_tensorflow else 'install it'}, {guard}"
        return ImportProblem(name, "error", message, "missing")

    def _unknown(self, module: ModuleLocation) -> ImportProblem | None:
        """Return a warning if a requirement that is not installed here may bring a module."""
        unknown = sorted(self._closure[1])
        if not unknown or (module.kind == "missing" and not self._tasks.isolated):
            return None
        # A lock names everything: it does not contain a module that is known to come from another distribution.
        if self._requirements.is_lock and self._installed.providers(module):
            return None
        message = (
            f"{self._no_requirement} is known to bring it; the modules of {text.and_more(unknown, _SHOWN)} are unknown here. "
            "Next: add it to the requirements too."
        )
        return ImportProblem(module.name, "warning", message, "unrequired")

    def _unrequired(self, module: ModuleLocation) -> ImportProblem:
        providers = sorted(self._installed.providers(module))
        extra = self._extra_of(module)
        names = " or ".join(map(repr, providers[:_SHOWN]))
        advice = f"add {names} to the requirements" if providers else "package it"
        reason = f"{self._no_requirement} brings it"
        if extra:
            reason, advice = (
                f"of the requirements only the extra {extra!r} brings it",
                f"code_requirements=['.[{extra}]']",
            )
        if not self._requirements.source:
            reason = "nothing is required" if self._tasks.in_image else "there are no requirements"
        level: Level = "note" if extra else "warning"
        if self._tasks.in_image:
            message = f"in no bundle, and {reason}: the image must provide it. Next: {advice}."
        elif self._tasks.isolated:
            level = "error"
            message = f"in no bundle, and {reason}: the isolated environment will not contain it. Next: {advice}."
        else:
            message = (
                f"installed here, but in no bundle, and {reason}: it works here, and fails where only the requirements are "
                f"installed. Next: {advice}."
            )
        return ImportProblem(module.name, level, message, "unrequired", ", ".join(providers))

    def _outside(self, module: ModuleLocation, required: str) -> ImportProblem:
        entry = self._program.entry
        folder, path = _ends(module)
        inside = os.path.relpath(module.path, entry.project)
        if inside in self._program.files:
            message = (
                f"it loads from {str(folder)!r}; the bundle has it as {inside!r}, where a task does not look. Next: name its "
                "folder as a source root in pyproject.toml ([tool.setuptools.packages.find] where = "
                f"[{self._relative(folder)!r}])."
            )
        elif folder.is_relative_to(entry.home) and not entry.is_single_file:
            message = self._left_out_message(os.path.relpath(path, entry.project))
        else:
            include = self._relative(_project_of(folder) or path)
            message = (
                f"it loads from {str(folder)!r}, outside the bundle. Next: code_include=[{include!r}] (--code-include)"
            )
            if required:
                message += f", or code_isolated=True (--code-isolated), which takes {required} from the requirements"
            message += "."
        return ImportProblem(module.name, "error", message, "outside")

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self._program.entry.home)


def _distribution_of(name: str, names: Collection[str]) -> str:
    """Return which of the distributions has a module's name, as most have, or is known to bring it; "" for none."""
    for dotted in _prefixes(name):
        for other in (canonicalize_name(dotted), *_OTHER_NAMES.get(dotted, ())):
            if other in names:
                return other
    return ""


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _ends(module: ModuleLocation) -> tuple[Path, Path]:
    """Return the folder of sys.path in which a module was found, and the file or folder of its topmost package."""
    path = Path(module.path)
    path = path.parent if path.stem == "__init__" else path
    parts = module.name.split(".")
    names = [*path.parts[:-1], path.name.partition(".")[0]]
    # The file may belong to a package above the module.
    depth = next((depth for depth in range(len(parts), 0, -1) if names[-depth:] == parts[:depth]), 1)
    chain = [path, *path.parents]
    return chain[depth], chain[depth - 1]


def _project_of(folder: Path) -> Path | None:
    """Return the project that a folder of sources belongs to, None if it belongs to none."""
    near = (folder, *list(folder.parents)[:2])
    return next((above for above in near if any((above / mark).is_file() for mark in _MARKS)), None)
