"""Listings: whatever the names, the prefix, the delimiter and the size of the pages, they show the same as a pure model."""

from __future__ import annotations

from urllib.parse import quote

import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ALPHABET = "ab/\U0010ffff\ud7ffé"
names = st.text(ALPHABET, min_size=1, max_size=5)
maybe = st.one_of(st.just(""), st.text(ALPHABET, max_size=3))


def model(there: set[str], asked: dict[str, str]) -> list[tuple[str, str]]:
    """Return ("item" or "prefix", name) in order."""
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
    start, end = asked.get("startOffset", ""), asked.get("endOffset", "")
    shown = set()
    for name in there:
        if not name.startswith(prefix) or name < start or (end and name >= end):
            continue
        at = name.find(delimiter, len(prefix)) if delimiter else -1
        if at < 0:
            shown.add(("item", name))
            continue
        group = name[: at + len(delimiter)]
        shown.add(("prefix", group))
        if asked.get("includeTrailingDelimiter") == "true" and name == group:
            shown.add(("item", name))
    return sorted(shown, key=lambda each: (each[1].encode(), each[0] == "item"))


def listed(url: str, asked: dict[str, str], page_size: int) -> list[tuple[str, str]]:
    """Return what all pages show, and check each of them."""
    found, token = [], ""
    while True:
        more = {"pageToken": token} if token else {}
        answer = requests.get(f"{url}/storage/v1/b/bucket/o", {**asked, **more, "maxResults": str(page_size)})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        items = [("item", each["name"]) for each in page.get("items", [])]
        prefixes = [("prefix", name) for name in page.get("prefixes", [])]
        assert [name for _, name in items] == sorted(name for _, name in items)
        assert len(items) + len(prefixes) <= page_size
        found += sorted(items + prefixes, key=lambda each: (each[1].encode(), each[0] == "item"))
        token = page.get("nextPageToken", "")
        if not token:
            return found
        assert len(items) + len(prefixes) == page_size


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_pages_show_the_same_as_the_model(gcs, data) -> None:
    gcs.reset()
    session = requests.Session()
    session.post(f"{gcs.url}/storage/v1/b", json={"name": "bucket"})
    there = data.draw(st.sets(names, max_size=12).map(lambda found: found - {".", ".."}))
    for name in there:
        url = f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=media&name={quote(name, safe='')}"
        assert session.post(url, b"").status_code == 200
    for _ in range(4):
        asked = {
            "prefix": data.draw(maybe),
            "delimiter": data.draw(st.sampled_from(["", "/", "a", "//"])),
            "startOffset": data.draw(maybe),
            "endOffset": data.draw(maybe),
            "includeTrailingDelimiter": data.draw(st.sampled_from(["false", "true"])),
        }
        assert listed(gcs.url, asked, data.draw(st.integers(1, 5))) == model(there, asked)


def test_globs(bucket) -> None:
    for name in ("a.bin", "a.txt", "b.txt", "d/c.txt", "d/e/f.txt"):
        bucket.blob(name).upload_from_string("")
    for glob, expected in (
        ("*.txt", ["a.txt", "b.txt"]),
        ("**.txt", ["a.txt", "b.txt", "d/c.txt", "d/e/f.txt"]),
        ("d/**/f.txt", ["d/e/f.txt"]),
        ("?.{txt,bin}", ["a.bin", "a.txt", "b.txt"]),
        ("[!a].txt", ["b.txt"]),
        ("[a-b].txt", ["a.txt", "b.txt"]),
    ):
        assert [each.name for each in bucket.list_blobs(match_glob=glob)] == expected, glob
