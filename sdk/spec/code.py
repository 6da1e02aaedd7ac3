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
    """The files of a run and its entry.

    Args:
        kind: "script", "module" or "function".
        program: the script's path in the bundle, or the module.
        function: the function's name, or "".
        project: the folder that is packaged.
        roots: folders of the bundle that come first on sys.path.
        only: the single file that is packaged, or "" for the whole project.
        digest: sha256 of the bundle.
        files: each file in the bundle, sorted by path.
        left_out: files of the project that are not packaged, with the reason.
        cwd: the folder of the bundle in which the program starts, "" for the top.
        generated: content of the files of the bundle that podlift wrote, by path.
        outside: folders of the caller's machine from which no module of the project may load.
        requirements: what the tasks need installed.
        argv: command-line arguments of the script or module.
        kwargs: keyword arguments of the function.
    """

    kind: str
    program: str
    function: str
    project: str
    roots: list[str]
    only: str
    digest: str
    files: tuple[PackedFile, ...]
    left_out: list[str]
    cwd: str = ""
    generated: Mapping[str, str] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)
    requirements: PackedRequirements = field(default_factory=PackedRequirements)
    argv: list[str] = field(default_factory=list)
    kwargs: dict[str, object] = field(default_factory=dict)
