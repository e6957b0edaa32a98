"""A folder of a user's own configurations."""

from collections.abc import Callable
from pathlib import Path

import pytest

TINY = """\
# A few made-up samples.
kind: generated
generator: {train_rows: 1000, eval_rows: 200, dense: 2, cardinalities: [10, 20]}
"""
JOB = """\
# A small job of one's own.
defaults: [base, override dataset: tiny, _self_]
name: mine
"""


@pytest.fixture
def user_conf(tmp_path: Path) -> Path:
    """A folder with the data set `tiny` and the configuration `mine`, which trains on it."""
    folder = tmp_path / "conf"
    (folder / "dataset").mkdir(parents=True)
    (folder / "dataset" / "tiny.yaml").write_text(TINY)
    (folder / "mine.yaml").write_text(JOB)
    return folder


@pytest.fixture
def mistakes(user_conf: Path) -> Callable[..., list[str]]:
    """Compose arguments over `mine` (unless they name another conf) and return the sentences of the ConfigError."""
    from persia_cli.config.compose import compose_run
    from persia_cli.errors import ConfigError

    def told(*words: str) -> list[str]:
        conf = () if any(word.startswith("conf=") for word in words) else ("conf=mine",)
        with pytest.raises(ConfigError) as caught:
            compose_run([*conf, *words], [user_conf])
        return str(caught.value).splitlines()

    return told
