"""Reads what a pyproject.toml asks for: the [project] table, setuptools' dynamic files, uv's sources."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ...checks import Finding
from ...errors import nearest
from .. import project
from . import requirements_txt
from .gathering import Gathering


def read(gathering: Gathering, folder: Path, extras: Collection[str] = ()) -> bool:
    """Take what the project in a folder asks for; return whether it says anything about that.

    Args:
        gathering: takes it, and the mistakes.
        folder: holds the pyproject.toml.
        extras: those optional dependencies that are wanted too.
    """
    return _Reader(gathering, folder).take(extras)


def poetry_only(data: Mapping[str, Any]) -> bool:
    """True where the dependencies stand in Poetry's own tables and nowhere else."""
    poetry = _table(data, "tool", "poetry", "dependencies")
    return bool(set(poetry) - {"python"}) and "dependencies" not in _table(data, "project")


def optional(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the optional dependencies of the project in a folder, by extra, as far as they can be read."""
    found = {}
    for extra, items in _table(
        project.read_toml(folder / "pyproject.toml"), "project", "optional-dependencies"
    ).items():
        texts = [item for item in items if isinstance(item, str)] if isinstance(items, list) else []
        found[extra] = tuple(text for text in texts if _understood(text) is not None)
    return found


def _understood(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


class _Reader:
    """Reads one pyproject.toml."""

    def __init__(self, gathering: Gathering, folder: Path) -> None:
        file = folder / "pyproject.toml"
        self._gathering = gathering
        self._folder = folder
        self._label = requirements_txt.name_of(gathering, file)
        self._data = data = project.read_toml(file)
        self._text = file.read_text(encoding="utf-8").splitlines() if data else []
        self._project = _table(data, "project")
        self._sources = {
            canonicalize_name(name): source for name, source in _table(data, "tool", "uv", "sources").items()
        }
        self._name = canonicalize_name(str(self._project.get("name", "")))

    def take(self, extras: Collection[str]) -> bool:
        if self._name:
            self._gathering.local_names.add(self._name)
        dynamic = self._project.get("dynamic")
        dynamic = dynamic if isinstance(dynamic, list) else []
        if "dependencies" in self._project:
            extras = [*extras, *self._all(self._project["dependencies"], "project.dependencies")]
        elif "dependencies" in dynamic:
            self._files("dependencies", _table(self._data, "tool", "setuptools", "dynamic", "dependencies"))
        elif poetry_only(self._data):
            self._note(
                "Poetry's own tables are not read. Next: list them as [project] dependencies, which Poetry 2 reads too, or "
                "write a file (poetry export -o requirements.txt)."
            )
            return False
        optional = _table(self._project, "optional-dependencies")
        if "optional-dependencies" in dynamic:
            optional = {**_table(self._data, "tool", "setuptools", "dynamic", "optional-dependencies"), **optional}
        self._extras(optional, extras)
        return "dependencies" in self._project or "dependencies" in dynamic

    def _extras(self, optional: Mapping[str, Any], extras: Collection[str]) -> None:
        by_name = {canonicalize_name(name): (name, wanted) for name, wanted in optional.items()}
        waiting, seen = list(extras), set()
        while waiting:
            extra = canonicalize_name(waiting.pop())
            if extra in seen:
                continue
            seen.add(extra)
            if extra not in by_name:
                hint = nearest(extra, list(by_name)) if by_name else "It has none."
                self._gathering.refuse(self._label, f"it has no extra {extra!r}. {hint}")
                continue
            name, wanted = by_name[extra]
            if isinstance(wanted, dict):
                self._files(f"optional-dependencies.{name}", wanted)
            else:
                waiting += self._all(wanted, f"project.optional-dependencies.{name}")

    def _all(self, items: object, where: str) -> list[str]:
        """Take a list of requirements; return the extras of the project itself that it names."""
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            self._gathering.refuse(self._label, f"{where} is no list of texts.")
            return []
        own = []
        for number, item in enumerate(items):
            wanted = _understood(item)
            if wanted is not None and canonicalize_name(wanted.name) == self._name:
                own += sorted(wanted.extras)
            elif wanted is None or wanted.url or not self._from_uv(wanted):
                self._gathering.read(
                    item, self._line_of(item) or f"{self._label}: {where}[{number}]", base=self._folder
                )
        return own

    def _line_of(self, item: str) -> str:
        """Return "file:line" of a requirement, "" where it is written with escapes."""
        found = (i for i, line in enumerate(self._text, start=1) if f'"{item}"' in line or f"'{item}'" in line)
        number = next(found, None)
        return f"{self._label}:{number}" if number else ""

    def _files(self, field: str, table: Mapping[str, Any]) -> None:
        """Follow what setuptools reads from files."""
        files = table.get("file", [])
        files = [files] if isinstance(files, str) else files
        if not files or not isinstance(files, list):
            backend = str(_table(self._data, "build-system").get("build-backend", "setup.py"))
            self._note(
                f"its {field} are dynamic: {backend} computes them when it builds the package, which is not done here. Next: "
                "name a file or a list as requirements= (--requirements)."
            )
            return
        for file in files:
            requirements_txt.read_file(self._gathering, self._folder / str(file))

    def _from_uv(self, wanted: Requirement) -> bool:
        """Take a requirement whose place [tool.uv.sources] names; False where it names none that counts here."""
        found = self._sources.get(canonicalize_name(wanted.name))
        choices = [source for source in (found if isinstance(found, list) else [found]) if isinstance(source, dict)]
        where = f"{self._label}: tool.uv.sources.{wanted.name}"
        for source in choices:
            if "path" in source:
                self._gathering.local_names.add(canonicalize_name(wanted.name))
                self._gathering.folder(str(source["path"]), where, base=self._folder, extras=wanted.extras)
            elif source.get("workspace"):
                self._member(wanted, where)
            elif "git" in source or "url" in source:
                self._elsewhere(wanted, source, where)
            elif "index" in source:
                self._note(
                    f"{wanted.name} is asked for from uv's index {source['index']!r}, of which pip does not know."
                )
                return False
        return bool(choices)

    def _member(self, wanted: Requirement, where: str) -> None:
        """Take the member of the workspace that bears the name."""
        self._gathering.local_names.add(canonicalize_name(wanted.name))
        place = next((place for name, place in _members(self._folder) if name == canonicalize_name(wanted.name)), None)
        if place is None:
            self._gathering.refuse(where, "no folder of the workspace has this name.")
        else:
            self._gathering.take_folder(place, wanted.extras)

    def _elsewhere(self, wanted: Requirement, source: Mapping[str, Any], where: str) -> None:
        url = str(source["url"]) if "url" in source else git_url(str(source["git"]), _revision(source))
        if "subdirectory" in source:
            url += f"#subdirectory={source['subdirectory']}"
        extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
        markers = [f"({marker})" for marker in (wanted.marker, source.get("marker")) if marker]
        text = f"{wanted.name}{extras} @ {url}" + (f" ; {' and '.join(markers)}" if markers else "")
        self._gathering.read(text, where)

    def _note(self, said: str) -> None:
        self._gathering.notes.append(Finding("warning", f"{self._label}: {said}"))


def git_url(url: str, revision: str) -> str:
    """Return a git repository as pip names it."""
    return f"{'' if url.startswith('git+') else 'git+'}{url}{'@' if revision else ''}{revision}"


def workspace(folder: Path) -> Path | None:
    """Return the folder of uv's workspace at or above a project, None when it is in none."""
    for above in (folder, *folder.parents):
        if not project.is_private(above):
            return None
        data = project.read_toml(above / "pyproject.toml")
        if _table(data, "tool", "uv", "workspace"):
            return above
    return None


def _members(folder: Path) -> Iterator[tuple[str, Path]]:
    top = workspace(folder)
    if top is None:
        return
    table = _table(project.read_toml(top / "pyproject.toml"), "tool", "uv", "workspace")
    patterns = [pattern for pattern in table.get("members", []) if isinstance(pattern, str)]
    for place in [top, *(place for pattern in patterns for place in sorted(top.glob(pattern)))]:
        name = _table(project.read_toml(place / "pyproject.toml"), "project").get("name")
        if isinstance(name, str):
            yield canonicalize_name(name), place


def _revision(source: Mapping[str, Any]) -> str:
    return str(next((source[key] for key in ("rev", "tag", "branch") if key in source), ""))


def _table(data: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    found: Any = data
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
