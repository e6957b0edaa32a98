"""`persia eval`."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from persia_cli.commands.options import AsJson, Changes, Model, Step, examples

if TYPE_CHECKING:
    from persia_cli.evaluation.importance import Importance
    from persia_cli.observe.saved_run import SavedModel
    from persia_cli.plan.job import JobPlan
    from persia_cli.retrieval.approximate import ApproximateMetrics
    from persia_cli.retrieval.evaluation import RetrievalMetrics

RETRIEVAL = "retrieval.json"
"""File of the retrieval metrics, in the evaluation's folder next to its configuration."""

EXAMPLES = examples(
    "persia eval runs/criteo-20261121-081500                              # the run's own evaluation again",
    "persia eval runs/criteo-20261121-081500 cluster.embedding_servers=3  # on three servers",
    "persia eval runs/criteo-20261121-081500 --data day_23                # on other files",
    "persia eval runs/criteo-20261121-081500 --step 3000                  # the model of that step",
    "persia eval runs/criteo-20261121-081500 --test --json                # the test samples, one JSON object",
    "persia eval runs/movies-20261121-081500 --retrieval --at 10 --at 100    # rank all items for each user",
    "persia eval runs/criteo-20261121-081500 --importance                 # the features that matter most",
)


def evaluate(
    run: Model,
    overrides: Changes = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Evaluate on all samples of these files instead of the run's own. May be given several times.",
        ),
    ] = None,
    step: Step = None,
    test: Annotated[
        bool, typer.Option("--test", help="Evaluate on the test samples that dataset.split sets aside.")
    ] = False,
    retrieval: Annotated[
        bool,
        typer.Option(
            "--retrieval", help="Rank all items for each user, by a model of two sides, in this process alone."
        ),
    ] = False,
    at: Annotated[
        list[int] | None,
        typer.Option(
            "--at",
            metavar="K",
            min=1,
            help="With --retrieval: length of the list (10, or what eval.retrieval says). Any number.",
        ),
    ] = None,
    keep_seen: Annotated[
        bool,
        typer.Option(
            "--keep-seen", help="With --retrieval: also rank and count items that a user has seen in training."
        ),
    ] = False,
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate",
            help="With --retrieval: also search approximately, by faiss, and report how much that finds, and how fast.",
        ),
    ] = False,
    importance: Annotated[
        bool, typer.Option("--importance", help="Measure the drop in AUC when samples exchange a feature's values.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a saved model, on any number of servers."""
    from persia_cli.commands.job_view import carry_out
    from persia_cli.commands.progress import SCREEN
    from persia_cli.errors import UserError
    from persia_cli.jobs.plan import other_data, plan_saved
    from persia_cli.jobs.run_dirs import claimed
    from persia_cli.observe.saved_run import find_model
    from persia_cli.storage.locations import location_of

    for option, is_given in {"--at": at, "--keep-seen": keep_seen, "--approximate": approximate}.items():
        if is_given and not retrieval:
            raise UserError(f"{option} belongs to --retrieval; give both, or none")
    if importance and retrieval:
        raise UserError("--importance and --retrieval are two evaluations; give one at a time")
    for text in overrides or []:
        if "=" not in text and not text.startswith("~"):
            raise UserError(f"'{text}' is not KEY=VALUE; other samples are given by --data {text}")
    if test and data:
        raise UserError("--test scores the run's own test samples; leave out --data")
    model = find_model(location_of(run), step)
    plan = plan_saved(
        model, "evaluate", [*(overrides or []), *(other_data(data, "eval") if data else [])], test=test, reporter=SCREEN
    )
    if retrieval:
        from persia_cli.commands.screen import say_json
        from persia_cli.retrieval.evaluation import judge
        from persia_cli.store.checkpoints.manifest import step_of

        cuts = sorted(set(at or plan.run.eval.lists or (10,)))
        judged = judge(plan.run, model.checkpoint, cuts, keep_seen, approximate)
        if as_json:
            say_json({"step": step_of(model.checkpoint), "keep_seen": keep_seen} | asdict(judged))
        else:
            _show(judged)
        _keep(judged, model, plan, keep_seen)
        return
    if importance:
        from persia_cli.commands.progress import counting
        from persia_cli.commands.screen import err, say_json
        from persia_cli.evaluation.importance import permutation_importance

        with counting(err(), "shuffling", "samples") as progress:
            found = permutation_importance(plan.run, model.checkpoint, progress)
        say_json(asdict(found)) if as_json else _show_importance(found)
        return
    carry_out(claimed(plan), as_json=as_json)


def _show(judged: "RetrievalMetrics") -> None:
    """Print the metrics of the model and of popularity."""
    from persia_cli.commands.screen import out, say
    from persia_cli.commands.tables import columns, print_table

    rows = {"model": judged.model, "popularity": judged.popularity}
    if judged.approximate:
        rows["approximate"] = judged.approximate.metrics
    seen = f"{judged.seen_share:.1%} of relevant pairs seen in training"
    table = columns(f"{judged.queries:,} queries, {judged.items:,} items, {seen}", *judged.model)
    for name, metrics in rows.items():
        table.add_row(name, *(f"{value:.6f}" for value in metrics.values()))
    print_table(out(), table)
    if judged.approximate:
        speeds = (f"{name} {value:,.3f}" for name, value in _speeds(judged.approximate).items())
        say(out(), f"approximate search: {', '.join(speeds)}")


def _show_importance(importance: "Importance") -> None:
    """Print all features, the most important one first: how much worse each metric is without it, and the error."""
    from persia_cli.commands.screen import err, labelled, out
    from persia_cli.commands.tables import columns, print_table

    whole = ", ".join(f"{name} {value:.6f}" for name, value in importance.metrics.items())
    labelled(err(), "model", f"{whole} on {importance.samples:,} samples, before these exchange values")
    table = columns("feature", *(f"{name} {what}" for name in importance.metrics for what in ("worse by", "error")))
    for feature in importance.features:
        values = (f"{value[name]:.6f}" for name in importance.metrics for value in (feature.worse, feature.error))
        table.add_row(feature.name, *values)
    print_table(out(), table)


def _speeds(search: "ApproximateMetrics") -> dict[str, float]:
    speeds = {"queries_per_s": search.queries_per_s, "exact_queries_per_s": search.exact_queries_per_s}
    return search.search_recall | speeds | {"build_s": search.build_s}


def _keep(judged: "RetrievalMetrics", model: "SavedModel", plan: "JobPlan", keep_seen: bool) -> None:
    """Write the metrics and the configuration into a new folder of the run's evaluations; raises DiskError."""
    from persia_cli.commands.screen import err, labelled
    from persia_cli.config.record import write_run
    from persia_cli.disk import write_whole
    from persia_cli.jobs.run_dirs import claimed
    from persia_cli.observe.history import CONFIG
    from persia_cli.store.checkpoints.manifest import step_of

    folder = claimed(plan).run_dir
    write_run(plan.run, folder / CONFIG)
    content = {"step": step_of(model.checkpoint), "keep_seen": keep_seen} | asdict(judged)
    write_whole(folder / RETRIEVAL, json.dumps(content, indent=2, allow_nan=False) + "\n")
    labelled(err(), "figures", f"{folder / RETRIEVAL}")
