"""Kernels on processors that are not this one: without AVX, without float16 instructions, and ARM."""

import os
import subprocess
import sys

import pytest

HALVES = """
import numpy as np
from numba import njit
from persia_cli.kernels.rows.halves import load_float16, store_float16
from persia_cli.kernels.toolchain.simd import load, store

@njit(error_model="numpy")
def widen(halves, floats):
    for at in range(0, floats.size, 16):
        store(floats, np.uint64(at), load_float16(halves, np.uint64(at), 16), 16)

@njit(error_model="numpy")
def narrow(floats, halves):
    for at in range(0, floats.size, 16):
        store_float16(halves, np.uint64(at), load(floats, np.uint64(at), 16), 16)

every = np.arange(2**16).astype(np.uint16)
wide = np.empty(every.size, np.float32)
widen(every, wide)
assert np.array_equal(wide, every.view(np.float16).astype(np.float32), equal_nan=True)
assert np.array_equal(np.signbit(wide), every >= 2**15)
edges = np.concatenate([wide, np.nextafter(wide, np.float32(np.inf)), np.nextafter(wide, np.float32(-np.inf)),
                        (wide[:-1] + wide[1:]) / 2, [0.0]]).astype(np.float32)
bits = np.random.default_rng(0).integers(2**32, size=2**16, dtype=np.uint32).view(np.float32)
for floats in (edges, bits):
    narrowed = np.empty(floats.size, np.uint16)
    narrow(floats, narrowed)
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.array_equal(narrowed.view(np.float16), floats.astype(np.float16), equal_nan=True)
    assert np.array_equal(narrowed >= 2**15, np.signbit(floats))
print("same")
"""
ARM = """
import llvmlite.binding as llvm
from persia_cli.kernels.batch import dedup
from persia_cli.kernels.rows import cast
from persia_cli.kernels.table import update
from persia_cli.kernels.toolchain.compile import KernelCache

KernelCache.load_overload = lambda *_: None
KernelCache.save_overload = lambda *_: None
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(cpu="neoverse-n1", opt=3)
for kernel in (cast.to_float16, dedup.add_rows, update.UPDATES["ftrl"]):
    kernel.compile()
    [code] = kernel._dispatcher.inspect_llvm().values()
    module = llvm.parse_assembly(code)
    module.triple, module.data_layout = "aarch64-unknown-linux-gnu", str(machine.target_data)
    assert ".4s" in machine.emit_assembly(module)
print("same")
"""


@pytest.mark.parametrize("processor", ["nehalem", pytest.param("haswell", marks=pytest.mark.slow)])
def test_float16_is_the_same_with_and_without_instructions_for_it(processor):
    if os.uname().machine != "x86_64":
        pytest.skip("these are x86-64 processors")
    environment = os.environ | {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run([sys.executable, "-c", HALVES], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["same"], done.stderr


@pytest.mark.slow
def test_kernels_have_code_for_arm(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ARM], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["same"], done.stderr
