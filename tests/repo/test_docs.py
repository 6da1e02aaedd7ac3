"""The promises of the documents, checked: pages, names, commands and paths that they mention exist."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from sources import SOURCES, nodes_of
from support import REPO
from test_layers import LAYERS

import sdk
from sdk.cli.app import build
from sdk.cli.verbs import IN_GROUP
from sdk.planning.settings import table

sys.path.insert(0, str(REPO / "scripts"))
import pages
import wrap

pytestmark = pytest.mark.xdist_group("imports")

DOCS = REPO / "docs"
# Instructions for users. Decisions and measurements report the past.
MANUAL = [
    REPO / "README.md",
    *sorted(path for path in DOCS.rglob("*.md") if not {"decisions", "benchmarks.md"} & set(path.parts)),
]
BLOCK = re.compile(r"```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Stand for something else in a command line of a page.
PLACEHOLDERS = {"...", "COMMAND", "VERB"}


def name_of(path: Path) -> str:
    return str(path.relative_to(REPO))


def nav_pages(entry: object) -> list[str]:
    """Paths in an entry of the site's navigation, in order."""
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    return [page for child in children for page in nav_pages(child)]


def test_the_navigation_lists_every_page_once() -> None:
    nav = yaml.safe_load((REPO / "mkdocs.yml").read_text())["nav"]
    pages = (path for path in DOCS.rglob("*.md") if path.parent.name != "decisions")
    assert sorted(nav_pages(nav)) == sorted(str(path.relative_to(DOCS)) for path in pages)


def test_the_architecture_page_lists_every_room_of_the_package() -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text()
    tree = page.partition("\nsdk/\n")[2].partition("\njobs/ ")[0]
    named = {
        word.rstrip("/") for line in tree.splitlines() for word in re.findall(r"^  ([\w. /]+?)  ", line)[0].split()
    }
    rooms = {path.name for path in (REPO / "sdk").iterdir() if path.is_dir() and path.name != "__pycache__"}
    files = {path.name for path in (REPO / "sdk").glob("*.py") if not path.name.startswith("__")}
    assert named == rooms | files


def test_the_architecture_page_has_the_layers_that_are_enforced() -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text()
    block = page.partition("## Layers")[2].partition("```text\n")[2].partition("```")[0]
    assert [tuple(row.strip().split(", ")) for row in block.split(" < ")] == [tuple(row) for row in LAYERS]


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=REPO).stdout
    return [REPO / name for name in listed.splitlines() if name.endswith(suffixes) and (REPO / name).is_file()]


@pytest.mark.process
def test_every_page_and_source_file_that_is_mentioned_exists() -> None:
    missing = set()
    for path in tracked(".py", ".md", ".toml", "scripts/bench"):
        if {"golden", "CHANGELOG.md"} & set(path.parts):
            continue
        # Programs of tests have other paths.
        kinds = r"docs/[\w/-]+\.md|examples/\w+\.\w+" + ("" if "tests" in path.parts else r"|sdk/[\w/]+\.py")
        for found in re.findall(rf"(?<![\w/.-])(?:{kinds})\b", path.read_text()):
            if not (REPO / found).exists():
                missing.add(f"{name_of(path)}: {found}")
    assert missing == set()


def test_no_line_of_a_paragraph_is_longer_than_120_columns() -> None:
    pages = [*sorted(DOCS.rglob("*.md")), REPO / "CONTRIBUTING.md", REPO / "SECURITY.md"]
    long = [name_of(path) for path in pages if wrap.wrapped(text := path.read_text()) != text]
    assert long == [], "Next: scripts/wrap.py"


def test_wrapping_breaks_no_table_code_or_link() -> None:
    words = "word " * 30
    for text in (f"| {words} |\n", f"```console\n$ {words}\n```\n", f"# {words}\n", f"[{words}]: address\n"):
        assert wrap.wrapped(text) == text
    # The span, the address and the number would each be at the end of a line, or begin the next one.
    item = wrap.wrapped(
        f"- {'word ' * 22}`podlift submit train.py` {'word ' * 17}[a link](page.md) {'word ' * 20}1. word\n- next\n"
    )
    assert max(map(len, item.splitlines())) <= 120
    assert "`podlift submit train.py`" in item and "[a link](page.md)" in item
    assert [line[:2] for line in item.splitlines()] == ["- ", "  ", "  ", "  ", "- "]
    assert not [line for line in item.splitlines() if line.strip().startswith("1.")]
    assert wrap.wrapped(item) == item


