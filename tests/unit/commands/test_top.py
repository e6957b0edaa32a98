"""`persia top` of runs in every state, and of records that are damaged or disappear."""

import json
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from persia_cli.engines.job import BEGINNING, require_free
from persia_cli.engines.resumed import start_over
from persia_cli.errors import UserError
from persia_cli.observe.journal import EVENTS, METRICS, Journal
from persia_cli.observe.live_state import LIVE_STATE
from tests.support.made_up_run import made_up_run
from tests.support.top import use_top

USED = {"cpu_s": 5.0, "rss": 2**20, "ran_s": 10.0, "waited_s": 9.0, "exchanged": {"messages": 500, "wire": 10**6}}


def write_moment(run_dir: Path, **changes: Any) -> None:
    """Write the file of a coordinator."""
    roles = [USED | {"role": role, "index": 0, "host": "h1", "pid": 77} for role in ("coordinator", "nn-worker")]
    tables = {"a": {"rows": 70, "hits": 3, "misses": 1, "evicted": 12}, "b": {"rows": 9, "hits": 0, "misses": 0}}
    moment = {"time": time.time(), "phase": "training", "cores": 64, "load": 0.0, "roles": roles, "tables": tables}
    (run_dir / LIVE_STATE).write_text(json.dumps(moment | changes))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of this machine without an end, with the state that its coordinator has written last."""
    folder = made_up_run(tmp_path / "run", 12)
    with closing(Journal(folder / EVENTS)) as events:
        events.write(event="began", host=socket.gethostname(), pid=1)
    write_moment(folder)
    return folder


def shown(run_dir: Path, then: Callable[[], None] = lambda: None) -> str:
    """Return the screen of a run after something has happened to it."""
    found = []

    async def look(pilot: Any, text: Callable[[], str]) -> None:
        then()
        pilot.app.refresh_run()
        await pilot.pause()
        found.append(text())

    use_top(run_dir, look)
    return found[0]


def test_a_run_that_goes_on_is_shown_with_its_roles_tables_and_bottleneck(run_dir: Path) -> None:
    with closing(Journal(run_dir / EVENTS, alone=True)):
        text = shown(run_dir)
    for part in ("training", "step 600", "samples/s", "staleness 2.5", "nn-worker-0", "0.50", "50", "90% for batches"):
        assert part in text
    for part in ("h1 77", "75.00%", "12", "bottleneck", "table a is full & <refuses> new ids"):
        assert part in text
    for label in ("staleness 2.5, from 1", "samples/s", "training loss", "evaluation AUC", "host, pid"):
        assert label in text


@pytest.mark.parametrize(
    ("ended", "parts"),
    [
        ({"phase": "done"}, ["done", "nn-worker-0", "120"]),
        (
            {"phase": "failed", "error": "the disk is full", "exit_code": 2},
            ["failed", "the disk is full", "nn-worker-0"],
        ),
    ],
)
def test_a_run_that_has_ended_is_shown_by_its_record(tmp_path: Path, ended: dict[str, Any], parts: list[str]) -> None:
    text = shown(made_up_run(tmp_path / "run", 12, **ended))
    assert all(part in text for part in [*parts, "step 600"])


def test_a_run_whose_processes_were_all_killed_is_dead_with_its_last_state(run_dir: Path) -> None:
    text = shown(run_dir)
    assert "dead" in text
    assert "all were killed" in text
    assert "nn-worker-0" in text


def test_half_a_line_is_left_out_and_read_once_it_is_whole(run_dir: Path) -> None:
    line = json.dumps({"time": time.time(), "event": "note", "text": "now whole"}) + "\n"

    def write(text: str) -> None:
        with (run_dir / EVENTS).open("a") as file:
            file.write(text)

    with closing(Journal(run_dir / EVENTS, alone=True)):
        assert "is damaged" not in shown(run_dir, lambda: write(line[:20]))
        assert "now whole" in shown(run_dir, lambda: write(line[20:]))


def test_damage_is_named_and_the_rest_is_shown(run_dir: Path) -> None:
    def damage() -> None:
        with (run_dir / METRICS).open("a") as file:
            file.write("nonsense\n")
        (run_dir / LIVE_STATE).write_text('{"time": 1, "pha')

    with closing(Journal(run_dir / EVENTS, alone=True)):
        text = shown(run_dir, damage)
    assert "line 14 cannot be read" in text
    assert "step 600" in text
    assert "nn-worker-0" in text


def test_a_run_that_disappears_is_named_and_may_come_back(run_dir: Path) -> None:
    assert "does not contain a run" in shown(run_dir, lambda: shutil.rmtree(run_dir))
    made_up_run(run_dir, 12)

    def replace_by_resumed() -> None:
        shutil.rmtree(run_dir)
        made_up_run(run_dir, 3)

    assert "step 150" in shown(run_dir, replace_by_resumed)


def test_the_state_of_an_earlier_start_is_not_shown(run_dir: Path) -> None:
    write_moment(run_dir, time=time.time() - 1000)
    assert "nn-worker-0" not in shown(run_dir)


def test_it_may_begin_again_after_its_processes_were_killed(run_dir: Path) -> None:
    start_over(run_dir, BEGINNING)
    require_free(run_dir)
    assert (run_dir / "earlier" / "start" / LIVE_STATE).exists()


def test_keys_sort_the_tables_and_requests_to_a_dead_job_are_refused(run_dir: Path) -> None:
    async def press(pilot: Any, text: Callable[[], str]) -> None:
        table = pilot.app.query_one("#tables")
        table.focus()
        await pilot.press("s")
        assert [cell.plain for cell in table.get_row_at(0)][:2] == ["a", "70"]
        await pilot.press("s", "s")
        assert "evicted ▾" in text()
        await pilot.press("w")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause(0.3)
        assert "is not running" in text()

    use_top(run_dir, press)


def test_without_a_run_the_newest_that_goes_on_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from persia_cli.commands.top import top

    monkeypatch.chdir(tmp_path)
    made_up_run(tmp_path / "runs" / "ended", 2, phase="done")
    with pytest.raises(UserError, match="name a run"):
        top(None)
    run = made_up_run(tmp_path / "runs" / "goes-on", 2)
    with closing(Journal(run / EVENTS, alone=True)), pytest.raises(UserError, match="goes-on"):
        top(None)  # this is no terminal
