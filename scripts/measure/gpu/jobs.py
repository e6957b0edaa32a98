"""Checks of whole jobs on the GPU: several ranks, bfloat16, compiled networks, evaluation on the CPU."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from persia_cli.bench.result import Result
from persia_cli.engines.processes import python_module
from persia_cli.errors import PersiaError
from persia_cli.observe.journal import METRICS, read_journal
from scripts.measure.gpu import Check, Left, compared, run_checks

JOB = ("conf=adult_income", "mode=sync", "train.epochs=1")
CPU, GPU = "on the CPU", "on the GPU"
CASES: Mapping[str, tuple[tuple[str, ...], float]] = {
    CPU: (("train.device=cpu",), 1e-9),
    GPU: ((), 0.001),
    "on the GPU, two ranks": (("cluster.nn_workers=2",), 0.001),
    "on the GPU, hybrid": (("mode=hybrid",), 0.002),
    "on the GPU, hybrid, two ranks": (("mode=hybrid", "cluster.nn_workers=2"), 0.003),
    "on the GPU, bfloat16": (("train.precision=bfloat16",), 0.003),
    "on the GPU, compiled": (("train.compile=true",), 0.001),
}
"""Additional settings of each job, and the greatest allowed difference of its AUC from the first job's."""
SAME = 1e-4
"""Greatest allowed difference of a model's AUC when it is evaluated on another device."""


class FinishedJob(NamedTuple):
    """A job that has ended: its last evaluation, and the samples per second of its last interval."""

    run_dir: Path
    auc: float
    log_loss: float
    samples_per_s: float


def check_jobs(device: str, at_once: int, left: Left, job: Sequence[str] = JOB) -> Iterator[Result]:
    """Train the census data in each case, `at_once` jobs at a time; `device` is a `train.device`."""
    with TemporaryDirectory(prefix="persia-gpu-") as folder, ThreadPoolExecutor(at_once) as pool:
        jobs = {
            name: pool.submit(_train, (*job, f"train.device={device}", *own), Path(folder) / str(number), left)
            for number, (name, (own, _)) in enumerate(CASES.items())
        }
        checks: dict[str, Check] = {f"job {name}": partial(_like_the_cpu, name, jobs) for name in jobs}
        evaluated = "job trained on the GPU, evaluated on the CPU"
        yield from run_checks(checks | {evaluated: partial(_evaluated, evaluated, jobs[GPU], left)}, left)


def _like_the_cpu(name: str, jobs: Mapping[str, "Future[FinishedJob]"]) -> Iterator[Result]:
    reference, done = jobs[CPU].result(), jobs[name].result()
    note = f"AUC {done.auc:.5f}, log loss {done.log_loss:.5f}, {done.samples_per_s:,.0f} samples/s"
    yield compared(f"job {name}", {"AUC": abs(done.auc - reference.auc)}, {"AUC": CASES[name][1]}, note)


def _evaluated(name: str, job: "Future[FinishedJob]", left: Left) -> Iterator[Result]:
    """Check that a model trained on the GPU has the same scores on the CPU."""
    done = job.result()
    # Without a step, the best checkpoint would be evaluated.
    step = int(_last(done.run_dir)["step"])
    _carry_out(["eval", str(done.run_dir), "--step", str(step), "train.device=cpu"], left)
    (again,) = (done.run_dir / "evals").iterdir()
    yield compared(name, {"AUC": abs(_last(again)["auc"] - done.auc)}, {"AUC": SAME})


def _train(arguments: Sequence[str], run_dir: Path, left: Left) -> FinishedJob:
    _carry_out(["train", *arguments, "--run-dir", str(run_dir)], left)
    trained = [line for line in read_journal(run_dir / METRICS) if line["split"] == "train"][-1]
    end = _last(run_dir)
    return FinishedJob(run_dir, end["auc"], end["log_loss"], trained["samples_per_s"])


def _last(run_dir: Path) -> dict[str, float]:
    """Return the last evaluation of a run."""
    return [line for line in read_journal(run_dir / METRICS) if line["split"] == "eval"][-1]


def _carry_out(arguments: Sequence[str], left: Left) -> None:
    """Run persia; raises TimeoutError if time runs out, PersiaError with persia's own message if it fails."""
    if left() < 5.0:
        raise TimeoutError
    command = [*python_module("persia_cli"), *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
        try:
            printed, _ = job.communicate(timeout=max(1.0, left()))
        except subprocess.TimeoutExpired:
            # A job that is asked to end also ends all of its processes.
            job.terminate()
            job.communicate()
            raise TimeoutError from None
    if job.returncode:
        lines = printed.decode(errors="replace").splitlines()
        raise PersiaError(next((line for line in lines if line.startswith("error:")), " ".join(lines[-3:])))
