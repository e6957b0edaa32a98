"""Checks of every network on the GPU against the CPU: forward, backward, and whole steps one after the other."""

from collections.abc import Mapping
from statistics import median

import torch

from persia_cli.config.schema import Model
from persia_cli.training.distributed import World
from scripts.gpu.batches import Trainer, Trajectory, deviation
from scripts.gpu.report import Finding, Findings, Left, failed, judged, left_out

STEPS, SIZE = 20, 256
FLOAT32 = 1e-4
"""Greatest allowed deviation from the CPU in float32."""
TIMES = 3.0
"""Multiple of bfloat16's deviation from float32 on the CPU that the device may deviate; devices round differently."""
FLOOR = 1e-5


def check_networks(models: Mapping[str, Model], device: torch.device, left: Left, steps: int = STEPS) -> Findings:
    """Compare each network in each precision with float32 on the CPU."""
    slowest = 0.0
    for name, model in models.items():
        if left() < 1.5 * slowest:
            yield left_out(f"network {name}")
            continue
        before = left()
        try:
            yield from _check(name, model, World(device=device), steps)
        except Exception as error:
            yield failed(f"network {name}", error)
        slowest = max(slowest, before - left())


def _check(name: str, model: Model, world: World, steps: int) -> Findings:
    yield _float32(name, model, world, steps)
    exact = Trainer(model, World(), by_kernels=True).trajectory(steps, SIZE)
    rounded = _deviations(Trainer(model, World(), "bfloat16", by_kernels=True).trajectory(steps, SIZE), exact)
    allowed = {part: TIMES * noise + FLOOR for part, noise in rounded.items()}
    half = _deviations(Trainer(model, world, "bfloat16").trajectory(steps, SIZE), exact)
    yield _close(f"{name} bfloat16", half, allowed, steps)


def _float32(name: str, model: Model, world: World, steps: int) -> Finding:
    """Check the unchanged network, and where that differs whole steps without the kinks of its ReLUs, too."""
    allowed = dict.fromkeys(PARTS, FLOAT32)
    found = _from_exact(model, world, steps)
    finding = _close(f"{name} float32", found, allowed, steps)
    if finding.verdict == "PASS":
        return finding
    smooth = _from_exact(model, world, steps, smooth=True)
    found |= {part: smooth[part] for part in OF_STEPS}
    return _close(f"{name} float32 (steps with SiLU in the place of ReLU)", found, allowed, steps)


def _from_exact(model: Model, world: World, steps: int, smooth: bool = False) -> dict[str, float]:
    """Return the deviations of float32 on the device from float32 on the CPU."""
    exact = Trainer(model, World(), by_kernels=True, smooth=smooth).trajectory(steps, SIZE)
    return _deviations(Trainer(model, world, smooth=smooth).trajectory(steps, SIZE), exact)


PARTS = ("forward", "backward", "logits", "rows", "weights")
"""The compared parts: first logits, first gradients of rows, all logits, and rows and weights at the end."""
OF_STEPS = PARTS[2:]


def _deviations(ours: Trajectory, exact: Trajectory) -> dict[str, float]:
    logits = max(deviation(mine, other) for mine, other in zip(ours.logits, exact.logits, strict=True))
    return {
        "forward": deviation(ours.logits[0], exact.logits[0]),
        # Rounding may carry an input of a ReLU over 0, and a gradient jumps: this happens in a few batches.
        "backward": median(deviation(mine, other) for mine, other in zip(ours.probes, exact.probes, strict=True)),
        "logits": logits,
        "rows": deviation(ours.rows, exact.rows),
        "weights": deviation(ours.weights, exact.weights),
    }


def _close(name: str, found: dict[str, float], allowed: dict[str, float], steps: int) -> Finding:
    # A comparison with NaN is false, so NaN fails.
    passed = all(found[part] <= allowed[part] for part in PARTS)
    figures = ", ".join(f"{part} {found[part]:.1e} (at most {allowed[part]:.1e})" for part in PARTS)
    return judged(f"network {name}, {steps} steps", passed, f"relative deviation: {figures}")
