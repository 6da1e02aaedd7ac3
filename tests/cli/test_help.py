"""The output of --help: panels with the common options first, whole sentences, nothing cut off; and the effect of a slip."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from support import holds

import sdk
from sdk.cli.app import build
from sdk.cli.help import COMMON
from sdk.cli.verbs import GROUPS, IN_GROUP, MODULES
from sdk.planning.settings import table

WITH_SETTINGS = ("submit", "plan", "config", "preflight", "drill", "goodput")
WITH_MORE = (*WITH_SETTINGS, "schedule create", "sweep create", "init", "doctor")
GROUPED = [f"{group} {name}" for group, names in IN_GROUP.items() for name in names]
PANEL = re.compile(r"^╭─ (.+?) ─+╮$", re.MULTILINE)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def verbs() -> dict[str, Any]:
    found = dict(typer.main.get_command(build()).commands)  # type: ignore[attr-defined]
    return found | {verb: found[verb.split()[0]].commands[verb.split()[1]] for verb in GROUPED}


def words(text: str) -> str:
    """The words of a help page, without its panels."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def first_sentence(verb: Any) -> str:
    return " ".join(verb.help.partition("\n\n")[0].split())


@pytest.mark.parametrize("verb", [*MODULES, *GROUPED])
def test_every_sentence_of_a_help_page_is_there_as_a_whole(here, verbs: dict[str, Any], verb: str) -> None:
    shown = here(*verb.split(), "--help-all" if verb in WITH_MORE else "--help")
    assert shown.code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "..." not in re.sub(r"\]\.\.\.|(NAME|REF|ROOT) \.\.\.", "", shown.stdout)
    said = words(shown.stdout)
    for parameter in verbs[verb].params:
        if not getattr(parameter, "hidden", False):
            assert " ".join(parameter.help.split()) in said
            form = r"[A-Z].*\." if parameter.param_type_name == "option" else r"(?s:.*)\."
            assert re.fullmatch(form, parameter.help), parameter.help
    for paragraph in verbs[verb].help.split("\n\n"):
        assert " ".join(paragraph.split()) in said
        assert re.fullmatch(r"[A-Z\"].*\.", " ".join(paragraph.split()))


@pytest.mark.parametrize("verb", WITH_SETTINGS)
def test_the_common_options_come_first_and_all_others_on_request(here, verb: str) -> None:
    short, whole = here(verb, "--help").stdout, here(verb, "--help-all").stdout
    assert PANEL.findall(short) == ["Arguments", COMMON, "Options"]
    assert PANEL.findall(whole)[3:] == [
        "Program and cluster", "Models", "Checkpoints", "Restarts", "Limits", "Code", "Local mode", "Vertex AI", "Ray",
        "Kubernetes",
    ]  # fmt: skip
    common = short.partition(COMMON)[2].partition("Options ─")[0]
    assert 9 <= common.count(" --") <= 12
    assert "--workers N" in common and "--checkpoint-every EVERY" in common and "--vertex-project" not in short
    assert f"Restarts, Limits, Code, Local mode, Vertex AI, Ray, Kubernetes): podlift {verb} --help-all" in words(short)
    named = set(re.findall(r"--(?:\[no-\])?([a-z][a-z-]+)", whole))
    settings = (*table.settings(), *(table.TARGET if verb in ("submit", "plan", "config") else ()))
    flags = {"input" if name == "inputs" else name.replace("_", "-") for name in settings}
    assert flags <= named


def test_the_verbs_are_grouped_and_each_has_its_sentence(here, verbs: dict[str, Any]) -> None:
    shown = here("--help").stdout
    assert PANEL.findall(shown) == [*GROUPS, "Options"]
    assert [name for name in verbs if " " not in name] == list(MODULES)
    said = words(shown)
    holds(said, *(f"{name} {first_sentence(verbs[name])}" for name in MODULES))
    assert here("--version") == (0, f"podlift {sdk.__version__}\n", "")
    assert "0 done, 1 user error in the job, 2 invalid input, 3 infrastructure, 4 cancelled, 75 checkpointed" in said


def test_a_group_lists_its_verbs_and_a_verb_without_settings_has_one_panel(here, verbs: dict[str, Any]) -> None:
    for group, names in IN_GROUP.items():
        shown = here(group, "--help").stdout
        assert PANEL.findall(shown) == ["Commands", "Options"]
        assert list(verbs[group].commands) == list(names)
        holds(words(shown), *(f"{name} {first_sentence(verbs[f'{group} {name}'])}" for name in names))
    assert PANEL.findall(here("list", "--help").stdout) == ["Options"]
    assert here("list", "--help-all").code == 2


def test_an_output_that_lacks_the_lines_of_panels_gets_plain_ones(podlift) -> None:
    shown = podlift("list", "--help", PYTHONIOENCODING="ascii", PYTHONUTF8="0", COLUMNS="80")
    assert "+- Options ---" in shown.stdout
    assert shown.stdout.isascii()


@pytest.mark.parametrize("verb", ["", "status", "schedule create"])
def test_help_verb_is_its_help(here, verb: str) -> None:
    assert here("help", *verb.split()) == here(*verb.split(), "--help")
    assert here("help", "statsu") == (2, "", "podlift: Unknown command: statsu. Did you mean: podlift status?\n")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("ps", "list"), ("train", "submit"), ("tail", "logs"), ("kill", "cancel"), ("rm", "remove"), ("man", "--help"),
        ("report", "export html"), ("settings", "config"), ("rollback", "models promote MODEL --previous"),
        ("sumbit", "submit"), ("LS", "list"), ("checkpoint", "checkpoints"),
    ],
)  # fmt: skip
def test_a_slip_leads_to_the_verb_that_was_meant_and_any_other_word_to_all(here, word: str, meant: str) -> None:
    assert here(word, "x", "--all") == (2, "", f"podlift: Unknown command: {word}. Did you mean: podlift {meant}?\n")
    assert here("xyzzy").stderr == f"podlift: Unknown command: xyzzy. Known: {', '.join(MODULES)}.\n"
    found = here("ls", "--json")
    assert found.code == 2 and '"Unknown command: ls. Did you mean: podlift list?"' in found.stdout
