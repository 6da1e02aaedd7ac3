"""The changes of `scripts/mutate` fit the code as it is."""

from __future__ import annotations

import pytest
from mutations import MUTATIONS, Mutation
from support import REPO


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_change_has_one_place_in_the_code_and_tests_that_exist(mutation: Mutation) -> None:
    assert (REPO / mutation.file).read_text().count(mutation.before) == 1
    assert mutation.before != mutation.after
    assert mutation.tests and all((REPO / test.partition("::")[0]).is_file() for test in mutation.tests)


def test_there_are_enough_of_them_and_each_is_named_once() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 60
