"""The targets that the project has set for its speed and quality, with the commands that print them.

    python -m scripts.measure targets                  # lists them
    python -m scripts.measure rows                     # holds its own results against them
    persia bench throughput conf=criteo … --json > throughput.json
    python -m scripts.measure targets throughput.json  # those that `--json` has printed; `-`: stdin

A target is a pattern of what is measured, as `measurements` names it, and a bound. The pattern also says
for which runs and sizes the target holds. A quick run is not judged.
"""

import json
import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from persia_cli.bench.result import Result
from persia_cli.commands.screen import out, say
from persia_cli.config.schema import HybridMode, Run
from persia_cli.errors import UserError
from persia_cli.observe.machine import Processor
from scripts.measure import CRITEO

STEP_MS = 10.0
"""The longest undelayed step of a run for which the targets of modes hold."""


class Target(NamedTuple):
    """A bound on what is measured."""

    what: str
    """Pattern of the whole name of a measurement."""
    bound: float
    at_most: bool = False
    """True if the measurement must not exceed the bound; else it must reach it."""


_MANY = r"(?:[2-9]|\d\d)[\d.]*M rows"
"""At least two million rows: more than a cache holds."""
_JOB = r"dlrm, dim 16, Criteo's shape, batch 4096, adagrad, \w+ wire, hybrid, staleness 3, 2 servers"
_STALENESS = r"ML-1M, SASRec, 10 epochs, cosine, R@10, (?:[5-9]|\d\d+) seeds"
GPU_SPEEDS = {
    "dlrm dim 16 batch 4096 float32": {" / tables": 0.65, " / dense": 0.55, "": 2.8e6},
    "dcn_v2 dim 16 batch 4096 float32": {" / tables": 0.80, " / dense": 0.70, "": 2.4e6},
    "ffnn_paper dim 16 batch 4096 float32": {" / tables": 0.95, " / dense": 0.85, "": 0.55e6},
    "ffnn_paper dim 16 batch 4096 bfloat16": {" / tables": 0.95, " / dense": 0.85, "": 2.3e6},
    "dlrm dim 128 batch 4096 float32": {" / tables": 0.45, " / dense": 0.30, "": 1.2e6},
    "dlrm dim 16 batch 16384 float32": {" / tables": 0.75, " / dense": 0.62, "": 4.5e6},
    "dlrm dim 16 batch 4096 float32, S2 W1 staleness 3": {"": 1.7e6},
}
"""Least speeds on one H100 with 16 processors, in the order of measuring: as a multiple of that with all tables on the
GPU, and of the network alone, and in samples per second."""
TARGETS: dict[str, Sequence[Target]] = {
    "python -m scripts.measure rows": (
        Target(rf"look-up, dim 16, {_MANY}, uniform: persia / torch.index_select", 0.95),
        Target(rf"look-up, dim 64, {_MANY}, uniform: persia / torch.index_select", 1.0),
        Target(rf"look-up, dim 128, {_MANY}, uniform: persia / torch.index_select", 1.05),
        Target(rf"look-up, dim 16, {_MANY}, uniform: persia / gather limit", 0.33),
        Target(rf"look-up, dim 64, {_MANY}, uniform: persia / gather limit", 0.52),
        Target(rf"look-up, dim 128, {_MANY}, uniform: persia / gather limit", 0.67),
        Target(rf"update Adagrad, dim 16, {_MANY}, uniform, from keys: persia / .* limit", 0.35),
        Target(rf"update Adagrad, dim 64, {_MANY}, uniform, from keys: persia / .* limit", 0.65),
        Target(rf"update Adagrad, dim 128, {_MANY}, uniform, from keys: persia / .* limit", 0.70),
        Target(rf"update Adagrad, dim \d+, {_MANY}, uniform, rows kept: persia / .* limit", 0.80),
        Target(r"until a server is ready, kernels cached: persia", 3.0, at_most=True),
    ),
    "python -m scripts.measure batches": (
        Target(r"dedup .*: persia / np\.unique", 2.8),
        Target(r"pooling, .*: persia / embedding_bag", 0.8),
        Target(r"pooling backward, .*: persia / embedding_bag", 8.0),
        Target(r"pooling backward, .*: persia / index_add_", 3.0),
        Target(r".* encode \+ decode, .*: persia / torch copy_", 0.95),
    ),
    "python -m scripts.measure checkpoints": (
        Target(rf"(save|load), dim 16, {_MANY}: persia / disk alone", 0.7),
    ),
    "python -m scripts.measure first": (
        Target(r"first model, \w+, above .*: persia", 0.0),
        Target(r"first model, \w+, log loss: persia / .*", 1.10, at_most=True),
        Target(r"first model, \w+, both commands: persia", 180.0, at_most=True),
        Target(r"first models with an AUC within .* of LightGBM's: persia", 0.8),
    ),
    "python -m scripts.measure store --only criteo --dims 16": (
        Target(r"embedding step, 26 tables, .*, dim 16, Zipf, Adagrad: persia / torch, one bag, Adagrad", 5.0),
        Target(r"embedding step, 26 tables, .*, dim 16, Zipf, Adagrad: persia / FBGEMM Adagrad", 2.8),
        Target(r"embedding step, 26 tables, .*, dim 16, Zipf, row-wise Adagrad: persia / FBGEMM .*", 1.1),
    ),
    "python -m scripts.measure gpu": (
        Target("check .*: persia", 1.0, at_most=True),
        *(
            Target(re.escape(f"speed {case}: persia{other}"), bound)
            for case, bounds in GPU_SPEEDS.items()
            for other, bound in bounds.items()
        ),
    ),
    "python -m scripts.measure histories": (
        Target(r"loader, ML-1M: persia / ready lists", 0.9),
        Target(r"decoded lists, ML-1M: persia / ready lists", 0.05, at_most=True),
        Target(r"memory of 4 loaders, ML-1M: persia / ready lists", 0.5, at_most=True),
    ),
    "python -m scripts.measure ragged --ratings ratings.parquet": (
        Target(r"sasrec, beauty: persia / padded", 3.0),
        Target(r"sasrec, movielens: persia / padded", 2.2),
    ),
    "python -m scripts.measure sequences --beauty Beauty.txt --movielens ratings.dat --rounds 3": (
        Target(r"Beauty, SASRec, 40 epochs, R@10: persia", 0.089),
        Target(r"Beauty, SASRec, 40 epochs, N@10: persia", 0.053),
        Target(r"ML-1M, SASRec, 30 epochs, R@10: persia", 0.250),
        Target(r"ML-1M, SASRec, 30 epochs, N@10: persia", 0.135),
        Target(r"ML-1M, HSTU, 1,024 negatives, 20 epochs, R@10: persia", 0.272),
        Target(r"ML-1M, HSTU, 1,024 negatives, 20 epochs, N@10: persia", 0.155),
        Target(r"ML-1M, 10 epochs, R@10, hstu - sasrec: persia", 0.015),
        Target(r"ML-1M, SASRec, 2 epochs, samples/s: persia / plain torch", 0.9),
    ),
    "python -m scripts.measure sequences --movielens ratings.dat --only staleness --rounds 5": (
        Target(rf"{_STALENESS}, distance of hybrid 3 from sync: persia", 2.0, at_most=True),
    ),
    "python -m scripts.measure windows --movielens ml-1m": (
        Target(r"ML-1M, deepfm, 5 seeds, following above frozen: persia", 2.0),
    ),
    "python -m scripts.measure prepare train.txt": (
        Target(rf"preparing {_MANY} of Criteo's text on 2 cores: persia", 400_000),
        Target(rf"preparing {_MANY} of Criteo's text on \d+ cores: persia / polars", 0.35),
    ),
    "persia bench throughput conf=criteo train.batch_size=4096 optimizer=adagrad cluster.embedding_servers=2 "
    "--compare torch,dense --json": (
        Target(rf"\w+, {_JOB}, 1 thread, float32: persia / dense", 0.95),
        Target(rf"\w+, {_JOB}, 1 thread, bfloat16: persia / dense", 0.90),
        Target(rf"\w+, {_JOB}, 2 threads, float32: persia / dense", 0.85),
        Target(rf"\w+, {_JOB}, 2 threads, bfloat16: persia / dense", 0.72),
        Target(rf"\w+, {_JOB}, \d+ threads?, float32: persia / torch", 1.03),
        Target(rf"\w+, {_JOB}, \d+ threads?, bfloat16: persia / torch", 1.2),
    ),
    "python -m scripts.measure tier": (
        Target(r"tier, rowwise_adagrad, float16 wire, 2 servers: persia / FBGEMM, .*", 1.2),
    ),
    "persia bench modes conf=criteo train.batch_size=512 mode.staleness=8 --delay-ms 5 --json": (
        Target(r"5 ms, [^/]*, batch 512, .*, staleness 8, .*, short step: hybrid / itself without delay", 0.9),
        Target(r"5 ms, [^/]*, batch 512, .*, staleness 8, .*, short step: hybrid / sync", 3.0),
    ),
    "persia bench modes conf=criteo train.batch_size=256 mode.staleness=8 --hosts --json": (
        Target(r"5 ms, 1000 Mbit/s, .*, batch 256, .*, staleness 8, .*: hybrid / sync", 3.0),
    ),
}  # fmt: skip
"""By the command that prints their measurements."""


