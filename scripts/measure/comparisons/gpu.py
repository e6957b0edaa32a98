"""Checks and speeds of Persia on this machine's GPU, in less than eight minutes; nothing is installed.

    python -m scripts.measure gpu --markdown                # everything
    python -m scripts.measure gpu --only networks jobs      # some parts
    python -m scripts.measure gpu --rehearse                # small, and on the CPU: to test the checks themselves

Each part is a separate process: one that fails, hangs or breaks the driver's state fails alone, and the others go on.
What has no time left is reported as left out. The speeds alternate on the same batches, which repeat from memory, and
train by CUDA graphs; their targets are for one H100 with 16 processors. Not measured yet: several GPUs.
"""

import os
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from persia_cli.bench.result import Result
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Model, Run
from persia_cli.engines.processes import python_module
from persia_cli.errors import UserError
from persia_cli.jobs.plan import settled_run
from scripts.measure import CRITEO, Given, Note
from scripts.measure.gpu import Left, checked, left_out, run_checks

if TYPE_CHECKING:
    from scripts.measure.gpu.speed import Case

SECONDS = 465.0
"""Seconds for all parts together; the last part gets the time that the others leave."""
GRACE_S = 10.0
"""Seconds that a part has to end by itself, and then to stop its processes."""
PARTS = {
    "graphs": 90.0, "networks": 70.0, "paths": 25.0, "compiled": 50.0, "jobs": 80.0, "timeline": 25.0, "tier": 45.0,
    "speed": SECONDS,
}  # fmt: skip
"""Parts in order, with the most seconds for each."""
FEW = ("ffnn", "dlrm")
"""Networks that are checked first, and by a rehearsal."""
NO_NETWORKS = ("custom", "din_taobao")
"""Files of conf/model with settings for data of one's own."""
OPTIONS = {name: ["model.attend={f0: [history]}"] for name in ("din", "dien", "bst", "sasrec", "ligr", "hstu")} | {
    "two_tower": ["model.user=[f0,f1,f2,f3]", "model.item=[f4,f5,f6,f7]"]
}
COMPILED = ("ffnn", "dlrm", "dcn_v2")
SLOW = "ffnn_paper"
"""The network with long steps: in float32, a batch of 4,096 takes 7 ms."""
NETWORKS = (SLOW, "dlrm", "dcn_v2")
STEPS = {4096: (400, 16), 65536: (40, 4), 16384: (150, 8)}
"""Samples of a batch: steps of a turn, and batches that repeat."""
LOADERS = 2


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to run")
    parser.add_argument("--rehearse", action="store_true", help="small, on the CPU; its numbers have no meaning")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for all parts; %(default)s")
    parser.set_defaults(rounds=2)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Run the parts one after the other; raises UserError if torch sees no GPU."""
    import torch

    if not torch.cuda.is_available() and not given.rehearse:
        raise UserError(f"torch {torch.__version__} sees no CUDA device here, so there is nothing to check")
    if not given.rehearse:
        gpu = torch.cuda.get_device_properties(0)
        note(f"{gpu.name}, {gpu.total_memory / 2**30:,.0f} GiB, CUDA {torch.version.cuda}")
    rounds = 1 if given.rehearse else given.rounds
    end = monotonic() + given.seconds
    for name in [part for part in PARTS if part in given.only]:
        rest = end - monotonic()
        if rest < 2 * GRACE_S:
            yield left_out(name)
            continue
        note(name)
        seconds = rest if given.rehearse else min(PARTS[name], rest)
        part = [name, str(seconds - GRACE_S), str(int(given.rehearse)), str(rounds)]
        yield from in_process(name, seconds, [*python_module("scripts.measure.comparisons.gpu"), *part])


def in_process(name: str, seconds: float, command: Sequence[str]) -> Iterator[Result]:
    """Run a part in its own process, which is stopped at its deadline together with all processes that it started.

    `command` gets the number of a pipe, as its last argument, to which it sends results.
    """
    end = monotonic() + seconds
    receiver, sender = Pipe(duplex=False)
    with receiver, sender:
        number = sender.fileno()
        process = subprocess.Popen([*command, str(number)], pass_fds=[number], start_new_session=True)
        sender.close()
        try:
            while receiver.poll(max(0.1, end - monotonic())):
                yield receiver.recv()
            yield checked(f"part {name}", False, "it was stopped at its deadline")
        except EOFError:
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            if process.returncode != 0:
                yield checked(f"part {name}", False, f"its process ended with {process.returncode}; see above")
        finally:
            for stop in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, stop)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S / 2)


def run_part(name: str, left: Left, rehearse: bool, rounds: int) -> Iterator[Result]:
    """Run one part in this process."""
    import torch

    from persia_cli.training.device import choose_device, prepare_torch
    from scripts.measure.gpu import jobs, networks, paths, speed

    kind = "cpu" if rehearse else "cuda"
    device, cores = choose_device(kind, 0), len(os.sched_getaffinity(0))
    prepare_torch(max(1, min(8, cores // 2)))
    all_networks = FEW if rehearse else networks_of_conf()
    few_steps = 3 if rehearse else networks.STEPS
    note = partial(print, "         ", file=sys.stderr, flush=True)
    if name == "jobs":
        return jobs.check_jobs(kind, max(1, min(4, cores // 4)), left)
    if name == "graphs":
        checks = networks.graph_checks(models(all_networks), device, few_steps)
    elif name == "networks":
        checks = networks.network_checks(models(all_networks), device, few_steps)
    elif name == "paths":
        checks = paths.path_checks(models(["dlrm"])["dlrm"], device)
    elif name == "compiled":
        checks = networks.compiling_checks(models(COMPILED[:1] if rehearse else COMPILED), device)
    else:
        torch.set_num_threads(1)
        chosen = cases(rehearse) if name == "speed" else single_cases(rehearse, only_dlrm=name == "tier")
        runs = {case: run_of(kind, case) for case in chosen}
        if name == "timeline":
            checks = speed.timeline_checks(runs, device, 3 if rehearse else speed.STEPS)
        elif name == "tier":
            checks = speed.tier_checks(runs, rounds, note)
        else:
            checks = speed.speed_checks(runs, rounds, note)
    return run_checks(checks, left)


def networks_of_conf() -> list[str]:
    """Return the networks of conf/model, with their default widths."""
    files = (Path(__file__).parents[3] / "conf" / "model").glob("*.yaml")
    return [*FEW, *sorted({file.stem for file in files} - {*FEW, *NO_NETWORKS})]


def models(names: Sequence[str]) -> dict[str, Model]:
    """Return networks by name."""
    return {name: compose_run([f"model={name}", *OPTIONS.get(name, [])]).model for name in names}


def single_cases(rehearse: bool, only_dlrm: bool) -> "list[Case]":
    """Return the cases of the tier, which has no network, and of the timeline."""
    from scripts.measure.gpu.speed import Case

    alone = [("dlrm", 16), ("dlrm", 128)] + [("dcn_v2", 16), (SLOW, 16)] * (not only_dlrm)
    return cases(True) if rehearse else [Case(*each, 4096, "float32", *STEPS[4096]) for each in alone]


def cases(rehearse: bool) -> "list[Case]":
    """Return the cases to measure, those with targets first."""
    from scripts.measure.gpu.speed import Case
    from scripts.measure.targets import GPU_SPEEDS

    if rehearse:
        return [Case("dlrm", 16, 256, "float32", 4, 2)]
    whole = [
        Case(network, dim, batch, "float32", *(STEPS[16384] if network == SLOW and batch == 4096 else STEPS[batch]))
        for batch in STEPS
        for dim in (16, 128, 64)
        for network in NETWORKS
    ]
    faster = [Case(SLOW, 16, 4096, precision, *STEPS[4096]) for precision in ("bfloat16", "tf32")]
    few = Case("dlrm", 16, 4096, "float32", *STEPS[4096], servers=2, workers=1, staleness=3)
    order = [*GPU_SPEEDS]
    return sorted([*whole, *faster, few], key=lambda case: order.index(case.name) if case.name in order else len(order))


def run_of(device: str, case: "Case") -> Run:
    """Return the run of a case: generated samples of Criteo's shape, replicas for 16 processors, torch's Adagrad."""
    on_gpu = device == "cuda"
    return settled_run(
        [
            "conf=synthetic",
            f"model={case.network}",
            f"model.dim={case.dim}",
            f"train.batch_size={case.batch}",
            f"train.precision={case.precision}",
            f"train.device={device}",
            "optimizer=adagrad",
            f"cluster.embedding_servers={case.servers if on_gpu else 2}",
            f"cluster.embedding_workers={case.workers if on_gpu else 1}",
            f"cluster.data_loaders={LOADERS if on_gpu else 1}",
            f"mode.staleness={case.staleness}",
            "embedding.memory=8GiB",
            "dataset.generator.dense=13",
            f"dataset.generator.train_rows={case.batch * case.ring}",
            f"dataset.generator.cardinalities={list(CRITEO) if on_gpu else [1000] * 26}",
        ],
        [],
    )


def main(name: str, seconds: str, rehearse: str, rounds: str, number: str) -> None:
    """Run one part, and send its results."""
    sys.stdout = sys.stderr  # of the harness is the output, perhaps as JSON
    end = monotonic() + float(seconds)
    with Connection(int(number)) as sender:
        for result in run_part(name, lambda: end - monotonic(), rehearse == "1", int(rounds)):
            sender.send(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
