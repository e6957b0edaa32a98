"""`persia recommend`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import Changes, Model, Step, examples

EXAMPLES = examples(
    "persia recommend runs/films --users users.parquet -o lists.parquet                  # 100 items for each user",
    "persia recommend runs/films --users users.parquet -o lists.parquet --approximate    # among millions of items",
)


def recommend(
    run: Model,
    users: Annotated[
        str, typer.Option("--users", metavar="PATH", help="The users, one per row, with the features of their side.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .parquet file for the lists.")],
    overrides: Changes = None,
    top: Annotated[int, typer.Option("--top", metavar="K", min=1, help="Items of each list, at most.")] = 100,
    item: Annotated[
        str | None,
        typer.Option("--item", metavar="FEATURE", help="The feature that identifies items: by default their first."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="COLUMN", help="A column of the users to copy: by default dataset.group_by. Any number."
        ),
    ] = None,
    keep_seen: Annotated[
        bool, typer.Option("--keep-seen", help="Also list items of a user's training samples, and of the user's row.")
    ] = False,
    approximate: Annotated[bool, typer.Option("--approximate", help="Search approximately, by faiss.")] = False,
    step: Step = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
) -> None:
    """List the best items for each user, by a model of two sides, in this process.

    The items are those of the run's data. Writes a row for each row of the users, in the same order: the columns
    to keep, `items`, best first, and `scores`. Ids without a row in the model count as zeros.
    """
    from persia_cli.commands.progress import SCREEN, counting
    from persia_cli.commands.screen import err, labelled, out
    from persia_cli.config.schema import ParquetDataset
    from persia_cli.errors import UserError, count
    from persia_cli.jobs.plan import facts_of, plan_saved, require_output
    from persia_cli.observe.saved_run import find_model
    from persia_cli.plan.checks import require_two_sides
    from persia_cli.retrieval.approximate import require_faiss
    from persia_cli.retrieval.lists import ItemLists, read_items, users_in
    from persia_cli.retrieval.towers import saved_towers
    from persia_cli.storage.locations import location_of

    if output.suffix != ".parquet":
        raise UserError(f"{output.name}: lists are written as Parquet; end the name in .parquet")
    require_output(output, users, overwrite)
    if approximate:
        require_faiss()
    model = find_model(location_of(run), step)
    require_two_sides(model.run, "persia recommend")
    plan = plan_saved(model, "evaluate", overrides or [], reporter=SCREEN)
    if not isinstance(plan.run.dataset, ParquetDataset) or plan.facts.stand_in:
        raise UserError(f"{run} has generated samples, and no file has such users; train on files first")
    asking = users_in(plan.run, users, keep_seen)
    facts_of(asking, SCREEN)
    columns = keep or [plan.run.dataset.group_by or asking.sparse[0].column_name]
    if twice := {"items", "scores"} & {*columns}:
        raise UserError(f"--keep {twice.pop()}: the lists have a column of that name; rename it in the users' files")
    with counting(err(), "reading", "samples") as progress:
        items = read_items(plan.run, item, progress)
    lists = ItemLists(plan.run, saved_towers(plan.run, model.checkpoint), items, keep_seen, approximate)
    with counting(err(), "listing", "users") as progress:
        listed = lists.write(asking, columns, output, top, progress)
    if not keep_seen and plan.run.dataset.group_by is None:
        labelled(err(), "note", "without dataset.group_by, items that users have seen in training are listed too")
    labelled(out(), "listed", f"the best {top} of {count(len(items.ids), 'item')}, for {count(listed, 'user')}")
    labelled(err(), "saved", f"{output}")
