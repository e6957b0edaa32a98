"""Draw the pictures of docs/pictures: each NAME.txt there becomes NAME.svg, which is kept next to it.

    python scripts/draw.py

A text has one line for each drawn element; a line that begins with # is a comment. For a sequence of messages:

    lanes: loader | worker        the participants, from left to right; the first line
    loader -> worker: text        a message
    worker --> loader: text       an answer
    worker: text                  work of one participant

For boxes in rows and columns:

    boxes: name: text             the first line is a box across the whole picture
    name: text | name: text       a row of boxes; a dot where there is none
    . | name: text
    name -> name: text            an arrow from one box to another, in its row or column, or below to the right
    name <-> name: text           both ways
"""

import re
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"

CHARACTER = 6.6
"""Approximate width of a character; the font is the reader's sans serif."""
BOLD = 1.1
"""Width of bold text as a multiple of that."""
MARGIN, HEAD, LINE = 16, 34, 34
LEAST_GAP = 150
BOX_HIGH, GAP = 46, 62
STEP = re.compile(r"(?P<who>[^:]+?)(?: (?P<arrow>--?>) (?P<to>[^:]+?))?: (?P<text>.+)")

STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1d2433; text-anchor: middle }
.lane { font-weight: 600 }
.beside { text-anchor: start }
.box { fill: #e8eefc; stroke: #3f51b5 }
.work { fill: #fff7e0; stroke: #c9a227 }
.line { stroke: #aab4c8; stroke-dasharray: 2 4 }
.arrow { stroke: #3f51b5; stroke-width: 1.5; marker-end: url(#head) }
.both { marker-start: url(#tail) }
.elbow { fill: none }
.answer { stroke-dasharray: 6 4 }"""


@dataclass(frozen=True)
class Step:
    """One line of a text: a message from `who` to `to`, or work of `who` if there is no `to`."""

    who: str
    to: str | None
    answer: bool
    text: str


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without comments."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def read(text: str) -> tuple[list[str], list[Step]]:
    """Return the lanes and steps of a sequence; raises ValueError for a line that is neither."""
    lines = lines_of(text)
    lanes = lines[0].removeprefix("lanes: ").split(" | ")
    steps = []
    for line in lines[1:]:
        found = STEP.fullmatch(line)
        if found is None or found["who"] not in lanes or found["to"] not in (*lanes, None):
            raise ValueError(f"not a step between {', '.join(lanes)}: {line}")
        steps.append(Step(found["who"], found["to"], found["arrow"] == "-->", found["text"]))
    return lanes, steps


def places(lanes: list[str], steps: list[Step]) -> dict[str, float]:
    """Return the distance of each lane from the left, with enough space for every text."""
    widths = {lane: width(lane) * BOLD for lane in lanes}
    for step in steps:
        if step.to is None:
            widths[step.who] = max(widths[step.who], width(step.text))
    gaps = {pair: max(LEAST_GAP, (widths[pair[0]] + widths[pair[1]]) / 2) for pair in pairwise(lanes)}
    for step in steps:
        if step.to is not None:
            first, last = sorted((lanes.index(step.who), lanes.index(step.to)))
            between = list(pairwise(lanes[first : last + 1]))
            missing = width(step.text) - sum(gaps[pair] for pair in between)
            for pair in between:
                gaps[pair] += max(0.0, missing) / len(between)
    found = {lanes[0]: MARGIN + widths[lanes[0]] / 2}
    for left, right in pairwise(lanes):
        found[right] = found[left] + gaps[left, right]
    return found


def width(text: str) -> float:
    """Return the approximate width of a text in its box."""
    return len(text) * CHARACTER + 20


def draw(text: str) -> str:
    """Return the picture of a text as SVG."""
    return draw_boxes(text) if lines_of(text)[0].startswith("boxes: ") else draw_sequence(text)


def draw_sequence(text: str) -> str:
    """Return the picture of a sequence of messages."""
    lanes, steps = read(text)
    at = places(lanes, steps)
    alone = [width(step.text) for step in steps if step.to is None and step.who == lanes[-1]]
    wide = round(at[lanes[-1]] + max([width(lanes[-1]) * BOLD, *alone]) / 2 + MARGIN)
    high = MARGIN + HEAD + LINE * (len(steps) + 1)
    parts = []
    for lane in lanes:
        parts.append(f'<path class="line" d="M{at[lane]:.0f} {MARGIN + HEAD} V{high - MARGIN}"/>')
        parts.append(_box("box", at[lane], MARGIN, HEAD - 6, width(lane) * BOLD))
        parts.append(f'<text class="lane" x="{at[lane]:.0f}" y="{MARGIN + 18}">{escape(lane)}</text>')
    for number, step in enumerate(steps):
        parts += _step(step, at, MARGIN + HEAD + LINE * (number + 1))
    return _picture(wide, high, parts)


def _picture(wide: int, high: int, parts: list[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">\n'
        f"<style>\n{STYLE}\n</style>\n"
        f"<defs>{_tip('head', 8, 'M0 0 L8 4 L0 8 z')}{_tip('tail', 0, 'M8 0 L0 4 L8 8 z')}</defs>\n"
        f'<rect width="{wide}" height="{high}" rx="6" fill="#ffffff"/>\n{inside}\n</svg>\n'
    )


def _tip(name: str, at: int, path: str) -> str:
    """Return the tip of an arrow. Not every viewer knows how to turn one marker around for both ends."""
    size = 'viewBox="0 0 8 8" markerWidth="8" markerHeight="8" orient="auto"'
    return f'<marker id="{name}" {size} refX="{at}" refY="4"><path d="{path}" fill="#3f51b5"/></marker>'


def _box(kind: str, middle: float, top: float, high: float, wide: float) -> str:
    left = middle - wide / 2
    return f'<rect class="{kind}" x="{left:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{high:.0f}" rx="4"/>'


def _step(step: Step, at: dict[str, float], y: int) -> list[str]:
    start = at[step.who]
    if step.to is None:
        box = _box("work", start, y - 13, 22, width(step.text))
        return [box, f'<text x="{start:.0f}" y="{y + 2}">{escape(step.text)}</text>']
    end = at[step.to]
    kind = "arrow answer" if step.answer else "arrow"
    middle = (start + end) / 2
    return [
        f'<path class="{kind}" d="M{start:.0f} {y + 3} H{end:.0f}"/>',
        f'<text x="{middle:.0f}" y="{y - 3}">{escape(step.text)}</text>',
    ]


@dataclass(frozen=True)
class Box:
    """A box of a picture: its name, its text, and its position."""

    name: str
    text: str
    column: int
    row: int


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes; `both` ways or from `start` to `end`."""

    start: Box
    end: Box
    both: bool
    text: str


def read_boxes(text: str) -> tuple[list[Box], list[Arrow]]:
    """Return the boxes, the one across first, and arrows of a text; raises ValueError for a line that is neither."""
    first, *lines = lines_of(text)
    boxes = [Box(*first.removeprefix("boxes: ").split(": ", 1), 0, 0)]
    arrows = []
    row = 0
    for line in lines:
        found = re.fullmatch(r"([^:|]+?) (<?)-> ([^:|]+?): (.+)", line)
        if found is None:
            row += 1
            cells = [cell.strip().split(": ", 1) for cell in line.split(" | ")]
            boxes += [Box(*cell, column, row) for column, cell in enumerate(cells) if cell != ["."]]
            continue
        named = {box.name: box for box in boxes}
        if not {found[1], found[3]} <= named.keys():
            raise ValueError(f"not an arrow between {', '.join(named)}: {line}")
        arrows.append(Arrow(named[found[1]], named[found[3]], bool(found[2]), found[4]))
    return boxes, arrows


def draw_boxes(text: str) -> str:
    """Return the picture of boxes and arrows."""
    (across, *boxes), arrows = read_boxes(text)
    size = max(max(width(box.name) * BOLD, width(box.text)) for box in boxes)
    gap = max(width(arrow.text) for arrow in arrows)
    columns, rows = (1 + max(at) for at in zip(*((box.column, box.row) for box in boxes), strict=True))
    wide = round(2 * MARGIN + columns * size + (columns - 1) * gap)
    high = 2 * MARGIN + rows * BOX_HIGH + (rows - 1) * GAP - GAP // 2

    def middle(box: Box) -> tuple[float, float]:
        down = MARGIN + BOX_HIGH / 2 + box.row * (BOX_HIGH + GAP) - (GAP // 2 if box.row else 0)
        return MARGIN + size / 2 + box.column * (size + gap), down

    parts = _labelled(across, wide / 2, MARGIN + BOX_HIGH / 2, wide - 2 * MARGIN)
    for box in boxes:
        parts += _labelled(box, *middle(box), size)
    for arrow in arrows:
        parts += _arrow(arrow, middle(arrow.start), middle(arrow.end), size / 2)
    return _picture(wide, high, parts)


def _labelled(box: Box, x: float, y: float, wide: float) -> list[str]:
    return [
        _box("box", x, y - BOX_HIGH / 2, BOX_HIGH, wide),
        f'<text class="lane" x="{x:.0f}" y="{y - 4:.0f}">{escape(box.name)}</text>',
        f'<text x="{x:.0f}" y="{y + 14:.0f}">{escape(box.text)}</text>',
    ]


def _arrow(arrow: Arrow, start: tuple[float, float], end: tuple[float, float], half: float) -> list[str]:
    """Return an arrow from edge to edge: across, up or down, or below and then across."""
    (x, y), (to_x, to_y) = start, end
    kind = "arrow both" if arrow.both else "arrow"
    side = half if to_x > x else -half
    if arrow.start.row == arrow.end.row:
        line, at = f"M{x + side:.0f} {y:.0f} H{to_x - side:.0f}", ((x + to_x) / 2, y - 6)
    elif arrow.start.column == arrow.end.column:
        edge = BOX_HIGH / 2 if to_y > y else -BOX_HIGH / 2
        line = f"M{x:.0f} {y + edge:.0f} L{x:.0f} {to_y - edge:.0f}"
        text = f'<text class="beside" x="{x + 10:.0f}" y="{(y + to_y) / 2 + 4:.0f}">{escape(arrow.text)}</text>'
        return [f'<path class="{kind}" d="{line}"/>', text]
    else:
        line = f"M{x:.0f} {y + BOX_HIGH / 2:.0f} V{to_y:.0f} H{to_x - side:.0f}"
        at = ((x + to_x - side) / 2, to_y - 6)
        kind += " elbow"
    text = f'<text x="{at[0]:.0f}" y="{at[1]:.0f}">{escape(arrow.text)}</text>'
    return [f'<path class="{kind}" d="{line}"/>', text]


if __name__ == "__main__":
    for source in sorted(PICTURES.glob("*.txt")):
        source.with_suffix(".svg").write_text(draw(source.read_text(encoding="utf-8")), encoding="utf-8")
