"""Code blocks of the README and of docs/, by the mark before them; `python3 scripts/readme.py tests` prints one."""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
MAX_LETTERS_OF_CODE = 78
"""The site and GitHub cut longer lines."""

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


def narrowed(code: str) -> str:
    """Return commands or YAML in lines that are not cut: comments above what they explain, long commands continued."""
    lines = code.splitlines()
    if max(map(len, lines)) <= MAX_LETTERS_OF_CODE:
        return code
    return "\n".join(part for line in lines for part in _narrow_parts(line))


def _narrow_parts(line: str) -> Iterator[str]:
    found = re.fullmatch(r"(?P<indent> *)(?P<code>.*?) *(?:(?:^|(?<= ))# (?P<comment>.*))?", line)
    assert found is not None
    indent, code = found["indent"], found["code"].rstrip()
    if found["comment"]:
        mark = f"{indent}# "
        yield from textwrap.wrap(
            found["comment"], MAX_LETTERS_OF_CODE, initial_indent=mark, subsequent_indent=mark, break_on_hyphens=False
        )
    if code:
        words = textwrap.wrap(
            code, MAX_LETTERS_OF_CODE - 2, initial_indent=indent, subsequent_indent=f"{indent}    ",
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
        yield " \\\n".join(words)


def command(name: str, text: str) -> str:
    """Return the command after the mark `<!-- NAME -->` on one line; raises ValueError if there is none."""
    for block in blocks(text):
        if block.mark == name:
            return " ".join(block.code.replace("\\\n", " ").split())
    raise ValueError(f"README.md has no command marked <!-- {name} -->")


if __name__ == "__main__":
    print(command(sys.argv[1], README.read_text(encoding="utf-8")))
