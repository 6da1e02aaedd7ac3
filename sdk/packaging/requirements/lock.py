"""Reads lock files, uv.lock and the standard's pylock.toml: exact versions, and the markers under which they apply."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from ...checks import Finding
from .. import project
from ..project import table
from .collector import RequirementsCollector
from .pyproject import git_url, parsed
from .requirements_txt import find_links

_VERSION = 1
_PYPI = "https://pypi.org/simple"
# uv writes such extras for conflicts. None of them is installed, so that == never holds and != always does.
_CONFLICT = re.compile(r"extra\s*(==|!=)\s*(['\"])[^'\"]*\2")
_NEVER, _ALWAYS = "python_version < '0'", "python_version >= '0'"
_COMPARISON = re.compile(r"(\w+) ?(<|>=|<=|>|==|!=) ?['\"]([^'\"]*)['\"]")
_OPPOSITES = {"<": ">=", ">=": "<", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}

Node = TypeVar("Node", bound=Hashable)
# Markers that must all hold; the empty set always does.
MarkerSet = frozenset[str]


def is_uv(path: Path) -> bool:
    """True for uv's lock file."""
    return path.name == "uv.lock"


def is_pylock(path: Path) -> bool:
    """True for a lock file of the standard: pylock.toml, pylock.gpu.toml."""
    return re.fullmatch(r"pylock(\.[^.]+)?\.toml", path.name) is not None


def covers(path: Path, member: Path) -> bool:
    """True if a uv.lock was made for the project in a folder, among others."""
    return any(
        _local_folder(path.parent, package) == member for package in _dicts(project.read_toml(path).get("package"))
    )


def read_uv(collector: RequirementsCollector, path: Path) -> None:
    """Read what a uv.lock fixes for the project, without extras and groups: its dependencies and theirs."""
    label = collector.label(path)
    data = project.read_toml(path)
    if data.get("version") != _VERSION:
        collector.refuse(label, f"its version is {data.get('version')!r}, known is {_VERSION}. Next: update podlift.")
        return
    lock = _UvLock(path.parent, _dicts(data.get("package")))
    starts = lock.at(collector.project)
    if not starts:
        members = _list(table(data, "manifest").get("members"))
        starts = [index for name in members for index in lock.named(str(name))]
    if not starts:
        collector.refuse(label, "it does not contain this project. Next: uv lock.")
        return
    found: dict[int, set[MarkerSet]] = {}
    for (index, _), ways in marker_paths([(index, "") for index in starts], lock.edges).items():
        found.setdefault(index, set()).update(ways)
    indexes = set()
    for index, ways in sorted(found.items()):
        package = lock.packages[index]
        source = table(package, "source")
        if "registry" in source:
            indexes.add(str(source["registry"]))
        if index in starts:
            collector.local_names.add(canonicalize_name(str(package.get("name"))))
        _add(collector, label, path.parent, package, source, joined_markers(ways))
    _add_indexes(collector, indexes, label, path.parent)
    for index in starts:
        _warn_if_older(collector, label, lock.packages[index])


class _UvLock:
    """The packages of a uv.lock as a graph: a node is a package with one of its extras, "" for none."""

    def __init__(self, folder: Path, packages: list[dict[str, Any]]) -> None:
        self.packages = packages
        self._folder = folder
        self._by_name: dict[str, list[int]] = {}
        for index, package in enumerate(packages):
            self._by_name.setdefault(canonicalize_name(str(package.get("name"))), []).append(index)

    def named(self, name: str) -> list[int]:
        return self._by_name.get(canonicalize_name(name), [])

    def at(self, folder: Path) -> list[int]:
        return [i for i, package in enumerate(self.packages) if _local_folder(self._folder, package) == folder]

    def edges(self, node: tuple[int, str]) -> Iterator[tuple[tuple[int, str], str]]:
        index, extra = node
        package = self.packages[index]
        wanted = table(package, "optional-dependencies").get(extra) if extra else package.get("dependencies")
        for item in _dicts(wanted):
            marker = _CONFLICT.sub(lambda match: _NEVER if match[1] == "==" else _ALWAYS, str(item.get("marker", "")))
            if marker == _NEVER:
                continue
            for other in self.named(str(item.get("name"))):
                meant = self.packages[other]
                if all(item.get(key) in (None, meant.get(key)) for key in ("version", "source")):
                    yield from (((other, str(name)), marker) for name in ["", *_list(item.get("extra"))])


def _add(
    collector: RequirementsCollector,
    label: str,
    folder: Path,
    package: Mapping[str, Any],
    source: Mapping[str, Any],
    marker: str,
) -> None:
    """Add one package of a lock file."""
    name, version = str(package.get("name")), package.get("version")
    where = f"{label}: {name}"
    local = next((str(source[kind]) for kind in ("editable", "directory", "virtual", "path") if kind in source), None)
    if local is not None:
        collector.local_names.add(canonicalize_name(name))
        path = Path(os.path.normpath(folder / local))
        if not path.is_dir():
            collector.folder(str(path), where)
        elif path != collector.project:
            # Its own requirements are in the lock.
            collector.folders.add(os.path.relpath(path, collector.project))
        return
    if "git" in source:
        text = f"{name} @ {_git_url(str(source['git']))}"
    elif "url" in source:
        text = f"{name} @ {source['url']}"
        if "subdirectory" in source:
            text += f"#subdirectory={source['subdirectory']}"
    elif version is None:
        collector.refuse(where, "it has neither a version nor a source.")
        return
    else:
        text = f"{name}=={version}"
    collector.add(f"{text} ; {marker}" if marker else text, where)


