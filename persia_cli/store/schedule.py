"""Learning-rate schedules: a factor of the step alone."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """The factor of the learning rate at each step.

    In the first `warmup_steps` steps it rises linearly to 1: step t has (t + 1) / warmup_steps. After that, `constant`
    is 1. `step` is multiplied by `factor` each `every_steps` steps (torch's `StepLR`). `cosine` falls from 1 to `floor`
    over `over_steps` steps and stays there (Loshchilov and Hutter, "SGDR", 2017, equation 5, without restarts).
    """

    kind: Literal["constant", "step", "cosine"] = "constant"
    warmup_steps: int = 0
    every_steps: int = 1
    factor: float = 1.0
    over_steps: int = 1
    floor: float = 0.0

    def at(self, step: int) -> float:
        """Return the factor of a step, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        after = step - self.warmup_steps
        if self.kind == "step":
            return self.factor ** (after // self.every_steps)
        if self.kind == "cosine":
            done = min(1.0, after / self.over_steps)
            return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * done))
        return 1.0
