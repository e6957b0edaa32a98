"""An exported model as a folder, which is complete and has checksums, or does not exist."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from persia_cli.config.record import SAMPLES
from persia_cli.config.schema import Run
from persia_cli.export.graph import write_network
from persia_cli.export.output import Output
from persia_cli.export.rows import OnWork, require_rows, write_rows
from persia_cli.export.saved_network import SavedNetwork
from persia_cli.observe.kept_samples import read_samples
from persia_cli.observe.saved_run import SavedModel
from persia_cli.plan.columns import label_names
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
from persia_cli.serving.fields import write_fields
from persia_cli.serving.golden import Golden, write_golden
from persia_cli.store.checkpoints.manifest import Manifest, read_manifest
from persia_cli.version import __version__


@dataclass(frozen=True, slots=True)
class Order:
    """The arguments of an export: a model, its name, and the dtype of its rows."""

    model: SavedModel
    name: str
    form: Form


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
        description = write_files(part, order, network, on_work)
        prove(part)
    return description


def write_files(
    folder: Path, order: Order, network: SavedNetwork, on_work: OnWork, keeps_weights: bool = False
) -> ModelDescription:
    """Write the files of an exported model into a new folder; `keeps_weights` is as in `write_network`."""
    (folder / ROWS).mkdir(parents=True, exist_ok=True)
    run, checkpoint = order.model.run, order.model.checkpoint
    manifest = read_manifest(checkpoint)
    require_rows(checkpoint, on_work)
    on_work("network", 0, 1)
    what = f"model.kind={run.model.kind}"
    write_network(network.network, network.shape, network.groups, folder / NETWORK, what, keeps_weights)
    groups = _write_groups(folder, order, network, manifest, on_work)
    samples, labels = read_samples(run, order.model.run_dir / SAMPLES), list(label_names(run))
    golden = Golden(samples.batch, network.logits(samples.batch))
    write_golden(folder, [feature.name for feature in network.layout.features], labels, golden)
    write_fields(folder, samples.fields)
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
        inputs=[ModelInput(*each) for each in samples.fields.inputs()],
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


def _features(network: SavedNetwork) -> list[FrozenFeature]:
    tables = {table.number: table.name for table in network.layout.tables()}
    return [
        FrozenFeature(each.name, each.group, tables[each.table], each.pooling, each.max_length)  # type: ignore[arg-type]
        for each in network.layout.features
    ]


def _outputs(run: Run, labels: list[str]) -> list[ModelOutput]:
    links = run.links
    nouns = {label: "probability" if link == "logistic" else "prediction" for label, link in links.items()}
    return [ModelOutput(f"{label}_{nouns[label]}", label, links[label]) for label in labels]
