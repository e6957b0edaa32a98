"""Hold what `persia bench … --json` measured against the targets that the project has set for it.

    python -m scripts.bench kernels --json | python scripts/targets.py
    persia bench throughput conf=criteo train.batch_size=4096 optimizer=adagrad cluster.embedding_servers=2 \
        --compare torch,dense --json > throughput.json
    python scripts/targets.py throughput.json

Prints a line for each target. Exit code 0: all are met, or none is set for such a run; 1: some are missed.
Targets are set for certain runs and sizes, on the CPU; other results are not judged, nor is a quick run.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pydantic import TypeAdapter  # noqa: E402

from persia_cli.bench.modes import UNDELAYED  # noqa: E402
from persia_cli.bench.result import Result  # noqa: E402
from persia_cli.config.schema import Adagrad, Dlrm, HybridMode, Run  # noqa: E402
from persia_cli.observe.processor import Processor  # noqa: E402
from scripts.bench.stores import CRITEO  # noqa: E402

DENSE = {(1, "float32"): 0.95, (1, "bfloat16"): 0.90, (2, "float32"): 0.85, (2, "bfloat16"): 0.72}
"""Part of the dense network's own speed that a job must reach, by torch threads and precision."""
TORCH = {"float32": 1.03, "bfloat16": 1.2}
"""Speed that a job must reach as a multiple of torch in one process, by precision."""
BATCH, DIM, STALENESS, SERVERS = 4096, 16, 3, 2
"""The job that these hold for, besides DLRM on data of Criteo's shape."""

TIER = 1.2
"""Ids per second of the tier over FBGEMM's, with row-wise Adagrad, float16 on the wire and two servers."""

KEEPS, TIMES_SYNC = 0.9, 3.0
"""Part of its undelayed speed that hybrid must keep, and the multiple of sync's speed that it must reach."""
MODES_BATCH, MODES_STALENESS, MODES_DELAY, STEP_MS = 512, 8, "5 ms", 10.0
"""The run that these hold for; the last is the longest undelayed step."""
HOSTS_BATCH, HOSTS_LINK = 256, "5 ms, 1000 Mbit/s"
"""The run and the link between hosts over which hybrid must reach that multiple of sync's speed too."""

ROWS_M = 2.0
"""Least millions of rows of a table for which the targets of look-ups and updates hold: more than a cache holds."""
KERNELS: Sequence[tuple[str, str, float]] = (
    *(
        (rf"look-up, dim {dim}, (?P<rows>\S+)M rows, uniform", baseline, least)
        for dim, pair in {16: (0.95, 0.33), 64: (1.0, 0.52), 128: (1.05, 0.67)}.items()
        for baseline, least in zip(("torch.index_select", "gather limit"), pair, strict=True)
    ),
    *(
        (
            rf"update Adagrad, dim {dim}, (?P<rows>\S+)M rows, uniform, {way}",
            "read-modify-write limit",
            least,
        )
        for dim, keys in {16: 0.35, 64: 0.65, 128: 0.70}.items()
        for way, least in {"from keys": keys, "rows kept": 0.80}.items()
    ),
    (r"update \w+, dim \d+, \S+ rows, uniform", r"torch\.optim\.\w+", 10.0),
    (r"hash look-up, .*, uniform", "naive linear probing", 2.2),
    (r"hash look-up, .*, Zipf", "Python dict", 30.0),
    (r"mapped look-up, .*", "training store", 0.8),
    (r"mapped look-up, .*", "LMDB", 10.0),
    (r"dedup .*", r"np\.unique", 2.8),
    (r"pooling, .*", "embedding_bag", 0.8),
    (r"pooling backward, .*", "embedding_bag", 8.0),
    (r"pooling backward, .*", "index_add_", 3.0),
    (r".* encode \+ decode, .*", "torch copy_", 0.95),
    (r"embedding step, 26 tables, .*, dim 16, Zipf, Adagrad", "torch, one bag, Adagrad", 5.0),
    (r"embedding step, 26 tables, .*, dim 16, Zipf, Adagrad", "FBGEMM Adagrad", 2.8),
    (r"embedding step, 26 tables, .*, dim 16, Zipf, row-wise Adagrad", "FBGEMM row-wise Adagrad", 1.1),
    (r"two shards on two cores, look-up \+ update, dim 16", "one shard", 1.6),
    (r"two shards on two cores, look-up \+ update, dim (64|128)", "one shard", 1.35),
    (r"store at capacity, .*, speed", "below capacity", 0.8),
    (r"journal, .*, in the cache", "without a journal", 0.8),
    (r"journal, .*, from memory", "without a journal", 0.87),
    (r"(save|load), dim 16, 10M rows", "disk .*", 0.7),
)
"""Pattern of a result's name, pattern of the baseline's, and what the ratio must reach."""
KERNELS_AT_MOST: Sequence[tuple[str, str, float]] = (
    (r"store at capacity, .*, longest look-up", "median", 5.0),
    # 32 bytes of a row in addition to the 128 of its values.
    (r"memory at capacity, .*, the store", "its values", 1.25),
)
"""The same where the ratio must not exceed the target."""
READY_S = 3.0
"""Seconds until a server is ready, with kernels in the cache."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A measurement and its target."""

    name: str
    figure: float
    target: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """True if the measurement meets the target."""
        return self.figure <= self.target if self.at_most else self.figure >= self.target

    def line(self) -> str:
        """Return a line of text."""
        bound = "at most" if self.at_most else "at least"
        return f"{'met' if self.met else 'MISSED':6}  {self.name}: {self.figure:.3f}, {bound} {self.target:g}"


