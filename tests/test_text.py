"""One spelling of durations, sizes, money and lists."""

from __future__ import annotations

import pytest

from sdk import text


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (-1, "0 s"),
        (0.5, "0.5 s"),
        (59.99, "60 s"),
        (63.9, "1 min 3 s"),
        (3599.9, "59 min 59 s"),
        (3700, "1 h 1 min"),
        (2e5, "2 days 7 h"),
        (86400 + 59, "1 day"),
        (604800, "7 days"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, written: str) -> None:
    assert text.duration(seconds) == written


@pytest.mark.parametrize(("seconds", "written"), [(7.5, "7.5 s"), (119, "1 min"), (7300, "2 h"), (3.9e6, "45 days")])
def test_an_age_has_its_largest_unit_only(seconds: float, written: str) -> None:
    assert text.duration(seconds, units=1) == written


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90", 90.0),
        ("1.5", 1.5),
        ("10m", 600.0),
        ("1.5H", 5400.0),
        (" 1h 30m 5.5s ", 5405.5),
        ("30 d", 2592000.0),
        ("2w", 1209600.0),
    ],
)
def test_a_duration_is_read(written: str, seconds: float) -> None:
    assert text.parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written", ["", " ", "soon", "10x", "-5s", "m", "30m2h", "1e3", "5 5s", "10 m 3", "inf", "nan", "٣d"]
)
def test_a_text_that_is_no_duration_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        text.parse_duration(written)


def test_a_bare_number_can_be_refused() -> None:
    with pytest.raises(ValueError, match="units s, m, h, d or w"):
        text.parse_duration("30", unit_required=True)
    assert text.parse_duration("30d", unit_required=True) == 30 * 86400


@pytest.mark.parametrize(
    ("count", "written"),
    [(1, "1 byte"), (999, "999 bytes"), (1000, "1.0 kB"), (3_400_000, "3.4 MB"), (5_000_000_000_000, "5.0 TB")],
)
def test_a_size_has_a_decimal_unit(count: int, written: str) -> None:
    assert text.size(count) == written


@pytest.mark.parametrize(
    ("usd", "written"),
    [(None, "unknown"), (0.0012, "0.0012 USD"), (1.384, "1.38 USD"), (1234.5, "1,234.50 USD"), (0.0, "0.0000 USD")],
)
def test_an_amount_names_its_currency(usd: float | None, written: str) -> None:
    assert text.money(usd) == written


@pytest.mark.parametrize(
    ("names", "written"), [(["a", "b"], "a, b"), (["a", "b", "c"], "a, b and 1 more"), ([*"abcde"], "a, b and 3 more")]
)
def test_a_long_list_is_cut(names: list[str], written: str) -> None:
    assert text.and_more(names, 2) == written


def test_a_list_is_joined_by_a_word() -> None:
    assert text.joined(["a"], "or") == "a"
    assert text.joined(["a", "b"], "and") == "a and b"
    assert text.joined(["a", "b", "c"], "or") == "a, b or c"


def test_a_noun_agrees_with_its_number() -> None:
    assert [text.counted(number, "file") for number in (0, 1, 2, 1200)] == [
        "0 files",
        "1 file",
        "2 files",
        "1200 files",
    ]


def test_a_long_text_is_clipped() -> None:
    assert text.clipped("abc", 3) == "abc"
    assert text.clipped("abcd", 3) == "abc..."


class Wrapped(Exception):
    """As an HTTP library wraps the reason of the last try."""

    def __init__(self, reason: Exception) -> None:
        super().__init__("several tries")
        self.reason = reason


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (ValueError("oh"), "oh"),
        (ValueError("oh\nmore"), "oh"),
        (KeyError(), "KeyError"),
        (OSError(Wrapped(OSError("<urllib3.connection.HTTPConnection object at 0x7f12>: it is down."))), "it is down"),
        (OSError(OSError("HTTPSConnection(host='h', port=9): it is down")), "it is down"),
        (OSError("HTTPConnectionPool(host='h', port=9): Read timed out."), "Read timed out"),
    ],
)
def test_the_reason_inside_errors_is_one_line_without_objects(error: Exception, found: str) -> None:
    assert text.innermost(error) == found


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("from https://me:secret@h/x?token=secret&b=secret#c", "from https://****@h/x?token=****&b=****#c"),
        ("'http://me:sec#ret/secret@h:port' is wrong", "'http://****@h:port' is wrong"),
        ("six @ git+ssh://secret@h/x", "six @ git+ssh://****@h/x"),
        ("index me:secret@h/simple", "index ****@h/simple"),
        ("at 12:30 of me@h: https://h/x", "at 12:30 of me@h: https://h/x"),
        ("://a" * 100_000 + " ?a" * 100_000 + " @", "://a" * 100_000 + " ?a" * 100_000 + " @"),
    ],
)
def test_possible_secrets_in_a_url_are_masked_also_in_a_malformed_one(given: str, written: str) -> None:
    assert text.without_passwords(given) == written
