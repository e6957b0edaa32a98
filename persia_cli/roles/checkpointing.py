"""The coordinator's part in a checkpoint: gather what every replica wrote, and publish it as one."""

from pathlib import Path
from typing import Any

from persia_cli import __version__
from persia_cli.config.schema import Run
from persia_cli.control.judge import Best
from persia_cli.observe.figures import read_figures
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.manifest import FORMAT_VERSION, Manifest, SavedFile, publish, unfinished_folder
from persia_cli.store.retention import Retention


class Checkpointing:
    """One checkpoint after another, each of the files that the replicas report."""

    def __init__(self, run: Run, run_dir: Path) -> None:
        self._run = run
        self._run_dir = run_dir
        self._files: dict[str, list[SavedFile]] = {}
        self._retention = Retention(run_dir, run.checkpoint.keep, run.checkpoint.every_steps)

    def begin(self, step: int) -> Path:
        """Make the folder that replicas write the checkpoint of a step into."""
        self._files = {}
        folder = unfinished_folder(self._run_dir, step)
        folder.mkdir(parents=True)
        return folder

    def add(self, name: str, files: Any) -> None:
        """Take a replica's word of what it wrote; raises WireError if it is none."""
        self._files[name] = read_figures(list[SavedFile], files)

    def publish(self, step: int, samples: int, best: Best | None = None) -> dict[str, Any]:
        """Give the checkpoint its manifest and name; return path, size and the rows of features in it.

        `best` is given where no evaluation was better than that of this step. Older checkpoints go that are not to be
        kept. Raises CheckpointError if a file is not where it should be.
        """
        files = [file for name in sorted(self._files) for file in self._files[name]]
        layout = embedding_layout(self._run)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            persia_version=__version__,
            generation=0,
            step=step,
            samples=samples,
            seed=self._run.seed,
            config=self._run.model_dump(mode="json"),
            tables=[
                {"name": table.name, "dim": group.dim, "dtype": group.dtype, "group": group.number}
                for group in layout.groups
                for table in group.tables
            ],
            files=files,
        )
        folder = publish(self._run_dir, manifest)
        self._retention.add(step, best)
        read = {group.number for group in layout.feature_groups}
        rows = sum(file.rows or 0 for file in files if file.group in read)
        return {"path": str(folder), "step": step, "nbytes": sum(file.nbytes for file in files), "rows": rows}
