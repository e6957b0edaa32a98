"""`persia checkpoint gc` removes unused checkpoints, announces it before, and never leaves half a checkpoint."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest

from persia_cli.observe.journal import EVENTS
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, MANIFEST, write_checked
from persia_cli.store.checkpoints.retention import BEST, BestNote
from tests.support.runs import make_run
from tests.support.saved_rows import made_up_rows, write_run

STEPS = (3, 6, 9, 12, 20)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with five checkpoints, of which that of step 6 is the best, and one that was not finished."""
    for step in STEPS:
        write_run(tmp_path / f"run-{step}", make_run(), step, [made_up_rows(20, 8, step, ("a", "b"))])
    run = tmp_path / "run-20"
    for step in STEPS[:-1]:
        shutil.move(tmp_path / f"run-{step}" / CHECKPOINTS / f"step-{step}", run / CHECKPOINTS)
    write_checked(run / CHECKPOINTS / BEST, BestNote(6, "auc", 0.7))
    (run / CHECKPOINTS / "step-30.partial").mkdir()
    (run / CHECKPOINTS / "step-30.partial" / "half").write_bytes(bytes(500))
    return run


def there(run: Path) -> list[str]:
    return sorted(path.name for path in (run / CHECKPOINTS).iterdir() if path.name != BEST)


def folders(*steps: int) -> list[str]:
    return sorted(f"step-{step}" for step in steps)


def test_nothing_is_removed_with_dry_run_or_without_a_terminal(persia, run: Path) -> None:
    before = there(run)
    ended = persia("checkpoint", "gc", str(run), "--keep", "1", "--dry-run")
    assert (ended.code, there(run)) == (0, before)
    gone = [line for line in ended.out.splitlines() if line.startswith("goes=")]
    assert [Path(line.split()[0]).name for line in gone] == ["step-30.partial", "step-3", "step-9", "step-12"]
    nbytes = sum(int(line.split()[1].removeprefix("nbytes=")) for line in gone)
    assert nbytes == 500 + sum(
        path.stat().st_size for step in (3, 9, 12) for path in (run / CHECKPOINTS / f"step-{step}").rglob("*.*")
        if path.is_file()
    )  # fmt: skip
    ended = persia("checkpoint", "gc", str(run), "--keep", "1")
    assert (ended.code, there(run)) == (2, before)
    assert "--yes" in ended.err


@pytest.mark.parametrize(("keep", "stay"), [(1, (6, 20)), (2, (6, 12, 20)), (4, (6, 9, 12, 20)), (9, STEPS)])
def test_the_best_and_the_newest_stay(persia, run: Path, keep: int, stay: tuple[int, ...]) -> None:
    ended = persia("checkpoint", "gc", str(run), "--keep", str(keep), "--yes")
    assert (ended.code, there(run)) == (0, folders(*stay)), ended.err
    assert json.loads(persia("checkpoint", "ls", str(run), "--json").out)["leftovers"] == []


def test_one_that_was_saved_again_after_half_a_removal_goes_too(persia, run: Path) -> None:
    from persia_cli.storage import places

    (run / CHECKPOINTS / "step-3.removed").mkdir()
    (run / CHECKPOINTS / "step-3.removed" / "half").touch()
    places.remove(run / CHECKPOINTS / "step-3", MANIFEST)
    assert not {"step-3", "step-3.removed"} & set(there(run))
    (run / CHECKPOINTS / "step-9.removed").mkdir()
    (run / CHECKPOINTS / "step-9.removed" / "half").touch()
    ended = persia("checkpoint", "gc", str(run), "--keep", "1", "--yes")
    assert (ended.code, there(run)) == (0, folders(6, 20)), ended.err


def test_without_keep_that_of_the_run_holds(persia, run: Path) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("keep: 3", "keep: null"))
    assert persia("checkpoint", "gc", str(run), "--yes").code == 0
    assert there(run) == folders(*STEPS)
    config.write_text(config.read_text().replace("keep: null", "keep: 2"))
    assert persia("checkpoint", "gc", str(run), "--yes").code == 0
    assert there(run) == folders(6, 12, 20)


def test_one_that_is_whole_stays_if_the_newest_is_damaged(persia, run: Path) -> None:
    (run / CHECKPOINTS / "step-20" / MANIFEST).write_text("{}")
    assert persia("checkpoint", "gc", str(run), "--keep", "1", "--yes").code == 0
    assert there(run) == folders(6, 12, 20)


def test_nothing_goes_while_the_best_is_not_known(persia, run: Path) -> None:
    (run / CHECKPOINTS / BEST).write_text("{}")
    before = there(run)
    assert (persia("checkpoint", "gc", str(run), "--keep", "1", "--yes").code, there(run)) == (2, before)


@pytest.mark.parametrize("journal", [EVENTS, f"evals/now/{EVENTS}", f"predictions/now/{EVENTS}"])
def test_nothing_goes_while_a_job_uses_the_run(persia, run: Path, journal: str) -> None:
    before = there(run)
    (run / journal).parent.mkdir(parents=True, exist_ok=True)
    with (run / journal).open("w") as events:
        fcntl.flock(events, fcntl.LOCK_EX)
        ended = persia("checkpoint", "gc", str(run), "--keep", "1", "--yes")
    assert (ended.code, there(run)) == (2, before)
    assert persia("checkpoint", "gc", str(run), "--keep", "1", "--yes").code == 0


def test_nothing_goes_while_the_run_is_being_resumed(persia, run: Path) -> None:
    from persia_cli.engines.resumed import locked

    before = there(run)
    with locked(run):
        ended = persia("checkpoint", "gc", str(run), "--keep", "1", "--yes")
    assert (ended.code, there(run)) == (2, before)


def test_a_removal_that_ends_half_way_leaves_nothing_that_looks_complete(
    persia, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shutil.rmtree

    def dies(path: Path) -> None:
        if path.name.startswith("step-9"):
            raise OSError(5, "Input/output error")
        whole(path)

    monkeypatch.setattr(shutil, "rmtree", dies)
    ended = persia("checkpoint", "gc", str(run), "--keep", "1", "--yes")
    assert ended.code == 2
    assert "step-9" in ended.err
    found = json.loads(persia("checkpoint", "ls", str(run), "--json").out)
    assert [each["step"] for each in found["checkpoints"]] == [3, 6, 20]
    assert {Path(left["path"]).name for left in found["leftovers"]} == {"step-9.removed", "step-30.partial"}
    monkeypatch.undo()
    assert persia("checkpoint", "gc", str(run), "--keep", "1", "--yes").code == 0
    assert there(run) == folders(6, 20)
