"""A temporary folder is removed at the end, however the block ends."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from persia_cli.export.temporary import ENDING, temporary_folder


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
