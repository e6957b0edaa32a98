"""The tables of messages in docs/protocol.md are those of the messages."""

import pytest

from scripts.message_table import PAGE, rewritten

TEXT = PAGE.read_text(encoding="utf-8")


def test_they_are_current() -> None:
    assert rewritten(TEXT) == TEXT, "run python scripts/message_table.py"


def test_tables_that_are_not_current_are_made_anew() -> None:
    changed = TEXT.replace("`0x32` | `Update`", "`0x99` | `Downdate`").replace("| 4 KiB header |", "| 9 KiB header |")
    assert "Downdate" in changed
    assert "9 KiB" in changed
    assert rewritten(changed) == TEXT


def test_a_page_without_their_place_is_refused() -> None:
    with pytest.raises(ValueError, match="has no <!-- messages"):
        rewritten("no marks")
