"""An exported model as a folder, which is complete and has checksums, or does not exist."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from persia_cli import __version__
from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.data.read.batch import join
from persia_cli.data.read.scan import scan
from persia_cli.data.read.source import uses_stand_in
from persia_cli.errors import DataError, UserError
from persia_cli.export.graph import write_network
from persia_cli.export.output import Output
from persia_cli.export.rows import OnWork, require_rows, write_rows
from persia_cli.export.saved_network import SavedNetwork
from persia_cli.export.text_fields import csv_fields
from persia_cli.export.verification import portions
from persia_cli.observe.saved_run import SavedModel
from persia_cli.plan.columns import label_names, sparse_features
from persia_cli.serving.description import (
    FEATURES,
    FORMAT_VERSION,
    GOLDEN,
    NETWORK,
    ROWS,
    Form,
    FrozenFeature,
    FrozenGroup,
    ModelDescription,
    ModelInput,
    ModelOutput,
    note_of,
    write_description,
)
from persia_cli.serving.fields import RequestFields, write_fields
from persia_cli.serving.golden import SAMPLES, Golden, write_golden
from persia_cli.store.checkpoints.manifest import Manifest, read_manifest


@dataclass(frozen=True, slots=True)
class Order:
    """The arguments of an export: a model, its name, the dtype of its rows, and the source of golden samples."""

    model: SavedModel
    name: str
    form: Form
    golden: Run
    """The run, perhaps with samples of other data."""


def write_artefact(
    order: Order,
    output: Output,
    network: SavedNetwork,
    on_work: OnWork = lambda what, done, of: None,
    prove: Callable[[Path], None] = lambda folder: None,
) -> ModelDescription:
    """Write an exported model, which replaces the output when it is complete and on disk.

    Before that, `prove` gets the folder under a temporary name, and can raise an error that ends the export. Raises
    UserError, CheckpointError, DiskError.
    """
    with output.replaced() as part:
        (part / ROWS).mkdir()
        description = _write_into(part, order, network, on_work)
        prove(part)
    return description


def _write_into(folder: Path, order: Order, network: SavedNetwork, on_work: OnWork) -> ModelDescription:
    run, checkpoint = order.model.run, order.model.checkpoint
    manifest = read_manifest(checkpoint)
    require_rows(checkpoint, on_work)
    on_work("network", 0, 1)
    what = f"model.kind={run.model.kind}"
    write_network(network.network, network.shape, network.groups, folder / NETWORK, what)
    groups = _write_groups(folder, order, network, manifest, on_work)
    golden = golden_samples(order, network)
    features, labels = [feature.name for feature in network.layout.features], list(label_names(run))
    write_golden(folder, features, labels, golden)
    lists = _lists(order.golden, golden, network)
    csv = csv_fields(order.model.run, order.golden)
    fields = RequestFields.of(order.golden.dataset, lists, _single_columns(order.golden), csv)
    write_fields(folder, fields)
    paths = [NETWORK, *(path for group in groups for path in (group.index, group.values)), FEATURES, GOLDEN]
    total = sum((folder / path).stat().st_size for path in paths)
    read = 0

    def on_bytes(nbytes: int) -> None:
        nonlocal read
        read += nbytes
        on_work("checksums", read, total)

    description = ModelDescription(
        format_version=FORMAT_VERSION,
        persia_version=__version__,
        name=order.name,
        run=order.model.run_dir.name,
        step=manifest.step,
        samples=manifest.samples,
        seed=run.seed % 2**64,
        network=run.model.kind,
        dense=network.shape.dense,
        features=_features(network),
        groups=groups,
        inputs=[ModelInput(*each) for each in fields.inputs()],
        outputs=_outputs(run, labels),
        files=[note_of(folder, path, on_bytes) for path in paths],
    )
    write_description(folder, description)
    return description


def _write_groups(
    folder: Path, order: Order, network: SavedNetwork, manifest: Manifest, on_work: OnWork
) -> list[FrozenGroup]:
    total, done = manifest.row_count(with_dense=False), 0

    def on_rows(rows: int) -> None:
        nonlocal done
        done += rows
        on_work("rows", done, total)

    return [
        write_rows(order.model.checkpoint, manifest, group, order.form, folder, on_rows)
        for group in network.layout.feature_groups
    ]


def golden_samples(order: Order, network: SavedNetwork) -> Golden:
    """Return the first evaluation samples of a run, else of training, with their logits."""
    remedy = "an export keeps some samples with their scores; name files that have some by --verify"
    for split in ("eval", "train"):
        try:
            batches = list(portions(order.golden, split, SAMPLES))
        except DataError as error:
            if order.golden is not order.model.run:
                raise  # by --verify
            raise DataError(f"{error}\n{remedy}") from error
        if batches:
            batch = join(batches)
            return Golden(batch, network.logits(batch))
    raise UserError(f"the data has no samples, and {remedy}")


def _features(network: SavedNetwork) -> list[FrozenFeature]:
    tables = {table.number: table.name for table in network.layout.tables()}
    return [
        FrozenFeature(each.name, each.group, tables[each.table], each.pooling, each.max_length)  # type: ignore[arg-type]
        for each in network.layout.features
    ]


def _lists(run: Run, golden: Golden, network: SavedNetwork) -> frozenset[str]:
    """Return the features whose columns contain lists: sequences, and those of which a golden sample has not one id.

    A feature that drops nulls has no id for a null.
    """
    size, found = golden.batch.size, list_features(run)
    for number, (feature, declared) in enumerate(zip(network.layout.features, sparse_features(run), strict=True)):
        lengths = np.diff(golden.batch.offsets[number * size : (number + 1) * size + 1].astype(np.int64))
        has_lists = (lengths > 1).any() if declared.drops_nulls else (lengths != 1).any()
        if feature.pooling != "sum" or feature.max_length is not None or has_lists:
            found.add(feature.name)
    return frozenset(found)


def list_features(run: Run) -> set[str]:
    """Return the sparse features of a run whose columns contain lists in its files."""
    if not isinstance(run.dataset, ParquetDataset) or uses_stand_in(run.dataset):
        return set()
    columns = scan(run.dataset).lists
    return {each.name for each in run.dataset.sparse if each.column_name in columns or each.makes_lists}


def _single_columns(run: Run) -> frozenset[str]:
    """Return the columns that are float32 in all files of a run."""
    if not isinstance(run.dataset, ParquetDataset) or uses_stand_in(run.dataset):
        return frozenset()
    found = [{field.name for field in schema if field.type == pa.float32()} for schema in scan(run.dataset).schemas]
    return frozenset.intersection(*map(frozenset, found)) if found else frozenset()


def _outputs(run: Run, labels: list[str]) -> list[ModelOutput]:
    links = run.links
    nouns = {label: "probability" if link == "logistic" else "prediction" for label, link in links.items()}
    return [ModelOutput(f"{label}_{nouns[label]}", label, links[label]) for label in labels]
