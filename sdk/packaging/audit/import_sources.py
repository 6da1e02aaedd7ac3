"""Where a module that the bundle does not hold comes from in a task: Python, podlift, a requirement, the image, or nowhere."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ...names import NAMES
from ..requirements.read import TENSORFLOWS, Requirements
from ..tree import why_left_out
from .installed import Installed, Place
from .program import Import, Program

Level = Literal["error", "warning", "note"]

_SHOWN = 3
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg")
# Modules whose distributions have other names, for those that are not installed here.
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
# What every TensorFlow needs itself, for one that is not installed here.
_TENSORFLOW_BRINGS = {
    "absl",
    "google.protobuf",
    "h5py",
    "keras",
    "numpy",
    "six",
    "tensorboard",
    "tensorflow_estimator",
    "wrapt",
}


@dataclass(frozen=True)
class Trouble:
    """What is wrong with an import.

    Args:
        name: the module.
        level: what podlift would do about it.
        said: the rest of the sentence "train.py:3 imports 'x': ".
        kind: "missing" where nothing that is searched holds it; "uninstalled" where a requirement would bring it; "outside"
            where it is found where no task may look; "unrequired" where it is there, and no requirement says so.
        group: what the sentence is about: it is said once for all modules of one distribution.
    """

    name: str
    level: Level
    said: str
    kind: Literal["missing", "uninstalled", "outside", "unrequired"]
    group: str = ""


def _having(name: str, names: Collection[str]) -> str:
    """Return which of the distributions has a module's name, as most have, or is known for bringing it; "" for none."""
    for dotted in _prefixes(name):
        for other in (canonicalize_name(dotted), *_OTHER_NAMES.get(dotted, ())):
            if other in names:
                return other
    return ""


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


