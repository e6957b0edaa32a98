"""`persia table`."""

import typer

from persia_cli.commands.options import AsJson, Model, examples

STATS_EXAMPLES = examples(
    "persia table stats runs/criteo-20261121-081500                       # its best checkpoint, else its newest",
    "persia table stats runs/criteo-20261121-081500/checkpoints/step-500  # this one",
    "persia table stats runs/criteo-20261121-081500 --json",
)

app = typer.Typer(no_args_is_help=True, help="Look at embedding tables.", epilog=STATS_EXAMPLES)


@app.command("stats", epilog=STATS_EXAMPLES)
def stats(
    folder: Model,
    as_json: AsJson = False,
) -> None:
    """Show rows, memory and hit rates of tables.

    Also, for each table, how large its embeddings are, and how long ago they were used.
    """
    from persia_cli.commands.screen import err, labelled, out, say_json
    from persia_cli.commands.table_view import as_object, show_tables
    from persia_cli.observe.table_report import report_tables
    from persia_cli.storage.locations import location_of

    report = report_tables(location_of(folder))
    if as_json:
        say_json(as_object(report))
        return
    labelled(err(), "read", f"{report.checkpoint}, saved after {report.step:,} steps")
    show_tables(out(), report)
    if all(table.counters is None for table in report.tables.values()):
        labelled(err(), "note", "no hit rates: they are in the record of a finished run, which is not here")
