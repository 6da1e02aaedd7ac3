"""The verbs as one command, and the message and the exit code of each failure."""

from __future__ import annotations

import importlib
import os
import re
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import typer

from .. import __version__
from ..errors import InputError, PodliftError
from ..logs import heard
from ..planning.settings.merge import complaints
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE
from . import shells
from .help import VerbHelp, group
from .output import (
    EXIT_DETACHED,
    EXIT_READER_LEFT,
    answer,
    as_json,
    prepare_streams,
    refusal,
    relayed,
    say,
    settle_streams,
)
from .verbs import MODULES, unknown

# Typer brings a click of its own, under another name in every generation: its usage errors are found by their base.
_USAGE: Any = typer.BadParameter.__mro__[1]
# Options of programs (--gpus, --retry) are less like one of podlift's (--ps, --entry).
_NEAR = 0.86
# Verbs and options that change the run that a reference names, or keep its model.
_CHANGING = re.compile(r"(cancel|resume|models add) |checkpoints .*--(un)?pin\b")
# They refuse settings that mean nothing, or list them.
_TELL_THEMSELVES = {"submit", "plan", "preflight", "drill", "goodput", "config", "doctor", "image"}


def load(words: Sequence[str]) -> dict[str, Callable[..., None] | typer.Typer]:
    """Return the verb, or group of verbs, that the words begin with, and nothing else is imported; all if it is none."""
    verbs = {}
    # The options of verbs need the backends of installed packages.
    with relayed("backends"):
        for name in [words[0]] if words and words[0] in MODULES else MODULES:
            module = importlib.import_module(f".{MODULES[name]}", __package__)
            verbs[name] = getattr(module, "list_runs" if name == "list" else name)
    return verbs


def _version(show: bool) -> None:
    if show:
        answer(f"podlift {__version__}")
        raise typer.Exit


def build(words: Sequence[str] = ()) -> typer.Typer:
    """Return the command with the verbs that its words need: the one that they name, or all."""
    context = {"help_option_names": ["-h", "--help"]}
    app = group("podlift", add_completion=False, pretty_exceptions_enable=False, context_settings=context)

    @app.callback()
    def root(
        version: bool = typer.Option(
            False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
        install: str | None = typer.Option(
            None,
            "--install-completion",
            metavar="[SHELL]",
            help="Install completion for bash, zsh or fish. Default: $SHELL.",
        ),
        show: str | None = typer.Option(
            None, "--show-completion", metavar="[SHELL]", help="Print the script of the completion."
        ),
    ) -> None:
        """Package TensorFlow/Keras training code and run it unchanged.

        Exit codes: 0 done, 1 user error in the job, 2 invalid input, 3 infrastructure, 4 cancelled, 75 checkpointed.
        """

    for name, verb in load(words).items():
        if isinstance(verb, typer.Typer):
            app.add_typer(verb)
        else:
            app.command(name, cls=VerbHelp)(verb)
    return app


def run(words: list[str]) -> int:
    """Run the command with these words and return its exit code; never raises."""
    try:
        prepare_streams()
        if words and words[0] == "help":
            words = [*words[1:], "--help"]
        if words and (problem := unknown(words)):
            raise InputError(problem)
        if words and words[0] in ("--install-completion", "--show-completion"):
            _completion(words[0], words[1] if len(words) > 1 else "")
            raise typer.Exit
        # Not the command's own main(): that ends a broken pipe with 1, which is the code of a job that failed.
        command = typer.main.get_command(build(words))
        with command.make_context("podlift", list(words)) as context, heard(partial(_doubt, words), "references"):
            _complain(words)
            command.invoke(context)
        code = EXIT_DONE
    except typer.Exit as leaving:
        code = leaving.exit_code
    except (Exception, KeyboardInterrupt) as error:
        code, problems = _explain(error, words)
        own = words[: words.index("--")] if "--" in words else words
        if "--json" in own:
            # What went wrong may be stdout itself.
            with suppress(OSError):
                as_json(refusal(problems, code))
    finally:
        reader_left = settle_streams()
    return EXIT_READER_LEFT if reader_left else code


def _completion(option: str, named: str) -> None:
    """Print or install the script that lets a shell complete the command."""
    shell = shells.shell_of(named, os.environ)
    if option == "--show-completion":
        answer(shells.script(shell).rstrip("\n"))
        return
    changed = ", ".join(shells.install(shell, Path.home(), os.environ))
    say(f"Completion for {shell} is installed: {changed}. Next: start a new shell.")


def _complain(words: Sequence[str]) -> None:
    """Name settings that mean nothing, where the verb goes on without them: it may look in another root than was meant."""
    if not words or words[0] not in MODULES or words[0] in _TELL_THEMSELVES or {"-h", "--help"} & set(words):
        return
    with suppress(OSError):
        for sentence in complaints(os.environ, Path.cwd()):
            say(f"podlift: ignored: {sentence}")


def _doubt(words: Sequence[str], text: str) -> None:
    """Say that a root did not answer, so that another run may be meant; refuse to change one."""
    if changing := _CHANGING.match(" ".join(words)):
        verb = changing[1] or "checkpoints"
        raise InputError(f"{text} Next: podlift {verb} with the id of the run that you mean.")
    say(f"podlift: {text}")


def _explain(error: BaseException, words: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Print an error; return the exit code, and the sentences for --json."""
    if isinstance(error, PodliftError):
        say(f"podlift: {error}")
        return error.exit_code, error.problems if isinstance(error, InputError) else (str(error),)
    if isinstance(error, _USAGE):
        return _explain_usage(error, words)
    if isinstance(error, KeyboardInterrupt):
        say("podlift: interrupted. A run that was started continues. Next: podlift list.")
        return EXIT_DETACHED, ("interrupted",)
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, BrokenPipeError):
        # Who left a pipe knows it.
        return EXIT_READER_LEFT, (message,)
    if isinstance(error, OSError):
        say(f"podlift: {message}")
        return EXIT_INFRASTRUCTURE, (message,)
    say("".join(traceback.format_exception(error)).rstrip())
    say(f"podlift: internal error: {message}")
    return EXIT_INFRASTRUCTURE, (f"internal error: {message}",)


def _explain_usage(error: Any, words: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    hint = ""
    if type(error).__name__ == "NoSuchOption":
        hint = _name_option(error, words)
    error.show()
    if hint:
        say(hint)
    return error.exit_code, (f"{error.format_message()} {hint}".rstrip(),)


def _name_option(error: Any, words: Sequence[str]) -> str:
    """Let the error name the option as it was typed and the one that was meant; return the hint where none is near."""
    short = (word for word in words if word.startswith(error.option_name) and not word.startswith("--"))
    typed = next(short, error.option_name).partition("=")[0]
    option_names = [name for option in error.ctx.command.params for name in option.opts if name.startswith("--")]
    near = get_close_matches(f"--{typed.lstrip('-')}", option_names, n=1, cutoff=_NEAR)
    error.message, error.possibilities = f"No such option: {typed}.{f' Did you mean {near[0]}?' if near else ''}", None
    verb = error.ctx.info_name
    if near or verb not in ("submit", "plan", "drill", "goodput"):
        return ""
    return f"Arguments for the program go after --: podlift {verb} train.py -- {typed} ..."
