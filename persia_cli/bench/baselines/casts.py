"""torch's conversions between float32 and the halves, memory to memory."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def there_and_back(
    values: NDArray[np.float32], half: Literal["float16", "bfloat16"]
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a function that encodes values and one that decodes them."""
    wide = torch.from_numpy(values)
    narrow = torch.empty(wide.shape, dtype=HALVES[half])
    back = torch.empty_like(wide)
    return lambda: narrow.copy_(wide), lambda: back.copy_(narrow)
