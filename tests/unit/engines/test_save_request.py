"""The request for a checkpoint: answered by the coordinator alone, and refused where there is none to ask."""

from pathlib import Path

import pytest

from persia_cli.config.record import write_run
from persia_cli.engines.save_request import save_now
from persia_cli.errors import UserError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS, Journal
from tests.support.runs import make_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_run(make_run(), tmp_path / CONFIG)
    return tmp_path


def test_a_job_that_has_ended_is_not_asked(run_dir: Path) -> None:
    (run_dir / EVENTS).touch()
    with pytest.raises(UserError, match="is not running, and it has no checkpoint"):
        save_now(run_dir)


def test_a_job_that_has_not_begun_has_nothing_to_save(run_dir: Path) -> None:
    journal = Journal(run_dir / EVENTS, alone=True)
    with pytest.raises(UserError, match="has not begun to train"):
        save_now(run_dir)
    journal.close()
