"""`persia train --render`: how the job is called that it prints."""

from pathlib import Path

import pytest

from persia_cli.commands.submit import render
from persia_cli.config.compose import compose_run

WORDS = ["conf=synthetic", "checkpoint={at_end: false, every_minutes: null}"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["cluster=kubernetes", "cluster.image=persia"], "    app.kubernetes.io/instance: shop\n"),
        (["cluster=slurm"], "#SBATCH --job-name=shop\n"),
        (["cluster=hosts", "cluster.hosts=[h1]"], " shop"),
    ],
    ids=["kubernetes", "slurm", "hosts"],
)
def test_a_job_in_the_current_folder_is_called_as_that_is(
    words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path / "shop")
    assert line in render(compose_run([*WORDS, *words]), Path())
