"""A compiled network computes the same as without compilation, or is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from persia_cli.errors import ConfigError
from persia_cli.training.compiling import compile_network

PROGRAM = """
import numpy as np
from persia_cli.training.compiling import compile_network
from persia_cli.training.device import prepare_torch
from tests.unit.training.batches import dense_step, inputs, network

prepare_torch(1)
module = network()
compile_network(module)
compiled, plain = dense_step(module, precision={precision!r}), dense_step(precision={precision!r})
for number, size in enumerate((16, 5, 16, 0)):
    batch, groups = inputs(number, size)
    ours, theirs = (step.train(number, batch, groups) for step in (compiled, plain))
    for step in (compiled, plain):
        step.update()
    np.testing.assert_allclose(ours.logits, theirs.logits, rtol={near}, atol={near})
    for mine, other in zip(ours.gradients, theirs.gradients):
        np.testing.assert_allclose(mine, other, rtol={near}, atol={near})
scores = [step.evaluate(0, *inputs(0, 16)).logits for step in (compiled, plain)]
np.testing.assert_allclose(*scores, rtol={near}, atol={near})
assert module._compiled_call_impl is not None
assert module.state_dict().keys() == network().state_dict().keys()
print("as without")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-5), ("bfloat16", 2.0**-6)])
def test_a_compiled_network_trains_as_it_would_without(precision: str, near: float, tmp_path: Path) -> None:
    """In a separate process, because the compiler leaves workers and files."""
    own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1", "TMPDIR": str(tmp_path)}
    program = PROGRAM.format(precision=precision, near=near)
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | own, capture_output=True, text=True, timeout=800
    )
    assert (done.returncode, done.stdout) == (0, "as without\n"), done.stderr


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler, and no-such-compiler was not found; install"):
        compile_network(torch.nn.Linear(2, 1))
