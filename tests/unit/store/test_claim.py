"""The place of checkpoints that another run has claimed: permissions to save, and the end of a run."""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from persia_cli.engines.job import prepared_run_dir
from persia_cli.errors import ConfigError
from persia_cli.observe.journal import EVENTS, Journal
from persia_cli.store.checkpoints.claim import WRITER, Writer, claim, is_writer, require_writer, writer_of
from persia_cli.store.checkpoints.manifest import MANIFEST
from tests.support.jobs import plan
from tests.support.small import WORDS


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., None]:
    """Begin a run in a folder, whose checkpoints are to be in `saved`; call a function while it runs."""

    def begin(name: str, meanwhile: Callable[[], None] = lambda: None, *words: str) -> None:
        path = f"checkpoint.path={tmp_path / 'saved'}"
        with prepared_run_dir(plan([*WORDS, "cluster=embedded", path, *words], tmp_path / name)):
            meanwhile()

    return begin


def test_a_running_job_holds_its_folder_before_it_has_saved(start: Callable[..., None], tmp_path: Path) -> None:
    saved = tmp_path / "saved"

    def others() -> None:
        unfinished = saved / "step-9.partial"
        unfinished.mkdir()
        for name, words in (("b", []), ("c", ["checkpoint.at_end=false"])):
            with pytest.raises(ConfigError, match=f"saved is in use: the run in {tmp_path / 'a'} on"):
                start(name, lambda: None, *words)
            assert not (tmp_path / name).exists()
        assert unfinished.is_dir()
        assert is_writer(saved, tmp_path / "a")

    start("a", others)
    start("b")  # The former one has ended, and has no files.
    writer = writer_of(saved)
    assert writer is not None
    assert writer.run_dir == str(tmp_path / "b")


def test_a_coordinator_that_writes_its_record_holds_its_folder(start: Callable[..., None], tmp_path: Path) -> None:
    """One that was started by hand has no driver, which would lock the folder."""
    start("a")
    with closing(Journal(tmp_path / "a" / EVENTS, alone=True)), pytest.raises(ConfigError, match=r"checkpoint\.path"):
        start("b")
    start("b")


def test_a_folder_that_was_removed_is_begun_in_anew(start: Callable[..., None], tmp_path: Path) -> None:
    """It holds the lock of its folder itself."""
    start("a")
    shutil.rmtree(tmp_path / "a")
    start("a")
    shutil.rmtree(tmp_path / "a")
    start("b")


def test_another_machine_loses_a_place_where_it_has_saved_nothing(start: Callable[..., None], tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / WRITER).write_bytes(msgspec.json.encode(Writer("/runs/a", "there", "id of a")))
    start("b")
    assert is_writer(saved, tmp_path / "b")


def test_a_start_where_another_run_has_saved_names_its_successor(start: Callable[..., None], tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    start("a")
    start("b")
    (saved / "step-9").mkdir()
    (saved / "step-9" / MANIFEST).write_text("{}")
    with pytest.raises(ConfigError, match=f"was taken over by {tmp_path / 'b'} on .*; persia resume {saved}"):
        require_writer(saved, tmp_path / "a")
    with pytest.raises(ConfigError, match=f"saved has checkpoints of the run in {tmp_path / 'b'} on"):
        start("c")


def test_a_run_directory_behind_a_link_is_the_same(start: Callable[..., None], tmp_path: Path) -> None:
    start("a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert is_writer(tmp_path / "saved", tmp_path / "link")


@pytest.mark.parametrize("folder", ["a", "saved"])
def test_a_damaged_claim_is_an_error_that_names_the_file(
    start: Callable[..., None], tmp_path: Path, folder: str
) -> None:
    start("a")
    (tmp_path / folder / WRITER).write_bytes(b"{")
    with pytest.raises(ConfigError, match=f"{tmp_path / folder / WRITER} is damaged"):
        claim(str(tmp_path / "saved"), tmp_path / "a", "here")