def throughput_target(run: Run, baseline: str, processor: Processor) -> float | None:
    """Return the target against a baseline; None for other runs, and for a precision that the processor is slow at."""
    dataset, optimizer = run.dataset, run.optimizer.embedding
    generator = dataset.generator
    has_target = (
        isinstance(run.model, Dlrm)
        and run.model.dim == DIM
        and generator is not None
        and generator.cardinalities == CRITEO
        and run.train.batch == BATCH
        and isinstance(optimizer, Adagrad)
        and run.mode == HybridMode(kind="hybrid", staleness=STALENESS)
        and run.cluster.embedding_servers == SERVERS
    )
    precision = run.train.precision
    if not has_target or processor.slow_precision(precision):
        return None
    return DENSE.get((run.train.threads, precision)) if baseline == "dense" else TORCH.get(precision)


def judge_throughput(run: Run, processor: Processor, results: Sequence[Result]) -> Iterator[Judged]:
    """Judge a job against its baselines."""
    for result in results:
        if any(side.gpu_busy is not None for side in result.sides):
            continue
        for baseline, ratio in result.sides[0].ratios.items():
            target = throughput_target(run, baseline, processor)
            if target is not None:
                yield Judged(f"{result.case}, against {baseline}", ratio, target)


def judge_tier(run: Run, results: Sequence[Result]) -> Iterator[Judged]:
    """Judge the embedding tier against FBGEMM at its faster number of threads."""
    kind, wire, servers = run.optimizer.embedding.kind, run.embedding.wire, run.cluster.embedding_servers
    ratios = results[0].sides[0].ratios
    if (kind, wire, servers) == ("rowwise_adagrad", "float16", 2) and ratios:
        yield Judged("tier, against FBGEMM", min(ratios.values()), TIER)


def judge_modes(run: Run, results: Sequence[Result]) -> Iterator[Judged]:
    """Judge hybrid training under delay."""
    found = {(result.case, side.name): side for result in results for side in result.sides}
    hybrid, free = found.get((MODES_DELAY, "hybrid")), found[("0 ms", "hybrid")]
    staleness = run.mode.staleness if isinstance(run.mode, HybridMode) else None
    step_ms = run.train.batch / free.median * 1e3
    if hybrid and (run.train.batch, staleness) == (MODES_BATCH, MODES_STALENESS) and step_ms <= STEP_MS:
        yield Judged("hybrid keeps of its undelayed speed", hybrid.ratios[UNDELAYED], KEEPS)
        yield Judged("hybrid is times sync", hybrid.ratios["sync"], TIMES_SYNC)
    between_hosts = found.get((HOSTS_LINK, "hybrid"))
    if between_hosts and (run.train.batch, staleness) == (HOSTS_BATCH, MODES_STALENESS):
        yield Judged("hybrid between hosts is times sync", between_hosts.ratios["sync"], TIMES_SYNC)


def judge_kernels(results: Sequence[Result]) -> Iterator[Judged]:
    """Judge the parts of the embedding store."""
    for result in results:
        if result.name == "server ready, kernels cached":
            yield Judged(result.name, result.sides[0].median, READY_S, at_most=True)
        for each in (*KERNELS, *KERNELS_AT_MOST):
            name, baseline, target = each
            match = re.fullmatch(name, result.name)
            if match and float(match.groupdict().get("rows", ROWS_M)) >= ROWS_M:
                for theirs, ratio in result.sides[0].ratios.items():
                    if re.fullmatch(baseline, theirs):
                        yield Judged(f"{result.name}, against {theirs}", ratio, target, each in KERNELS_AT_MOST)


def judge(told: dict[str, Any]) -> list[Judged]:
    """Judge the JSON object of a benchmark; raises SystemExit for a quick run."""
    if told["quick"]:
        raise SystemExit("this was a quick run: its numbers have no meaning")
    results = TypeAdapter(list[Result]).validate_python(told["results"])
    if told["benchmark"] == "kernels":
        return list(judge_kernels(results))
    run = Run.model_validate(told["run"])
    if told["benchmark"] == "tier":
        return list(judge_tier(run, results))
    if told["benchmark"] == "modes":
        return list(judge_modes(run, results))
    processor = Processor(told["machine"]["cpu"], tuple(told["machine"]["features"]))
    return list(judge_throughput(run, processor, results))


def main() -> int:
    """Judge the files, or what comes from stdin."""
    texts = [Path(name).read_text(encoding="utf-8") for name in sys.argv[1:]] or [sys.stdin.read()]
    judged = [each for text in texts for each in judge(json.loads(text))]
    for each in judged:
        print(each.line())
    met = sum(each.met for each in judged)
    print(f"{met} of {len(judged)} targets met" if judged else "no target is set for such a run")
    return int(met < len(judged))


if __name__ == "__main__":
    raise SystemExit(main())
