"""`persia checkpoint verify` prints every flaw, and its exit code tells flawless from damaged checkpoints."""

import json
from pathlib import Path

from persia_cli.store.checkpoints.manifest import CHECKPOINTS
from tests.support.runs import make_run
from tests.support.saved_rows import made_up_rows, write_run


def test_each_flaw_is_a_line_and_the_exit_code_is_that_of_a_damaged_checkpoint(persia, tmp_path: Path) -> None:
    """The checkpoint has rows but no dense weights, and rows in no order."""
    run = tmp_path / "run"
    write_run(run, make_run(), 9, [made_up_rows(50, 8, 9, ("a", "b"))])
    ended = persia("checkpoint", "verify", str(run))
    flaws = [line for line in ended.err.splitlines() if line.startswith("flaw")]
    assert ended.code == 2
    assert any("dense.safetensors is not in the checkpoint" in flaw for flaw in flaws)
    assert any("out of the order of keys" in flaw for flaw in flaws)
    assert ended.out.startswith(f"path={run / CHECKPOINTS / 'step-9'} step=9 rows=50")
    found = json.loads(persia("checkpoint", "verify", str(run / CHECKPOINTS / "step-9"), "--json").out)
    assert found["sound"] is False
    assert len(found["checkpoints"][0]["flaws"]) == len(flaws)
    for folder in (tmp_path / "conf", run / CHECKPOINTS):
        ended = persia("checkpoint", "verify", str(folder))
        assert (ended.code, ended.out) == (2, "")