class Judged(NamedTuple):
    """A measurement and its target."""

    what: str
    value: float
    target: Target

    @property
    def met(self) -> bool:
        """True if the measurement meets the target."""
        return self.value <= self.target.bound if self.target.at_most else self.value >= self.target.bound

    def line(self) -> str:
        """Return a line of text."""
        return f"{'met' if self.met else 'MISSED':6}  {self.what}: {self.value:.3f}, {_bound(self.target)}"


def _bound(target: Target) -> str:
    return f"at {'most' if target.at_most else 'least'} {target.bound:,g}"


def measurements(results: Sequence[Result], run: str = "") -> Iterator[tuple[str, float]]:
    """Yield each value of results by its name: `RESULT: SIDE`, and `RESULT: SIDE / OTHER` for ratios.

    `run` describes the run of results of `persia bench`, whose name is then the case and the run.
    """
    for result in results:
        name = f"{result.case}, {run}" if run else result.name
        for side in result.sides:
            yield f"{name}: {side.name}", side.median
            for other, ratio in side.ratios.items():
                yield f"{name}: {side.name} / {other}", ratio


def describe_run(run: Run, processor: Processor, results: Sequence[Result]) -> str:
    """Return all of a run that targets depend on, in one line."""
    generator, mode = run.dataset.generator, run.mode
    threads, precision = run.train.threads, run.train.precision
    undelayed = [side.median for result in results for side in result.sides if (result.case, side.name) == _UNDELAYED]
    facts = [
        run.model.kind,
        f"dim {run.model.dim}",
        "Criteo's shape" if generator is not None and generator.cardinalities == CRITEO else "other data",
        f"batch {run.train.batch}",
        run.optimizer.embedding.kind,
        f"{run.embedding.wire} wire",
        f"hybrid, staleness {mode.staleness}" if isinstance(mode, HybridMode) else mode.kind,
        f"{run.cluster.embedding_servers} servers",
        f"{threads} thread{'s' if threads > 1 else ''}",
        f"slow {precision}" if processor.slow_precision(precision) else precision,
    ]
    if any(run.train.batch / rate * 1e3 <= STEP_MS for rate in undelayed):
        facts.append("short step")
    if any(side.gpu_busy is not None for result in results for side in result.sides):
        facts.append("on a GPU")
    return ", ".join(facts)


