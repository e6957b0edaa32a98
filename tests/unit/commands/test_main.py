"""The command line's errors: what an interrupt has made of an import is an interrupt still."""

import sys

import pytest

import persia_cli.main
from persia_cli.errors import ConfigError


def wrapped(by: type[Exception]) -> Exception:
    """Return the error that a library makes of Ctrl-C while it is imported."""
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise TypeError("cannot make a validator") from interrupt
    except TypeError:
        try:
            raise by("no schema")
        except by as error:
            return error


def run_main(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: object, **settings: object) -> int:
        raise error

    monkeypatch.setattr(sys, "argv", ["persia", "report"])
    monkeypatch.setattr(persia_cli.main, "app", fail)
    persia_cli.main.main()


def test_an_error_that_a_library_made_of_an_interrupt_is_the_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_main(wrapped(by=RuntimeError), monkeypatch)


def test_our_own_error_after_an_interrupt_keeps_its_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_main(wrapped(by=ConfigError), monkeypatch)
    assert ended.value.code == 2
    assert "error: no schema" in capsys.readouterr().err
