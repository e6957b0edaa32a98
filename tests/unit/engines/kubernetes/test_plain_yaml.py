"""Texts in a rendered file are texts to every reader: to PyYAML, to one that goes by YAML 1.2, and to kubectl."""

import random
import re
from collections.abc import Iterator

import yaml

from persia_cli.engines.kubernetes.engine import plain_yaml

CORE = re.compile(
    r"null|Null|NULL|~||true|True|TRUE|false|False|FALSE"
    r"|[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
    r"|[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
"""Values that are no text by the core schema of YAML 1.2 (10.3.2)."""
GO = re.compile(r"y|Y|n|N|[-+]?0[oOxXbB][0-9a-fA-F_]+|[-+]?[0-9_]*\.?[0-9_]+([eE][-+]?[0-9_]+)?")
"""Additional truth values and numbers of Go's reader, which kubectl has."""
KNOWN = [
    *("12e4567", "1e3", "0o17", "1E5", "+.5", ".1e3", "1.e5", "0X1f", "0B1", "-0o7", "098_", "-_1", "y", "Y", "n", "N"),
    *("yes", "on", "~", "", "=", "<<", "0", "007", "1:30", "2001-01-01", ".inf", "-.inf", "1.2.3", "1_000", "-", "---"),
    *("inf", "--role", "a: b", "a #b", "é", "\x85x", "x\u2028y", "a\nb\n", " a", "'", '"', "a\\b", "|", "null"),
    "1" * 300,
]


def texts() -> list[str]:
    drawn = random.Random(0)
    letters = "0123456789eE.+-_xXoObnpaif:TZ "
    return list(dict.fromkeys([*KNOWN, *("".join(drawn.choices(letters, k=1 + n % 7)) for n in range(1000))]))


def plain_scalars(text: str) -> Iterator[str]:
    """All keys and values that are written without quotes."""
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.ScalarEvent) and event.style is None:
            yield event.value


def test_no_text_is_written_like_a_number_or_a_truth_value() -> None:
    documents = [dict.fromkeys(texts(), "x"), {f"k{number}": text for number, text in enumerate(texts())}]
    text = plain_yaml(documents)
    assert list(yaml.safe_load_all(text)) == documents
    assert [found for found in plain_scalars(text) if CORE.fullmatch(found) or GO.fullmatch(found)] == []
