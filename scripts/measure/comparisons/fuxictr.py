"""AUC, log loss and samples per second of eight networks, against FuxiCTR with the same samples and settings.

    python -m scripts.measure fuxictr data/movielens_1m --networks deepfm dcn_v2
    python -m scripts.measure fuxictr data/criteo --plain --record criteo.jsonl

DATA is the folder that `persia recipe prepare` has written, of one label and one id per column. Both train on three
fifths of its rows until one fifth shows no improvement, and score the last fifth by their best model; each round has
another seed. FuxiCTR is in the group `compare`: `pip install --group compare`, in a checkout. Its samples come from
memory, by a loader that is faster than its own; Persia reads its Parquet file. samples/s are of training alone, without
start, evaluation and end.

Every pair of trainings that has ended is a line of the file `--record`. The same command goes on after them, and one of
more rounds or networks trains only what is new.
"""

import json
import math
import subprocess
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from numpy.typing import NDArray

from persia_cli.bench.result import OURS, Result
from persia_cli.engines.processes import python_module
from persia_cli.errors import RoleError, UserError
from scripts.measure import Given, Note
from scripts.measure.timing import measured

LABEL, PART = "label", "part"
PARTS = ("train", "train", "train", "eval", "test")
"""Part of row r by r mod 5: three fifths train, one ends training early, one is for the metrics of the table."""
THEIRS = "FuxiCTR"
ROOT = Path(__file__).parents[3]
DIM, LR, PATIENCE, CLIP = 10, 0.001, 2, 10.0
"""Width of a row, learning rate, evaluations without improvement before training ends, and the greatest norm of the
gradient: of all weights in FuxiCTR, of the dense ones in ours."""
UNIFORM = 3**0.5
"""Half the width of a uniform distribution with the standard deviation 1."""
ROW_DEVIATION = 1e-4
"""Standard deviation of new rows, as FuxiCTR has it."""
ROW_CLIP = 40.0
"""Greatest norm of a row's gradient times the samples of a batch, in ours: each has its part of the mean loss.

Behind batch normalisation the first gradients of rows near 0 are hundreds of times as large as later ones, and Adam
remembers their squares for a thousand steps. FuxiCTR's clipping makes them small in its first step, with all others.
"""
ROW_BETA1 = 0.0
"""Decay of the mean of a row's gradients, in ours; FuxiCTR's is 0.9.

Its Adam moves every row in each step, with the mean in all steps until the row's next gradient, which comes to about a
whole gradient in the end. Ours moves a row with its gradients alone, so with 0.9 a rare row gets but a tenth of each.
"""
NETWORKS = ("lr", "fm", "ffnn", "wide_deep", "deepfm", "dcn_v2", "xdeepfm", "fibinet")
"""Networks that both have, by the names of Persia."""
FIRST_ORDER = ("lr", "fm", "wide_deep", "deepfm", "xdeepfm", "fibinet")
"""Networks whose rows have a first-order weight and a vector: one column more in Persia, a table in FuxiCTR."""
OWN = {"dcn_v2": ["model.layers=3", "model.structure=parallel"], "xdeepfm": ["model.maps=[32,32]"]}
UNITS = {"auc": "AUC", "log_loss": "log loss", "epochs": "epochs", "samples_per_s": "samples/s"}
Metrics = dict[str, float]
Trained = tuple[Metrics, NDArray[np.float64]]
"""Epochs and speed of a training, and the scores of the test samples."""


@dataclass(frozen=True)
class Settings:
    """A training of either side."""

    network: str
    seed: int
    batch: int = 4096
    epochs: int = 100
    threads: int = 2
    hidden: tuple[int, ...] = (400, 400, 400)
    norm: bool = True
    """Batch normalisation in the perceptron."""
    dropout: float = 0.2


