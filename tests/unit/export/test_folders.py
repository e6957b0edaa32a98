"""The folders of an export: replaced and unchanged ones, and the temporary one, which always goes."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from persia_cli.errors import DiskError, UserError
from persia_cli.export import output
from persia_cli.export.output import PLAIN, Output
from persia_cli.export.temporary import ENDING, temporary_folder
from persia_cli.observe.saved_run import SavedModel
from tests.support.runs import make_run
from tests.support.small_model import write_small_model


def plain_export(folder: Path) -> Path:
    """A folder with the files of an export to plain torch."""
    folder.mkdir()
    for name in PLAIN:
        (folder / name).write_text("{}")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(place: Output, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Write an export of one file."""
    with place.replaced() as part:
        meanwhile()
        (part / "new").write_text("new")


def test_only_an_empty_folder_or_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.json").write_text("{}")
    with pytest.raises(UserError, match="neither empty nor an earlier export"):
        Output.at(tmp_path / "mine", overwrite=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="exists already"):
        Output.at(tmp_path / "empty", overwrite=False)
    for folder in (tmp_path / "empty", plain_export(tmp_path / "plain")):
        write(Output.at(folder, overwrite=True))
        assert names(folder) == ["new"]
    assert names(tmp_path) == ["empty", "mine", "plain"]


def test_an_export_that_is_damaged_or_of_another_format_is_replaced(tmp_path: Path) -> None:
    """Errors of such a folder recommend another export of the run."""
    folder = write_small_model(tmp_path / "shop")
    for text in ('{"format_version": 1}', ""):
        (folder / "model.json").write_text(text)
        assert Output.at(folder, overwrite=True).folder == folder
    write(Output.at(folder, overwrite=True))
    assert names(folder) == ["new"]


def test_paths_without_a_name_and_links_are_refused_before_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plain_export(tmp_path / "plain"))
    write(Output.at(Path(), overwrite=True))
    assert names(tmp_path / "plain") == ["new"]
    monkeypatch.chdir(tmp_path / "plain")
    for path in ("/", ".."):
        with pytest.raises(UserError, match="neither empty nor"):
            Output.at(Path(path), overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is a symbolic link"):
        Output.at(tmp_path / "link", overwrite=False)


def test_the_run_is_never_written_to(tmp_path: Path) -> None:
    run_dir = plain_export(tmp_path / "run")
    checkpoint = tmp_path / "elsewhere" / "step-5"
    checkpoint.mkdir(parents=True)
    model = SavedModel(run_dir, checkpoint, make_run())
    for folder in (run_dir, run_dir / "shop", tmp_path, checkpoint, checkpoint.parent, checkpoint / "shop"):
        with pytest.raises(UserError, match="choose another"):
            Output(folder, overwrite=True).require_apart(model)
    Output(tmp_path / "run2", overwrite=True).require_apart(model)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_appears_during_an_export_stays(tmp_path: Path, overwrite: bool) -> None:
    place = Output.at(tmp_path / "shop", overwrite)

    def mine() -> None:
        (tmp_path / "shop").mkdir()
        (tmp_path / "shop" / "mine").write_text("mine")

    with pytest.raises(UserError, match="neither empty nor" if overwrite else "has appeared during the export"):
        write(place, mine)
    assert names(tmp_path) == ["shop"]
    assert names(tmp_path / "shop") == ["mine"]


def test_the_earlier_export_is_back_if_it_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plain_export(tmp_path / "shop")
    place, original = Output.at(folder, overwrite=True), output.rename

    def failing(source: Path, target: Path) -> None:
        if source.suffix == ".part":
            raise PermissionError(13, "Permission denied")
        original(source, target)

    monkeypatch.setattr(output, "rename", failing)
    with pytest.raises(DiskError, match="permission denied"):
        write(place)
    assert names(tmp_path) == ["shop"]
    assert names(folder) == sorted(PLAIN)


def test_sigterm_that_a_library_swallows_ends_the_export_all_the_same(tmp_path: Path) -> None:
    def swallow() -> None:
        with contextlib.suppress(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        write(Output.at(tmp_path / "shop", overwrite=False), swallow)
    assert ended.value.code == 143
    assert names(tmp_path) == []


def fill(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("content")


def test_it_is_private_and_removed_at_the_end() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    with temporary_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        fill(folder)
    assert not folder.exists()
    assert [signal.getsignal(number) for number in ENDING] == before


@pytest.fixture
def _hang_up() -> Iterator[None]:
    """SIGHUP as in a terminal, even if nohup runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hang_up")
@pytest.mark.parametrize("number", ENDING)
def test_nothing_is_left_by_signals_however_many_come(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(each) for each in ENDING]
    removed = []
    unlink = os.unlink

    def interrupted(*given: object, **more: object) -> None:
        for each in ENDING:
            os.kill(os.getpid(), each)
        removed.append(given)
        unlink(*given, **more)  # type: ignore[call-overload]

    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as ended:  # noqa: SIM117, PT012
        with temporary_folder() as folder:
            fill(folder)
            monkeypatch.setattr(os, "unlink", interrupted)
            os.kill(os.getpid(), number)
    monkeypatch.undo()
    assert removed
    assert not folder.exists()
    assert [signal.getsignal(each) for each in ENDING] == before
    if number != signal.SIGINT:
        assert ended.value.code == 128 + number  # type: ignore[attr-defined]