@cache
def verbs() -> dict[str, Any]:
    found = dict(typer.main.get_command(build()).commands)  # type: ignore[attr-defined]
    return found | {
        f"{group} {name}": found[group].commands[name] for group, names in IN_GROUP.items() for name in names
    }


@cache
def options(verb: str) -> dict[str, bool]:
    """Every option of a verb that is not hidden, and whether it has a value."""
    context = verbs()[verb].make_context(verb, [], resilient_parsing=True)
    found = {"-h": False, "--help": False}
    for parameter in verbs()[verb].get_params(context):
        if parameter.param_type_name == "option" and not parameter.hidden:
            found.update(dict.fromkeys([*parameter.opts, *parameter.secondary_opts], not parameter.is_flag))
    return found


def commands(text: str) -> Iterator[str]:
    """Command lines of podlift in a page: of its blocks, and between backticks."""
    for kind, block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if kind in ("console", "sh", "bash", "yaml"):
                yield from re.findall(
                    r"(?:^|^\$ |run: |&& |; |^[A-Z_]+=\S+ )(podlift .*?)(?= {2,}#| # |$)", line.strip()
                )
    for span in re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)):
        if span.startswith(("podlift ", "PODLIFT_")) and " " in span:
            yield span[span.index("podlift ") :] if "podlift " in span else "podlift --help"


ROOT_OPTIONS = ("--install-completion", "--show-completion")


def problem(command: str) -> str:
    """What podlift would not understand in a command line; "" if it would run."""
    words = shlex.split(re.split(r" [|>&] ?| 2>", command.replace("\\|", "|"))[0])[1:]
    if not words or words[0] in ("--help", "--version", "-h", *ROOT_OPTIONS) or PLACEHOLDERS & {words[0]}:
        return ""
    if words[0] in IN_GROUP and len(words) > 1 and not words[1].startswith("-"):
        words = [" ".join(words[:2]), *words[2:]]
    for verb in words[0].split("|"):
        if verb not in verbs():
            return f"no such command: {verb}"
        known, rest = options(verb), iter(words[1:])
        for word in rest:
            if word == "--":
                break
            if word.startswith("-") and len(word) > 1:
                name = word.partition("=")[0]
                if name not in known:
                    return f"no such option: {name}"
                if known[name] and "=" not in word and next(rest, None) is None and "`" not in command:
                    return "" if len(words) == 2 else f"no value: {name}"
    return ""


COMMANDS = [
    (name_of(path), command)
    for path in [*MANUAL, *sorted(DOCS.rglob("decisions/*.md")), REPO / "examples" / "github-actions.yml"]
    for command in commands(f"```yaml\n{path.read_text()}```" if path.suffix == ".yml" else path.read_text())
]


def test_every_command_line_is_one_that_podlift_understands() -> None:
    found = {f"{page}: {command}: {why}" for page, command in COMMANDS if (why := problem(command))}
    assert found == set()
    assert len(COMMANDS) > 150


@pytest.mark.parametrize(
    "command", ["podlift sumbit train.py", "podlift submit train.py --every-steps 3", "podlift ls"]
)
def test_a_command_line_that_podlift_does_not_understand_is_found(command: str) -> None:
    assert problem(command)


def test_settings_that_guides_mention_exist() -> None:
    known = {*table.settings(), *table.TARGET, "vertex_project"}
    groups = sorted({name.partition("_")[0] for name in table.settings() if "_" in name} - {"max"})
    unknown = set()
    for path in (path for path in MANUAL if "reference" not in path.parts):
        text = path.read_text()
        names = re.findall(rf"`((?:{'|'.join(groups)})_\w+)\b", text)
        for kind, block in BLOCK.findall(text):
            for node in ast.walk(ast.parse(block)) if kind == "python" else ():
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("submit", "plan"):
                    names += [word.arg for word in node.keywords if word.arg]
        unknown |= {f"{name_of(path)}: {name}" for name in names if name not in known}
    assert unknown == set()


