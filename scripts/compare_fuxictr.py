"""Train the same networks on the same samples by Persia and by FuxiCTR, alternating, and print metrics of both.

    python scripts/compare_fuxictr.py data/movielens_1m --networks deepfm dcn_v2 --seeds 3
    python scripts/compare_fuxictr.py data/criteo --plain --record criteo.jsonl

DATA is the folder that `persia recipe prepare` has written, of one label and one id per column. Both train on three
fifths of its rows until one fifth shows no improvement, and score the last fifth by their best model. Prints a
Markdown table, one line for each network; where two numbers are in a cell, the first one is Persia's. FuxiCTR is in the
group `compare` (`pip install --group compare`). Its samples come from memory, by a loader that is faster than its
own; Persia reads its Parquet file. samples/s are of training alone, without start, evaluation and end.

Every pair of trainings that has ended is a line of the file `--record`. The same command goes on after them, and one of
more seeds or networks trains only what is new.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.rival.record import Comparison, JobMetrics, Record  # noqa: E402
from scripts.rival.samples import LABEL, PART, Samples, write_samples  # noqa: E402
from scripts.rival.settings import Settings  # noqa: E402
from scripts.rival.table import HEAD, RULE, line_of  # noqa: E402

UNIFORM = 3**0.5
"""Half the width of a uniform distribution with the standard deviation 1."""
ROW_DEVIATION = 1e-4
"""Standard deviation of new rows, as FuxiCTR has it."""
ROW_CLIP = 40.0
"""Greatest norm of a row's gradient times the samples of a batch: each has its part of the mean loss, and so of it."""
SIDES = ("persia", "fuxictr")
NETWORKS = ("lr", "fm", "ffnn", "wide_deep", "deepfm", "dcn_v2", "xdeepfm", "fibinet")
"""Networks that both have, by the names of Persia; the default."""
FIRST_ORDER = ("lr", "fm", "wide_deep", "deepfm", "xdeepfm", "fibinet")
"""Networks whose rows have a first-order weight and a vector: one column more in Persia, a table in FuxiCTR."""
OWN_WORDS = {
    "dcn_v2": ["model.layers=3", "model.structure=parallel"],
    "xdeepfm": ["model.maps=[32,32]"],
}


def words_of(samples: Samples, settings: Settings, mode: str) -> list[str]:
    """Return the arguments of `persia train`."""
    train_rows = int(np.count_nonzero(pq.read_table(samples.train, columns=[PART])[PART].to_numpy() == "train"))
    dim = 0 if settings.network == "lr" else settings.dim
    words = [
        "conf=base",
        f"mode={mode}",
        "cluster=local",
        f"seed={settings.seed}",
        f"dataset={samples.train.with_name('dataset.yaml')}",
        f"model={settings.network}",
        f"model.dim={dim + (settings.network in FIRST_ORDER)}",
        *OWN_WORDS.get(settings.network, []),
        "dataset.rescale=false",
        "optimizer=adam",
        f"optimizer.embedding.lr={settings.lr}",
        f"optimizer.dense.lr={settings.lr}",
        f"optimizer.dense.clip_norm={settings.clip}",
        f"optimizer.embedding.beta1={settings.row_beta1}",
        f"embedding.init_bound={UNIFORM * ROW_DEVIATION}",
        f"train.batch_size={settings.batch}",
        f"train.threads={settings.threads}",
        f"train.epochs={settings.epochs}",
        f"train.stop_early={{metric: auc, patience: {settings.patience}}}",
        f"eval.every_steps={-(-train_rows // settings.batch)}",
        "checkpoint.best_by=auc",
        "checkpoint.keep=1",
    ]
    if settings.network not in ("lr", "fm"):
        words += [f"model.hidden={settings.hidden}", f"model.dropout={settings.dropout}", "model.init=xavier_normal"]
        words += [f"model.norm={'batch' if settings.norm else 'none'}"]
        words += [f"embedding.clip_norm={settings.row_clip}"] if settings.norm and settings.row_clip else []
    if settings.plateau:
        words += [f"optimizer.{part}.schedule={{kind: reduce_on_plateau}}" for part in ("dense", "embedding")]
    if settings.row_l2:
        words += [f"optimizer.embedding.l2={settings.row_l2}"]
    if settings.dense_l2:
        words += [f"optimizer.dense.l2={settings.dense_l2}"]
    return words


def train_persia(samples: Samples, settings: Settings, mode: str, folder: Path) -> JobMetrics:
    """Train and predict by the command line; return metrics, and write scores to a file."""
    words = words_of(samples, settings, mode)
    call([sys.executable, "-m", "persia_cli", "train", *words, "--run-dir", str(folder)])
    scores = folder / "scores.parquet"
    call([sys.executable, "-m", "persia_cli", "predict", str(folder), str(samples.test), "-o", str(scores)])
    np.save(folder / "scores.npy", pq.read_table(scores)[f"{LABEL}_probability"].to_numpy())
    return of_run(folder)


