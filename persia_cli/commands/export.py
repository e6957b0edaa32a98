"""`persia export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from persia_cli.commands.options import Model, Step, examples

if TYPE_CHECKING:
    from persia_cli.config.schema import Run
    from persia_cli.export.output import Output
    from persia_cli.export.verification import Proof
    from persia_cli.observe.saved_run import SavedModel

EXAMPLES = examples(
    "persia export runs/shop-20261121-081500 -o shop                          # a folder that serves without torch",
    "persia export runs/shop-20261121-081500 -o shop --rows int8 --verify today/  # fewer bits, and what they cost",
    "persia export runs/shop-20261121-081500 -o plain --format torch          # for your own code",
)


def export(
    run: Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")],
    rows: Annotated[
        Literal["float32", "bfloat16", "float16", "int8", "int4"],
        typer.Option("--rows", help="The format in which rows are kept; fewer bits take less memory."),
    ] = "float32",
    verify: Annotated[
        list[str] | None,
        typer.Option(
            "--verify",
            metavar="DATA",
            help="Score all samples of these files, which need labels, by the training code and by the export; fails "
            "where the two differ too much. May be given several times.",
        ),
    ] = None,
    form: Annotated[
        Literal["onnx", "torch"],
        typer.Option(
            "--format",
            help="onnx: to be served without torch; torch: code and weights of a plain torch module, a Parquet file of "
            "each table, and a script that uses them without persia.",
        ),
    ] = "onnx",
    name: Annotated[
        str | None, typer.Option("--name", help="The model's name in answers.", show_default="name of the folder")
    ] = None,
    step: Step = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the folder if it is empty or an earlier export.")
    ] = False,
) -> None:
    """Write a saved model as a folder for other programs.

    It has the dense network as ONNX, rows that are mapped into memory, what becomes of a request's fields, and some
    samples with the scores of the training code, which the loading program can check.
    """
    import shlex

    from persia_cli.commands.progress import ProgressBar
    from persia_cli.commands.screen import err, labelled, propose, size
    from persia_cli.config.schema import ParquetDataset
    from persia_cli.errors import UserError, count
    from persia_cli.export.artefact import Order, write_artefact
    from persia_cli.export.output import Output
    from persia_cli.export.saved_network import SavedNetwork
    from persia_cli.export.verification import compare
    from persia_cli.observe.saved_run import find_model
    from persia_cli.serving.row_reader import has_rare_ids
    from persia_cli.storage.locations import location_of

    place = Output.at(output, overwrite)
    model = find_model(location_of(run), step)
    place.require_apart(model)
    if form == "torch":
        if verify or name or rows != "float32":
            raise UserError("--format torch writes rows unchanged, and takes no --rows, --verify and --name")
        _export_plain(model, place, output)
        return
    other = _other_data(model, verify) if verify else None
    network = SavedNetwork(model.run, model.checkpoint)
    order = Order(model, name or place.folder.name, rows)
    with ProgressBar(err(), "exporting") as bar:

        def prove(folder: Path) -> None:
            if other is not None:
                bar.begin("verifying")
                proof = compare(
                    other, network, folder, on_samples=lambda done: bar.show(done, None, [count(done, "sample")])
                )
                _tell(proof)
                proof.require(rows)

        description = write_artefact(order, place, network, lambda what, done, of: bar.show(done, of, [what]), prove)
    nbytes = sum(note.nbytes for note in description.files)
    total = sum(group.rows for group in description.groups)
    labelled(err(), "saved", f"{output}, {count(total, 'row')} of step {description.step:,} in {rows}, {size(nbytes)}")
    if has_rare_ids(place.folder, description):
        labelled(err(), "rare ids", "and others without a row get the row that training made of rare ones")
    if not verify and isinstance(model.run.dataset, ParquetDataset):
        propose(err(), f"persia export {shlex.quote(run)} -o {shlex.quote(str(output))} --overwrite --verify DATA")
    else:
        propose(err(), f"persia serve {shlex.quote(str(output))}")


def _export_plain(model: "SavedModel", place: "Output", output: Path) -> None:
    from persia_cli.commands.progress import ProgressBar
    from persia_cli.commands.screen import err, labelled
    from persia_cli.errors import count
    from persia_cli.export.plain import write_plain
    from persia_cli.export.saved_network import SavedNetwork

    network = SavedNetwork(model.run, model.checkpoint)
    with ProgressBar(err(), "exporting") as bar:
        rows = write_plain(model, place, network, lambda what, done, of: bar.show(done, of, [what]))
    labelled(err(), "saved", f"{output}, {count(rows, 'row')} as Parquet; {output / 'predict.py'} uses them")


def _other_data(model: "SavedModel", paths: list[str]) -> "Run":
    """Return the run with all samples of these files as evaluation samples."""
    from persia_cli.config.compose import compose_run
    from persia_cli.config.schema import ParquetDataset
    from persia_cli.errors import UserError
    from persia_cli.jobs.plan import other_data

    if not isinstance(model.run.dataset, ParquetDataset):
        raise UserError("the run was trained on generated samples, so no file has its columns; leave out --verify")
    return compose_run([f"conf={model.config}", *other_data(paths, "eval")])


def _tell(proof: "Proof") -> None:
    """Print what the two ways of scoring differ by."""
    from persia_cli.commands.screen import err, labelled, out, say
    from persia_cli.errors import count

    for label in proof.labels:
        auc = (
            ""
            if label.auc is None
            else f", AUC {label.auc[0]:.6f} -> {label.auc[1]:.6f} ({label.auc[1] - label.auc[0]:+.2e})"
        )
        say(out(), f"{label.label}: max |Δp| {label.difference:.2e}{auc}")
    labelled(err(), "verified", f"on {count(proof.samples, 'sample')}, by the training code and by the export")
