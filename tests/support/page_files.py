"""The data in a page that is one file, after a check that the page needs nothing else."""

import base64
import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "link"}


class _Page(HTMLParser):
    """Checks that every element is closed, and keeps references and the texts of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.references: list[str | None] = []
        self.rules = self.data = ""
        self.permitted: list[str] = []
        """Scripts and styles that the rules have to permit."""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.references += [value for name, value in attributes if name in ("href", "src", "srcset", "action")]
        if "http-equiv" in values:
            assert not self.permitted, "rules come before what they are for"
            self.rules = values["content"] or ""
        self._is_data = values.get("type") == "application/json"
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"] and self._is_data:
            self.data += data
        elif self._open[-1:] in (["script"], ["style"]):
            self.permitted.append(data)


def data_of(path: Path) -> dict[str, Any]:
    """Return the data of a page, whose rules permit its own scripts and styles and nothing else."""
    page = _Page(path.read_text(encoding="utf-8"))
    assert page.references == ["data:,"]
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in page.permitted
    ]
    style, *scripts = hashes
    assert page.rules.startswith(
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src {style}; img-src data:; base-uri 'none'"
    )
    data: dict[str, Any] = json.loads(page.data)
    return data
