"""The index of a replica: a number, or the one of its pod."""

import pytest

from persia_cli.engines.role_options import index_of
from persia_cli.errors import ConfigError


def test_a_replica_is_given_its_number_or_has_that_of_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    assert index_of("12") == 12
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    assert index_of("auto") == 3
    assert index_of("0") == 0


@pytest.mark.parametrize("text", ["-1", "1.5", "²", "Auto"])
def test_what_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with pytest.raises(ConfigError, match=f"--index {text}: expected a number from 0 on"):
        index_of(text)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", text or "x")
    with pytest.raises(ConfigError, match=r"--index auto: JOB_COMPLETION_INDEX .*: expected a number"):
        index_of("auto")


def test_elsewhere_there_is_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOB_COMPLETION_INDEX", raising=False)
    with pytest.raises(ConfigError, match="JOB_COMPLETION_INDEX is not set"):
        index_of("auto")
