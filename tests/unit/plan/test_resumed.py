"""Changed settings that a resumed run refuses are reported with one line each, as a user would write them."""

import pytest

from persia_cli.errors import ConfigError
from persia_cli.plan.resumed import require_same_training
from tests.support.runs import make_run

CLUSTER = {"kind": "local", "embedding_servers": 3}


def test_each_difference_is_a_line_with_its_key() -> None:
    saved = make_run(sparse=["a"], train={"batch_size": 32})
    changed = make_run(sparse=["a"], train={"batch_size": 64}, embedding={"tables": {"a": {"dim": 3}}})
    with pytest.raises(ConfigError) as raised:
        require_same_training(saved, changed)
    first, second = sorted(str(raised.value).splitlines())
    assert first.startswith("embedding.tables.a={dim: 3, trainable: True}: ")
    assert second.startswith("train.batch_size=64: the run was trained with 32")


def test_settings_of_place_and_duration_may_change() -> None:
    saved = make_run(sparse=["a"], train={"batch_size": 32})
    require_same_training(saved, make_run(sparse=["a"], cluster=CLUSTER, train={"batch_size": 32, "steps": 7}))