def of_run(folder: Path) -> JobMetrics:
    """Return how long a run of ours trained, by its record."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    phases = [(event["phase"], event["time"]) for event in events if event["event"] == "phase"]
    ends = [time for _, time in phases[1:]]
    trained = sum(end - time for (phase, time), end in zip(phases[:-1], ends, strict=True) if phase == "training")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    samples = max(line["samples"] for line in lines)
    epochs = sum(line["split"] == "eval" for line in lines)
    return {"epochs": epochs, "wall_s": phases[-1][1] - phases[0][1], "samples_per_s": samples / trained}


def train_fuxictr(samples: Samples, settings: Settings, folder: Path) -> JobMetrics:
    """Train and predict in a separate process; return metrics."""
    files = json.dumps([str(samples.train), str(samples.test), samples.ids])
    command = [sys.executable, "-m", "scripts.rival.train", files, json.dumps(settings.words()), str(folder)]
    figures: JobMetrics = json.loads(call(command).splitlines()[-1])
    return figures


def call(command: list[str]) -> str:
    """Run a command; return what it prints. Ends this script with its messages if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command[:5])} … failed:\n{(ended.stdout + ended.stderr)[-3000:]}")
    return ended.stdout


def compare(samples: Samples, settings: Settings, mode: str, folder: Path) -> dict[str, JobMetrics]:
    """Train on both sides, which are first alternately; return metrics of each."""
    from sklearn.metrics import log_loss, roc_auc_score

    labels = pq.read_table(samples.test, columns=[LABEL])[LABEL].to_numpy()
    found = {}
    for side in SIDES if settings.seed % 2 == 0 else SIDES[::-1]:
        place = folder / f"{side}-{settings.network}-{settings.seed}"
        if side == "persia":
            figures = train_persia(samples, settings, mode, place)
        else:
            figures = train_fuxictr(samples, settings, place)
        scores = np.load(place / "scores.npy").astype(np.float64)
        found[side] = {"auc": roc_auc_score(labels, scores), "log_loss": log_loss(labels, scores), **figures}
    return found


def read_words(words: list[str] | None) -> argparse.Namespace:
    """Read the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that persia recipe prepare has written")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS, metavar="NETWORK")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="without normalisation, dropout and L2")
    parser.add_argument("--constant", action="store_true", help="never reduce the learning rate")
    parser.add_argument("--mode", default="hybrid", choices=["sync", "hybrid"])
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=100, help="most epochs")
    parser.add_argument("--hidden", type=int, nargs="+", default=[400, 400, 400], help="units of the hidden layers")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch on both sides")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument(
        "--row-clip", type=float, help="greatest norm of a row's gradient, in Persia; 0: any; default: 40 / batch"
    )
    parser.add_argument("--row-beta1", type=float, default=0.0, help="Adam's beta1 of rows, in Persia")
    parser.add_argument("--row-l2", type=float, default=0.0, help="L2 penalty of rows")
    parser.add_argument("--dense-l2", type=float, default=0.0, help="L2 penalty of dense weights")
    parser.add_argument("--record", type=Path, help="file of all comparisons, made before and now")
    return parser.parse_args(words)


def settings_of(chosen: argparse.Namespace, network: str, seed: int) -> Settings:
    """Return the settings of both sides."""
    names = ("batch", "epochs", "hidden", "threads", "dropout", "row_clip", "row_beta1", "row_l2", "dense_l2")
    told = {name: getattr(chosen, name) for name in names}
    told["row_clip"] = ROW_CLIP / chosen.batch if chosen.row_clip is None else chosen.row_clip
    settings = Settings(network, seed, plateau=not chosen.constant, **told)
    return settings.plain() if chosen.plain else settings


def main(words: list[str] | None = None) -> None:
    """Compare what the record has not, and print the line of each network at once."""
    chosen = read_words(words)
    record, data = Record(chosen.record), chosen.data.resolve()
    with tempfile.TemporaryDirectory(prefix="persia-compare-") as temporary:
        samples = write_samples(data, Path(temporary) / "samples")
        print(f"{HEAD}\n{RULE}", flush=True)
        for network in chosen.networks:
            rounds = []
            for seed in range(chosen.seeds):
                settings = settings_of(chosen, network, seed)
                if not (made := record.find(data.name, chosen.mode, settings)):
                    sides = compare(samples, settings, chosen.mode, Path(temporary))
                    made = Comparison(data.name, chosen.mode, settings, sides)
                    record.add(made)
                rounds.append(made)
            print(line_of(rounds), flush=True)


if __name__ == "__main__":
    main()
