from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk import ids
from sdk.errors import InputError


@given(st.text())
def test_the_nearest_legal_name_of_any_text_is_legal(text: str) -> None:
    assert ids.check_name(ids.slug(text))


@pytest.mark.parametrize("name", ["", "A", "1a", "a_b", "a b", "-a", "a-", "a" * 41, "ä", "a\n"])
def test_an_illegal_name_is_refused_with_the_nearest_legal_one(name: str) -> None:
    with pytest.raises(InputError, match=r"Nearest: '[a-z]"):
        ids.check_name(name)


@pytest.mark.parametrize(
    ("entry", "folder", "name"),
    [
        ("resnet.py", "digits", "resnet"),
        ("jobs/train.py", "repo", "repo"),
        ("train.py", "", "train"),
        ("pkg.vision.train", "", "vision"),
        ("My Script.py", "x", "my-script"),
    ],
)
def test_a_run_is_named_after_its_program(entry: str, folder: str, name: str) -> None:
    assert ids.default_name(entry, folder) == name


def test_an_id_is_the_name_and_six_characters_of_chance() -> None:
    letters = iter("abc234")
    made = ids.new_run_id("digits", choose=lambda alphabet: next(letters))
    assert made == "digits-abc234"
    assert ids.is_run_id(made)
    assert not ids.is_run_id("digits")
