"""The codecs of declared arrays."""

from typing import Annotated, Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from persia_cli.wire.message import codec_of

SCALAR = TypeVar("SCALAR", bound=np.generic)
ALIAS = TypeAliasType("ALIAS", np.ndarray[tuple[Any, ...], np.dtype[SCALAR]], type_params=(SCALAR,))
"""The type of numpy's NDArray from numpy 2.5 on."""


@pytest.mark.parametrize("kind", [NDArray[np.float32], ALIAS[np.float32]], ids=["of this numpy", "of numpy 2.5"])
def test_an_array_has_the_dtype_that_is_declared(kind: Any) -> None:
    form = codec_of("rows", Annotated[kind, "row *"])
    assert form is not None
    arrays: list[NDArray[Any]] = []
    rows = np.ones((2, 3), np.float32)
    assert form.flatten(rows, arrays, {}) == (2, 3)
    assert arrays[0] is rows
    asked = []
    form.restore((2, 3), lambda dtype, shape: asked.append((dtype, shape)) or rows, {})
    assert asked == [(np.dtype(np.float32), (2, 3))]


def test_other_types_have_no_form() -> None:
    assert codec_of("name", Annotated[int, "no array"]) is None
    assert codec_of("name", dict[str, int]) is None
