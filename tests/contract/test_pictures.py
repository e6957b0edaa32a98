"""The pictures of docs/pictures are those of their texts, and show messages that there are."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from persia_cli.wire.frames import BY_KIND
from scripts.draw import PICTURES, draw, read

every_text = pytest.mark.parametrize("text", sorted(PICTURES.glob("*.txt")), ids=lambda path: path.stem)


@every_text
def test_a_picture_is_that_of_its_text(text: Path) -> None:
    assert text.with_suffix(".svg").read_text() == draw(text.read_text()), "run python scripts/draw.py"


def texts(picture: ElementTree.Element) -> list[str | None]:
    return [element.text for element in picture.iter() if element.tag.endswith("}text")]


@pytest.mark.parametrize(
    ("text", "line"), [("lanes: a | b\nc -> a: text", "c -> a"), ("boxes: a: x\nb: y\nb -> c: text", "b -> c")]
)
def test_a_line_that_names_what_is_not_there_is_refused(text: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        draw(text)


def test_every_message_on_the_way_of_a_batch_is_one() -> None:
    _, steps = read((PICTURES / "batch.txt").read_text())
    named = [re.match(r"(?:\d+ )?(\w+)", step.text) for step in steps if step.to is not None]
    known = {kind.__name__ for kind in BY_KIND.values()}
    assert [found[1] for found in named if found is not None and found[1] not in known] == []
