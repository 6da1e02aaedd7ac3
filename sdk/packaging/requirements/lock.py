"""Reads lock files, uv's own and the standard's pylock.toml: exact versions, and the markers under which they count."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ...checks import Finding
from .. import project
from . import markers, requirements_txt
from .gathering import Gathering
from .pyproject import git_url

_VERSION = 1
_PYPI = "https://pypi.org/simple"
# Extras that exclude each other: none is taken, so that no comparison with one holds.
_CONFLICT = re.compile(r"extra\s*(==|!=)\s*(['\"])[^'\"]*\2")
_NEVER, _ALWAYS = "python_version < '0'", "python_version >= '0'"

Node = tuple[int, str]


def is_uv(path: Path) -> bool:
    """True for uv's lock file."""
    return path.name == "uv.lock"


def is_pylock(path: Path) -> bool:
    """True for a lock file of the standard: pylock.toml, pylock.gpu.toml."""
    return re.fullmatch(r"pylock(\.[^.]+)?\.toml", path.name) is not None


def holds(path: Path, member: Path) -> bool:
    """True if a uv.lock was made for a project, too.

    Args:
        path: the lock file.
        member: the project's folder.
    """
    packages = _tables(project.read_toml(path).get("package"))
    return any(_folder(path.parent, package) == member for package in packages)


def read_uv(gathering: Gathering, path: Path) -> None:
    """Take what a uv.lock fixes for the project: its dependencies, and theirs; no extras, no groups.

    Args:
        gathering: takes it, and the mistakes.
        path: the file.
    """
    label = requirements_txt.name_of(gathering, path)
    data = project.read_toml(path)
    if data.get("version") != _VERSION:
        gathering.refuse(label, f"its version is {data.get('version')!r}, known is {_VERSION}. Next: update podlift.")
        return
    lock = _Lock(path.parent, _tables(data.get("package")))
    starts = lock.at(gathering.project) or [
        index for name in _list(data.get("manifest"), "members") for index in lock.named(str(name))
    ]
    if not starts:
        gathering.refuse(label, "it does not know this project. Next: uv lock.")
        return
    found: dict[int, set[markers.Together]] = {}
    for (index, _), ways in markers.conditions([(index, "") for index in starts], lock.edges).items():
        found.setdefault(index, set()).update(ways)
    indexes = set()
    for index, ways in sorted(found.items()):
        package = lock.packages[index]
        source = _source(package)
        if "registry" in source:
            indexes.add(str(source["registry"]))
        if index in starts:
            gathering.local_names.add(canonicalize_name(str(package.get("name"))))
        _take(gathering, label, path.parent, package, source, markers.joined(ways))
    _name_indexes(gathering, indexes, label, path.parent)
    for index in starts:
        _compare(gathering, label, lock.packages[index])


class _Lock:
    """The packages of a uv.lock as a graph; a node is a package with one of its extras, "" for itself."""

    def __init__(self, folder: Path, packages: list[dict[str, Any]]) -> None:
        self.packages = packages
        self._folder = folder
        self._by_name: dict[str, list[int]] = {}
        for index, package in enumerate(packages):
            self._by_name.setdefault(canonicalize_name(str(package.get("name"))), []).append(index)

    def named(self, name: str) -> list[int]:
        return self._by_name.get(canonicalize_name(name), [])

    def at(self, folder: Path) -> list[int]:
        return [i for i, package in enumerate(self.packages) if _folder(self._folder, package) == folder]

    def edges(self, node: Node) -> Iterator[tuple[Node, str]]:
        index, extra = node
        package = self.packages[index]
        optional = package.get("optional-dependencies")
        wanted = package.get("dependencies") if not extra else _get(optional, extra)
        for item in _tables(wanted):
            marker = _without_extras(str(item.get("marker", "")))
            if marker == _NEVER:
                continue
            for other in self.named(str(item.get("name"))):
                meant = self.packages[other]
                if all(item.get(key) in (None, meant.get(key)) for key in ("version", "source")):
                    yield from (((other, str(name)), marker) for name in ["", *_list(item, "extra")])


def _without_extras(marker: str) -> str:
    return _CONFLICT.sub(lambda found: _NEVER if found[1] == "==" else _ALWAYS, marker)


def _take(
    gathering: Gathering, label: str, folder: Path, package: Mapping[str, Any], source: Mapping[str, Any], marker: str
) -> None:
    """Take one package of a lock file, wherever it comes from."""
    name, version = str(package.get("name")), package.get("version")
    where = f"{label}: {name}"
    local = next((str(source[kind]) for kind in ("editable", "directory", "virtual", "path") if kind in source), None)
    if local is not None:
        gathering.local_names.add(canonicalize_name(name))
        place = Path(os.path.normpath(folder / local))
        if place.is_dir():
            if place != gathering.project:
                gathering.folders.add(os.path.relpath(place, gathering.project))
        else:
            gathering.folder(str(place), where)
        return
    if "git" in source:
        place_text = _git(str(source["git"]))
    elif "url" in source:
        place_text = str(source["url"]) + (
            f"#subdirectory={source['subdirectory']}" if "subdirectory" in source else ""
        )
    else:
        place_text = ""
    pinned = f"{name} @ {place_text}" if place_text else f"{name}=={version}"
    if not place_text and version is None:
        gathering.refuse(where, "it has neither a version nor a place.")
    else:
        gathering.read(f"{pinned} ; {marker}" if marker else pinned, where)


