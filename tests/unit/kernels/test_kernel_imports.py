"""Roles load fast: kernels and the store import no torch, config or screen; roles without kernels no numba."""

import subprocess
import sys


def test_the_store_and_its_kernels_import_nothing_heavy():
    program = (
        "import sys; import persia_cli.kernels.warm, persia_cli.store.checkpoints.row_files; "
        "import persia_cli.store.batch_rows; "
        "print([name for name in ('torch', 'hydra', 'rich', 'typer', 'pandas', 'zmq') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_data_loaders_and_the_coordinator_load_no_kernels():
    program = (
        "import sys; import persia_cli.roles.data_loader, persia_cli.roles.coordinator, persia_cli.engines.local; "
        "print([name for name in ('numba', 'llvmlite', 'torch', 'hydra', 'rich') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
