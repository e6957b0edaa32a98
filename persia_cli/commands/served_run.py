"""A run that `persia serve` serves: exported into a temporary folder, in a separate process.

So the parent of a server never has torch in its memory, and whatever a library makes of a signal, the export ends with
the command. The arguments of the process are the run, the folder, and the parent.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


def is_saved(folder: Path) -> bool:
    """Return whether a folder is a run directory or a checkpoint."""
    from persia_cli.observe.history import CONFIG
    from persia_cli.serving.description import MODEL
    from persia_cli.store.checkpoints.manifest import MANIFEST

    return not (folder / MODEL).is_file() and any((folder / name).is_file() for name in (CONFIG, MANIFEST))


@contextmanager
def exported(saved: Path) -> Iterator[Path]:
    """Yield an export of a run's model, in a folder that is removed at the end.

    Raises UserError, CheckpointError, DiskError, and what `export_apart` raises.
    """
    from persia_cli.commands.screen import err, labelled
    from persia_cli.export.temporary import temporary_folder
    from persia_cli.observe.saved_run import find_model

    name = find_model(saved).run_dir.resolve().name
    with temporary_folder() as folder:
        labelled(err(), "exporting", f"{saved}, to serve it; persia export keeps the folder for later")
        export_apart(saved, folder / name)
        yield folder / name


def export_apart(saved: Path, folder: Path) -> None:
    """Export a run or checkpoint into a folder, by a process that is killed if this one ends or gets an exception.

    Raises RoleError if it is killed, and typer.Exit if it fails: then it has printed the reason.
    """
    from persia_cli.engines.processes import python_module
    from persia_cli.errors import RoleError

    command = [*python_module("persia_cli.commands.served_run"), str(saved), str(folder), str(os.getpid())]
    # In a separate session, Ctrl-C comes to this process alone.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    if code < 0:
        raise RoleError(
            f"the export of {saved} was ended by {signal.Signals(-code).name}; unless you stopped it, the machine ran "
            "out of memory"
        )
    if code:
        raise typer.Exit(code)


def _export(saved: Path, folder: Path) -> None:
    from persia_cli.commands.progress import ProgressBar
    from persia_cli.commands.screen import err
    from persia_cli.errors import UserError
    from persia_cli.observe.saved_run import find_model

    try:
        from persia_cli.export.artefact import Order, write_artefact
        from persia_cli.export.output import Output
        from persia_cli.export.saved_network import SavedNetwork
    except ImportError as error:
        raise UserError(
            f"{saved} is a run, which is exported before it is served, and {error.name or 'torch'} cannot be "
            "imported; pip install 'persia-cli[export]', or name a folder that persia export wrote"
        ) from error
    model = find_model(saved)
    output = Output.at(folder, overwrite=False)
    with ProgressBar(err(), "exporting") as bar:
        order = Order(model, folder.name, "float32")
        network = SavedNetwork(model.run, model.checkpoint)
        write_artefact(order, output, network, lambda what, done, of: bar.show(done, of, [what]))


def main() -> None:
    """Export, or print in one line what prevents it."""
    saved, folder, parent = sys.argv[1:]
    from persia_cli.commands.screen import report_failure
    from persia_cli.engines.processes import die_with

    try:
        die_with(int(parent))
        _export(Path(saved), Path(folder))
    except Exception as error:
        sys.exit(report_failure(error, debug=False))


if __name__ == "__main__":
    main()
