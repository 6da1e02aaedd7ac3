"""Messages to a program with other variables than its checkpoint."""

import pytest

from sdk.checkpoint.matching import canonical, check
from sdk.errors import CheckpointMismatchError


@pytest.mark.parametrize(("count", "more"), [(1, []), (20, []), (21, ["and 1 more"])])
def test_of_many_differences_twenty_are_listed_and_all_counted(count: int, more: list[str]) -> None:
    names = [f"dense_{number}/kernel" for number in range(count)]
    with pytest.raises(CheckpointMismatchError) as caught:
        check(dict.fromkeys(names, (3, 1)), dict.fromkeys(names, (2, 1)), "The model differs: {}.")
    headline, *listed = caught.value.problems
    assert headline == f"The model differs: {count} difference{'s' if count > 1 else ''}."
    assert listed == [f"{name}: [2, 1] in this program, [3, 1] in the saved model" for name in names[:20]] + more
    assert list(caught.value.different) == names


def test_a_variable_that_only_one_of_them_has_is_named_with_the_nearest_of_the_other() -> None:
    with pytest.raises(CheckpointMismatchError) as caught:
        others = ["The optimizer."]
        check({"dense/kernel": (3, 1), "same": ()}, {"dens/kernel": (3, 1), "same": ()}, "{}:", others=others)
    assert list(caught.value.problems) == [
        "3 differences:",
        "The optimizer.",
        "dens/kernel [3, 1]: only in this program. Nearest: dense/kernel.",
        "dense/kernel [3, 1]: only in the saved model. Nearest: dens/kernel.",
    ]
    assert (caught.value.missing, caught.value.extra) == (["dens/kernel"], ["dense/kernel"])
    check({"same": ()}, {"same": ()}, "{}")
    with pytest.raises(CheckpointMismatchError, match=r"{0.__class__} does not fit .1 difference"):
        check({"a": (1,)}, {}, "{0.__class__} does not fit ({}).")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["dense_7/kernel:0", "dense_7/bias:0", "dense_9/kernel"], ["dense/kernel", "dense/bias", "dense_1/kernel"]),
        (["net_4/dense_10/w", "net_4/dense_9/w", "out/dense_3/w"], ["net/dense_1/w", "net/dense/w", "out/dense/w"]),
        (["scale", "scale", "scale_2", "scale"], ["scale", "scale#2", "scale_1", "scale#3"]),
    ],
)
def test_a_variable_has_one_name_whatever_was_made_before_it(names: list[str], expected: list[str]) -> None:
    assert canonical(names) == expected
