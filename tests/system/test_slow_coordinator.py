"""A coordinator that cannot keep up with what ranks report: they wait for it, and nothing is lost or sent in vain."""

import time
from pathlib import Path
from typing import Any

import pytest

from persia_cli.observe.record import RunRecord
from persia_cli.roles.session import CoordinatorSession
from persia_cli.wire.job_messages import REPORTS_AHEAD
from tests.support.jobs import train
from tests.support.small import STEPS, WORDS, counted

TAKES_S = 0.02
"""Far longer than a step of the small job."""


def test_a_rank_waits_for_the_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add, report = RunRecord.add_report, CoordinatorSession.report
    unheard: list[int] = []

    def slow_add(self: RunRecord, *arguments: Any) -> list[dict[str, Any]]:
        time.sleep(TAKES_S)
        return add(self, *arguments)

    def watched_report(self: CoordinatorSession, *arguments: Any) -> None:
        report(self, *arguments)
        unheard.append(self._unacked_reports)

    monkeypatch.setattr(RunRecord, "add_report", slow_add)
    monkeypatch.setattr(CoordinatorSession, "report", watched_report)
    result = train([*WORDS, "cluster=embedded", "cluster.retry_s=1"], tmp_path / "run")

    assert max(unheard) == REPORTS_AHEAD
    steps = [line["step"] for line in result.metrics if line["split"] == "train"]
    assert steps == list(range(1, STEPS + 1))
    assert counted(result, "nn-worker", "resent") < STEPS / 10
