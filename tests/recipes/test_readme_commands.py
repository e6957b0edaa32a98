"""From raw files to a metric with the commands of each README, unchanged."""

import gzip
import json
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from persia_cli.data.prepare.recipe import load_recipe, readme_of
from persia_cli.main import main
from tests.support.taobao import write_taobao

Run = Callable[..., float]


def commands(recipe: str) -> list[list[str]]:
    """The commands of a README that copy, prepare and train, in order, without what is optional."""
    text = readme_of(load_recipe(recipe).folder)
    return [shlex.split(line) for line in re.findall(r"^ {4}persia ((?:recipe (?:cp|prepare)|train) .+)$", text, re.M)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run commands in an empty folder, the last of which trains; returns the AUC of the evaluation."""
    monkeypatch.chdir(tmp_path)

    def ended(*all_words: list[str]) -> float:
        *before, training = all_words
        run_dir = f"run-{len(list(tmp_path.glob('run-*')))}"
        for words in (*before, [*training, "cluster=embedded", "checkpoint.at_end=false", "--run-dir", run_dir]):
            monkeypatch.setattr(sys, "argv", ["persia", *words])
            with suppress(SystemExit):  # a failure leaves no metrics
                main()
        lines = [json.loads(line) for line in Path(run_dir, "metrics.jsonl").read_text().splitlines()]
        return float([line for line in lines if line["split"] == "eval"][-1]["auc"])

    return ended


@pytest.mark.parametrize("recipe", ["adult_income", "avazu", "criteo", "movielens", "my_data", "taobao"])
def test_every_readme_names_the_two_commands(recipe: str) -> None:
    kinds = [words[0] if words[0] == "train" else words[1] for words in commands(recipe)]
    assert "train" in kinds
    assert "prepare" in kinds


def test_my_data(run: Run) -> None:
    assert run(*commands("my_data")) >= 0.66


@pytest.mark.slow
def test_avazu(run: Run, real_data: Path) -> None:
    """The commands for the first rows, which is what there is of the data here."""
    Path("first10k.csv.gz").symlink_to(real_data / "avazu" / "avazu_first10k.csv.gz")
    *_, prepare, train = commands("avazu")
    assert run(prepare, train) >= 0.7224


@pytest.mark.slow
@pytest.mark.parametrize(("release", "least"), [("100k", 0.776), ("1m", 0.794)])
def test_movielens(run: Run, real_data: Path, release: str, least: float) -> None:
    Path(f"ml-{release}").symlink_to(real_data / f"ml-{release}")
    own = [words for words in commands("movielens") if f"movielens_{release}" in " ".join(words)]
    assert run(*own[:2]) >= least


def test_movielens_25m_on_a_few_made_up_ratings(run: Run) -> None:
    Path("ml-25m").mkdir()
    pairs = np.random.default_rng(0).integers(0, 30, (20_000, 2)).tolist()
    ratings = [f"{user},{film},{1 + film % 5}.0,{time}" for time, (user, film) in enumerate(pairs)]
    Path("ml-25m/ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *ratings]))
    movies = gzip.compress("\n".join(["movieId,title,genres", *(f"{n},T,A|B" for n in range(30))]).encode())
    Path("ml-25m/movies.csv.gz").write_bytes(movies)
    own = [words for words in commands("movielens") if "25m" in " ".join(words)]
    assert run(*own[:2]) >= 0.9


@pytest.mark.slow
def test_taobao(run: Run, tmp_path: Path) -> None:
    write_taobao(tmp_path / "taobao", users=400, samples=20_000, seed=0)
    prepare, train, *_ = commands("taobao")
    assert run(prepare, [*train, "train.batch_size=64", "train.epochs=2"]) >= 0.75
