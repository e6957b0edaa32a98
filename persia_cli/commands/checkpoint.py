"""`persia checkpoint`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import AsJson, examples

LS = ("persia checkpoint ls runs/criteo-20261121-081500  # step, size and rows of each, and which one is the best",)
VERIFY = (
    "persia checkpoint verify runs/criteo-20261121-081500                       # all checkpoints of a run",
    "persia checkpoint verify runs/criteo-20261121-081500/checkpoints/step-500  # this one",
)
SHOW = ("persia checkpoint show runs/criteo-20261121-081500/checkpoints/step-500  # tables, dense weights, position",)
EXPORT = (
    "persia checkpoint export runs/shop --table item --output item.parquet         # id and vector of every row",
    "persia checkpoint export runs/shop --table item --output item.csv --last-used  # a column for each dimension",
)
GC = (
    "persia checkpoint gc runs/criteo-20261121-081500 --keep 2 --dry-run  # what would go",
    "persia checkpoint gc runs/criteo-20261121-081500 --keep 2 --yes      # remove it without a question",
)

NOW = ("persia checkpoint now runs/criteo-20261121-081500  # have the job that trains this run save, and go on",)

Source = Annotated[
    str,
    typer.Argument(metavar="RUN|CHECKPOINT", help="A run directory, or a checkpoint: a folder or a URI."),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]

app = typer.Typer(
    no_args_is_help=True,
    help="Look at checkpoints and look after them.",
    epilog=examples(*LS, *VERIFY, *EXPORT[:1], *GC[:1], *NOW),
)


@app.command(epilog=examples(*LS))
def ls(run: RunDir, as_json: AsJson = False) -> None:
    """List the checkpoints of a run, and what was left unfinished."""
    import shlex
    from dataclasses import asdict

    from persia_cli.checkpoint.listing import list_checkpoints
    from persia_cli.commands.checkpoint_view import show_list
    from persia_cli.commands.screen import err, out, propose, say_json
    from persia_cli.observe.history import CONFIG

    listed = list_checkpoints(run)
    if as_json:
        say_json(asdict(listed))
        return
    show_list(out(), err(), listed)
    if listed.without_manifest or any(checkpoint.damage for checkpoint in listed.checkpoints):
        propose(err(), f"persia checkpoint verify {shlex.quote(str(run))}")
    elif listed.checkpoints or listed.elsewhere:
        propose(err(), f"persia resume {shlex.quote(str(run))} --dry-run")
    else:
        propose(err(), f"persia train conf={shlex.quote(str(run / CONFIG))} checkpoint.every_steps=1000")


@app.command(epilog=examples(*VERIFY))
def verify(folder: Source, as_json: AsJson = False) -> None:
    """Compare checksums and counts of a checkpoint, or of each one of a run, and find values that are not finite."""
    import shlex
    from dataclasses import asdict

    from persia_cli.checkpoint.verification import checkpoints_in, verify_checkpoint
    from persia_cli.commands.checkpoint_view import show_verification, verifying
    from persia_cli.commands.screen import err, out, propose, say_json
    from persia_cli.errors import CheckpointError, count
    from persia_cli.storage.locations import location_of

    source = location_of(folder)
    checkpoints, run_dir, of_run = checkpoints_in(source)
    with verifying(err()) as progress:
        verified = [verify_checkpoint(checked, progress) for checked in checkpoints]
    flaws = [*of_run, *(flaw for checked in verified for flaw in checked.flaws)]
    if as_json:
        say_json({"sound": not flaws, "flaws": of_run, "checkpoints": [asdict(checked) for checked in verified]})
    else:
        show_verification(out(), err(), verified, of_run)
    if flaws:
        sound = [checked.path for checked in verified if not checked.flaws]
        advice = f"the newest without one is {sound[-1]}" if sound else "go on from a checkpoint without one"
        raise CheckpointError(f"{source} has {count(len(flaws), 'flaw')}; {advice}")
    if not as_json:
        propose(
            err(),
            f"persia resume {shlex.quote(str(run_dir))} --dry-run"
            if run_dir
            else f"persia table stats {shlex.quote(str(source))}",
        )


@app.command(epilog=examples(*SHOW))
def show(folder: Source, as_json: AsJson = False) -> None:
    """Show what a checkpoint holds: tables, optimizer states, dense weights, position, files."""
    import shlex
    from dataclasses import asdict

    from persia_cli.checkpoint.description import describe_checkpoint
    from persia_cli.commands.checkpoint_view import show_description
    from persia_cli.commands.screen import err, out, propose, say_json
    from persia_cli.storage.locations import location_of

    content = describe_checkpoint(location_of(folder))
    if as_json:
        say_json(asdict(content))
        return
    show_description(out(), content)
    propose(err(), f"persia checkpoint verify {shlex.quote(content.path)}")


@app.command(epilog=examples(*EXPORT))
def export(
    folder: Source,
    table: Annotated[str, typer.Option("--table", metavar="NAME", help="The table.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="A .parquet or .csv file.")],
    state: Annotated[bool, typer.Option("--state", help="Also the states of the optimizer.")] = False,
    last_used: Annotated[bool, typer.Option("--last-used", help="Also the step of each row's last use.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a table of a checkpoint, as ids and vectors, to a file that other programs read."""
    import shlex

    from persia_cli.checkpoint.description import groups_of
    from persia_cli.checkpoint.export import export_table, require_exportable
    from persia_cli.commands.progress import counting
    from persia_cli.commands.screen import err, labelled, propose
    from persia_cli.errors import count
    from persia_cli.observe.saved_run import locate_model
    from persia_cli.storage.locations import location_of
    from persia_cli.store.checkpoints.manifest import read_manifest

    checkpoint, _ = locate_model(location_of(folder))
    manifest = read_manifest(checkpoint)
    require_exportable(manifest, table, output, overwrite)
    with counting(err(), "exporting", "rows") as progress:
        rows = export_table(checkpoint, manifest, table, output, state, last_used, progress)
    group = groups_of(manifest).get(table)
    if group and next(spec for spec in group.tables if spec.name == table).rounds:
        labelled(
            err(), "note", f"{table} is a hash stack: these are its shared rows, of which an id is the sum of a few"
        )
    labelled(err(), "saved", f"{output}, {count(rows, 'row')} of step {manifest.step:,}")
    propose(err(), f"persia checkpoint show {shlex.quote(str(checkpoint))}")


