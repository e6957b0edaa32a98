"""The links of `persia bench modes --hosts`, and the picture of what was measured over them."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

from persia_cli.bench import modes
from persia_cli.bench.delay_line import NetworkLink
from persia_cli.bench.modes import HERE, UNDELAYED, links_between_hosts, measure_modes
from persia_cli.bench.modes_picture import draw_modes, require_picture
from persia_cli.bench.result import Result, Side
from persia_cli.bench.rounds import TurnFigures
from persia_cli.config.compose import compose_run
from persia_cli.errors import UserError
from persia_cli.plan.job import JobPlan
from tests.support.small import WORDS

MODES = ("sync", "hybrid", "async")
SPEEDS = {"sync": 4000.0, "hybrid": 16000.0, "async": 8000.0}


def measured() -> dict[NetworkLink, Result]:
    sides = [Side(mode, SPEEDS[mode], SPEEDS[mode] - 500.0, SPEEDS[mode] + 250.0) for mode in MODES]
    return {link: Result(link.label, "shop", "samples/s", sides) for link in links_between_hosts(5.0)}


def test_links_between_hosts_have_two_bandwidths_each_without_and_with_delay() -> None:
    labels = [link.label for link in links_between_hosts(5.0)]
    assert labels == ["0 ms, 1000 Mbit/s", "5 ms, 1000 Mbit/s", "0 ms, 100 Mbit/s", "5 ms, 100 Mbit/s"]
    assert [link.label for link in links_between_hosts(0.0)] == ["0 ms, 1000 Mbit/s", "0 ms, 100 Mbit/s"]


def test_every_mode_is_measured_over_every_link_and_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower the link, the longer a sync run takes; ratios are to the same mode without link, and to sync."""
    shared: set[bool] = set()

    def run(plan: JobPlan, link: NetworkLink) -> TurnFigures:
        shared.add(plan.run.cluster.shared_memory)
        slower = 1.0 if link == HERE else 2.0 + link.delay_ms
        return TurnFigures(1000, slower if plan.run.mode.kind == "sync" else 0.5, {})

    monkeypatch.setattr(modes, "_run", run)
    monkeypatch.setattr(modes, "require_ready", lambda plans: None)
    links = links_between_hosts(5.0)
    results = measure_modes(compose_run([*WORDS, "cluster=local", "mode=hybrid"]), links, 20, 2, lambda text: None)
    assert list(results) == [HERE, *links]
    assert shared == {False}
    for link, result in results.items():
        found = {side.name: side for side in result.sides}
        assert set(found) == set(MODES)
        slower = 1.0 if link == HERE else 2.0 + link.delay_ms
        assert found["sync"].ratios == pytest.approx({UNDELAYED: 1 / slower, "sync": 1.0})
        assert found["hybrid"].ratios == pytest.approx({UNDELAYED: 1.0, "sync": slower / 0.5})


def test_a_picture_names_every_mode_link_and_median(tmp_path: Path) -> None:
    draw_modes(tmp_path / "modes.svg", measured(), "shop, $ and all")
    root = ElementTree.fromstring((tmp_path / "modes.svg").read_text())
    texts = [text for element in root.iter() for text in [(element.text or "").strip()] if text]
    assert {*MODES, "1000 Mbit/s", "100 Mbit/s", "0 ms", "5 ms", "samples/s", "shop, $ and all"} <= set(texts)
    numbers = [text for text in texts if re.fullmatch(r"\d+,\d00", text)]
    assert all(numbers.count(f"{speed:,.0f}") >= 4 for speed in SPEEDS.values())


def test_a_picture_is_a_png_if_its_name_ends_so(tmp_path: Path) -> None:
    draw_modes(tmp_path / "modes.png", measured(), "shop")
    assert [path.name for path in tmp_path.iterdir()] == ["modes.png"]
    assert imread(tmp_path / "modes.png").shape[2] == 4


def test_where_no_picture_can_be_is_known_before_anything_is_measured(tmp_path: Path) -> None:
    require_picture(tmp_path / "modes.svg")
    with pytest.raises(UserError, match=r"end the name of the picture in \.png or \.svg"):
        require_picture(tmp_path / "modes.pdf")
    with pytest.raises(UserError, match=r"there is no folder .*/away; create it first"):
        require_picture(tmp_path / "away" / "modes.png")
