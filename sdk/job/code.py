"""The code of a run, as it was packaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PackedFile:
    """A file of a bundle, or an empty folder."""

    path: str  # with "/"; that of a folder ends in it
    size: int
    sha256: str  # "" for a folder
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class PackedRequirements:
    """What the tasks need installed, in pip's syntax."""

    source: str = ""  # the name of the file that was read, "list", or "" if there are no requirements
    lines: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PackedCode:
    """The files of a run and its entry."""

    kind: str  # "script", "module" or "function"
    program: str  # the script's path in the bundle, or the module
    function: str  # its name, or ""
    project: str  # the folder that is packaged
    roots: list[str]  # folders of the bundle that come first on sys.path
    only: str  # the single file that is packaged, or "" for the whole project
    digest: str  # sha256 of the bundle
    files: tuple[PackedFile, ...]  # sorted by path
    left_out: list[str]  # files of the project that are not packaged, with the reason
    cwd: str = ""  # the folder of the bundle in which the program starts, "" for the top
    generated: Mapping[str, str] = field(default_factory=dict)  # content of the files that podlift wrote, by path
    outside: list[str] = field(default_factory=list)  # folders of this machine from which no module of it may load
    requirements: PackedRequirements = field(default_factory=PackedRequirements)
    argv: list[str] = field(default_factory=list)  # of the script or module
    kwargs: dict[str, object] = field(default_factory=dict)  # of the function
