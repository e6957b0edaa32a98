"""The manifest that the coordinator gives a checkpoint."""

from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.roles.checkpointing import Checkpointing
from persia_cli.store.manifest import read_manifest
from tests.support.runs import make_run


def test_the_manifest_tells_of_every_table_and_of_the_run(tmp_path: Path) -> None:
    tables = {"b": {"dim": 4, "dtype": "float16"}, "c": {"share": 0.5, "hash_stack": {"rounds": 2, "size": 9}}}
    run = make_run(["a", "b", "c", "d"], embedding={"dtype": "bfloat16", "tables": tables}, seed=3)
    checkpointing = Checkpointing(run, tmp_path)
    checkpointing.begin(7)
    saved = checkpointing.publish(7, 224)
    assert (saved["step"], saved["rows"], saved["nbytes"]) == (7, 0, 0)
    manifest = read_manifest(Path(saved["path"]))
    assert manifest.tables == [
        {"name": "a", "dim": 8, "dtype": "bfloat16", "group": 0},
        {"name": "d", "dim": 8, "dtype": "bfloat16", "group": 0},
        {"name": "b", "dim": 4, "dtype": "float16", "group": 1},
        {"name": "c", "dim": 8, "dtype": "bfloat16", "group": 2},
    ]
    assert (manifest.step, manifest.samples, manifest.seed) == (7, 224, 3)
    assert Run.model_validate(manifest.config) == run
