"""The folder that `persia serve` serves: one that is there, or a temporary export of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    from persia_cli.commands.separate_export import export_apart
    from persia_cli.export.temporary import temporary_folder
    from persia_cli.observe.saved_run import find_model

    name = find_model(saved).run_dir.resolve().name
    with temporary_folder() as place:
        labelled(err(), "exporting", f"{saved}, to serve it; persia export keeps the folder for later")
        export_apart(saved, place / name)
        yield place / name