_UNDELAYED = ("0 ms", "hybrid")


def judge(results: Sequence[Result], run: str = "") -> list[Judged]:
    """Hold results against all targets."""
    return [
        Judged(what, value, target)
        for what, value in measurements(results, run)
        for targets in TARGETS.values()
        for target in targets
        if re.fullmatch(target.what, what)
    ]


def judge_json(printed: dict[str, Any]) -> list[Judged]:
    """Judge the JSON object of a benchmark; raises UserError for a quick run, and for output without results."""
    if printed.get("quick"):
        raise UserError("this was a quick run: its numbers have no meaning")
    try:
        results = TypeAdapter(list[Result]).validate_python(printed["results"])
    except (KeyError, ValidationError):
        raise UserError("it is not the output of a benchmark that has targets") from None
    if "run" not in printed:
        return judge(results)
    processor = Processor(printed["machine"]["cpu"], tuple(printed["machine"]["features"]))
    return judge(results, describe_run(Run.model_validate(printed["run"]), processor, results))


def show(judged: Sequence[Judged]) -> int:
    """Print a line for each target, and return the exit code: 1 if one is missed."""
    for each in judged:
        say(out(), each.line())
    met = sum(each.met for each in judged)
    say(out(), f"{met} of {len(judged)} targets met" if judged else "no target is set for such a run")
    return int(met < len(judged))


def main(arguments: Sequence[str]) -> int:
    """Judge the files, or list all targets; return the exit code."""
    parser = ArgumentParser(
        "python -m scripts.measure targets", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="JSON that a benchmark has printed; -: stdin")
    files = parser.parse_args(arguments).files
    if files:
        texts = [sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8") for name in files]
        return show([each for text in texts for each in judge_json(json.loads(text))])
    for command, targets in TARGETS.items():
        say(out(), command)
        for target in targets:
            say(out(), f"  {target.what}: {_bound(target)}")
    return 0
