"""Check and measure Persia on this machine's GPU, in less than eight minutes; nothing is installed.

    python scripts/gpu_check.py                       # everything; writes gpu-report.md
    python scripts/gpu_check.py --only networks jobs  # some parts
    python scripts/gpu_check.py --rehearse            # small, and on the CPU: to test the check itself

Each part is a separate process: one that fails, hangs or breaks the driver's state fails alone, and the others go on.
Parts without time left are reported as left out. Exit code 0: nothing failed; 1: something failed; 2: there is no GPU.
"""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.gpu.report import Finding, Findings, Left, Speed, counted, page  # noqa: E402

if TYPE_CHECKING:
    from persia_cli.config.schema import Model, Run
    from scripts.gpu.speed import Case

SECONDS = 465.0
"""Seconds for all parts together; the last part gets the time that the others leave."""
GRACE_S = 10.0
"""Seconds that a part has to end by itself, and then to stop its processes."""
PARTS = {
    "graphs": 90.0,
    "networks": 70.0,
    "paths": 25.0,
    "compiled": 50.0,
    "jobs": 80.0,
    "timeline": 25.0,
    "tier": 45.0,
    "speed": SECONDS,
}
"""Parts in order, with the most seconds for each."""
FEW = ("ffnn", "dlrm")
"""Networks that are checked first, and by a rehearsal."""
MODELS = (*FEW, *sorted({path.stem for path in (ROOT / "conf/model").glob("*.yaml")} - {*FEW, "custom", "din_taobao"}))
"""Networks of conf/model, with their default widths; what is left out are settings for data of one's own."""
COMPILED = ("ffnn", "dlrm", "dcn_v2")
NETWORKS = ("ffnn_paper", "dlrm", "dcn_v2")
STEPS = {4096: (400, 16), 65536: (40, 4), 16384: (150, 8)}
"""Samples of a batch: steps of a turn, and batches that repeat."""
SLOW = "ffnn_paper"
"""The network with long steps: in float32, a batch of 4,096 takes 7 ms."""
ROUNDS = 2
LOADERS = 2