def _git_url(text: str) -> str:
    """Return uv's "https://...?subdirectory=x&rev=main#commit" as pip expects it."""
    url, _, commit = text.partition("#")
    url, _, query = url.partition("?")
    fields = dict(part.partition("=")[::2] for part in query.split("&"))
    subdirectory = fields.get("subdirectory")
    url = git_url(url, commit)
    return f"{url}#subdirectory={subdirectory}" if subdirectory else url


def _add_indexes(collector: RequirementsCollector, indexes: set[str], label: str, folder: Path) -> None:
    """Add the indexes of a lock, except PyPI, which is pip's default."""
    urls = sorted(index for index in indexes if "://" in index and index.rstrip("/") != _PYPI)
    uses_pypi = any(index.rstrip("/") == _PYPI for index in indexes)
    for number, url in enumerate(urls):
        if collector.accepts_url(url, label):
            collector.option("--extra-index-url" if uses_pypi or number else "--index-url", url)
    for path in sorted(index for index in indexes if "://" not in index):
        find_links(collector, path, label, folder)


def _warn_if_older(collector: RequirementsCollector, label: str, package: Mapping[str, Any]) -> None:
    """Warn if the project asks for something that the lock does not contain."""
    locked = _dicts(table(package, "metadata").get("requires-dist"))
    known = {canonicalize_name(str(item.get("name"))) for item in [*locked, package]}
    asked = table(project.read_toml(collector.project / "pyproject.toml"), "project")
    requirements = [parsed(str(text)) for text in _list(asked.get("dependencies"))]
    new = sorted(item.name for item in requirements if item and canonicalize_name(item.name) not in known)
    if new and asked.get("name") == package.get("name"):
        message = f"{label} is older than pyproject.toml, which also requires {', '.join(new)}. Next: uv lock."
        collector.notes.append(Finding("warning", message))


def read_pylock(collector: RequirementsCollector, path: Path) -> None:
    """Read what a pylock.toml fixes, without extras and groups."""
    label = collector.label(path)
    data = project.read_toml(path)
    if not str(data.get("lock-version", "")).startswith("1."):
        collector.refuse(label, f"its lock-version is {data.get('lock-version')!r}, known is '1.0'.")
        return
    indexes = set()
    for package in _dicts(data.get("packages")):
        marker = str(package.get("marker", ""))
        if re.search(r"\b(extras|dependency_groups)\b", marker):
            collector.refuse(
                f"{label}: {package.get('name')}",
                "its marker depends on extras or groups, which pip does not know. Next: write the lock for one choice.",
            )
            continue
        if isinstance(package.get("index"), str):
            indexes.add(package["index"])
        _add(collector, label, path.parent, package, _pylock_source(package), marker)
    _add_indexes(collector, indexes, label, path.parent)


def _pylock_source(package: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source of a package in a pylock.toml as a uv.lock would write it."""
    vcs, archive, folder = table(package, "vcs"), table(package, "archive"), table(package, "directory").get("path")
    if vcs:
        query = f"?subdirectory={vcs['subdirectory']}" if "subdirectory" in vcs else ""
        return {"git": f"{vcs.get('url')}{query}#{vcs.get('commit-id', '')}"}
    if archive:
        return {"url": archive["url"]} if "url" in archive else {"path": archive.get("path")}
    return {"directory": folder} if folder else {}


def _local_folder(lock: Path, package: Mapping[str, Any]) -> Path | None:
    source = table(package, "source")
    found = next((source[kind] for kind in ("virtual", "editable", "directory") if kind in source), None)
    return Path(os.path.normpath(lock / found)) if isinstance(found, str) else None


def _list(data: Any) -> list[Any]:
    return data if isinstance(data, list) else []


def _dicts(data: Any) -> list[dict[str, Any]]:
    return [item for item in _list(data) if isinstance(item, dict)]


def marker_paths(
    starts: Iterable[Node], edges: Callable[[Node], Iterable[tuple[Node, str]]]
) -> dict[Node, set[MarkerSet]]:
    """Return, for each node that `starts` lead to, the sets of markers one of which must hold; an edge's may be ""."""
    found: dict[Node, set[MarkerSet]] = {node: {frozenset()} for node in starts}
    waiting = list(found)
    while waiting:
        node = waiting.pop()
        for other, marker in edges(node):
            ways = {way | {marker} if marker else way for way in found[node]}
            known = found.setdefault(other, set())
            new = _simplified(known | ways)
            if new != known:
                found[other] = new
                waiting.append(other)
    return found


def joined_markers(ways: Iterable[MarkerSet]) -> str:
    """Return one marker for sets of which one must hold, "" for always."""
    simplified = _simplified(set(ways))
    if frozenset() in simplified:
        return ""
    texts = sorted(" and ".join(f"({marker})" for marker in sorted(way)) for way in simplified)
    return str(Marker(" or ".join(f"({text})" for text in texts)))


def _simplified(ways: set[MarkerSet]) -> set[MarkerSet]:
    """Drop each set that contains another one; join two that differ in opposite markers."""
    while True:
        ways = {way for way in ways if not any(other < way for other in ways)}
        pairs = combinations(sorted(ways, key=sorted), 2)
        pair = next(((one, other) for one, other in pairs if _are_opposites(one ^ other)), None)
        if pair is None:
            return ways
        ways = ways - set(pair) | {pair[0] & pair[1]}


def _are_opposites(markers: MarkerSet) -> bool:
    """True for two comparisons of which always exactly one holds."""
    found = [match for marker in sorted(markers) if (match := _COMPARISON.fullmatch(marker))]
    if len(markers) != 2 or len(found) != 2:
        return False
    one, other = found
    return (one[1], one[3]) == (other[1], other[3]) and _OPPOSITES.get(one[2]) == other[2]
