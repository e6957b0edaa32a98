"""An error of a role is reported at once, though a thread of the role is stuck in a read."""

import itertools
import threading
from pathlib import Path

import pytest

from persia_cli.data.read.batch import Batch
from persia_cli.data.read.generator import GeneratedSource
from persia_cli.errors import PersiaError, RoleError
from persia_cli.roles.data_loader import DataLoader
from tests.support.jobs import train
from tests.support.small import WORDS


@pytest.mark.timeout(60)
def test_a_read_that_is_stuck_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, go_on = threading.Event(), threading.Event()

    def read(*step: object) -> None:
        stuck.set()
        go_on.wait(60.0)

    def fail(*feed: object) -> bool:
        if stuck.is_set():
            raise RoleError("the error")
        return False

    monkeypatch.setattr(DataLoader, "_make_batch", read)
    monkeypatch.setattr(DataLoader, "_advance", fail)
    try:
        with pytest.raises(PersiaError, match="the error"):
            train([*WORDS, "cluster=embedded"], tmp_path / "run")
    finally:
        go_on.set()


@pytest.mark.timeout(120)
def test_a_read_may_take_longer_than_the_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, calls = GeneratedSource.read, itertools.count()

    def slowly(source: GeneratedSource, *where: int) -> Batch:
        if next(calls) == 5:
            threading.Event().wait(6.0)
        return read(source, *where)

    monkeypatch.setattr(GeneratedSource, "read", slowly)
    result = train([*WORDS, "cluster=embedded", "cluster.silence_timeout_s=1", "train.steps=20"], tmp_path / "run")
    assert next(calls) > 5
    assert result.metrics[-1]["step"] == 20
