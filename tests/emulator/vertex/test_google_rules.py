"""Each rule of Google's documents for a service of the emulator is one test."""

from __future__ import annotations

import pytest
import rules_of_jobs
import rules_of_others
import rules_of_storage
from rule import PLACE, Rule
from served import Served

RULES = [*rules_of_jobs.RULES, *rules_of_storage.RULES, *rules_of_others.RULES]

COLLECTIONS = [f"/v1/{PLACE}/{name}" for name in ("customJobs", "trainingPipelines", "jobs", "builds")]


def test_every_rule_is_another_one() -> None:
    said = [each.says for each in RULES]
    assert sorted(set(said)) == sorted(said)


@pytest.mark.parametrize("rule", RULES, ids=[each.says for each in RULES])
def test_the_rule_holds(rule: Rule, vertex: Served) -> None:
    answer = rule.answer(vertex)
    assert answer.status_code == rule.code, answer.text
    assert rule.part in answer.text
    if rule.name:
        error = answer.json()["error"]
        assert rule.name in (error.get("status"), *(each["reason"] for each in error.get("errors", ())))
    if rule.code == 400 and rule.path in COLLECTIONS and not rule.before:
        assert vertex.ask("GET", rule.path).json() == {}, "a refused request leaves nothing"
