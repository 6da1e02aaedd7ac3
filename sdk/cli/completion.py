"""Shell completion: the answer to each Tab. Not Typer's, which takes half a second at each, and splits `l4:8` in bash.

A script runs the command with `_PODLIFT_COMPLETE` set to the shell's name and the words so far as arguments. The answer is one
candidate per line, or FILES if the shell itself is to complete a path. Ids of runs come from the local root only; nothing here
loads a cloud client or TensorFlow. An answer that needs no options does not load the command either.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .shells import SHELLS
from .verbs import IN_GROUP, MODULES, REPORTS

FILES = ":files"
_OPTIONS = ("--help", "--version", "--install-completion", "--show-completion")
# The verbs with a run as their first argument.
_OF_RUNS = {"status", "why", "logs", "wait", "cancel", "resume", "get", "checkpoints", "models add"}
# The verbs with a schedule or a sweep as their first argument, and with a registered model and its version as the first two.
_OF_SCHEDULES = {f"schedule {verb}" for verb in ("create", "status", "pause", "unpause", "run", "remove", "simulate")}
_OF_SWEEPS = {f"sweep {verb}" for verb in ("status", "best", "cancel", "resume")}
_OF_MODELS = {f"models {verb}" for verb in ("status", "evaluate", "promote", "remove")}
# The verbs with runs as all arguments, and the verbs that take a version as MODEL:VERSION too.
_OF_ALL_SCHEDULES, _OF_VERSIONS = "schedule list", ("get", "diff")
# Options that stand for an argument, and how many arguments are beside them.
_STANDS_FOR = {"models promote": ("--previous", 1), "schedule create": ("--file", 0)}
_MOST_RUNS = 200
_PLAIN = re.compile(r"[\w./:@=+,%-]+")
# Between these, bash completes each part of a word alone.
_BREAKS = ":="


def answer(shell: str, words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Print the possible next words; never fails, as a shell has no use for an error."""
    trim = 0
    if shell == "bash":
        words = _split(words[0] if words else "")
        # Bash replaces only the text after the last break.
        trim = max((words[-1].rfind(sign) + 1 for sign in _BREAKS), default=0)
    proposed: list[str] = []
    with suppress(Exception):
        proposed = candidates(words, environ)
    # A shell inserts them as they are: a folder called "$(command)" or "--option" must not get into a command line.
    options = words[-1].startswith("-") if words else False
    plain = [one for one in proposed if one == FILES or (_PLAIN.fullmatch(one) and one.startswith("-") == options)]
    sys.stdout.write("".join(f"{one[trim:] if one != FILES else one}\n" for one in plain))


def _split(line: str) -> list[str]:
    """Return the words behind the command's name; the last one, perhaps empty, is the one to complete."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    # Variables may be set before the command.
    start = next((at for at, word in enumerate(words) if word.rpartition("/")[2] == "podlift"), 0)
    words = words[start + 1 :]
    return [*words, ""] if line[-1:].isspace() or not words else words


def candidates(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the completions of the last word, or [FILES]."""
    *before, current = words
    if not before:
        return _fitting(_OPTIONS if current.startswith("-") else MODULES, current)
    verb, *rest = before
    if verb in _OPTIONS[2:]:
        return _fitting(SHELLS, current)
    if verb not in MODULES:
        return []
    if verb in IN_GROUP:
        if not rest:
            return _fitting(IN_GROUP[verb], current)
        verb, rest = f"{verb} {rest[0]}", rest[1:]
    if "--" in rest:
        return [FILES]
    if not any(one.startswith("-") for one in [*rest, current]):
        named = _named(verb, rest, current, None, environ)
        if named is not None:
            return named
    return _of_verb(verb, rest, current, environ)


def _named(
    verb: str, arguments: list[str], current: str, root: str | None, environ: Mapping[str, str]
) -> list[str] | None:
    """Return the runs, schedules, sweeps or models that a verb's next argument may name, None if it names none of them."""
    versions = _versions(current, root, environ) if verb in _OF_VERSIONS else []
    if verb == "diff":
        return [*_runs(current, root, environ), *versions] or [FILES]
    if verb in _OF_RUNS and not arguments:
        return [*_runs(current, root, environ), *versions]
    if verb == "export":
        if not arguments:
            return _fitting(_forms(), current)
        return [*_runs(current, root, environ), *_names("sweep", current, root, environ)]
    if verb == _OF_ALL_SCHEDULES or (verb in _OF_SCHEDULES and not arguments):
        return _names("schedule", current, root, environ)
    if verb in _OF_SWEEPS and not arguments:
        return _names("sweep", current, root, environ)
    if verb in _OF_MODELS:
        return _models(arguments, current, root, environ) if len(arguments) < 2 else []
    return None


def _forms() -> list[str]:
    from ..exports import NAMES

    return [*REPORTS, *NAMES]


def _of_verb(verb: str, rest: list[str], current: str, environ: Mapping[str, str]) -> list[str]:
    """Return the candidates for an option, its value, or an argument of a verb."""
    options = [one for one in _parameters(verb) if one.param_type_name == "option" and not one.hidden]
    named = {name: one for one in options for name in [*one.opts, *one.secondary_opts]}
    name, equals, value = current.partition("=")
    if equals and name in named:
        values = _values(named[name], value, rest, environ)
        return values if values == [FILES] else [f"{name}={one}" for one in values]
    if rest and rest[-1] in named and not named[rest[-1]].is_flag:
        return _values(named[rest[-1]], current, rest, environ)
    if current.startswith("-"):
        return _fitting(sorted(named, key=lambda one: not one.startswith("--")), current)
    arguments = _arguments(rest, named)
    option, most = _STANDS_FOR.get(verb, ("", 0))
    if option in [word.partition("=")[0] for word in rest] and len(arguments) >= most:
        return []
    named_things = _named(verb, arguments, current, _value_of("--root", rest), environ)
    if named_things is not None:
        return named_things
    if verb == "init":
        from .parameters import PROPOSED

        return _fitting(list(PROPOSED), current)
    return [FILES] if any(one.param_type_name == "argument" for one in _parameters(verb)) else []


