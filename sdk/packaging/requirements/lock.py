"""Reads lock files: a pylock.toml with `packaging`, and a uv.lock through `uv export`, which turns it into a pylock.toml."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from packaging.pylock import Package, Pylock, PylockValidationError
from packaging.utils import canonicalize_name

from ...checks import Finding
from ...process import uv
from ...text import clipped
from .. import project
from .collector import RequirementsCollector, redacted
from .pyproject import dependencies
from .requirements_txt import find_links

_PYPI = "https://pypi.org/simple"
_EXPORT = ("export", "--format", "pylock.toml", "--no-header", "--no-default-groups", "--frozen", "--offline")
# It reads one file; the rest is for a slow disk.
_LIMIT_S = 60.0
_SHOWN = 500


def read_uv(collector: RequirementsCollector, path: Path) -> None:
    """Read the versions in a uv.lock for the project, without extras and groups: all direct and indirect dependencies."""
    label = collector.label(path)
    # A workspace's lock is above its members; uv finds it from there.
    is_member = (collector.project / "pyproject.toml").is_file() and collector.project.is_relative_to(path.parent)
    folder = collector.project if is_member else path.parent
    command = [uv.program(), *_EXPORT, "--quiet", "--no-cache", "--no-python-downloads", "--python", sys.executable]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        collector.refuse(label, f"uv cannot be run: {error}.")
        return
    if done.returncode:
        # The lines with a bar quote the file.
        lines = done.stderr.decode(errors="replace").splitlines()
        reason = " ".join(" ".join(line.split()) for line in lines if "|" not in line)
        collector.refuse(label, f"uv cannot export it: {clipped(redacted(reason), _SHOWN)}")
        return
    _read(collector, label, done.stdout, folder)
    _warn_if_older(collector, label)


def _warn_if_older(collector: RequirementsCollector, label: str) -> None:
    """Warn if the project requires something that the lock does not contain."""
    names = collector.names() | collector.local_names
    new = sorted(item.name for item in dependencies(collector.project) if canonicalize_name(item.name) not in names)
    if new:
        message = f"{label} is older than pyproject.toml, which also requires {', '.join(new)}. Next: uv lock."
        collector.notes.append(Finding("warning", message))


def read_pylock(collector: RequirementsCollector, path: Path) -> None:
    """Read the versions in a pylock.toml, without extras and groups."""
    _read(collector, collector.label(path), path.read_bytes(), path.parent)


def _read(collector: RequirementsCollector, label: str, data: bytes, folder: Path) -> None:
    """Read the content of a pylock.toml, with paths relative to `folder`."""
    try:
        packages = Pylock.from_dict(project.parse_toml(data, label)).packages
    except PylockValidationError as error:
        collector.refuse(label, f"it is not a valid lock file: {redacted(str(error))}.")
        return
    indexes = set()
    for package in packages:
        where = f"{label}: {package.name}"
        if re.search(r"\b(extras|dependency_groups)\b", str(package.marker)):
            mistake = (
                "its marker depends on extras or groups, which pip does not know. Next: write the lock for one choice."
            )
            collector.refuse(where, mistake)
        elif package.directory is not None:
            _add_folder(collector, where, package.name, folder / package.directory.path)
        else:
            indexes |= {package.index} if package.index else set()
            source = _source(package)
            if source:
                marker = f" ; {package.marker}" if package.marker else ""
                collector.add_text(f"{package.name}{source}{marker}", where, base=folder)
            else:
                collector.refuse(where, "it has neither a version nor a source.")
    _add_indexes(collector, indexes, label, folder)


def _source(package: Package) -> str:
    """Return the version or the URL after a package's name in a requirement, "" if the lock has neither."""
    origin = package.vcs or package.archive
    if origin is None:
        return f"=={package.version}" if package.version else ""
    part = f"#subdirectory={origin.subdirectory}" if origin.subdirectory else ""
    if package.vcs:
        return f" @ {package.vcs.type}+{package.vcs.url or package.vcs.path}@{package.vcs.commit_id}{part}"
    return f" @ {origin.url or origin.path}{part}"


def _add_folder(collector: RequirementsCollector, where: str, name: str, path: Path) -> None:
    """Add a local project; its own requirements are in the lock."""
    collector.local_names.add(canonicalize_name(name))
    path = Path(os.path.normpath(path))
    if not path.is_dir():
        collector.folder(str(path), where)
    elif path != collector.project:
        collector.folders.add(os.path.relpath(path, collector.project))


def _add_indexes(collector: RequirementsCollector, indexes: set[str], label: str, folder: Path) -> None:
    """Add the indexes of a lock, except PyPI, which is pip's default; folders of wheels are not indexes for pip."""
    urls = sorted(index for index in indexes if not index.startswith("file:") and index.rstrip("/") != _PYPI)
    uses_pypi = any(index.rstrip("/") == _PYPI for index in indexes)
    for number, url in enumerate(urls):
        if collector.accepts_url(url, label):
            collector.option("--extra-index-url" if uses_pypi or number else "--index-url", url)
    for url in sorted(index for index in indexes if index.startswith("file:")):
        find_links(collector, url, label, folder)
