"""The picture of a sweep: it is drawn, its labels are there, none covers another."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Annotation

from persia_cli.sweeps.comparison import Mean
from persia_cli.sweeps.frontier import Spot, draw


def spot(label: str, mode: str, rate: float, auc: float, staleness: int | None = None) -> Spot:
    difference = Mean(auc - 0.8, 0.0002, 5) if staleness else None
    return Spot(label, mode, staleness, Mean(rate, 0.02 * rate, 5), Mean(auc, 0.0003, 5), difference)


SPOTS = [
    spot("mode=sync", "sync", 10_000.0, 0.8),
    spot("mode=async", "async", 30_500.0, 0.79),
    *(spot(f"mode=hybrid staleness={s}", "hybrid", 30_000.0 - 900.0 / s, 0.8 - s * 5e-5, s) for s in (1, 2, 4, 8)),
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The saved pictures."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(self: Figure, *arguments: Any, **options: Any) -> None:
        save(self, *arguments, **options)
        figures.append(self)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def labels(axes: Any) -> list[Annotation]:
    return [text for text in axes.texts if isinstance(text, Annotation) and text.get_text()]


def test_staleness_has_its_own_panels_and_no_label_covers_another(tmp_path: Path, drawn: list[Figure]) -> None:
    draw(tmp_path / "frontier.png", SPOTS, "test: 500 steps", "mode=sync", "auc")
    assert list(tmp_path.iterdir()) == [tmp_path / "frontier.png"]
    assert imread(tmp_path / "frontier.png").shape[1] == 13 * 150
    [figure] = drawn
    frontier, gap, speed = figure.axes
    assert frontier.get_xlabel() == "training speed (samples/s)"
    assert gap.get_ylabel() == "auc less the baseline's"
    assert speed.get_xlabel() == "staleness bound (steps)"
    notes = labels(frontier)
    assert sorted(note.get_text() for note in notes) == sorted(each.label for each in SPOTS)
    boxes = [note.get_window_extent() for note in notes]
    assert not [(a, b) for a in range(len(boxes)) for b in range(a) if boxes[a].overlaps(boxes[b])]
    assert all(frontier.bbox.x0 <= box.x0 and box.x1 <= frontier.bbox.x1 for box in boxes)
