"""The architecture page: its glossary, its promises and its order of rooms are those of the code."""

import re

from scripts.readme import ROOT, blocks
from tests.unit.test_house import FLOORS

PAGE = (ROOT / "docs" / "architecture.md").read_text()


def section(title: str) -> str:
    """Return what stands below a heading, up to the next one."""
    [found] = re.findall(rf"^## {title}\n(.+?)^## ", PAGE, re.M | re.S)
    return str(found)


def glossary() -> list[list[str]]:
    """The rows of the glossary: word, meaning, where in the code."""
    rows = [line.strip("| ").split(" | ") for line in section("Words").splitlines() if line.startswith("| ")]
    return rows[1:]


def test_every_word_of_the_glossary_says_where_it_is_in_the_code() -> None:
    rows = glossary()
    assert len(rows) > 20
    assert [row[0] for row in rows if len(row) != 3 or not re.search(r"`persia_cli(\.\w+)+`", row[2])] == []
    assert len({row[0] for row in rows}) == len(rows)


def test_the_promises_each_name_a_test() -> None:
    rows = [line for line in section("Promises").splitlines() if re.match(r"\| \d", line)]
    assert len(rows) >= 8
    assert [row for row in rows if not re.search(r"`tests/[\w/]+\.py::test_\w+`", row)] == []


def test_the_order_of_rooms_is_the_one_that_holds() -> None:
    [floors] = [block.code for block in blocks(PAGE) if block.mark == "floors"]
    assert tuple(tuple(line.split(", ")) for line in floors.splitlines()) == FLOORS
