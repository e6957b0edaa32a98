"""Checks of whole jobs on the GPU: several ranks, bfloat16, compiled networks, evaluation on the CPU."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from persia_cli.engines.processes import python_module
from persia_cli.errors import PersiaError
from persia_cli.observe.journal import METRICS, read_journal
from scripts.gpu.report import Finding, Findings, Left, failed, judged, left_out

WORDS = ("conf=adult_income", "mode=sync", "train.epochs=1")
CPU = "on the CPU"
CASES: Mapping[str, tuple[tuple[str, ...], float]] = {
    CPU: (("train.device=cpu",), 0.0),
    "on the GPU": ((), 0.001),
    "on the GPU, two ranks": (("cluster.nn_workers=2",), 0.001),
    "on the GPU, hybrid": (("mode=hybrid",), 0.002),
    "on the GPU, hybrid, two ranks": (("mode=hybrid", "cluster.nn_workers=2"), 0.003),
    "on the GPU, bfloat16": (("train.precision=bfloat16",), 0.003),
    "on the GPU, compiled": (("train.compile=true",), 0.001),
}
"""Additional settings of each job, and the greatest allowed difference of its AUC from the first job's."""
SAME = 1e-4
"""Greatest allowed difference of a model's AUC when it is evaluated on another device."""


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job that has ended: its last evaluation, and the samples per second of its last interval."""

    run_dir: Path
    auc: float
    log_loss: float
    samples_per_s: float


def check_jobs(device: str, at_once: int, left: Left, words: Sequence[str] = WORDS) -> Findings:
    """Train the census data in each case, `at_once` jobs side by side; `device` is a `train.device`."""
    with TemporaryDirectory(prefix="persia-gpu-") as folder, ThreadPoolExecutor(at_once) as pool:
        jobs = {
            name: pool.submit(_train, (*words, f"train.device={device}", *own), Path(folder) / str(number), left)
            for number, (name, (own, _)) in enumerate(CASES.items())
        }
        try:
            reference = jobs[CPU].result()
        except Exception as error:
            yield failed(f"job {CPU}", error)
            return
        yield from _held(jobs, reference)
        yield _evaluated(jobs["on the GPU"], left)


def _held(jobs: Mapping[str, "Future[FinishedJob]"], reference: FinishedJob) -> Iterator[Finding]:
    for name, job in jobs.items():
        try:
            done = job.result()
        except TimeoutError:
            yield left_out(f"job {name}")
        except Exception as error:
            yield failed(f"job {name}", error)
        else:
            most = CASES[name][1]
            gap = abs(done.auc - reference.auc)
            figures = f"AUC {done.auc:.5f}, {gap:.5f} from the CPU's (at most {most:g}), log loss {done.log_loss:.5f}"
            yield judged(f"job {name}", gap <= most, f"{figures}, {done.samples_per_s:,.0f} samples/s")


def _evaluated(job: "Future[FinishedJob]", left: Left) -> Finding:
    """Check that a model trained on the GPU has the same scores on the CPU."""
    name = "job trained on the GPU, evaluated on the CPU"
    try:
        done = job.result()
        # Without a step, the best checkpoint would be evaluated.
        step = int(_last(done.run_dir)["step"])
        _carry_out(["eval", str(done.run_dir), "--step", str(step), "train.device=cpu"], left)
        (again,) = (done.run_dir / "evals").iterdir()
        auc = _last(again)["auc"]
    except TimeoutError:
        return left_out(name)
    except Exception as error:
        return failed(name, error)
    return judged(name, abs(auc - done.auc) <= SAME, f"AUC {auc:.6f}, at its end {done.auc:.6f}")


def _train(words: Sequence[str], run_dir: Path, left: Left) -> FinishedJob:
    _carry_out(["train", *words, "--run-dir", str(run_dir)], left)
    trained = [line for line in read_journal(run_dir / METRICS) if line["split"] == "train"][-1]
    end = _last(run_dir)
    return FinishedJob(run_dir, end["auc"], end["log_loss"], trained["samples_per_s"])


def _last(run_dir: Path) -> dict[str, float]:
    """Return the last evaluation of a run."""
    return [line for line in read_journal(run_dir / METRICS) if line["split"] == "eval"][-1]


def _carry_out(words: Sequence[str], left: Left) -> None:
    """Run persia; raises TimeoutError if time runs out, PersiaError with persia's own message if it fails."""
    if left() < 5.0:
        raise TimeoutError
    command = [*python_module("persia_cli"), *words]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
        try:
            said, _ = job.communicate(timeout=max(1.0, left()))
        except subprocess.TimeoutExpired:
            # A job that is asked to end also ends all of its processes.
            job.terminate()
            job.communicate()
            raise TimeoutError from None
    if job.returncode:
        lines = said.decode(errors="replace").splitlines()
        raise PersiaError(next((line for line in lines if line.startswith("error:")), " ".join(lines[-3:])))
