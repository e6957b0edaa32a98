"""Next items by full ranking, without items that a user has had: recall@10 and ndcg@10 of the test, by seed.

    python -m scripts.measure sequences --movielens ratings.dat                 # all cases of MovieLens 1M
    python -m scripts.measure sequences --beauty Beauty.txt --rounds 3          # and Amazon Beauty
    python -m scripts.measure sequences --movielens ratings.dat --only hstu

Each round is a whole job in separate processes, with another seed from 11 on. A file of MovieLens may be Parquet with
user_id, movie_id and seq_pos, the place in a user's ratings. Times are CPU seconds of all processes of a job, with its
evaluations, and samples per second while it trains. The case `speed` alternates with plain torch in this process.
"""

import json
import resource
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from persia_cli.bench.result import OURS, Result
from persia_cli.bench.rounds import alternating
from persia_cli.errors import UserError
from scripts.measure import Given, Note
from scripts.measure.timing import measured

FIRST_SEED = 11
TORCH = "plain torch"
HSTU = ["model=hstu", "model.dim=64", "model.heads=2", "model.dropout=0.2", "model.attend={item: [last_items]}"]
MORE = ["train.losses={label: {kind: sampled_softmax, negatives: 1024}}"]
STEPS = 189
"""Steps of an epoch of ML-1M."""


def falling(epochs: int) -> list[str]:
    """Return settings of rates that reach 0 after some epochs of ML-1M."""
    schedule = f"schedule={{kind: cosine, over_steps: {epochs * STEPS}}}"
    return [f"optimizer.{part}.{schedule}" for part in ("embedding", "dense")]


class Case(NamedTuple):
    """A comparison: its name, the configuration with its data, and the settings of each side, ours first."""

    name: str
    conf: str
    epochs: int
    sides: dict[str, list[str]]


CASES = {
    "beauty": Case("Beauty, SASRec, 40 epochs", "beauty", 40, {OURS: []}),
    "sasrec": Case("ML-1M, SASRec, 30 epochs", "movielens_next", 30, {OURS: []}),
    "hstu": Case("ML-1M, HSTU, 1,024 negatives, 20 epochs", "movielens_next", 20, {OURS: [*HSTU, *MORE, *falling(20)]}),
    "networks": Case("ML-1M, 10 epochs", "movielens_next", 10, {"hstu": HSTU, "sasrec": []}),
    "staleness": Case("ML-1M, SASRec, 10 epochs, cosine", "movielens_next", 10, {
        "hybrid 3": ["mode.staleness=3", *falling(10)], "sync": ["mode=sync", *falling(10)]}),
    "speed": Case("ML-1M, SASRec, 2 epochs", "movielens_next", 2, {OURS: [], TORCH: []}),
}  # fmt: skip
UNITS = {"R@10": "recall", "N@10": "ndcg", "CPU s": "cpu_s", "samples/s": "samples_per_s"}
"""The field of an outcome with each."""


