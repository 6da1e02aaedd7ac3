"""Each rule of Google's documents for what the emulator serves is one test: run this file to count them again."""

from __future__ import annotations

import pytest
import rules_of_jobs
from rule import Rule
from served import Served

RULES = [*rules_of_jobs.RULES]


@pytest.mark.parametrize("rule", RULES, ids=[each.says for each in RULES])
def test_the_rule_holds(rule: Rule, vertex: Served) -> None:
    answer = rule.answer(vertex)
    assert answer.status_code == rule.code, answer.text
    assert rule.part in answer.text
    error = answer.json()["error"] if rule.name else {}
    assert rule.name in (error.get("status", ""), *(each["reason"] for each in error.get("errors", ())))
