"""The settings of loggers, and the sentence about a library that is missing."""

import sys

import pytest
from pydantic import ValidationError

from persia_cli.errors import ConfigError
from persia_cli.plan.job import check_extras
from tests.support.runs import make_run


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(loggers=["tensorboard", "trackio"])
    check_extras(run)
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ConfigError, match=r"pip install 'persia-cli\[trackio\]'"):
        check_extras(run)


def test_a_logger_counts_once_and_a_port_is_one() -> None:
    assert make_run(loggers=["wandb", "mlflow", "wandb"]).loggers == ("wandb", "mlflow")
    for wrong in ({"loggers": ["aim"]}, {"metrics_port": 0}, {"metrics_port": 65536}):
        with pytest.raises(ValidationError):
            make_run(**wrong)
