"""Links of all pages lead to files and headings that exist; addresses of other sites are well formed."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from scripts.readme import BLOCK, ROOT
from scripts.reference_pages import PAGES

DOCS = ROOT / "docs"
GENERATED = {DOCS / name: page for name, page in PAGES.items()}
WRITTEN = {*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("recipes/*/*.md"), *ROOT.glob("tests/*.md")}

HEADING = re.compile(r"^#+ (.+)$", re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)|<(https?://[^>]*)>|^\[[^\]]+\]: (\S+)", re.M)


def text_of(page: Path) -> str:
    """Return a page without its blocks of code, with the pages that it includes."""
    text = GENERATED[page]() if page in GENERATED else page.read_text()
    text = re.sub(r'^--8<-- "(.+)"$', lambda found: (ROOT / found[1]).read_text(), text, flags=re.M)
    return BLOCK.sub("", text)


def anchors_of(page: Path) -> list[str]:
    """Return the anchors of a page's headings, as Markdown makes them of their text."""
    headings = HEADING.findall(re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text_of(page)))
    return [re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings]


def is_dead(page: Path, link: str) -> bool:
    """Return True if a link of a page leads nowhere."""
    if "://" in link:
        address = urlsplit(link)
        return address.scheme != "https" or not re.fullmatch(r"(\w[\w-]*\.)+[a-z]+", address.netloc)
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists() and target not in GENERATED:
        return True
    return bool(anchor) and anchor not in anchors_of(target)


@pytest.mark.parametrize("page", sorted(WRITTEN | GENERATED.keys()), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    links = ["".join(found) for found in LINK.findall(text_of(page))]
    assert [link for link in links if is_dead(page, link)] == []


@pytest.mark.parametrize(
    "link",
    [
        "nowhere.md",
        "#no-such-heading",
        "docs/index.md#no-such-heading",
        "http://example.com",
        "https://example",
        "https://",
    ],
)
def test_dead_links_are_found(link: str) -> None:
    assert is_dead(ROOT / "README.md", link)
