"""The effect of auxiliary losses: DIEN on the sequences of films that users liked, FinalNet on Criteo rows.

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


def jobs(films: Path, criteo: Path) -> dict[str, list[str]]:
    """Return the arguments of each job, by its network and data; `films` is a folder with the samples of MovieLens."""
    on_films = [
        *("conf=movielens_1m", f"dataset.path='{films}'", "train.epochs=2"),
        "dataset.split={kind: column, column: split, train: train, eval: eval}",
    ]
    last_movies = f"{{name: last_movies, table: movie, pooling: none, max_length: {HISTORY}}}"
    sequences = [
        f"dataset.sparse=[user, movie, gender, age, occupation, {last_movies}]",
        "model.attend={movie: [last_movies]}",
    ]
    return {
        "dien, MovieLens 1M": [*on_films, "model=dien", *sequences],
        "finalnet, MovieLens 1M": [*on_films, "model=finalnet"],
        "finalnet, Criteo": [*criteo_words(criteo), "model=finalnet", "optimizer=mixed"],
    }


def figures(name: str, words: Sequence[str], weight: float, seeds: Sequence[int], folder: Path) -> pd.DataFrame:
    """Train with each seed, in sync mode; return the last evaluations, a row each."""
    key = WEIGHTS[name.partition(",")[0]]
    fixed = ["mode=sync", "cluster=embedded", "checkpoint.at_end=false", f"model.{key}={weight}"]
    runs = ([*words, *fixed, f"seed={seed}"] for seed in seeds)
    return pd.DataFrame(
        evaluation(train(each, folder / f"{name}-{weight}-{number}")) for number, each in enumerate(runs)
    )


def main() -> None:
    """Print the table, a line for each network and weight."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--movielens", type=Path, required=True, help="the folder of MovieLens 1M")
    parser.add_argument("--prepared", type=Path, required=True, help="what persia recipe prepare criteo made")
    parser.add_argument("--only", default="", help="text that the names of jobs have, such as dien")
    parser.add_argument("--weights", type=float, nargs="*", default=[0.0, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print("| network, data | weight | AUC | GAUC | log loss |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        films = Path(folder, "films")
        films.mkdir()
        table = read_movielens(given.movielens)
        table.to_parquet(films / "part.parquet", index=False, row_group_size=65536)
        chosen = {name: words for name, words in jobs(films, given.prepared).items() if given.only in name}
        for name, words in chosen.items():
            for weight in given.weights:
                found = figures(name, words, weight, range(given.seeds), Path(folder))
                cells = [
                    f"{found[figure].mean():.4f} ± {found[figure].std():.4f}" if figure in found else ""
                    for figure in ("auc", "gauc", "log_loss")
                ]
                print(f"| {name} | {weight:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
