"""Reads the requirements of a pyproject.toml: the [project] table, setuptools' dynamic files, uv's sources."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ...errors import nearest
from .. import project
from ..project import items, table
from . import requirements_txt
from .collector import RequirementsCollector


def read(collector: RequirementsCollector, folder: Path, extras: Collection[str] = ()) -> bool:
    """Read the requirements of the project in a folder, with some of its extras; return whether it states any."""
    return _PyprojectReader(collector, folder).read(extras)


def optional(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the parseable optional dependencies of the project in a folder, by extra."""
    by_extra = {}
    data = project.read_toml(folder / "pyproject.toml")
    extras = table(data, "project", "optional-dependencies")
    for extra in extras:
        texts = [item for item in items(extras, extra) if isinstance(item, str)]
        by_extra[extra] = tuple(text for text in texts if parsed(text) is not None)
    return by_extra


def dependencies(folder: Path) -> list[Requirement]:
    """Return the parseable dependencies of the project in a folder."""
    texts = items(table(project.read_toml(folder / "pyproject.toml"), "project"), "dependencies")
    requirements = [parsed(item) for item in texts if isinstance(item, str)]
    return [requirement for requirement in requirements if requirement is not None]


def parsed(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


class _PyprojectReader:
    def __init__(self, collector: RequirementsCollector, folder: Path) -> None:
        file = folder / "pyproject.toml"
        self._collector = collector
        self._folder = folder
        self._label = collector.label(file)
        self._data = data = project.read_toml(file)
        self._text = file.read_text(encoding="utf-8").splitlines() if data else []
        self._project = table(data, "project")
        sources = table(data, "tool", "uv", "sources")
        self._sources = {canonicalize_name(name): source for name, source in sources.items()}
        self._name = canonicalize_name(str(self._project.get("name", "")))

    def read(self, extras: Collection[str]) -> bool:
        if self._name:
            self._collector.local_names.add(self._name)
        dynamic = items(self._project, "dynamic")
        if "dependencies" in self._project:
            extras = [*extras, *self._read_list(self._project["dependencies"], "project.dependencies")]
        elif "dependencies" in dynamic:
            self._read_files("dependencies", table(self._data, "tool", "setuptools", "dynamic", "dependencies"))
        elif table(self._data, "tool", "poetry", "dependencies").keys() - {"python"}:
            self._collector.warn(
                self._label,
                "Poetry's own tables are not read. Next: list them as [project] dependencies, which Poetry 2 reads too, or "
                "write a file (poetry export -o requirements.txt).",
            )
            return False
        optional = table(self._project, "optional-dependencies")
        if "optional-dependencies" in dynamic:
            optional = {**table(self._data, "tool", "setuptools", "dynamic", "optional-dependencies"), **optional}
        self._read_extras(optional, extras)
        return "dependencies" in self._project or "dependencies" in dynamic

    def _read_extras(self, optional: Mapping[str, object], extras: Collection[str]) -> None:
        by_name = {canonicalize_name(name): (name, value) for name, value in optional.items()}
        waiting, seen = list(extras), set()
        while waiting:
            extra = canonicalize_name(waiting.pop())
            if extra in seen:
                continue
            seen.add(extra)
            if extra not in by_name:
                hint = nearest(extra, list(by_name)) if by_name else "It has none."
                self._collector.refuse(self._label, f"it has no extra {extra!r}. {hint}")
                continue
            name, value = by_name[extra]
            if isinstance(value, dict):
                self._read_files(f"optional-dependencies.{name}", value)
            else:
                waiting += self._read_list(value, f"project.optional-dependencies.{name}")

    def _read_list(self, value: object, key: str) -> list[str]:
        """Read a list of requirements; return the extras of the project itself that it names."""
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._collector.refuse(self._label, f"{key} is not a list of strings.")
            return []
        own_extras = []
        for number, item in enumerate(value):
            requirement = parsed(item)
            if requirement is not None and canonicalize_name(requirement.name) == self._name:
                own_extras += sorted(requirement.extras)
            elif requirement is None or requirement.url or not self._add_from_uv(requirement):
                where = self._line_of(item) or f"{self._label}: {key}[{number}]"
                self._collector.add_text(item, where, base=self._folder)
        return own_extras

    def _line_of(self, item: str) -> str:
        """Return "file:line" of a requirement, "" if it is written with escapes."""
        lines = enumerate(self._text, start=1)
        number = next((number for number, line in lines if f'"{item}"' in line or f"'{item}'" in line), None)
        return f"{self._label}:{number}" if number else ""

    def _read_files(self, field: str, settings: Mapping[str, object]) -> None:
        """Read the files that setuptools would."""
        files = settings.get("file", [])
        files = [files] if isinstance(files, str) else files
        if not files or not isinstance(files, list):
            backend = table(self._data, "build-system").get("build-backend", "setup.py")
            self._collector.warn(
                self._label,
                f"its {field} are dynamic: {backend} computes them when it builds the package, which is not done here. Next: "
                "name a file or a list as code_requirements= (--code-requirements).",
            )
            return
        for file in files:
            requirements_txt.read_file(self._collector, self._folder / str(file))

    def _add_from_uv(self, requirement: Requirement) -> bool:
        """Add a requirement from the place in [tool.uv.sources]; False if no such place is named."""
        name = canonicalize_name(requirement.name)
        entry = self._sources.get(name)
        choices = [source for source in (entry if isinstance(entry, list) else [entry]) if isinstance(source, dict)]
        where = f"{self._label}: tool.uv.sources.{requirement.name}"
        for source in choices:
            if "path" in source:
                self._collector.local_names.add(name)
                self._collector.folder(str(source["path"]), where, base=self._folder, extras=requirement.extras)
            elif source.get("workspace"):
                self._add_member(requirement, where)
            elif "git" in source or "url" in source:
                self._add_url(requirement, source, where)
            elif "index" in source:
                self._collector.warn(
                    self._label,
                    f"{requirement.name} comes from uv's index {source['index']!r}, which pip does not know.",
                )
                return False
        return bool(choices)

    def _add_member(self, requirement: Requirement, where: str) -> None:
        """Add the member of the workspace with the requirement's name."""
        required = canonicalize_name(requirement.name)
        self._collector.local_names.add(required)
        folder = next((folder for name, folder in _members(self._folder) if name == required), None)
        if folder is None:
            self._collector.refuse(where, "no folder of the workspace has this name.")
        else:
            self._collector.add_folder(folder, requirement.extras)

    def _add_url(self, requirement: Requirement, source: Mapping[str, object], where: str) -> None:
        if "url" in source:
            url = str(source["url"])
        else:
            revision = next((source[key] for key in ("rev", "tag", "branch") if key in source), "")
            url = f"git+{str(source['git']).removeprefix('git+')}" + (f"@{revision}" if revision else "")
        if "subdirectory" in source:
            url += f"#subdirectory={source['subdirectory']}"
        text = requirement.name
        if requirement.extras:
            text += f"[{','.join(sorted(requirement.extras))}]"
        text += f" @ {url}"
        markers = [f"({marker})" for marker in (requirement.marker, source.get("marker")) if marker]
        if markers:
            text += f" ; {' and '.join(markers)}"
        self._collector.add_text(text, where, base=self._folder)


def workspace(folder: Path) -> Path | None:
    """Return the folder of uv's workspace at or above a project, None if there is none."""
    for above in (folder, *folder.parents):
        if not project.is_private(above):
            return None
        if table(project.read_toml(above / "pyproject.toml"), "tool", "uv", "workspace"):
            return above
    return None


def is_member(folder: Path) -> bool:
    """True for a project that belongs to uv's workspace at or above it."""
    return any(member == folder for _, member in _members(folder))


def _members(folder: Path) -> Iterator[tuple[str, Path]]:
    top = workspace(folder)
    if top is None:
        return
    settings = table(project.read_toml(top / "pyproject.toml"), "tool", "uv", "workspace")
    included, excluded = (
        [path for pattern in items(settings, key) if isinstance(pattern, str) for path in sorted(top.glob(pattern))]
        for key in ("members", "exclude")
    )
    for member in [top, *(path for path in included if path not in excluded)]:
        name = table(project.read_toml(member / "pyproject.toml"), "project").get("name")
        if isinstance(name, str):
            yield canonicalize_name(name), member
