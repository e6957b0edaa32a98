"""The publisher: cuts of a run become versions, one after the other, each exactly once.

A version's folder appears whole, with the cut that it is of; then `current.json` names it, and the cut is removed.
After a kill between these, the next publisher does the rest: it knows the last version by the folders.
"""

# Invariants:
#
# - Version n+1 is of the next cut after that of version n, or of a later one with all rows.
# - Nothing is known of a version but what is in its folder: the network and the rows of golden samples are read anew
#   from there after a base, a restart, or a failure.

import logging
import os
import shutil
from pathlib import Path

import numpy as np

from persia_cli.config.record import SAMPLES
from persia_cli.config.schema import Run
from persia_cli.disk import claim, sync, writing
from persia_cli.errors import CheckpointError, UserError
from persia_cli.export.artefact import Order, write_files
from persia_cli.export.graph import WeightlessNetwork, inputs_of, write_network
from persia_cli.export.rows import require_rows
from persia_cli.export.saved_network import SavedNetwork
from persia_cli.observe.kept_samples import read_samples
from persia_cli.observe.saved_run import SavedModel
from persia_cli.plan.columns import label_names
from persia_cli.publish.retention import remove_old
from persia_cli.publish.rows import RowsWriter, base_rows, changed_rows, path_of, rows_in
from persia_cli.publish.version import (
    FOLDER,
    FORMAT_VERSION,
    VERSION,
    Version,
    VersionFile,
    VersionTable,
    chain_of,
    choosing,
    file_of,
    last_version,
    read_current,
    require_own,
    version_text,
    write_current,
)
from persia_cli.serving.description import GOLDEN, MODEL, NETWORK, ROWS, read_description
from persia_cli.serving.golden import DIFFERENCE, Golden, write_golden
from persia_cli.serving.predictor import FrozenNetwork
from persia_cli.storage.locations import PARTIAL, REMOVED, draft_of, publish, remove
from persia_cli.store.checkpoints.cuts import WHOLE, Cut, cuts_of, read_cut, starts_of
from persia_cli.store.checkpoints.manifest import MANIFEST

log = logging.getLogger(__name__)


class Publisher:
    """Publishes the cuts of one run to one folder; no other process does."""

    def __init__(self, run_dir: Path, run: Run, folder: Path, follows: bool) -> None:
        """Continue after the last version in the folder; raises UserError, CheckpointError, DiskError.

        A publisher that `follows` a job removes a cut that cannot be published: the job makes one of the whole model.
        """
        self._run_dir, self._run, self._folder, self._follows = run_dir, run, folder, follows
        self._last: Version | None = None
        self._state: _PublishedModel | None = None
        """The model of the last version; None if it must be read."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder, os.O_RDONLY)
        try:
            self._continue()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other processes publish to the folder."""
        os.close(self._lock)

    def _continue(self) -> None:
        """Complete what an earlier process has begun."""
        folder = self._folder
        if not claim(self._lock):
            raise UserError(f"another process publishes to {folder}; end it, or choose another folder")
        for path in folder.iterdir():
            if path.suffix in (PARTIAL, REMOVED) and FOLDER.fullmatch(path.stem):
                shutil.rmtree(path, ignore_errors=True)
        self._last = last_version(folder)
        require_own(folder, self._last, self._run_dir.name)
        if self._last is not None:
            self._make_current(self._last.version)

    def publish_waiting(self) -> int:
        """Publish all complete cuts of the run's last start; return the number of versions."""
        starts, published = starts_of(self._run_dir), 0
        for start in starts[:-1]:
            shutil.rmtree(start)  # the first cut of the next start has all rows
        for folder in cuts_of(starts[-1]) if starts else []:
            cut = read_cut(folder)
            if self._is_new(cut):
                self._publish(cut)
                published += 1
            remove(folder, MANIFEST)
        return published

    def _is_new(self, cut: Cut) -> bool:
        """Return True unless the cut is published already; raises CheckpointError if cuts before it are missing."""
        last = self._last
        if not cut.facts.since:
            return last is None or (last.start, last.step) != (cut.start, cut.manifest.step)
        if last is not None and last.start == cut.start:
            if cut.manifest.step <= last.step:
                return False
            if cut.facts.since == last.step:
                return True
        text = f"{self._folder} does not have the version before {cut.folder.name} of {self._run_dir}; "
        if not self._follows:
            raise CheckpointError(f"{text}publish to the folder that has it, or resume the run: it begins with a base")
        (cut.folder.parent / WHOLE).touch()
        shutil.rmtree(cut.folder)
        raise CheckpointError(f"{text}the next version is the whole model")

    def _publish(self, cut: Cut) -> None:
        number = self._last.version + 1 if self._last else 1
        try:
            version = self._write_delta(cut, number) if cut.facts.since else self._write_base(cut, number)
        except BaseException:
            self._state = None
            raise
        self._last = version
        self._make_current(number)
        remove_old(self._folder)
        log.info("version %d: step %d", number, version.step)

    def _make_current(self, number: int) -> None:
        with choosing(self._folder):
            try:
                if read_current(self._folder).pinned:
                    return
            except UserError:
                pass  # there is none yet, or it is damaged
            write_current(self._folder, number)

    def _write_base(self, cut: Cut, number: int) -> Version:
        """Write a whole model."""
        network = SavedNetwork(self._run, cut.folder, corrects=True)
        draft = Path(str(draft_of(self._folder / f"base-{number:08d}")))
        order = Order(SavedModel(self._run_dir, cut.folder, self._run), self._folder.name, "float32")
        model = write_files(draft, order, network, lambda what, done, of: None, keeps_weights=True)
        tables = [VersionTable(table.name, table.rows, 0) for group in model.groups for table in group.tables]
        self._state = None
        return self._complete(cut, draft, number, None, number, [MODEL], tables)

    def _write_delta(self, cut: Cut, number: int) -> Version:
        """Write what has changed."""
        assert self._last is not None
        require_rows(cut.folder, lambda what, done, of: None)
        if self._state is None:
            self._state = _PublishedModel(self._folder, self._last.version, self._run_dir, self._run, cut)
        state = self._state
        draft = Path(str(draft_of(self._folder / f"delta-{number:08d}")))
        (draft / ROWS).mkdir(parents=True)
        tables = [table for group in state.groups for table in state.write_rows(draft, cut, group)]
        state.write_network(draft, cut)
        paths = [*(path_of(group) for group in state.groups), NETWORK, GOLDEN]
        return self._complete(cut, draft, number, self._last.version, self._last.base, paths, tables)

    def _complete(
        self,
        cut: Cut,
        draft: Path,
        number: int,
        parent: int | None,
        base: int,
        paths: list[str],
        tables: list[VersionTable],
    ) -> Version:
        """Make a draft a version, once all its files are on the disk."""
        files: list[VersionFile] = [file_of(draft, path) for path in paths]
        manifest = cut.manifest
        version = Version(
            *(FORMAT_VERSION, number, parent, base, self._run_dir.name, cut.start, manifest.step, manifest.samples),
            cut.facts.time,
            files,
            tables,
        )
        with writing(draft):
            for path in sorted(draft.rglob("*")):
                sync(path)
        publish(self._folder / version.folder, draft, VERSION, version_text(version))
        return version


