"""The engine that CONTRIBUTING.md shows as an example: registered from outside of the package, it trains a job."""

from pathlib import Path

import pytest

from persia_cli.engines.engine import ENGINES
from persia_cli.observe.journal import EVENTS, read_journal
from tests.support.jobs import losses, train
from tests.support.small import WORDS as SMALL

WORDS = [*SMALL, "cluster=local", "cluster.embedding_servers=2", "train.steps=60"]


@pytest.mark.slow
def test_an_engine_from_outside_trains_with_the_bits_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = losses(train(WORDS, tmp_path / "local"))
    monkeypatch.setitem(ENGINES, "local", "tests.support.setsid_engine:SetsidEngine")
    assert losses(train(WORDS, tmp_path / "setsid")) == expected
    notes = [event["text"] for event in read_journal(tmp_path / "setsid" / EVENTS) if event["event"] == "note"]
    assert notes == ["setsid starts all replicas on this machine"]
