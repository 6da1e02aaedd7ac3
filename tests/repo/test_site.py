"""The documentation as its reader sees it: the pages of the built site."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support import REPO

pytestmark = [pytest.mark.full, pytest.mark.process]


class Page(HTMLParser):
    """Code spans with a backslash of Markdown, which escapes punctuation, and paragraphs that are rows of a table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("code", "pre", "p"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if "pre" in self.open:
            return
        if ("code" in self.open and re.search(r"\\[^\w\s]", data)) or (
            "p" in self.open and re.match(r"\s*\|.*\|", data)
        ):
            self.found.append(data.strip()[:80])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(REPO / "docs", folder / "docs")
    shutil.copy(REPO / "mkdocs.yml", folder)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, check=True, capture_output=True)
    return folder / "site"


def test_no_code_span_has_a_backslash_and_no_table_is_cut_in_two(site: Path) -> None:
    pages = sorted(site.rglob("index.html"))
    assert len(pages) > 80
    found = {str(path.relative_to(site)): Page(path.read_text()).found for path in pages}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_decisions_are_in_the_site_but_not_in_its_search_or_navigation(site: Path) -> None:
    assert (site / "explanation" / "decisions" / "prices" / "index.html").exists()
    items = json.loads((site / "search.json").read_text())["items"]
    assert any("how-to/" in item["location"] for item in items)
    assert not [item["location"] for item in items if "decisions/" in item["location"]]
    assert "decisions/" not in (site / "index.html").read_text()
