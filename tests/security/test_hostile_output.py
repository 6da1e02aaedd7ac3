"""A secret in the output of a program, however the program writes it: in pieces, over lines, quoted, encoded, in a value."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import LIMIT_S, files_with

import sdk
from sdk.process.line_pipe import LINE_BYTES, LinePipe, end_of_lines
from sdk.runtime import secret_values
from sdk.runtime.secret_values import HIDDEN

SECRETS = {
    "plain": "s3cr3t-value",
    "quotes": 'it\'s "se\\cret" & more=?',
    "letters": "pässwörd-中",
    "bytes": "not UTF-8 \udcff!",
    "lines": "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0B\n-----END KEY-----\n",
    "percent": "100%+%41 of it",
}


def words(*values: str) -> list[str]:
    environ = {f"N{number}": value for number, value in enumerate(values)}
    return secret_values.words(environ, list(environ))


@pytest.mark.parametrize("name", SECRETS)
def test_each_way_to_write_a_secret_is_hidden(name: str) -> None:
    value = SECRETS[name]
    data, text = os.fsencode(value), value.encode("utf-8", "surrogateescape").decode("latin-1")
    written = [
        value,
        repr(value),
        repr({"key": value}),
        json.dumps({"key": value}),
        json.dumps({"key": value}, ensure_ascii=False),
        quote(data),
        quote_plus(data),
        f"https://me:{quote(data, safe='')}@host/",
        urlencode({"key": data}),
        str(KeyError(value)),
        *(base64.b64encode(before + b":" + data).decode() for before in (b"", b"u", b"us", b"user")),
        *(base64.urlsafe_b64encode(before + data).decode() for before in (b"", b"u", b"us", b"user")),
    ]
    for each in written:
        shown = secret_values.hidden(each, words(value))
        assert HIDDEN in shown
        # Nothing is left but what stood around it.
        assert not any(part in shown for part in (value.strip(), text, quote(data)[:12]))
        encoded = secret_values.hidden_bytes(os.fsencode(each), secret_values.encoded(words(value)))
        assert encoded == os.fsencode(shown)


@settings(max_examples=100, deadline=None)
@given(
    value=st.text(st.characters(exclude_categories=("Cs",)), min_size=6, max_size=30),
    around=st.text(st.characters(exclude_categories=("Cs",)), max_size=10),
)
def test_no_form_of_any_secret_gets_through(value: str, around: str) -> None:
    for form in words(value):
        assert form not in secret_values.hidden(f"{around}\x00{form}\x00{around}", words(value)).split("\x00")[1]


def piped(tmp_path: Path, pieces: Sequence[bytes], secrets: Sequence[str]) -> bytes:
    """The text that a reader makes of pieces that are written one after the other."""
    found: list[bytes] = []
    hidden = secret_values.encoded(secrets)
    pipe = LinePipe(str(tmp_path / "pipe"), lambda data: found.append(secret_values.hidden_bytes(data, hidden)), hidden)
    writer = os.open(pipe.path, os.O_WRONLY)
    pipe.start()
    for piece in pieces:
        while piece:
            piece = piece[os.write(writer, piece) :]
    os.close(writer)
    pipe.join(LIMIT_S)
    return b"".join(found)


def test_a_secret_in_pieces_of_one_byte_is_hidden_in_its_line(tmp_path: Path) -> None:
    line = b"before s3cr3t-value after\rs3cr3t-value\nand s3cr3t-value"
    pieces = [line[at : at + 1] for at in range(len(line))]
    assert piped(tmp_path, pieces, words("s3cr3t-value")) == b"before *** after\r***\nand ***"


@pytest.mark.parametrize("before", [LINE_BYTES - 70_005, LINE_BYTES - 70_000])
def test_a_line_that_is_too_long_is_not_cut_inside_a_secret(tmp_path: Path, before: int) -> None:
    # Wherever it is cut, there is a secret.
    line = b"x" * before + b"s3cr3t-value" * 30_000 + b"y" * LINE_BYTES
    found = piped(tmp_path, [line[at : at + 4096] for at in range(0, len(line), 4096)], words("s3cr3t-value"))
    assert found == b"x" * before + b"***" * 30_000 + b"y" * LINE_BYTES


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([b"abcabc", b"abcabcd", b"cabc", b"x"]), min_size=1, max_size=12), st.integers(0, 7))
def test_no_cut_is_inside_a_word(parts: list[bytes], short: int) -> None:
    whole = [b"abcabcd", b"abcabc"]
    data = b"-" * (LINE_BYTES + 20) + b"".join(parts)
    data = data[: len(data) - short]
    end = end_of_lines(data, whole)
    hidden = secret_values.hidden_bytes(data[:end], whole) + secret_values.hidden_bytes(data[end:], whole)
    assert b"abcabc" not in hidden and end > LINE_BYTES - 20


PROGRAM = """
import base64, json, os, sys
from pathlib import Path
from urllib.parse import quote

class Refused(Exception):
    pass

def main():
    value = os.environ["API_KEY"]
    print([value], json.dumps({"key": value}), quote(value), base64.b64encode(b"user:" + value.encode()).decode())
    process = os.getpid()
    shown = set()
    while process > 1:
        shown.add(value in Path(f"/proc/{process}/cmdline").read_text())
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    print("in a command line:", shown)
    if len(sys.argv) == 1:
        return {"list": [value, {value: 1}], "number": 5, "file": Path(value), "odd": {value: object()}}
    try:
        raise KeyError(value)
    except KeyError as error:
        raise Refused(f"no {value!r}") from error
"""


@pytest.mark.process
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_that_is_kept_of_a_run_holds_the_secret(write, root: Path, monkeypatch, fails: bool) -> None:
    value = 'it\'s "a" s3cr3t & value'
    write("train.py", PROGRAM)
    monkeypatch.setenv("API_KEY", value)
    job = sdk.Job("train:main", args=["fail"] if fails else [], env={"API_KEY": sdk.Secret("projects/p/secrets/s")})
    run = sdk.submit(job)
    status = run.wait(LIMIT_S)
    lines = [line.text for line in run.logs()]
    assert "in a command line: {False}" in lines
    if fails:
        assert status.failure is not None and "***" in status.failure.message
        assert "***" in run.why()
    else:
        assert run.result().value == {"list": ["***", {"***": 1}], "number": 5, "file": "***", "odd": {"***": None}}
    for form in words(value):
        assert files_with(form, root) + files_with(form, run.url) == []
