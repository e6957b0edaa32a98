"""What auxiliary losses are worth: DIEN on the films that people liked one after the other, FinalNet on Criteo rows.

With the folder of MovieLens 1M, and after `persia recipe prepare criteo`, this prints the AUC of several seeds without
and with the loss:

    python -m tests.accuracy.auxiliary --movielens ml-1m --prepared data/criteo --seeds 3
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from tests.accuracy.twins import HISTORY, criteo_words
from tests.support.jobs import evaluation, train

PERSON = ["user", "gender", "age", "occupation"]
WEIGHTS = {"dien": "auxiliary_weight", "finalnet": "teaching"}


def read_movielens(folder: Path) -> pd.DataFrame:
    """Read MovieLens 1M: each rating, whether it is four stars or more, and up to 20 films that its user liked before.

    The last fifth of a user's ratings evaluates. So no sequence of a training row has a film of an evaluation row,
    which an auxiliary loss would learn from.
    """
    columns = {"user_id": "user", "movie_id": "movie", "rating": "stars", "timestamp": "time"}
    if (folder / "ratings.parquet").is_file():
        ratings = pd.read_parquet(folder / "ratings.parquet", columns=list(columns)).rename(columns=columns)
    else:
        ratings = pd.read_csv(folder / "ratings.dat", sep="::", engine="python", names=list(columns.values()))
    people = pd.read_csv(folder / "users.dat", sep="::", engine="python", names=[*PERSON, "zip"])
    people["gender"] = (people["gender"] == "M").astype(int)
    table = ratings.sort_values(["user", "time", "movie"], kind="stable").merge(people[PERSON], on="user")
    table["label"] = (table["stars"] >= 4).astype(np.int8)
    last_movies: list[list[int]] = []
    for _, own in table.groupby("user", sort=False):
        before: list[int] = []
        for movie, liked in zip(own["movie"], own["label"], strict=True):
            last_movies.append(before[-HISTORY:])
            before += [movie] * liked
    ratings_of = table.groupby("user")["user"]
    first = ratings_of.cumcount() < 0.8 * ratings_of.transform("size")
    return table.assign(last_movies=last_movies, split=np.where(first, "train", "eval"))


def movielens_words(table: pd.DataFrame, folder: Path) -> list[str]:
    """Write the samples into a folder and return the words of a job of DIEN on them."""
    table.to_parquet(folder / "movielens.parquet", index=False, row_group_size=65536)
    last_movies = f"{{name: last_movies, table: movie, pooling: none, max_length: {HISTORY}}}"
    return [
        "conf=movielens_1m",
        f"dataset.path='{folder}'",
        "dataset.split={kind: column, column: split, train: train, eval: eval}",
        f"dataset.sparse=[user, movie, gender, age, occupation, {last_movies}]",
        "model=dien",
        "model.attend={movie: [last_movies]}",
        "train.epochs=2",
    ]


def figures(words: Sequence[str], kind: str, weight: float, seeds: Sequence[int], folder: Path) -> pd.DataFrame:
    """Train with each seed, in sync mode; return the last evaluations, a row each."""
    fixed = ["mode=sync", "cluster=embedded", "checkpoint.at_end=false", f"model.{WEIGHTS[kind]}={weight}"]
    return pd.DataFrame(
        evaluation(train([*words, *fixed, f"seed={seed}"], folder / f"{kind}-{weight}-{seed}")) for seed in seeds
    )


def main() -> None:
    """Print the table, a line for each network and weight."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--movielens", type=Path, required=True, help="the folder of MovieLens 1M")
    parser.add_argument("--prepared", type=Path, required=True, help="what persia recipe prepare criteo made")
    parser.add_argument("--networks", nargs="*", default=[*WEIGHTS], choices=[*WEIGHTS])
    parser.add_argument("--weights", type=float, nargs="*", default=[0.0, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print("| network | weight | AUC | GAUC | log loss |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        jobs = {
            "dien": movielens_words(read_movielens(given.movielens), data),
            "finalnet": [*criteo_words(given.prepared), "model=finalnet", "optimizer=mixed"],
        }
        for kind in given.networks:
            for weight in given.weights:
                found = figures(jobs[kind], kind, weight, range(given.seeds), Path(folder))
                cells = [
                    f"{found[name].mean():.4f} ± {found[name].std():.4f}" if name in found else ""
                    for name in ("auc", "gauc", "log_loss")
                ]
                print(f"| {kind} | {weight:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