@app.command(epilog=examples(*GC))
def gc(
    run: RunDir,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep", metavar="N", min=1, help="Newest checkpoints to keep.", show_default="checkpoint.keep of the run"
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without a question.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go and remove nothing.")] = False,
) -> None:
    """Remove old checkpoints of a run and what was left unfinished; the best and the newest always stay."""
    import shlex
    import sys

    from persia_cli.checkpoint.listing import clean_up, is_running, plan_clean_up
    from persia_cli.commands.checkpoint_view import show_clean_up
    from persia_cli.commands.screen import err, labelled, out, propose, size
    from persia_cli.errors import UserError, count

    if is_running(run):
        raise UserError(f"the run in {run} still goes on; checkpoint.keep=N of the run removes old ones meanwhile")
    plan = plan_clean_up(run, keep)
    show_clean_up(out(), plan)
    again = f"persia checkpoint gc {shlex.quote(str(run))}" + (f" --keep {keep}" if keep else "")
    if not plan.doomed:
        labelled(err(), "note", "nothing to remove" + ("" if keep else "; --keep N sets how many of the newest stay"))
        propose(err(), f"persia checkpoint ls {shlex.quote(str(run))}")
    elif dry_run:
        labelled(
            err(), "note", f"{count(len(plan.doomed), 'folder')} would go, {size(plan.nbytes)}; nothing was removed"
        )
        propose(err(), f"{again} --yes")
    else:
        if not yes:
            if not sys.stdin.isatty():
                raise UserError("there is no terminal to ask: give --yes to remove these folders, or --dry-run")
            typer.confirm(f"Remove {count(len(plan.doomed), 'folder')}, {size(plan.nbytes)}?", abort=True, err=True)
        gone = clean_up(run, keep, plan)
        labelled(err(), "removed", f"{count(len(gone.doomed), 'folder')}, {size(gone.nbytes)}")
        propose(err(), f"persia checkpoint ls {shlex.quote(str(run))}")


@app.command(epilog=examples(*NOW))
def now(run: RunDir) -> None:
    """Have a running job save its model and go on; waits for the checkpoint and prints where it is."""
    import shlex

    from persia_cli.commands.screen import err, out, propose, say
    from persia_cli.engines.save_request import save_now

    checkpoint = save_now(run)
    say(out(), checkpoint)
    propose(err(), f"persia checkpoint verify {shlex.quote(checkpoint)}")
