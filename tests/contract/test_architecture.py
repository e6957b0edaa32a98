"""The architecture page, the glossary and the promises agree with the code."""

import re
from itertools import pairwise

from persia_cli.wire.frames import BY_KIND
from scripts.readme import ROOT, blocks
from tests.contract.test_docs import functions_of
from tests.unit.test_house import FLOORS

PAGE = (ROOT / "docs" / "architecture.md").read_text()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
PROMISES = (ROOT / "tests" / "PROMISES.md").read_text()
MAX_WORDS = 3500


def rows_of(page: str) -> list[list[str]]:
    """Return the rows of all tables of a page, without their heads."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    heads = {number - 1 for number, line in enumerate(lines) if re.fullmatch(r"[|\s:-]+", line)}
    rows = [line for number, line in enumerate(lines) if number not in heads and number - 1 not in heads]
    return [line.strip("| ").split(" | ") for line in rows]


def package_of(name: str) -> int:
    """Return the layer of a package."""
    [layer] = [layer for layer, packages in enumerate(FLOORS) if name in packages]
    return layer


def test_every_message_on_the_way_of_a_batch_is_one() -> None:
    [diagram] = [block.code for block in blocks(PAGE) if block.code.startswith("sequenceDiagram")]
    named = re.findall(r"^ +\w--?>>\w: (?:\d+ )?(\w+)", diagram, re.M)
    assert len(named) > 8
    assert set(named) <= {kind.__name__ for kind in BY_KIND.values()}


def test_the_page_stays_short() -> None:
    assert len(PAGE.split()) <= MAX_WORDS


def test_the_table_of_packages_has_the_layers_that_hold() -> None:
    layers = [row for row in rows_of(PAGE) if row[0].isdigit()]
    assert [int(row[0]) for row in layers] == list(range(1, len(FLOORS) + 1))
    assert tuple(tuple(re.findall(r"`([\w.]+)`", row[1])) for row in layers) == FLOORS


def test_the_picture_of_imports_goes_down() -> None:
    [picture] = [block.code for block in blocks(PAGE) if block.mark == "imports"]
    lines = [re.split(r"\s{2,}", line.strip())[0] for line in picture.splitlines()]
    layers = [[package_of(name) for name in re.findall(r"[\w.]+", line)] for line in lines]
    assert len(layers) > 5
    assert all(min(upper) > max(lower) for upper, lower in pairwise(layers))


def test_files_that_the_page_names_exist() -> None:
    named = re.findall(r"`([\w./-]+/[\w./-]*)`", PAGE)
    assert len(named) > 20
    assert [
        path for path in named if path.startswith(("persia_cli/", "tests/", "conf/")) and not (ROOT / path).exists()
    ] == []


def test_methods_that_the_page_names_exist() -> None:
    source = {
        name: path.read_text()
        for path in (ROOT / "persia_cli").rglob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(), re.M)
    }
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", PAGE)
    assert named
    assert [f"{owner}.{method}" for owner, method in named if f"def {method}(" not in source.get(owner, "")] == []


def test_each_word_of_the_glossary_names_its_place_in_the_code() -> None:
    rows = rows_of(GLOSSARY)
    assert len(rows) > 20
    assert [row[0] for row in rows if len(row) != 3 or not re.search(r"`persia_cli(\.\w+)+`", row[2])] == []
    assert len({row[0] for row in rows}) == len(rows)


def test_each_promise_names_tests_that_exist() -> None:
    rows = rows_of(PROMISES)
    assert len(rows) > 100
    missing = []
    for promise, tests in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", tests)
        if not named or tests != ", ".join(f"`{path}{f'::{name}' if name else ''}`" for path, name in named):
            missing.append(promise)
        missing += [
            f"{path}::{name}"
            for path, name in named
            if not (ROOT / path).is_file() or (name and name not in functions_of(path))
        ]
    assert missing == []
    assert len({promise for promise, _ in rows}) == len(rows)
