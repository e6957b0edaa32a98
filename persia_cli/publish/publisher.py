"""The publisher: cuts of a run become versions, one after the other, each exactly once.

A version's folder appears whole, with the cut that it is of; then `current.json` names it, and the cut is removed.
After a kill between these, the next publisher does the rest: it knows the last version by the folders. Versions for a
URI are written into the run directory, and sent from there.
"""

# Invariants:
#
# - Version n+1 is of the next cut after that of version n, or of a later one with all rows.
# - Nothing is known of a version but what is in its folder: the network and the rows of golden samples are read anew
#   from there after a base, a restart, or a failure.

import logging
import os
import shutil
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from persia_cli.config.record import CONFIG, SAMPLES, read_run
from persia_cli.config.schema import Run
from persia_cli.disk import claim, sync, writing
from persia_cli.errors import CheckpointError, UserError
from persia_cli.export.artefact import Order, write_files
from persia_cli.export.graph import WeightlessNetwork, inputs_of, write_network
from persia_cli.export.rows import require_rows
from persia_cli.export.saved_network import SavedNetwork, WantedRows
from persia_cli.observe.kept_samples import read_samples
from persia_cli.observe.saved_run import SavedModel, find_model
from persia_cli.plan.columns import label_names
from persia_cli.publish.rows import base_rows, changed_rows, rows_writer
from persia_cli.publish.version import (
    FOLDER,
    FORMAT_VERSION,
    LOCAL,
    VERSION,
    Mirror,
    Version,
    chain_of,
    last_version,
    pinned_version,
    remove_old,
    require_publishable,
    version_text,
    write_served,
)
from persia_cli.serving.description import GOLDEN, MODEL, NETWORK, ROWS, FrozenGroup, note_of, read_description
from persia_cli.serving.golden import DIFFERENCE, Golden, write_golden
from persia_cli.serving.overlay import TableChanges, read_changes, rows_file
from persia_cli.serving.predictor import FrozenNetwork
from persia_cli.storage.addresses import rooted
from persia_cli.storage.locations import (
    PARTIAL,
    REMOVED,
    Location,
    draft_of,
    location_of,
    publish,
    put,
    remove,
)
from persia_cli.store.checkpoints.cuts import WHOLE, Cut, cuts_of, read_cut, starts_of
from persia_cli.store.checkpoints.manifest import MANIFEST

log = logging.getLogger(__name__)

LOOK_S = 0.05
"""Seconds between two looks for cuts."""
NICER = 10
"""Training comes first where processes share cores."""


def publish_run(run_dir: Path, to: str | None, follows: bool) -> tuple[int, Location, Version | None]:
    """Publish what waits; return the number of versions, their folder, and its newest version.

    If this `follows` a job, publish what comes until standard input ends; else, if nothing waits, the newest checkpoint
    unless a version has its step. `to` is the path or URI of the folder, by default that of the run. Raises UserError,
    CheckpointError, DiskError.
    """
    if not (run_dir / CONFIG).is_file():
        raise UserError(f"{run_dir} is no run directory: it has no {CONFIG}")
    run = read_run(run_dir / CONFIG)
    if to is None:
        if run.publish is None:
            raise UserError(f"{run_dir} was trained without publish.to; name a folder for its versions: --to DIR")
        to = run.publish.to
    with closing(Publisher(run_dir.absolute(), run, rooted(to, Path.cwd()), follows)) as publisher:
        count = publisher.follow() if follows else publisher.publish_waiting() or publisher.publish_checkpoint()
        return count, publisher.place, publisher.last


