"""The job that a benchmark makes of a run: it trains without stops, and touches no place of the run's own."""

from persia_cli.bench.rounds import without_ends
from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect


def test_a_measured_job_saves_nothing_and_claims_no_place() -> None:
    words = ["conf=synthetic", "checkpoint.path=/saved", "checkpoint.every_steps=5"]
    run = compose_run(words)
    checkpoint = without_ends(run, inspect(run.dataset), 10, 5).checkpoint
    assert (checkpoint.at_end, checkpoint.every_steps, checkpoint.path) == (False, None, None)
