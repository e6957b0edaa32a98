"""The correction of a model's probabilities that an evaluation finds."""

from typing import Annotated

import msgspec


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The correction of a label's logits: each is multiplied by the slope, then the shift is added, in float32."""

    task: Annotated[int, msgspec.Meta(ge=0)]
    """The label's number."""
    label: str
    slope: float
    shift: float
    log_loss: tuple[float, float]
    """Of the evaluation samples it is fitted on, before and after."""
