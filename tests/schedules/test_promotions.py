"""What becomes of a firing's model: shown in the history, and notified when it is promoted or needs an approval."""

from __future__ import annotations

import pytest
from paper_runs import World
from support import needs

from sdk.cli import schedule_text
from sdk.status import Registered

needs("cronsim")


@pytest.mark.parametrize(
    ("outcome", "events", "text"),
    [
        (
            "promoted",
            ["promoted"],
            "version 2 of 'digits' was promoted: better by 0.1. Next: podlift models status digits 2",
        ),
        (
            "asks",
            ["asks"],
            "version 2 of 'digits' needs an approval: better by 0.1. Next: podlift models promote digits 2 --as-compared",
        ),
        ("kept", [], ""),
        ("registered", [], ""),
    ],
)
def test_a_promotion_and_a_question_are_notified_with_the_next_command(
    world: World, outcome: str, events: list[str], text: str
) -> None:
    world.runs.registered = Registered(model="digits", version=2, outcome=outcome, reason="better by 0.1")
    world.add(notify=("webhook:HOOK",))
    world.advance(world.server(), 0.5)
    assert [post["event"] for post in world.posts] == events
    for post in world.posts:
        assert (post["text"], post["model"], post["version"]) == (f"podlift schedule each: {text}", "digits", 2)
    (record,) = world.history()
    assert record.registered == world.runs.registered
    assert world.runs.registered.line in schedule_text.row_of_slot(record)[-1]
