"""Kernels and the store load fast: no torch, no config, no screen."""

import subprocess
import sys


def test_the_store_and_its_kernels_import_nothing_heavy():
    program = (
        "import sys; import persia_cli.kernels.warm, persia_cli.store.snapshot, persia_cli.store.merge; "
        "print([name for name in ('torch', 'hydra', 'rich', 'typer', 'pandas', 'zmq') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
