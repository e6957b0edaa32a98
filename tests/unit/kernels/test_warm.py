"""Every kernel has one compiled signature, for any arguments."""

import numpy as np
import pytest

from persia_cli.kernels.batch import dedup
from persia_cli.kernels.toolchain.compile import KERNELS
from persia_cli.kernels.toolchain.warm import warm


def test_warm_compiles_and_reports_every_kernel():
    seen = []
    warm(on_kernel=lambda: seen.append(1))
    assert len(seen) >= len(KERNELS) == len({kernel.name for kernel in KERNELS}) > 15
    assert all(len(kernel._dispatcher.overloads) == 1 for kernel in KERNELS)


def test_read_only_arrays_and_python_numbers_do_not_compile_another_form():
    values, sums = np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)
    inverse = np.zeros(2, np.int32)
    values.flags.writeable = inverse.flags.writeable = False
    dedup.add_rows(values.reshape(-1), inverse, np.int32(3), sums.reshape(-1))
    assert sums.tolist() == [[2, 2, 2]]
    assert len(dedup.add_rows._dispatcher.overloads) == 1


def test_another_dtype_is_refused():
    with pytest.raises(TypeError, match="No matching definition"):
        dedup.add_rows(np.ones(3), np.zeros(1, np.int32), 3, np.zeros(3, np.float32))