def _parameters(verb: str) -> list[Any]:
    import typer

    from .app import build

    command: Any = typer.main.get_command(build(verb.split()))
    for word in verb.split():
        command = command.commands[word]
    return list(command.params)


def _arguments(rest: list[str], named: Mapping[str, Any]) -> list[str]:
    """Return the words that are neither options nor their values."""
    arguments, value = [], False
    for word in rest:
        if not value and not word.startswith("-"):
            arguments.append(word)
        value = not value and word in named and not named[word].is_flag
    return arguments


def _value_of(option: str, rest: list[str]) -> str | None:
    for at, word in enumerate(rest):
        if word == option and at + 1 < len(rest):
            return rest[at + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _values(option: Any, current: str, rest: list[str], environ: Mapping[str, str]) -> list[str]:
    """Return the values of an option."""
    root = _value_of("--root", rest)
    if option.name == "checkpoint_resume_from":
        return _runs(current, root, environ)
    if option.name == "task":
        return _fitting(_tasks(rest, root, environ), current)
    if option.name in ("accelerator", "backend", "region", "state"):
        from .. import backends
        from ..hardware import accelerators, regions
        from ..status import State

        names_by_option = {"accelerator": accelerators.names(), "backend": backends.names(), "region": regions.KNOWN}
        return _fitting(names_by_option.get(option.name) or [state.value.lower() for state in State], current)
    choices = [one for one in (option.metavar or "").split("|") if one.islower()]
    if "|" in (option.metavar or "") and (fitting := _fitting(choices, current)):
        return fitting
    return [FILES] if any(word in (option.metavar or "") for word in ("FILE", "FOLDER", "DIR", "PATH", "URL")) else []


def _fitting(names: Iterable[str], current: str) -> list[str]:
    return [name for name in names if name.startswith(current)]


def _runs(current: str, root: str | None, environ: Mapping[str, str]) -> list[str]:
    """Return the ids of runs in the local root, newest first; paths for a word that looks like one."""
    if "/" in current or current.startswith((".", "~")):
        return [FILES]
    folder = _local_root(root, environ) / "runs"
    runs = []
    with suppress(OSError), os.scandir(folder) as entries:
        runs = [
            (entry.stat().st_mtime, entry.name)
            for entry in entries
            if entry.is_dir() and not entry.name.startswith(".")
        ]
    names = [name for _, name in sorted(runs, reverse=True)]
    return _fitting([*names[:_MOST_RUNS], *(["latest"] if names else [])], current)


def _names(noun: str, current: str, root: str | None, environ: Mapping[str, str]) -> list[str]:
    """Return the names of schedules or sweeps in the local root, and of those in buckets that this machine has seen."""
    from ..storage.cache import cache_folder, seen

    names = set[str]()
    for folder, suffix in (
        (_local_root(root, environ) / f"{noun}s" / "specs", ".json"),
        (seen(cache_folder(environ), noun), ""),
    ):
        with suppress(OSError):
            names |= {name.removesuffix(suffix) for name in os.listdir(folder) if name.endswith(suffix)}
    return _fitting(sorted(name for name in names if not name.startswith(".")), current)


def _models(words: list[str], current: str, root: str | None, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the models in the local root, or the versions of the first given word."""
    folder = _local_root(root, environ) / "models" / "records"
    versions: list[str] = []
    with suppress(OSError):
        if not words:
            return _fitting(sorted(os.listdir(folder)), current)
        names = os.listdir(folder / words[0] / "versions")
        numbers = sorted((int(name.removesuffix(".json")) for name in names if name[:6].isdigit()), reverse=True)
        versions = ["champion", "latest", *map(str, numbers)] if numbers else []
    return _fitting(versions, current)


def _versions(current: str, root: str | None, environ: Mapping[str, str]) -> list[str]:
    """Return versions as MODEL:VERSION: the champions until a model is named."""
    name, colon, version = current.partition(":")
    if colon:
        return [f"{name}:{number}" for number in _models([name], version, root, environ)]
    return [f"{model}:champion" for model in _models([], name, root, environ)]


def _tasks(rest: list[str], root: str | None, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the tasks of a run that the words name."""
    for word in rest:
        with suppress(OSError, ValueError, KeyError, TypeError):
            plan = json.loads((_local_root(root, environ) / "runs" / word / "plan.json").read_bytes())
            return [str(name) for name in plan["tasks"]]
    return []


def _local_root(root: str | None, environ: Mapping[str, str]) -> Path:
    """Return the root of runs on this machine: as the command finds it, but without the checks and their imports."""
    named = root or environ.get("PODLIFT_ROOT") or _root_of_project() or "~/.podlift"
    return Path(named).expanduser()


def _root_of_project() -> str | None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    for folder in [Path.cwd(), *Path.cwd().parents]:
        for name, tables in (("podlift.toml", ()), ("pyproject.toml", ("tool", "podlift"))):
            with suppress(OSError, ValueError):
                table = tomllib.loads((folder / name).read_text(encoding="utf-8"))
                for key in tables:
                    table = table.get(key, {})
                if isinstance(root := table.get("root"), str):
                    return str(folder / Path(root).expanduser())
    return None
