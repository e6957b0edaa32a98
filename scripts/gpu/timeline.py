"""The duration of each stage of a step as a graph, on the host and on the device, fed from memory."""

from collections.abc import Mapping
from statistics import fmean

import torch

from persia_cli.config.schema import Run
from persia_cli.observe.trace import Span, Trace
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.distributed import World
from persia_cli.training.graphs.device_queue import LANES
from scripts.gpu.host_queue import HostQueue
from scripts.gpu.report import Finding, Findings, Left, failed, left_out
from scripts.gpu.speed import ready_batches

WARM, STEPS = 10, 100


def check_timelines(runs: Mapping[str, Run], device: torch.device, left: Left, steps: int = STEPS) -> Findings:
    """Report the stages of each run's step, in microseconds; it fails if the steps are no graphs."""
    longest = 0.0
    for name, run in runs.items():
        if left() < 1.5 * longest:
            yield left_out(f"step of {name}")
            continue
        before = left()
        try:
            yield _timeline(f"step of {name}", run, device, steps)
        except Exception as error:
            yield failed(f"step of {name}", error)
        longest = max(longest, before - left())


def _timeline(name: str, run: Run, device: torch.device, steps: int) -> Finding:
    trace = Trace(WARM, WARM + steps)
    queue = HostQueue() if device.type == "cpu" else None
    rank = DenseTrainer(run, World(device=device), trace, queue=queue)
    batches = ready_batches(run)
    try:
        for step in range(WARM + steps):
            rank.train(step, *batches[step % len(batches)], lambda gradients: None, lambda scored: None)
        rank.drain()
    finally:
        rank.close()
    spans: dict[str, list[Span]] = {}
    for span in trace.take(len(LANES) * 4 * steps):
        spans.setdefault(span.name if span.lane in LANES else f"{span.name} ({span.lane})", []).append(span)
    *_, last_lane = LANES
    ends = [span.end_ns or 0 for own in spans.values() for span in own if span.lane == last_lane]
    if len(ends) != steps:
        return Finding(name, "FAIL", f"{len(ends)} of {steps} steps were graphs")
    stages = {stage: fmean(_duration(span) for span in own) for stage, own in spans.items()}
    step_us = (ends[-1] - ends[0]) / 1e3 / max(1, steps - 1)
    parts = ", ".join(f"{stage} {us:,.0f}" for stage, us in stages.items())
    return Finding(name, "INFO", f"{step_us:,.0f} us from step to step; {parts}")


def _duration(span: Span) -> float:
    return ((span.end_ns or 0) - span.begin_ns) / 1e3
