"""What `--help` prints: options and verbs in panels, the common ones first; `--help-all` shows the others too.

Nothing is cut off: a text that does not fit goes on below its beginning. Typer's own page cuts options, metavars and summaries.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import typer

from ..job.targets import options_of
from .verbs import GROUPS

COMMON = "Common options"
# In this order, whatever the order of the verb's own parameters.
_COMMON = (
    "workers", "accelerator", "backend", "root", "name", "args", "env", "inputs", "timeout", "max_steps", "max_cost_usd",
    "checkpoint_every",
)  # fmt: skip
_TITLES = {
    "checkpoints": "Checkpoints", "retry": "Restarts", "limits": "Limits", "code": "Code", "gate": "Models",
}  # fmt: skip
_ALL = "podlift.help_all"
_WIDEST = 100
# A longer option stands alone in its line.
_OPTION = 30
Row = tuple[str, str]


def panel_of(name: str, group: str) -> str:
    """Return the panel in which the option of a setting stands."""
    if name in _COMMON:
        return COMMON
    title = _TITLES.get("gate" if name in ("model", "warm_start") else group)
    return title or options_of(group).title or "Program and cluster"


def show_all(context: typer.Context, show: bool) -> None:
    """Print the help with every option, for `--help-all`."""
    if show:
        context.meta[_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


class VerbHelp(typer.core.TyperCommand):
    """A verb that prints its options in panels."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        return ["[OPTIONS]", *(_row(one)[0] if one.required else f"[{_row(one)[0].strip('[]')}]" for one in arguments)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        parameters = [one for one in self.get_params(ctx) if not getattr(one, "hidden", False)]
        settings = any(one.name == "help_all" for one in parameters)
        panels: dict[str, list[Any]] = {}
        for parameter in parameters:
            panels.setdefault(_panel(parameter, settings), []).append(parameter)
        order = ["Arguments", COMMON, "Options"]
        hidden = [title for title in panels if title not in order]
        if ctx.meta.get(_ALL):
            order, hidden = [*order, *hidden], []
        panels[COMMON] = sorted(panels.get(COMMON, []), key=lambda one: _COMMON.index(one.name))
        about = [(title, [_row(one) for one in panels[title]]) for title in order if panels.get(title)]
        count = sum(len(panels[title]) for title in hidden)
        last = f"{count} more options ({', '.join(hidden)}): {ctx.command_path} --help-all" if count else ""
        formatter.write(_page(self, ctx, about, last))


class GroupHelp(typer.core.TyperGroup):
    """The command itself or a group of verbs, which prints them and their sentences."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        options = [_row(one) for one in self.get_params(ctx) if not getattr(one, "hidden", False)]
        titles = {"Commands": self.commands} if ctx.parent else GROUPS
        verbs = [
            (title, [(name, _first(self.commands[name].help)) for name in names if name in self.commands])
            for title, names in titles.items()
        ]
        last = f"The options of a command: {ctx.command_path} COMMAND --help"
        formatter.write(_page(self, ctx, [*verbs, ("Options", options)], last))


def _panel(parameter: Any, settings: bool) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    if settings and parameter.name in _COMMON:
        return COMMON
    return getattr(parameter, "rich_help_panel", None) or "Options"


def _row(parameter: Any) -> Row:
    """Return an option as it is typed, and its sentence."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper()), parameter.help or ""
    name = next((one for one in parameter.opts if one.startswith("--")), parameter.opts[0])
    short = next((f"{one}, " for one in parameter.opts if not one.startswith("--")), "")
    if any(one.startswith("--no-") for one in parameter.secondary_opts):
        name = f"--[no-]{name[2:]}"
    metavar = f" {parameter.metavar or parameter.type.name.upper()}" if not parameter.is_flag else ""
    default = parameter.default
    shows_default = parameter.show_default and isinstance(default, (int, float, str)) and not isinstance(default, bool)
    extra = " Required." if parameter.required else f" Default: {default}." if shows_default else ""
    return f"{short}{name}{metavar}", f"{parameter.help or ''}{extra}"


def _first(text: str | None) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def _page(command: Any, ctx: Any, panels: Iterable[tuple[str, list[Row]]], last: str) -> str:
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    lines = [f"Usage: {' '.join([ctx.command_path, *command.collect_usage_pieces(ctx)])}", ""]
    for paragraph in (command.help or "").split("\n\n"):
        lines += [*textwrap.wrap(" ".join(paragraph.split()), width - 1, initial_indent=" ", subsequent_indent=" "), ""]
    return "\n".join(
        [*lines, *_drawn(panels, width), *textwrap.wrap(last, width - 1, initial_indent=" ", subsequent_indent=" ")]
    )


def _drawn(panels: Iterable[tuple[str, list[Row]]], width: int) -> Iterator[str]:
    """Yield the lines of all panels, with colours where the output is a terminal that wants them."""
    from rich.box import ASCII, ROUNDED
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    written = io.StringIO()
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    console = Console(file=written, width=width, force_terminal=colours, no_color=not colours, highlight=False)
    box = ROUNDED if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
    for title, rows in panels:
        text = Text("\n").join(Text.assemble((left, "bold cyan"), rest) for left, rest in _laid_out(rows, width - 4))
        console.print(Panel(text, box, title=title, title_align="left", border_style="dim"))
    yield from written.getvalue().rstrip("\n").split("\n")


def _laid_out(rows: list[Row], width: int) -> Iterator[tuple[str, str]]:
    """Yield the beginning and the rest of each line of a panel."""
    column = max((len(left) for left, _ in rows if len(left) <= _OPTION), default=_OPTION) + 2
    for left, text in rows:
        wrapped = textwrap.wrap(text, width - column, break_on_hyphens=False) or [""]
        if len(left) + 2 > column:
            yield left, ""
            yield "", " " * column + wrapped[0]
        else:
            yield left, " " * (column - len(left)) + wrapped[0]
        yield from (("", " " * column + line) for line in wrapped[1:])


def group(name: str, **about: Any) -> typer.Typer:
    """Return an empty group of verbs."""
    return typer.Typer(name=name, cls=GroupHelp, no_args_is_help=True, rich_markup_mode=None, **about)