class Origins:
    """Says where modules come from.

    Args:
        program: the bundle.
        requirements: what the project needs installed.
        isolated: True where tasks find exactly that, and not what is installed here.
        legacy: True where an image brings tf_keras.
        pythonpath: True where tasks get the caller's PYTHONPATH.
        elsewhere: True where tasks run in an image, that installs what is required and may hold more.
        left_out: what the bundle leaves out, each with the reason.
    """

    def __init__(
        self,
        program: Program,
        requirements: Requirements,
        *,
        isolated: bool,
        legacy: bool,
        pythonpath: bool,
        elsewhere: bool = False,
        left_out: Sequence[str] = (),
    ) -> None:
        self._program = program
        self._left_out_paths = left_out
        self._requirements = requirements
        self._isolated = isolated
        self._legacy = legacy
        self._elsewhere = elsewhere
        self._installed = Installed(pythonpath=pythonpath)
        self._told: dict[tuple[str, tuple[str, ...]], tuple[Trouble, ...]] = {}
        self._required = requirements.here()
        self._names = {str(canonicalize_name(wanted.name)) for wanted in self._required}
        self._source = "the list of requirements" if requirements.source == "list" else requirements.source

    def troubles(self, wanted: Import) -> Sequence[Trouble]:
        """Return what is wrong with an import, which another file may have asked about before."""
        key = (wanted.name, wanted.wanted)
        if key not in self._told:
            self._told[key] = tuple(self._troubles(wanted))
        return self._told[key]

    def _troubles(self, wanted: Import) -> Iterator[Trouble]:
        left_out = self._program.left_out(wanted)
        if left_out is not None:
            name, path = left_out
            yield Trouble(name, "error", self._left_out(path), "missing")
        elif self._program.is_regular(wanted.name.partition(".")[0]):
            # A package of the bundle comes first: what it lacks is found nowhere else.
            if self._program.find(Import(wanted.name, 0)) is None:
                yield self._missing(wanted.name)
        else:
            for place in self._installed.locate(wanted.name, wanted.wanted):
                # A folder without an `__init__.py` counts only as long as nothing else has its name.
                mine = place.kind != "site" and self._program.find(Import(place.name, 0)) is not None
                trouble = None if mine else self._trouble(place)
                if trouble is not None:
                    yield trouble

    def _trouble(self, place: Place) -> Trouble | None:
        if place.kind == "standard" or place.name.partition(".")[0] in NAMES:
            return None
        named = self._named(place.name)
        if place.kind == "missing":
            if named and not (self._isolated or self._elsewhere):
                return self._not_installed(place.name, named)
            return None if named else self._unknown(place) or self._missing(place.name)
        if place.kind == "outside":
            return None if named and (self._isolated or self._elsewhere) else self._outside(place, named)
        compared = self._requirements.source or self._isolated or self._elsewhere
        if named or not compared or self._is_brought(place):
            return None
        return self._unknown(place) or self._unrequired(place)

    def _named(self, name: str) -> str:
        """Return the requirement that has a module's name, "" when none has."""
        found = _having(name, self._names)
        tensorflow = self._names & TENSORFLOWS
        if not found and self._isolated and tensorflow and any(part in _TENSORFLOW_BRINGS for part in _prefixes(name)):
            return min(tensorflow)
        return found

    def _extra(self, place: Place) -> str:
        """Return the extra of the project that brings a module, "" when none does."""
        providers = self._installed.providers(place)
        for extra, lines in self._requirements.extras.items():
            wanted = [Requirement(line) for line in lines]
            names = {canonicalize_name(item.name) for item in wanted}
            if _having(place.name, names) or (providers and providers & self._installed.closure(wanted)[0]):
                return extra
        return ""

    def _is_brought(self, place: Place) -> bool:
        """True if what is required, or an image with TensorFlow, brings an installed module."""
        top = place.name.partition(".")[0]
        if not self._isolated and top in ("tensorflow", "keras", *(["tf_keras"] if self._legacy else [])):
            return True
        providers = self._installed.providers(place)
        return bool(providers & (self._closure[0] | (set() if self._isolated else self._image)))

    @cached_property
    def _closure(self) -> tuple[set[str], set[str]]:
        known, unknown = self._installed.closure(self._required)
        if self._requirements.is_lock:
            # All that is needed is named; only a name says what it brings, as long as it is not installed.
            return set(self._names), self._names - set(self._installed.versions)
        other = [wanted for wanted in self._required if not self._fits(wanted)]
        return known, {*unknown, *(canonicalize_name(wanted.name) for wanted in other)}

    def _fits(self, wanted: Requirement) -> bool:
        version = self._installed.versions.get(canonicalize_name(wanted.name))
        return version is not None and not wanted.url and wanted.specifier.contains(version, prereleases=True)

    @cached_property
    def _image(self) -> set[str]:
        names = ("podlift", "keras", *sorted(TENSORFLOWS), *(["tf-keras"] if self._legacy else []))
        return self._installed.closure([Requirement(name) for name in names if name in self._installed.versions])[0]

    def _left_out(self, path: str) -> str:
        source = self._program.source
        if source.alone:
            return f"only the script is packaged, not {path!r}. Next: project={str(source.home)!r} (--project)."
        reason = why_left_out(path, self._left_out_paths) or "it came or went while the project was read"
        return (
            f"it is {path!r} of the project, which the bundle leaves out: {reason}. "
            f"Next: include=[{self._relative(source.project / path)!r}] (--include)."
        )

    def _missing(self, name: str) -> Trouble:
        if self._elsewhere:
            where = f"no requirement of {self._source}" if self._source else "no requirement"
            said = f"in no bundle, {where}, not installed here: the image has to bring it. Next: add it to the requirements."
            return Trouble(name, "warning", said, "missing")
        guard = "or put an import that may fail into try/except ImportError."
        if self._isolated:
            where = f"no requirement of {self._source}" if self._source else "no requirement"
            said = f"in no bundle, {where}, not in the standard library. Next: add it to the requirements, {guard}"
        elif self._source:
            said = (
                f"in no bundle, no requirement of {self._source}, not installed here. Next: add and install it, {guard}"
            )
        else:
            said = f"in no bundle, not installed, not in the standard library. Next: install it, {guard}"
        return Trouble(name, "error", said, "missing")

    def _not_installed(self, name: str, required: str) -> Trouble:
        said = (
            f"in the requirements ({required}, {self._source}), but not installed here. Next: pip install {required}, or "
            "isolated=True (--isolated)."
        )
        return Trouble(name, "error", said, "uninstalled")

    def _unknown(self, place: Place) -> Trouble | None:
        """Return the warning for a module that a requirement may bring of which nothing is known here."""
        unknown = sorted(self._closure[1])
        if not unknown or (place.kind == "missing" and not self._isolated):
            return None
        # A lock names all there is: what is known to come from elsewhere is not in it.
        if self._requirements.is_lock and self._installed.providers(place):
            return None
        names = ", ".join(unknown[:_SHOWN]) + (f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else "")
        said = (
            f"no requirement of {self._source} is known to bring it; what {names} would bring is not known here. Next: name it "
            "among the requirements too."
        )
        return Trouble(place.name, "warning", said, "unrequired")

    def _unrequired(self, place: Place) -> Trouble:
        providers = sorted(self._installed.providers(place))
        add = f"add {' or '.join(map(repr, providers[:_SHOWN]))} to the requirements" if providers else "package it"
        extra = self._extra(place)
        brings = f"no requirement of {self._source} brings it"
        if extra:
            add, brings = f"requirements=['.[{extra}]']", f"of the requirements only the extra {extra!r} brings it"
        group = ", ".join(providers)
        if self._elsewhere:
            brings = brings if self._source else "nothing is required"
            said = f"in no bundle, and {brings}: the image has to bring it. Next: {add}."
            return Trouble(place.name, "note" if extra else "warning", said, "unrequired", group)
        if self._isolated:
            brings = brings if self._source else "there are no requirements"
            said = f"in no bundle, and {brings}: the isolated environment will not hold it. Next: {add}."
            return Trouble(place.name, "error", said, "unrequired", group)
        said = (
            f"installed here, but in no bundle, and {brings}: it passes here, and fails where only the requirements are "
            f"installed. Next: {add}."
        )
        return Trouble(place.name, "note" if extra else "warning", said, "unrequired", group)

    def _outside(self, place: Place, named: str) -> Trouble:
        source = self._program.source
        base, module = _ends(place)
        inside = os.path.relpath(place.path, source.project)
        if inside in self._program.files:
            said = (
                f"it loads from {str(base)!r}; the bundle has it as {inside!r}, where a task does not look. Next: name its "
                "folder as a root of sources in pyproject.toml ([tool.setuptools.packages.find] where = "
                f"[{self._relative(base)!r}])."
            )
        elif base.is_relative_to(source.home) and not source.alone:
            said = self._left_out(os.path.relpath(module, source.project))
        else:
            include = self._relative(_part(base, module))
            said = f"it loads from {str(base)!r}, outside the bundle. Next: include=[{include!r}] (--include)"
            said += f", or isolated=True (--isolated), which takes {named} from the requirements." if named else "."
        return Trouble(place.name, "error", said, "outside")

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self._program.source.home)


def _ends(place: Place) -> tuple[Path, Path]:
    """Return the folder of the path in which a module was found, and the file or folder that is its topmost package."""
    path = Path(place.path)
    path = path.parent if path.stem == "__init__" else path
    parts = place.name.split(".")
    names = [*path.parts[:-1], path.name.partition(".")[0]]
    # What was found may be the package above the module that is named.
    depth = next((depth for depth in range(len(parts), 0, -1) if names[-depth:] == parts[:depth]), 1)
    chain = [path, *path.parents]
    return chain[depth], chain[depth - 1]


def _part(base: Path, module: Path) -> Path:
    """Return what to include: the project that holds a module, or the module alone where it is in none."""
    near = (base, *list(base.parents)[:2])
    return next((folder for folder in near if any((folder / mark).is_file() for mark in _MARKS)), module)
