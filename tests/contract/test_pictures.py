"""The pictures of docs/pictures are those of their texts, and show messages that there are."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from persia_cli.wire.frames import BY_KIND
from scripts.draw import PICTURES, draw, read, read_boxes

SEQUENCE = "lanes: a | b\na -> b: x\nb: a text far longer than the name of its lane\na: y\nb --> a: z"
BOXES = """\
boxes: all: who
left: one | right: a text longer than all others
. | low: two
left -> right: x
left -> low: y
low <-> right: z
"""

every_text = pytest.mark.parametrize("text", sorted(PICTURES.glob("*.txt")), ids=lambda path: path.stem)


@every_text
def test_a_picture_is_that_of_its_text(text: Path) -> None:
    assert text.with_suffix(".svg").read_text() == draw(text.read_text()), "run python scripts/draw.py"


def texts(picture: ElementTree.Element) -> list[str | None]:
    return [element.text for element in picture.iter() if element.tag.endswith("}text")]


def test_a_sequence_shows_every_word() -> None:
    lanes, steps = read(SEQUENCE)
    assert texts(ElementTree.fromstring(draw(SEQUENCE))) == [*lanes, *(step.text for step in steps)]


def test_boxes_show_every_word() -> None:
    boxes, arrows = read_boxes(BOXES)
    words = [word for box in boxes for word in (box.name, box.text)]
    assert texts(ElementTree.fromstring(draw(BOXES))) == [*words, *(arrow.text for arrow in arrows)]
    assert [(box.column, box.row) for box in boxes] == [(0, 0), (0, 1), (1, 1), (1, 2)]


@pytest.mark.parametrize("text", [SEQUENCE, BOXES], ids=["sequence", "boxes"])
def test_every_box_lies_within_the_picture_and_is_wide_enough(text: str) -> None:
    root = ElementTree.fromstring(draw(text))
    wide, high = float(root.attrib["width"]), float(root.attrib["height"])
    found = [
        [float(each.get(key, 0)) for key in ("x", "y", "width", "height")] for each in root.iter() if "rect" in each.tag
    ]
    assert all(0 <= x <= x + w <= wide and 0 <= y <= y + h <= high for x, y, w, h in found)
    assert max(w for _, _, w, _ in found[1:]) > 200


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
