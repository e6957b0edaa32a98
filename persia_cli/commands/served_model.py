"""The folder that `persia serve` serves: one that is there, or a temporary export of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_saved(folder: Path) -> bool:
    """Return whether a folder is a run directory or a checkpoint."""
    from persia_cli.observe.history import CONFIG
    from persia_cli.serving.description import MODEL
    from persia_cli.store.manifest import MANIFEST

    return not (folder / MODEL).is_file() and any((folder / name).is_file() for name in (CONFIG, MANIFEST))


@contextmanager
def exported(saved: Path) -> Iterator[Path]:
    """Yield an export of a run's model, in a folder that is removed at the end.

    Raises UserError, CheckpointError, DiskError.
    """
    from persia_cli.commands.progress_bar import ProgressBar
    from persia_cli.commands.screen import err, labelled
    from persia_cli.errors import UserError
    from persia_cli.export.temporary import temporary_folder
    from persia_cli.observe.saved_run import find_model

    try:
        from persia_cli.export.artefact import Order, write_artefact
        from persia_cli.export.output import Output
        from persia_cli.export.saved_network import SavedNetwork
    except ImportError as error:
        raise UserError(
            f"{saved} is a run, which is exported before it is served, and {error.name or 'torch'} cannot be "
            "imported; pip install 'persia[export]', or name a folder that persia export wrote"
        ) from error
    model = find_model(saved)
    with temporary_folder() as place:
        output = Output.at(place / model.run_dir.resolve().name, overwrite=False)
        labelled(err(), "exporting", f"{saved}, to serve it; persia export keeps the folder for later")
        with ProgressBar(err(), "exporting", stays=False) as bar:
            order = Order(model, output.folder.name, "float32", model.run)
            network = SavedNetwork(model.run, model.checkpoint)
            write_artefact(order, output, network, lambda what, done, of: bar.show(done, of, [what]))
        yield output.folder