class _PublishedModel:
    """The model of the last version: its network, and the rows of its golden samples."""

    def __init__(self, folder: Path, number: int, run_dir: Path, run: Run, cut: Cut) -> None:
        """Read a version; `cut` is any of the same run."""
        chain = chain_of(folder, number)
        base = folder / chain[0].folder
        self._labels, self._kind = list(label_names(run)), f"model.kind={run.model.kind}"
        self._batch = read_samples(run, run_dir / SAMPLES).batch
        self._network = SavedNetwork(run, cut.folder, corrects=True)
        self._graph = WeightlessNetwork(base / NETWORK)
        self._rows = self._network.rows_of(self._batch)
        self._specs = {group.number: group for group in self._network.layout.feature_groups}
        self.groups = list(self._specs)
        for place, group in enumerate(read_description(base).groups):
            for rows in base_rows(base, group):
                self._rows[place].take(rows.names, rows.keys, rows.tables, rows.embedding)
            for delta in chain[1:]:
                names = [table.name for table in group.tables]
                for rows in rows_in(folder / delta.folder / path_of(group.number), names):
                    self._rows[place].take(rows.names, rows.keys, rows.tables, rows.embedding)

    def write_rows(self, draft: Path, cut: Cut, group: int) -> list[VersionTable]:
        """Write the changed rows of a group; return their numbers by table."""
        names = list(cut.manifest.tables_of(group))
        writer = RowsWriter(draft / path_of(group), names, self._specs[group].dim)
        wanted = self._rows[self.groups.index(group)]
        for rows in changed_rows(cut, group):
            writer.add(rows)
            wanted.take(rows.names, rows.keys, rows.tables, rows.embedding)
        writer.close()
        counts = zip(names, writer.rows.tolist(), writer.deleted.tolist(), strict=True)
        return [VersionTable(*each) for each in counts]

    def write_network(self, draft: Path, cut: Cut) -> None:
        """Write the network and the golden samples; raises CheckpointError if the file has other scores."""
        self._network.reload(cut.folder)
        network = self._network
        if self._graph.has_all_weights(network.network):
            self._graph.write(network.network, draft / NETWORK)
        else:
            write_network(network.network, network.shape, network.groups, draft / NETWORK, self._kind)
        inputs = list(self._network.inputs(self._batch, self._rows))
        logits = np.concatenate([self._network.scores(each) for each in inputs])
        frozen = FrozenNetwork(draft / NETWORK, threads=1)
        scored = np.concatenate([frozen.logits(inputs_of(self._network.shape, each)) for each in inputs])
        difference = np.abs(scored - logits) / np.maximum(1.0, np.abs(logits))
        if not (difference <= 10 * DIFFERENCE["float32"]).all():
            raise CheckpointError(
                f"{NETWORK} of {cut.folder.name} does not have the scores of the training code: they differ by up to "
                f"{difference.max():.3g}"
            )
        features = [feature.name for feature in self._network.layout.features]
        write_golden(draft, features, self._labels, Golden(self._batch, logits))