def messages() -> Iterator[tuple[str, str]]:
    """Yield each text of the package that a user may see, with its place."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in SOURCES:
        comments = {id(node.body[0].value) for node in nodes_of(path)
                    if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
        for node in nodes_of(path):
            shown = isinstance(node, ast.Constant) and id(node) not in comments
            if shown and isinstance(node.value, str) and " " in node.value:
                yield f"{path.relative_to(REPO)}:{node.lineno}", node.value


def test_settings_that_messages_mention_exist() -> None:
    grouped = [each for each in table.settings().values() if each.group not in ("", "resources")]
    prefixes = "|".join({each.name.partition("_")[0] for each in grouped} - {"max", "allow"})
    # Not a part of a path, an address, a field or a call.
    full = re.compile(rf"(?<![\w.$/\-{{\[:\"'<])((?:{prefixes})_[a-z0-9_]+)\b(?![(./:\]>])")
    # Advice names a setting in parentheses: its whole name, not its field in the backend's class.
    fields = {each.field for each in grouped} - {*table.settings(), *table.TARGET}
    short = re.compile(r"\((?:set )?([a-z_]+)(?:: [^)]*)?\)")
    unknown = []
    for place, text in messages():
        unknown += [f"{place}: {name}" for name in full.findall(text) if name not in table.settings()]
        unknown += [f"{place}: ({name})" for name in short.findall(text) if name in fields]
    assert unknown == [], "\n".join(unknown)


def test_arguments_of_podlifts_classes_that_guides_mention_exist() -> None:
    unknown = []
    for path in (path for path in MANUAL if "reference" not in path.parts):
        text = path.read_text()
        calls = [
            (node.func.attr, word.arg)
            for kind, block in BLOCK.findall(text)
            for node in (ast.walk(ast.parse(block)) if kind == "python" else ())
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name) and node.func.value.id == "sdk"
            for word in node.keywords if word.arg
        ]  # fmt: skip
        calls += [
            (kind, name)
            for kind, given in re.findall(r"`(?:sdk\.)?(Vertex|Ray|Local|Job|Resources)\(([^`]*)\)`", text)
            for name in re.findall(r"(\w+)=", given)
        ]
        for kind, name in calls:
            target = getattr(sdk, kind)
            if isinstance(target, type) and name not in inspect.signature(target).parameters:
                unknown.append(f"{name_of(path)}: {kind}({name}=)")
    assert unknown == [], "\n".join(unknown)


def imports(text: str) -> Iterator[str]:
    """Dotted names that a program imports from podlift."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sdk":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("sdk."))


def public(name: str) -> bool:
    """Whether the reference has a dotted name: of `sdk` itself, of a module beside it, or such a module."""
    _, _, rest = name.partition(".")
    module, _, attribute = f"sdk.{rest}".rpartition(".")
    if module == "sdk" and (attribute in sdk.__all__ or attribute == "__all__"):
        return True
    inside = [f"sdk.{rest}", module, module.rpartition(".")[0]]
    return f"sdk.{rest}" in {parent for one in pages.MODULES for parent in (one, one.rpartition(".")[0])} or any(
        rest.split(".")[-1] in pages.MODULES.get(one, ()) for one in inside
    )


def programs() -> Iterator[tuple[str, str]]:
    for path in MANUAL:
        for kind, block in BLOCK.findall(path.read_text()):
            if kind == "python" and "reference" not in path.parts:
                yield name_of(path), block
    for path in sorted((REPO / "examples").rglob("*.py")):
        yield name_of(path), path.read_text()


def test_everything_that_documents_and_examples_import_is_in_the_reference() -> None:
    found = {f"{where}: {name}" for where, text in programs() for name in imports(text) if not public(name)}
    assert found == set()


def test_every_name_of_podlift_that_guides_mention_is_in_the_reference() -> None:
    guides = [path for path in MANUAL if "reference" not in path.parts and path.name != "architecture.md"]
    private = set()
    for path in guides:
        for name in re.findall(r"`?\b(sdk(?:\.[A-Za-z_]\w*)+)", path.read_text()):
            if not public(name) and not public(name.rpartition(".")[0]):
                private.add(f"{name_of(path)}: {name}")
    assert private == set()


def test_public_modules_have_the_names_that_the_reference_lists() -> None:
    page = (DOCS / "reference" / "testing.md").read_text()
    for module, names in pages.MODULES.items():
        assert f"## `{module}`" in page
        assert all(f"`{name}`" in page for name in names)
