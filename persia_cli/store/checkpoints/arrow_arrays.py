"""Arrow arrays from numpy's, and back, without pandas, which `pa.array` and `to_numpy` import if it is installed.

The import takes half a second or more, and the first save of a server would stand still meanwhile.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def arrow_numbers(values: NDArray[Any]) -> pa.Array:
    """Return numbers [n] as an Arrow array; contiguous ones are not copied."""
    content = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(content.dtype), content.size, [None, pa.py_buffer(content)])


def arrow_texts(texts: Sequence[str]) -> pa.Array:
    """Return texts as an Arrow array."""
    encoded = [text.encode() for text in texts]
    ends = np.fromiter(accumulate(map(len, encoded), initial=0), np.int32, len(encoded) + 1)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def numbers_of(array: pa.Array) -> NDArray[Any]:
    """Return the numbers of an Arrow array without a copy; raises ValueError if some are missing."""
    if array.null_count:
        raise ValueError(f"{array.null_count} of {len(array)} numbers are missing")
    content, dtype = array.buffers()[1], np.dtype(array.type.to_pandas_dtype())
    if content is None:
        return np.empty(0, dtype)
    return np.frombuffer(content, dtype, len(array), array.offset * dtype.itemsize)
