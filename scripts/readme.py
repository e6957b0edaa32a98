"""Code blocks of the README and of docs/, by the mark before them; `python3 scripts/readme.py tests` prints one."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"

BLOCK = re.compile(r"^(?:<!-- (?P<mark>[^\n]+?) -->\n+)?```(?P<language>\w*)[^\n]*\n(?P<code>.*?)\n```$", re.M | re.S)


class Block(NamedTuple):
    """One fenced block of code, and the mark `<!-- MARK -->` before it, which readers do not see."""

    mark: str
    language: str
    code: str


def blocks(text: str) -> Iterator[Block]:
    """Yield the code blocks of a page in their order; a block without a mark has an empty one."""
    for found in BLOCK.finditer(text):
        yield Block(found["mark"] or "", found["language"], found["code"])


def command(name: str, text: str) -> str:
    """Return the command after the mark `<!-- NAME -->` on one line; raises ValueError if there is none."""
    for block in blocks(text):
        if block.mark == name:
            return " ".join(block.code.replace("\\\n", " ").split())
    raise ValueError(f"README.md has no command marked <!-- {name} -->")


if __name__ == "__main__":
    print(command(sys.argv[1], README.read_text(encoding="utf-8")))