def part(name: str, left: Left, rehearse: bool) -> Findings:
    """Run one part in this process."""
    import torch

    from persia_cli.config.compose import compose_run
    from persia_cli.training.device import choose_device, prepare_torch
    from scripts.gpu import compiled, graphs, jobs, networks, paths, speed, tier, timeline

    where = "cpu" if rehearse else "cuda"
    device = choose_device(where, 0)
    cores = len(os.sched_getaffinity(0))
    prepare_torch(max(1, min(8, cores // 2)))
    own = {each: ["model.attend={f0: [history]}"] for each in ("din", "dien", "bst", "sasrec")}
    own["two_tower"] = ["model.user=[f0,f1,f2,f3]", "model.item=[f4,f5,f6,f7]"]

    def models(names: Sequence[str]) -> "dict[str, Model]":
        return {each: compose_run([f"model={each}", *own.get(each, [])]).model for each in names}

    if name == "graphs":
        return graphs.check_graphs(models(FEW if rehearse else MODELS), device, left, 3 if rehearse else graphs.STEPS)
    if name == "networks":
        chosen = FEW if rehearse else MODELS
        return networks.check_networks(models(chosen), device, left, 3 if rehearse else networks.STEPS)
    if name == "paths":
        return paths.check_paths(models(["dlrm"])["dlrm"], device, left)
    if name == "compiled":
        return compiled.check_compiled(models(COMPILED[:1] if rehearse else COMPILED), device, left)
    if name == "jobs":
        return jobs.check_jobs(where, max(1, min(4, cores // 4)), left)
    torch.set_num_threads(1)
    note = partial(print, "         ", file=sys.stderr, flush=True)
    if name == "timeline":
        runs = {case.name: run_of(where, case) for case in single_cases(rehearse)}
        return timeline.check_timelines(runs, device, left, 3 if rehearse else timeline.STEPS)
    if name == "tier":
        alone = [case for case in single_cases(rehearse) if case.network == "dlrm"]
        runs = {f"dim {case.dim} batch {case.batch}": run_of(where, case) for case in alone}
        return tier.measure_tier(runs, alone[0].steps, 1 if rehearse else ROUNDS, alone[0].ring, left, note)
    return speed.measure(cases(rehearse), partial(run_of, where), 1 if rehearse else ROUNDS, left, note)


def single_cases(rehearse: bool) -> "list[Case]":
    """Return the cases of the tier and of the timeline."""
    from scripts.gpu.speed import Case

    alone = (("dlrm", 16), ("dlrm", 128), ("dcn_v2", 16), ("ffnn_paper", 16))
    return cases(True) if rehearse else [Case(*each, 4096, "float32", *STEPS[4096]) for each in alone]


def cases(rehearse: bool) -> "list[Case]":
    """Return the cases to measure, those with bars first."""
    from scripts.gpu.bars import BARS
    from scripts.gpu.speed import Case

    if rehearse:
        return [Case("dlrm", 16, 256, "float32", 4, 2)]
    whole = [
        Case(network, dim, batch, "float32", *(STEPS[16384] if network == SLOW and batch == 4096 else STEPS[batch]))
        for batch in STEPS
        for dim in (16, 128, 64)
        for network in NETWORKS
    ]
    faster = [Case("ffnn_paper", 16, 4096, precision, *STEPS[4096]) for precision in ("bfloat16", "tf32")]
    few = Case("dlrm", 16, 4096, "float32", *STEPS[4096], servers=2, workers=1, staleness=3)
    places = list(BARS)
    return sorted([*whole, *faster, few], key=lambda case: places.index(case.name) if case.name in BARS else len(BARS))


def run_of(device: str, case: "Case") -> "Run":
    """Return the run of a case: generated samples of Criteo's shape, replicas for 16 processors, torch's Adagrad."""
    from persia_cli.config.compose import compose_run
    from scripts.measure import CRITEO

    words = [
        "conf=synthetic",
        f"model={case.network}",
        f"model.dim={case.dim}",
        f"train.batch_size={case.batch}",
        f"train.precision={case.precision}",
        f"train.device={device}",
        "optimizer=adagrad",
        f"cluster.embedding_servers={case.servers if device == 'cuda' else 2}",
        f"cluster.embedding_workers={case.workers if device == 'cuda' else 1}",
        f"cluster.data_loaders={LOADERS if device == 'cuda' else 1}",
        f"mode.staleness={case.staleness}",
        "embedding.memory=8GiB",
        "dataset.generator.dense=13",
        f"dataset.generator.train_rows={case.batch * case.ring}",
        f"dataset.generator.cardinalities={list(CRITEO) if device == 'cuda' else [1000] * 26}",
    ]
    return compose_run(words)


def speak(name: str, seconds: float, rehearse: bool) -> None:
    """Run one part and print its findings, one JSON object per line."""
    end = monotonic() + seconds
    out, sys.stdout = sys.stdout, sys.stderr
    for found in part(name, lambda: end - monotonic(), rehearse):
        print(json.dumps({"kind": type(found).__name__, "found": asdict(found)}), file=out, flush=True)


class Part:
    """A part in its own process, which is stopped at its deadline together with all processes that it started."""

    def __init__(self, name: str, seconds: float, command: Sequence[str]) -> None:
        self._name, self._end = name, monotonic() + seconds
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def findings(self) -> Findings:
        """Yield the findings, and at the end a failure if the process ended badly."""
        try:
            while (line := self._lines.get(timeout=max(0.1, self._end - monotonic()))) is not None:
                message = json.loads(line)
                yield {"Finding": Finding, "Speed": Speed}[message["kind"]](**message["found"])
            if self._process.wait():
                yield Finding(self._name, "FAIL", f"its process ended with {self._process.returncode}; see above")
        except queue.Empty:
            yield Finding(self._name, "FAIL", "it was stopped at its deadline")
        finally:
            self._close()

    def _close(self) -> None:
        for number, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(seconds)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()
        self._thread.join()
        self._process.stdout.close()


def part_command(name: str, seconds: float, rehearse: bool) -> list[str]:
    """Return the command that runs one part."""
    words = [sys.executable, __file__, "--part", name, "--seconds", str(seconds)]
    return [*words, "--rehearse"] if rehearse else words


def machine(rehearse: bool) -> dict[str, str]:
    """Return a description of this machine; exit with code 2 if torch sees no GPU."""
    import torch

    from persia_cli.bench.machine import this_machine

    if not torch.cuda.is_available() and not rehearse:
        print(
            f"gpu_check: torch {torch.__version__} sees no CUDA device here, so there is nothing to check",
            file=sys.stderr,
        )
        raise SystemExit(2)
    here = this_machine()
    facts = {"processor": here.processor, "memory": f"{here.memory / 2**30:,.0f} GiB", "Python": here.python}
    facts |= here.libraries
    if rehearse:
        return {"GPU": "none: a rehearsal on the CPU, whose numbers have no meaning"} | facts
    properties = torch.cuda.get_device_properties(0)
    gpu = f"{properties.name}, {properties.total_memory / 2**30:,.0f} GiB, CUDA {torch.version.cuda}"
    return {"GPU": gpu} | facts


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to run")
    parser.add_argument("--output", type=Path, default=Path("gpu-report.md"), help="the report (default: %(default)s)")
    parser.add_argument("--rehearse", action="store_true", help="small, on the CPU: to test the check itself")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for all parts (default: %(default)s)")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Run the parts one after the other and write the report."""
    chosen = options()
    if chosen.part:
        speak(chosen.part, chosen.seconds, chosen.rehearse)
        return 0
    begin = monotonic()
    facts = machine(chosen.rehearse)
    for name, value in facts.items():
        print(f"{name}: {value}", flush=True)
    found: dict[str, list[Finding | Speed]] = {}
    for name in [each for each in PARTS if each in chosen.only]:
        print(f"\n{name}", flush=True)
        own = found[name] = []
        rest = chosen.seconds - (monotonic() - begin)
        if rest < 2 * GRACE_S:
            own.append(Finding(name, "LEFT OUT", "there was no time left for it"))
            print(own[-1].line(), flush=True)
            continue
        seconds = rest if chosen.rehearse else min(PARTS[name], rest)
        for each in Part(name, seconds, part_command(name, seconds - GRACE_S, chosen.rehearse)).findings():
            own.append(each)
            print(each.line(), flush=True)
        facts[f"seconds of {name}"] = f"{chosen.seconds - rest:.0f} to {monotonic() - begin:.0f}"
    chosen.output.write_text(page(facts, found, " ".join(["python scripts/gpu_check.py", *sys.argv[1:]])))
    findings = [each for own in found.values() for each in own if isinstance(each, Finding)]
    print(f"\n{counted(findings)}; {monotonic() - begin:.0f} s; the report is {chosen.output}")
    return int(any(each.verdict == "FAIL" for each in findings))


if __name__ == "__main__":
    raise SystemExit(main())