class Samples(NamedTuple):
    """The files of a comparison, and the ids of each column: 0 is of none, the last of all that training never saw."""

    train: Path
    test: Path
    ids: dict[str, int]


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("data", type=Path, help="folder that persia recipe prepare has written")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS, metavar="NETWORK")
    parser.add_argument("--plain", action="store_true", help="without normalisation and dropout")
    parser.add_argument("--mode", default="hybrid", choices=["sync", "hybrid"])
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=100, help="most epochs")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch on both sides")
    parser.add_argument("--record", type=Path, help="file of all comparisons, made before and now")
    parser.set_defaults(rounds=3)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Train what the record has not, and yield the results of each network."""
    if find_spec("fuxictr") is None:
        raise UserError("FuxiCTR is not installed: pip install --group compare, in a checkout")
    data, record = given.data.resolve(), _read(given.record)
    epochs = 1 if given.quick else given.epochs
    with TemporaryDirectory(prefix="persia-compare-") as folder:
        samples = write_samples(data, Path(folder) / "samples")
        for network in given.networks:
            rounds = []
            for seed in range(given.rounds):
                settings = Settings(network, seed, given.batch, epochs, given.threads)
                if given.plain:
                    settings = replace(settings, norm=False, dropout=0.0)
                key = json.dumps([data.name, given.mode, asdict(settings)])
                if key not in record:
                    note(f"{network}, seed {seed}")
                    record[key] = _both(samples, settings, given.mode, Path(folder))
                    if given.record:
                        with given.record.open("a") as file:
                            file.write(json.dumps([key, record[key]]) + "\n")
                rounds.append(record[key])
            yield from _results(f"{data.name}, {network}", rounds)


def _read(file: Path | None) -> dict[str, dict[str, Metrics]]:
    lines = file.read_text().splitlines() if file and file.exists() else []
    try:
        return dict(json.loads(line) for line in lines)
    except ValueError as error:
        raise UserError(f"{file} is no record of this comparison: {error}; name another file") from error


def _results(name: str, rounds: Sequence[dict[str, Metrics]]) -> Iterator[Result]:
    for metric, unit in UNITS.items():
        values = {side: [each[side][metric] for each in rounds] for side in (OURS, THEIRS)}
        note = ""
        if metric == "auc" and len(rounds) > 1:
            error = math.hypot(*map(stdev, values.values())) / math.sqrt(len(rounds))
            difference = fmean(values[OURS]) - fmean(values[THEIRS])
            note = f"difference of the means {difference:+.4f}, its standard error {error:.4f}"
        result = measured(f"{name}: {unit}", unit, values, note)
        if metric == "samples_per_s":
            # Of neighbouring trainings, as both have the same disturbances.
            ratio = median(ours / theirs for ours, theirs in zip(*values.values(), strict=True))
            sides = [replace(result.sides[0], ratios={THEIRS: ratio}), *result.sides[1:]]
            result = replace(result, sides=sides)
        yield result


def _both(samples: Samples, settings: Settings, mode: str, folder: Path) -> dict[str, Metrics]:
    """Train on both sides, which are first alternately; return metrics of each."""
    from sklearn.metrics import log_loss, roc_auc_score

    labels = pq.read_table(samples.test, columns=[LABEL])[LABEL].to_numpy()
    sides = {}
    for side in (OURS, THEIRS) if settings.seed % 2 == 0 else (THEIRS, OURS):
        run_dir = folder / f"{side}-{settings.network}-{settings.seed}"
        train = _train_persia if side == OURS else _train_fuxictr
        metrics, scores = train(samples, settings, mode, run_dir)
        sides[side] = {"auc": roc_auc_score(labels, scores), "log_loss": log_loss(labels, scores), **metrics}
    return sides


def _train_persia(samples: Samples, settings: Settings, mode: str, folder: Path) -> Trained:
    """Train and predict by the command line; return metrics and scores."""
    _call("persia_cli", "train", *overrides_of(samples, settings, mode), "--run-dir", str(folder))
    _call("persia_cli", "predict", str(folder), str(samples.test), "-o", str(folder / "scores.parquet"))
    events, lines = (_journal(folder / name) for name in ("events.jsonl", "metrics.jsonl"))
    phases = [(event["phase"], event["time"]) for event in events if event["event"] == "phase"]
    trained = sum(end - begin for (phase, begin), (_, end) in pairwise(phases) if phase == "training")
    epochs = sum(line["split"] == "eval" for line in lines)
    scores = pq.read_table(folder / "scores.parquet")[f"{LABEL}_probability"].to_numpy().astype(np.float64)
    return {"epochs": epochs, "samples_per_s": max(line["samples"] for line in lines) / trained}, scores


def _train_fuxictr(samples: Samples, settings: Settings, mode: str, folder: Path) -> Trained:
    """Train and predict in a separate process; return metrics and scores."""
    files = json.dumps([str(samples.train), str(samples.test), samples.ids])
    printed = _call("scripts.measure.fuxictr_trainer", files, json.dumps(asdict(settings)), str(folder))
    return json.loads(printed.splitlines()[-1]), np.load(folder / "scores.npy").astype(np.float64)


def _journal(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _call(module: str, *arguments: str) -> str:
    """Run a module; return what it prints. Raises RoleError with its messages if it fails."""
    command = [*python_module(module), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if ended.returncode:
        raise RoleError(f"{' '.join(command[:5])} … failed:\n{(ended.stdout + ended.stderr)[-3000:]}")
    return ended.stdout


def overrides_of(samples: Samples, settings: Settings, mode: str) -> list[str]:
    """Return the settings of `persia train`."""
    train_rows = int(np.count_nonzero(pq.read_table(samples.train, columns=[PART])[PART].to_numpy() == "train"))
    dim = 0 if settings.network == "lr" else DIM
    overrides = [
        "conf=base",
        f"mode={mode}",
        "cluster=local",
        f"seed={settings.seed}",
        f"dataset={samples.train.with_name('dataset.yaml')}",
        f"model={settings.network}",
        f"model.dim={dim + (settings.network in FIRST_ORDER)}",
        *OWN.get(settings.network, []),
        "dataset.rescale=false",
        "optimizer=adam",
        f"optimizer.embedding.lr={LR}",
        f"optimizer.dense.lr={LR}",
        f"optimizer.dense.clip_norm={CLIP}",
        f"optimizer.embedding.beta1={ROW_BETA1}",
        *(f"optimizer.{part}.schedule={{kind: reduce_on_plateau}}" for part in ("dense", "embedding")),
        f"embedding.init_bound={UNIFORM * ROW_DEVIATION}",
        f"train.batch_size={settings.batch}",
        f"train.threads={settings.threads}",
        f"train.epochs={settings.epochs}",
        f"train.stop_early={{metric: auc, patience: {PATIENCE}}}",
        f"eval.every_steps={-(-train_rows // settings.batch)}",
        "checkpoint.best_by=auc",
        "checkpoint.keep=1",
    ]
    if settings.network in ("lr", "fm"):
        return overrides
    overrides += [f"model.hidden={[*settings.hidden]}", f"model.dropout={settings.dropout}", "model.init=xavier_normal"]
    if settings.norm:
        return [*overrides, "model.norm=batch", f"embedding.clip_norm={ROW_CLIP / settings.batch}"]
    return [*overrides, "model.norm=none"]


def write_samples(prepared: Path, folder: Path) -> Samples:
    """Write `prepared` (a folder with dataset.yaml, of one label and one id per column) for both sides.

    Numbers become separate ids by the floor of their square: recipes have taken their logarithm, and this is the
    usual way on Criteo's data.
    """
    settings = yaml.safe_load((prepared / "dataset.yaml").read_text())
    [label], numbers = settings["labels"], settings.get("dense") or []
    table = pq.read_table(sorted(prepared.glob("*.parquet")), columns=[label, *numbers, *settings["sparse"]])
    part = np.array(PARTS)[np.arange(len(table)) % len(PARTS)]
    columns, ids = {LABEL: table[label].cast(pa.float32())}, {}
    for name in (*numbers, *settings["sparse"]):
        values = table[name].combine_chunks()
        if name in numbers:
            values = pc.floor(pc.multiply(values, values)).cast(pa.int64(), safe=False)
        codes, most = _number_ids(values, part == "train")
        columns[name], ids[name] = pa.array(codes), most + 1
    folder.mkdir(parents=True, exist_ok=True)
    whole = pa.table(columns | {PART: pa.array(part)})
    files = Samples(folder / "train.parquet", folder / "test.parquet", ids)
    described: dict[str, Any] = {
        "kind": "parquet",
        "path": files.train.name,
        "labels": [LABEL],
        "dense": [],
        "sparse": [*ids],
    }
    described |= {"split": {"kind": "column", "column": PART, "eval": "eval"}}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(described))
    pq.write_table(whole.filter(pa.array(part != "test")), files.train)
    pq.write_table(whole.filter(pa.array(part == "test")), files.test)
    return files


def _number_ids(values: Any, seen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], int]:
    """Return a number for each value, from 1 on by those that are `seen`, and one more for all others together."""
    known = pc.unique(values.filter(pa.array(seen)))
    codes = pc.index_in(values, value_set=known).fill_null(len(known)).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64) + 1, len(known) + 1
