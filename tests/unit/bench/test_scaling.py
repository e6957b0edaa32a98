"""The replicas of a job that is scaled."""

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from scripts.measure.comparisons.scaling import counts_up_to, with_replicas


def test_replicas_are_pinned_in_turn_and_nn_workers_to_as_many_processors_as_threads() -> None:
    run = compose_run(["conf=criteo", "train.threads=2"])
    scaled = with_replicas(run, "embedding-worker", 2, [4, 5, 6, 7, 8])
    assert Run.model_validate_json(scaled.model_dump_json()) == scaled
    assert scaled.cluster.embedding_workers == 2
    assert scaled.cluster.pin == {  # type: ignore[union-attr]
        "embedding_server": ("4",),
        "embedding_worker": ("5", "6"),
        "data_loader": ("7",),
        "nn_worker": ("8,4",),
    }
    assert counts_up_to(6) == [2, 4, 6]
