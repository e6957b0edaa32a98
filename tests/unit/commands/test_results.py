"""What a finished job says of ids and rows that found no place."""

from typing import Any

import pytest

from persia_cli.commands.results import lost

WROTE = {"event": "phase", "phase": "done"}


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        ({}, ""),
        ({"a": {"rows": 5, "evicted": 0, "refused": 0}, "b": {}}, ""),
        ({"a": {"evicted": 1234}, "b": {"rows": 9}}, "rows evicted: 1,234 (all of a)"),
        (
            {"a": {"evicted": 1, "not_admitted": 5}, "b": {"evicted": 2000, "refused": 7, "gradients_refused": 1}},
            "rows evicted: 2,001 (2,000 of b); ids refused for want of room: 7 (all of b); ids not admitted: 5 (all of "
            "a); gradients refused that were not finite: 1 (all of b)",
        ),
    ],
)
def test_what_was_lost(tables: dict[str, Any], text: str) -> None:
    early = {"event": "tables", "tables": {"a": {"evicted": 99}}}
    assert lost([WROTE, early, {"event": "tables", "tables": tables}, WROTE]) == text


def test_a_job_that_ended_early_says_nothing() -> None:
    assert lost([]) == lost([WROTE]) == ""