def _git(text: str) -> str:
    """Return what uv writes, "https://...?subdirectory=x&rev=main#commit", as pip reads it."""
    url, _, commit = text.partition("#")
    url, _, query = url.partition("?")
    fields = dict(part.partition("=")[::2] for part in query.split("&"))
    below = fields.get("subdirectory")
    return git_url(url, commit) + (f"#subdirectory={below}" if below else "")


def _name_indexes(gathering: Gathering, indexes: set[str], label: str, folder: Path) -> None:
    """Name the indexes that a lock was made from: PyPI is pip's own, unless the user has set another."""
    urls = sorted(index for index in indexes if "://" in index and index.rstrip("/") != _PYPI)
    primary = bool(urls) and not any(index.rstrip("/") == _PYPI for index in indexes)
    for number, url in enumerate(urls):
        if gathering.url(url, label):
            gathering.option("--index-url" if primary and number == 0 else "--extra-index-url", url)
    for path in sorted(index for index in indexes if "://" not in index):
        requirements_txt.find_links(gathering, path, label, folder)


def _compare(gathering: Gathering, label: str, package: Mapping[str, Any]) -> None:
    """Note what the project asks for by now, and the lock does not know."""
    asked = _tables(_get(package.get("metadata"), "requires-dist"))
    known = {canonicalize_name(str(item.get("name"))) for item in asked}
    table = project.read_toml(gathering.project / "pyproject.toml").get("project")
    new = []
    for text in _list(table, "dependencies"):
        try:
            name = Requirement(str(text)).name
        except InvalidRequirement:
            continue
        if canonicalize_name(name) not in known | {canonicalize_name(str(package.get("name")))}:
            new.append(name)
    if new and _get(table, "name") == package.get("name"):
        said = f"{label} is older than pyproject.toml, which also asks for {', '.join(sorted(new))}. Next: uv lock."
        gathering.notes.append(Finding("warning", said))


def read_pylock(gathering: Gathering, path: Path) -> None:
    """Take what a pylock.toml fixes, for no extra and no group.

    Args:
        gathering: takes it, and the mistakes.
        path: the file.
    """
    label = requirements_txt.name_of(gathering, path)
    data = project.read_toml(path)
    if not str(data.get("lock-version", "")).startswith("1."):
        gathering.refuse(label, f"its lock-version is {data.get('lock-version')!r}, known is '1.0'.")
        return
    indexes = set()
    for package in _tables(data.get("packages")):
        marker = str(package.get("marker", ""))
        if re.search(r"\b(extras|dependency_groups)\b", marker):
            said = "its marker asks which extras or groups are wanted, and pip does not know. Next: write it for one choice."
            gathering.refuse(f"{label}: {package.get('name')}", said)
            continue
        if isinstance(package.get("index"), str):
            indexes.add(package["index"])
        _take(gathering, label, path.parent, package, _pylock_source(package), marker)
    _name_indexes(gathering, indexes, label, path.parent)


def _pylock_source(package: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a package of a pylock.toml comes from, as a uv.lock would say it."""
    vcs, archive = package.get("vcs"), package.get("archive")
    if isinstance(vcs, dict):
        below = f"?subdirectory={vcs['subdirectory']}" if "subdirectory" in vcs else ""
        return {"git": f"{vcs.get('url')}{below}#{vcs.get('commit-id', '')}"}
    if isinstance(archive, dict):
        return {"url": archive["url"]} if "url" in archive else {"path": archive.get("path")}
    folder = _get(package.get("directory"), "path")
    return {"directory": folder} if folder else {}


def _folder(lock: Path, package: Mapping[str, Any]) -> Path | None:
    source = _source(package)
    found = next((source[kind] for kind in ("virtual", "editable", "directory") if kind in source), None)
    return Path(os.path.normpath(lock / found)) if isinstance(found, str) else None


def _source(package: Mapping[str, Any]) -> dict[str, Any]:
    source = package.get("source")
    return source if isinstance(source, dict) else {}


def _get(data: Any, key: str) -> Any:
    return data.get(key) if isinstance(data, dict) else None


def _list(data: Any, key: str) -> list[Any]:
    found = _get(data, key)
    return found if isinstance(found, list) else []


def _tables(data: Any) -> list[dict[str, Any]]:
    return [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