class Outcome(NamedTuple):
    """The results of a job; plain torch has a speed alone."""

    samples_per_s: float
    recall: float = 0.0
    ndcg: float = 0.0
    cpu_s: float = 0.0


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("--beauty", type=Path, help="a line for each user: the user, then items, oldest first")
    parser.add_argument("--movielens", type=Path, help="ratings.dat, or Parquet with seq_pos")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="cases; by default all")
    parser.set_defaults(rounds=1)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Prepare the data, and train every case."""
    sources = {"beauty": given.beauty, "movielens_next": given.movielens}
    cases = [CASES[name] for name in given.only if sources[CASES[name].conf] is not None]
    if not cases:
        raise UserError("give the data of a case: --beauty FILE or --movielens FILE")
    with TemporaryDirectory(prefix="measure-sequences-") as name:
        folder = Path(name)
        for conf in dict.fromkeys(case.conf for case in cases):
            note(f"preparing {sources[conf]}")
            _persia(folder, "recipe", "prepare", "next_item", "--input", _text(sources[conf], folder), "--output", conf)
        for case in cases:
            found: dict[str, list[Outcome]] = {side: [] for side in case.sides}
            for number, side in alternating(case.sides, given.rounds):
                seed = FIRST_SEED + number
                note(f"{case.name}, {side}, seed {seed}")
                epochs = 1 if given.quick else case.epochs
                if side == TORCH:
                    found[side].append(Outcome(_by_torch(folder, case, epochs, seed)))
                else:
                    name = f"{side.split()[0]}-{seed}"
                    found[side].append(_train(folder, case, case.sides[side], epochs, name, seed))
                note(f"{found[side][-1]}")
            yield from results(case, found)


def results(case: Case, found: dict[str, list[Outcome]]) -> Iterator[Result]:
    """Yield what a case has found, and how its sides differ, seed by seed."""
    for unit, field in UNITS.items():
        if TORCH in case.sides and unit != "samples/s":
            continue
        values = {side: [getattr(each, field) for each in every] for side, every in found.items()}
        yield measured(f"{case.name}, {unit}", unit, values)
        if unit == "R@10" and len(values) == 2:
            (one, left), (other, right) = values.items()
            differences = [a - b for a, b in zip(left, right, strict=True)]
            yield measured(f"{case.name}, R@10, {one} - {other}", "R@10", {OURS: differences})
            if len(differences) > 1:
                error = max(stdev(differences) / sqrt(len(differences)), 1e-9)
                what = f"{case.name}, R@10, {len(differences)} seeds, distance of {one} from {other}"
                yield measured(what, "standard errors", {OURS: [abs(fmean(differences)) / error]})


def _text(source: Path, folder: Path) -> Path:
    """Return a source as the recipe takes it: of Parquet, a file with a line for each user."""
    if source.suffix != ".parquet":
        return source.absolute()
    table = pq.read_table(source, columns=["user_id", "movie_id", "seq_pos"])
    user, movie, place = (table[name].to_numpy().astype(np.int64) for name in table.column_names)
    order = np.lexsort((place, user))
    users, firsts = np.unique(user[order], return_index=True)
    file = folder / "histories.txt"
    with file.open("w", encoding="utf-8") as out:
        for one, items in zip(users.tolist(), np.split(movie[order], firsts[1:]), strict=True):
            out.write(f"{' '.join(map(str, [one, *items.tolist()]))}\n")
    return file


def _by_torch(folder: Path, case: Case, epochs: int, seed: int) -> float:
    """Return the samples per second of plain torch with the settings of a case."""
    from persia_cli.config.compose import compose_run
    from scripts.measure.next_items import samples_per_s

    run = compose_run([f"conf={case.conf}", f"dataset.path={folder / case.conf}", f"seed={seed}"])
    return samples_per_s(run, str(folder / case.conf / "histories.parquet"), epochs)


def _train(folder: Path, case: Case, words: Sequence[str], epochs: int, name: str, seed: int) -> Outcome:
    run = folder / "runs" / f"{case.conf}-{epochs}-{name}"
    before = _cpu_seconds()
    given = [f"conf={case.conf}", *words, f"train.epochs={epochs}", f"eval.every_epochs={epochs}", f"seed={seed}"]
    _persia(folder, "train", *given, "cluster=local", f"dataset.path={case.conf}", "--run-dir", run)
    [tested] = [json.loads(line) for file in (run / "evals").glob("*/metrics.jsonl") for line in file.open()]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    speed = fmean(line["samples_per_s"] for line in lines if line["split"] == "train")
    return Outcome(speed, tested["recall@10"], tested["ndcg@10"], _cpu_seconds() - before)


def _persia(folder: Path, *words: object) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "persia_cli", *map(str, words)], cwd=folder, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise UserError(f"persia {words[0]} failed: {ended.stderr.strip()[-2000:]}")


def _cpu_seconds() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime
