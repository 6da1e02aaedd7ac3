"""The command `podlift`: prints what the API returns. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import sys

import typer

from .. import __version__, errors
from . import look, start
from .output import say


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"podlift {__version__}")
        raise typer.Exit


def build() -> typer.Typer:
    """Return the command with its verbs, in the order in which a user meets them."""
    app = typer.Typer(
        name="podlift",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    ) -> None:
        """Package TensorFlow/Keras training code and run it, unchanged.

        Exit codes: 0 done, 1 user error in the job, 2 bad input, 3 infrastructure, 4 cancelled, 75 checkpointed.
        """

    for verb in (start.submit, start.plan, look.runs, look.status, look.logs, look.wait, look.cancel):
        app.command()(verb)
    return app


def main() -> None:
    """Run the command; errors of ours become one message and their exit code, never a traceback."""
    try:
        build()()
    except errors.PodliftError as error:
        say(f"podlift: {error}")
        sys.exit(error.exit_code)
