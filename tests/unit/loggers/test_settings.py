"""The settings of loggers, and the sentence about a library that is missing."""

import sys

import pytest
from pydantic import ValidationError

from persia_cli.errors import ConfigError
from persia_cli.plan.job import check_extras
from tests.support.runs import make_run


@pytest.mark.parametrize(
    ("settings", "library", "extra"),
    [
        ({"loggers": ["tensorboard", "trackio"]}, "trackio", "trackio"),
        ({"metrics_port": 9400}, "prometheus_client", "prometheus"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    settings: dict[str, object], library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_extras(make_run(**settings))
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"pip install 'persia-cli\[{extra}\]'"):
        check_extras(make_run(**settings))


def test_a_logger_counts_once_and_a_port_is_one() -> None:
    assert make_run(loggers=["wandb", "mlflow", "wandb"]).loggers == ("wandb", "mlflow")
    for wrong in ({"loggers": ["aim"]}, {"metrics_port": 0}, {"metrics_port": 65536}):
        with pytest.raises(ValidationError):
            make_run(**wrong)