class Publisher:
    """Publishes the cuts of one run to one folder; no other process does."""

    def __init__(self, run_dir: Path, run: Run, to: str, follows: bool) -> None:
        """Continue after the last version in the folder; raises UserError, CheckpointError, DiskError.

        `to` is the path or URI of the folder. A publisher that `follows` a job removes a cut that cannot be published:
        the job makes one of the whole model.
        """
        require_publishable(to, run_dir.name)
        self._run_dir, self._run, self._follows = run_dir, run, follows
        self.place: Location = location_of(to)
        self._folder = folder = self.place if isinstance(self.place, Path) else run_dir / LOCAL
        self._mirror: Mirror | None = None
        self.last: Version | None = None
        """The newest version of the folder."""
        self._state: _PublishedModel | None = None
        """The model of the last version; None if it must be read."""
        with writing(folder):
            folder.mkdir(exist_ok=True)
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
        self.last = last_version(folder)
        if self.place != folder:
            self._mirror = Mirror(folder, self.place)
        if self.last is not None:
            self._make_current(self.last.version)

    def follow(self) -> int:
        """Publish what comes until standard input ends; return the number of versions."""
        os.nice(NICER)
        ended, versions = threading.Event(), 0

        def wait_for_end() -> None:
            sys.stdin.buffer.read()
            ended.set()

        threading.Thread(target=wait_for_end, name="end", daemon=True).start()
        while True:
            is_last = ended.is_set()
            versions += self.publish_waiting()
            if is_last:
                log.info("CPU of the publisher: %.1f s for %d versions", time.process_time(), versions)
                return versions
            ended.wait(LOOK_S)

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

    def publish_checkpoint(self) -> int:
        """Publish the run's newest checkpoint unless a version has its step; return the number of versions.

        Raises CheckpointError if there is neither a checkpoint nor a version.
        """
        settings, last = self._run.publish, self.last
        if last is not None and settings is not None and settings.guard.is_set:
            return 0  # what no version has is held back
        try:
            checkpoint = find_model(self._run_dir, newest=True).checkpoint
        except CheckpointError:
            if last is None:
                raise
            return 0
        cut = read_cut(checkpoint)
        if last is not None and cut.manifest.step <= last.step:
            return 0
        self._publish(cut)
        return 1

    def _is_new(self, cut: Cut) -> bool:
        """Return True unless the cut is published already; raises CheckpointError if cuts before it are missing."""
        last = self.last
        if not cut.facts.since:
            return last is None or (last.start, last.step) != (cut.start, cut.manifest.step)
        if last is not None and last.start == cut.start:
            if cut.manifest.step <= last.step:
                return False
            if cut.facts.since == last.step:
                return True
        text = f"{self.place} does not have the version before {cut.folder.name} of {self._run_dir}; "
        if not self._follows:
            raise CheckpointError(f"{text}publish to the folder that has it, or resume the run: it begins with a base")
        put(cut.folder.parent / WHOLE, b"")
        remove(cut.folder, MANIFEST)
        raise CheckpointError(f"{text}the next version is the whole model")

    @property
    def _number(self) -> int:
        """The number of the next version."""
        return self.last.version + 1 if self.last else 1

    def _publish(self, cut: Cut) -> None:
        try:
            version = self._write_delta(cut) if cut.facts.since else self._write_base(cut)
        except BaseException:
            self._state = None
            raise
        self.last = version
        self._make_current(version.version)
        log.info("version %d: step %d", version.version, version.step)

    def _make_current(self, number: int) -> None:
        write_served(self._folder, number)
        if self._mirror is not None:
            self._mirror.send()
        remove_old(self._folder, pinned_version(self.place))  # which is read at the last moment
        if self._mirror is not None:
            self._mirror.remove_old()

    def _write_base(self, cut: Cut) -> Version:
        """Write a whole model."""
        network = SavedNetwork(self._run, cut.folder, corrects=True)
        draft = Path(str(draft_of(self._folder / f"base-{self._number:08d}")))
        order = Order(SavedModel(self._run_dir, cut.folder, self._run), self.place.name, "float32")
        write_files(draft, order, network, lambda what, done, of: None, keeps_weights=True)
        self._state = None
        return self._complete(cut, draft, None, [MODEL])

    def _write_delta(self, cut: Cut) -> Version:
        """Write what has changed."""
        assert self.last is not None
        require_rows(cut.folder, lambda what, done, of: None)
        if self._state is None:
            self._state = _PublishedModel(self._folder, self.last.version, self._run_dir, self._run, cut)
        state = self._state
        draft = Path(str(draft_of(self._folder / f"delta-{self._number:08d}")))
        (draft / ROWS).mkdir(parents=True)
        for group in state.groups:
            state.write_rows(draft, cut, group)
        state.write_network(draft, cut)
        return self._complete(cut, draft, self.last, [*map(rows_file, state.groups), NETWORK, GOLDEN])

    def _complete(self, cut: Cut, draft: Path, parent: Version | None, paths: list[str]) -> Version:
        """Make a draft the next version, once all its files are on the disk."""
        number = self._number
        version = Version(
            format_version=FORMAT_VERSION,
            version=number,
            parent=parent.version if parent else None,
            run=self._run_dir.name,
            start=cut.start,
            step=cut.manifest.step,
            samples=cut.manifest.samples,
            time=cut.facts.time,
            files=[note_of(draft, path) for path in paths],
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
        self._dims = {group.number: group.dim for group in self._network.layout.feature_groups}
        self.groups = list(self._dims)
        for rows, group in zip(self._rows, read_description(base).groups, strict=True):
            self._take(rows, group, base_rows(base, group))
            for delta in chain[1:]:
                self._take(rows, group, read_changes(folder / delta.folder / rows_file(group.number), group))

    @staticmethod
    def _take(wanted: WantedRows, group: FrozenGroup, changes: list[TableChanges]) -> None:
        for table, (keys, deleted, rows) in zip(group.tables, changes, strict=True):
            own = np.zeros(keys.size, np.uint16)
            wanted.take([table.name], keys[~deleted], own[~deleted], rows)
            wanted.take([table.name], keys[deleted], own[deleted], np.zeros((keys.size, group.dim), np.float32))

    def write_rows(self, draft: Path, cut: Cut, group: int) -> None:
        """Write the changed rows of a group."""
        wanted = self._rows[self.groups.index(group)]
        with rows_writer(draft / rows_file(group), list(cut.manifest.tables_of(group)), self._dims[group]) as add:
            for rows in changed_rows(cut, group):
                add(rows)
                wanted.take(rows.names, rows.keys, rows.tables, rows.embedding)

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
