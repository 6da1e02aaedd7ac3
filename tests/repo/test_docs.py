"""What the documents promise, checked."""

from __future__ import annotations

import yaml
from support import REPO

DOCS = REPO / "docs"


def nav_pages(entry: object) -> list[str]:
    """Paths in an entry of the site's navigation, in order."""
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    return [page for child in children for page in nav_pages(child)]


def test_the_navigation_lists_every_page_once() -> None:
    nav = yaml.safe_load((REPO / "mkdocs.yml").read_text())["nav"]
    assert sorted(nav_pages(nav)) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
