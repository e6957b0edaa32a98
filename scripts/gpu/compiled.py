"""Checks of `torch.compile` on the GPU: the same numbers as without it, and the gain in speed."""

from collections.abc import Mapping
from statistics import median
from time import perf_counter

import torch

from persia_cli.config.schema import Model
from persia_cli.training.compiling import require_compiler
from persia_cli.training.device import Precision
from persia_cli.training.distributed import World
from scripts.gpu.batches import Trainer, deviation
from scripts.gpu.report import Finding, Findings, Left, failed, judged, left_out

NEAR = 1e-4
STEPS, SIZE, LAST = 5, 512, 100
"""Number of steps, samples of each, and samples of the short one that follows."""
TIMED, TIMED_SIZE = 10, 4096
COMPILES_S = 25.0
"""Seconds that compiling one network may take, to judge if there is time for it."""


def check_compiled(models: Mapping[str, Model], device: torch.device, left: Left) -> Findings:
    """Compile each network and train it together with the uncompiled one."""
    yield Finding("CUDA graphs", "INFO", "not supported: the number of unique rows, and so the shapes, vary by batch")
    for name, model in models.items():
        if left() < COMPILES_S:
            yield left_out(f"torch.compile of {name}")
            continue
        try:
            require_compiler()
            yield _compiled(name, model, World(device=device), "float32")
        except Exception as error:
            yield failed(f"torch.compile of {name}", error)


def _compiled(name: str, model: Model, world: World, precision: Precision) -> Finding:
    # Compiled code rounds differently, which nothing but a kink makes large.
    plain, compiled = (Trainer(model, world, precision, compiled=each, smooth=True) for each in (False, True))
    begin, worst = perf_counter(), 0.0
    for number, size in enumerate([*[SIZE] * STEPS, LAST]):
        theirs, ours = plain.train(number, size), compiled.train(number, size)
        worst = max(worst, *(deviation(mine, other) for mine, other in zip(ours, theirs, strict=True)))
    took = perf_counter() - begin
    seconds = [_seconds(Trainer(model, world, precision, compiled=each)) for each in (False, True)]
    figures = (
        f"greatest relative deviation {worst:.1e} (at most {NEAR:.0e}); {took:.0f} s to compile and try; "
        f"a step of {TIMED_SIZE} samples takes {seconds[0] * 1e3:.2f} ms plain, {seconds[1] * 1e3:.2f} ms compiled"
    )
    return judged(f"torch.compile of {name}", worst <= NEAR, figures)


def _seconds(trainer: Trainer) -> float:
    """Return the seconds of a step, up to its gradients in host memory; the first, which may compile, is left out."""
    taken = []
    for number in range(100, 101 + TIMED):
        begin = perf_counter()
        trainer.train(number, TIMED_SIZE)
        taken.append(perf_counter() - begin)
    return median(taken[1:])
