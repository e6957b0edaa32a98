"""The place of checkpoints that another run has claimed before it has saved any: a living run keeps it."""

import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import msgspec
import pytest

from persia_cli.errors import ConfigError, UserError
from persia_cli.launch import living
from persia_cli.launch.job import prepared_run_dir
from persia_cli.observe.journal import EVENTS, Journal
from persia_cli.observe.record_elsewhere import ALIVE
from persia_cli.store.manifest import MANIFEST
from persia_cli.store.writer import WRITER, OvertakenError, Writer, require_writer
from tests.support.jobs import plan
from tests.support.small import WORDS

IN_USE = r"checkpoint\.path=.*/saved is in use: the run in {by} on {host} saves there and {why}"


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., None]:
    """Begins a run in a folder, whose checkpoints are to be in `saved`; calls a function while it goes on."""

    def begin(name: str, meanwhile: Callable[[], None] = lambda: None, *words: str) -> None:
        path = f"checkpoint.path={tmp_path / 'saved'}"
        with prepared_run_dir(plan([*WORDS, "cluster=embedded", path, *words], tmp_path / name)):
            meanwhile()

    return begin


def test_a_run_that_goes_on_keeps_its_place_before_it_has_saved(start: Callable[..., None], tmp_path: Path) -> None:
    saved = tmp_path / "saved"

    def others() -> None:
        unfinished = saved / "step-9.partial"
        unfinished.mkdir()
        for name, words in (("b", []), ("c", ["checkpoint.at_end=false"])):
            refused = IN_USE.format(by=tmp_path / "a", host=socket.gethostname(), why="still goes on; choose another")
            with pytest.raises(ConfigError, match=refused):
                start(name, lambda: None, *words)
        assert unfinished.is_dir()
        require_writer(saved, tmp_path / "a")

    start("a", others)
    start("b")  # The former one has ended, and there is nothing of it.
    assert (saved / WRITER).read_text().count(str(tmp_path / "b")) == 1


def test_a_coordinator_that_writes_its_record_keeps_its_place(start: Callable[..., None], tmp_path: Path) -> None:
    """One that was started by hand has no launcher, which would lock the folder."""
    start("a")
    with closing(Journal(tmp_path / "a" / EVENTS, alone=True)), pytest.raises(ConfigError, match="still goes on"):
        start("b")
    start("b")


def test_a_folder_that_was_removed_is_begun_in_anew(start: Callable[..., None], tmp_path: Path) -> None:
    """It holds the lock of its folder itself."""
    start("a")
    shutil.rmtree(tmp_path / "a")
    start("a")
    shutil.rmtree(tmp_path / "a")
    start("b")


def claimed_elsewhere(saved: Path) -> None:
    saved.mkdir()
    (saved / WRITER).write_bytes(msgspec.json.encode(Writer("/runs/a", "there", "id of a")))


def test_a_claim_from_another_machine_counts_while_it_is_young(start: Callable[..., None], tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    claimed_elsewhere(saved)
    why = r"began 0 minutes ago and may still go on \(if it does not, remove writer.json from there\); choose another"
    with pytest.raises(ConfigError, match=IN_USE.format(by="/runs/a", host="there", why=why)):
        start("b")
    old = time.time() - living.UNSURE_S - 60
    os.utime(saved / WRITER, (old, old))
    start("b")


def test_signs_of_life_from_another_machine_count(
    start: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(living, "WATCH_S", 0.05)
    monkeypatch.setattr(living, "LOOK_S", 0.01)
    saved = tmp_path / "saved"
    claimed_elsewhere(saved)
    (saved / ALIVE).write_text("{}")
    silent, beats = living._sign, count()
    monkeypatch.setattr(living, "_sign", lambda place: b"%d" % next(beats))
    with pytest.raises(ConfigError, match=IN_USE.format(by="/runs/a", host="there", why="still goes on")):
        start("b")
    monkeypatch.setattr(living, "_sign", silent)
    start("b")  # It is silent, so it has died.


def test_a_resume_is_proposed_only_where_there_is_a_checkpoint(start: Callable[..., None], tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    start("a")
    start("b")
    nothing = f"was taken over by {tmp_path / 'b'} on .*; there is no checkpoint in {saved} yet, so start this one anew"
    with pytest.raises(OvertakenError, match=nothing):
        require_writer(saved, tmp_path / "a")
    (saved / "step-9").mkdir()
    (saved / "step-9" / MANIFEST).write_text("{}")
    with pytest.raises(UserError, match=f"; persia resume {tmp_path / 'b'} goes on from there"):
        require_writer(saved, tmp_path / "a")
    (saved / "config.yaml").touch()
    with pytest.raises(UserError, match=f"; persia resume {saved} goes on from there"):
        require_writer(saved, tmp_path / "a")
