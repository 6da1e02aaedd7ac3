"""The output of --json equals docs/reference/json.md, key by key."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support import FINISHED_STORE, REPO, finished_run

import sdk
from sdk.checks.check import Check
from sdk.cli import emulator
from sdk.cli.verbs import IN_GROUP
from sdk.drill.report import DrillReport as Drill
from sdk.job.layout import RunPaths
from sdk.planning.preflight_findings import PreflightReport as Preflight
from sdk.runtime.reporting import ProgressWriter

WITH_SETTINGS = ("submit", "plan", "preflight", "drill", "goodput", "schedule create")
PAGE = (REPO / "docs" / "reference" / "json.md").read_text()


def documented(verb: str) -> tuple[set[str], set[str]]:
    """Return the keys that are always there, and the keys that are there sometimes."""
    sections = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    (text,) = (text for title, text in sections if verb in title.split(", "))
    always, sometimes = set(), set()
    for keys, meaning in re.findall(r"^\| (`.*?) \| (.*?) \|$", text, re.M):
        (sometimes if meaning.startswith("only") else always).update(re.findall(r"`(.*?)`", keys))
    return always, sometimes


def keys_of(value: Any, wanted: set[str]) -> set[str]:
    """Return the keys of an object, and those below the ones of which the page names parts."""
    found: set[str] = set()
    for key, inner in value.items():
        parts = {name for name in wanted if name.startswith((f"{key}.", f"{key}[]."))}
        dots = "." if f"{key}." in "".join(sorted(parts))[: len(key) + 1] else "[]."
        several = [inner] if dots == "." else inner
        below = {f"{key}{dots}{name}" for each in several for name in each} if parts else set()
        found |= below | ({key} if not parts or key in wanted else set())
    return found


def agrees(verb: str, value: Any, *, beside: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    always, sometimes = documented(verb)
    found = keys_of(value, always | sometimes) - beside
    assert found - sometimes == always, f"podlift {verb} --json and docs/reference/json.md differ"
    assert found - always <= sometimes
    assert isinstance(value["version"], int)


@pytest.fixture
def ended(root: Path) -> RunPaths:
    """A run that has ended, with progress and checkpoints."""
    run = finished_run(root)
    shutil.copytree(FINISHED_STORE, run.store)
    task = ProgressWriter(run.progress(1, "chief-0"))
    task.epoch(1, 2, 3)
    task.step()
    return run


def test_each_verb_that_reads_a_run_prints_the_keys_of_the_page(ended, here, tmp_path: Path) -> None:
    for verb in ("status latest", "wait latest", "list", "checkpoints latest", "checkpoints latest --verify"):
        found = json.loads(here(*verb.split(), "--json").stdout)
        for each in found if isinstance(found, list) else [found]:
            agrees(verb.split()[0], each)
        assert found
    common = documented("status")[0]
    found = json.loads(here("get", "latest", str(tmp_path / "results"), "--json").stdout)
    agrees("get", found, beside=common)
    assert set(keys_of(found, common)) >= common


@pytest.mark.process
def test_a_submit_and_a_refusal_print_the_keys_of_the_page(write, here) -> None:
    write("train.py", "import sdk\nsdk.context().report({'loss': 1}, step=3)")
    agrees("submit", json.loads(here("submit", "train.py", "--json").stdout))
    refused = json.loads(here("status", "nothing", "--json").stdout)
    always, sometimes = documented("status")
    assert set(refused) == {key for key in always if "." not in key} | sometimes


def test_each_verb_without_a_run_prints_the_keys_of_the_page(project, here) -> None:
    for verb in ("config", "accelerators", "remove"):
        agrees(verb, json.loads(here(*verb.split(), "--json").stdout))
    agrees("image", json.loads(here("image", "--vertex-project", "my-project", "--json").stdout))
    plan = sdk.plan("train.py")
    found = json.loads(here("plan", "train.py", "--json").stdout)
    agrees("plan", {**found, "version": 1}, beside=set(json.loads(plan.to_json())))
    here("plan", "train.py", "-o", "a.json")
    here("plan", "train.py", "-o", "b.json", "--workers", "2")
    different = json.loads(here("diff", "a.json", "b.json", "--json").stdout)
    agrees("diff", different)
    assert {"path", "before", "after", "kind"} == set(different["job"][0])


def test_reports_hold_the_keys_of_the_page() -> None:
    def names(kind: Any) -> set[str]:
        return {field.name for field in fields(kind)}

    assert documented("drill")[0] == names(Drill) | {"version", "passed", "exit_code"}
    assert documented("preflight")[0] == names(Preflight) | {"version", "outcome"}
    assert documented("doctor")[0] == {f"checks[].{name}" for name in names(Check)} | {"version", "failed", "exit_code"}
    printed = re.search(r"as_json\(\{(.*?)\}\)", Path(emulator.__file__).read_text(), re.S)
    assert printed is not None
    assert documented("emulator")[0] == {*re.findall(r'"(\w+)":', printed[1]), "version"}


def test_every_verb_with_json_has_a_section(here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    verbs = re.findall(r"^│ ([a-z]+) ", here("--help").stdout, re.M)
    assert len(verbs) > 15
    verbs += [f"{group} {name}" for group, names in IN_GROUP.items() for name in names]
    titles = {name.partition(" --")[0] for title in re.findall(r"^## (.*)$", PAGE, re.M) for name in title.split(", ")}
    pages = {verb: here(*verb.split(), "--help-all" if verb in WITH_SETTINGS else "--help").stdout for verb in verbs}
    assert {verb for verb, page in pages.items() if "--json" in page} == titles


def test_the_verbs_of_a_schedule_print_the_keys_of_the_page(here, project, root: Path) -> None:
    pytest.importorskip("cronsim")
    slots = json.loads(here("schedule", "simulate", "--cron", "0 3 1 * *", "--json").stdout)
    assert len(slots) == 12
    for each in slots:
        agrees("schedule simulate", each)
    where = ("--root", str(root), "--json")
    words = ("train.py", "--cron", "0 3 * * *", "--input", "rows={slot}")
    (made,) = json.loads(here("schedule", "create", "daily", *words, *where).stdout)
    agrees("schedule create", made)
    # Its input does not exist: the firing fails before anything is started.
    fired = here("schedule", "run", "daily", *where)
    assert fired.code == 1
    agrees("schedule run", json.loads(fired.stdout))
    agrees("schedule run --due", json.loads(here("schedule", "run", "daily", "--due", "--within", "0s", *where).stdout))
    (found,) = json.loads(here("schedule", "list", *where).stdout)
    agrees("schedule list", found)
    found = json.loads(here("schedule", "status", "daily", *where).stdout)
    agrees("schedule status", found)
    (slot,) = found["slots"]
    agrees("schedule run", {"version": 1, **slot})
