"""Servers' accounts of updates: what is in the model, how often, and what was taken back."""

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from persia_cli.control.watermarks import Watermarks
from persia_cli.drill.account import ServerAccount, account_of, close_accounts, last_step, open_accounts, read_entries
from persia_cli.drill.counting import count_updates, read_all, surely_applied
from persia_cli.roles.update_account import APPLIED, BEGUN, FOLDER, FRESH, KEPT, SUFFIX, UpdateAccount

NAME = "embedding-server-0"
RANKS = 2


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    open_accounts(tmp_path)
    return tmp_path


def process(run_dir: Path, watermarks: Watermarks | None = None) -> UpdateAccount:
    return UpdateAccount(str(run_dir), NAME, watermarks or Watermarks(RANKS))


def apply(account: UpdateAccount, step: int, *ranks: int, before: int = 0) -> None:
    account.note(BEGUN, step, ranks, before)
    account.note(APPLIED, step, ranks)


def read(run_dir: Path) -> ServerAccount:
    return account_of(NAME, *read_entries(run_dir / FOLDER / f"{NAME}{SUFFIX}"))


def test_without_the_folder_nothing_is_written(tmp_path):
    account = process(tmp_path)
    account.start(FRESH, -1)
    account.look()
    apply(account, 0, 0)
    assert list(tmp_path.iterdir()) == []
    assert read(tmp_path).applied == {}
    assert last_step(tmp_path, [NAME]) == -1


def test_each_update_counts_once_and_what_is_missing_is_named(run_dir):
    account = process(run_dir)
    account.start(FRESH, -1)
    for step in (0, 1, 3):
        apply(account, step, 0)
    found = read(run_dir)
    assert found.applied == Counter({(0, 0): 1, (0, 1): 1, (0, 3): 1})
    assert found.twice() == []
    assert found.missing(0, 0, 4) == [(0, 2)]
    assert found.missing(1, 0, 2) == [(1, 0), (1, 1)]
    assert last_step(run_dir, [NAME]) == 3


def test_an_update_that_is_applied_twice_is_found(run_dir):
    account = process(run_dir)
    account.start(FRESH, -1)
    apply(account, 0, 0, 1)
    apply(account, 0, 1)
    assert read(run_dir).twice() == [(1, 0)]


def test_one_that_was_applied_before_the_account_began_is_found_too(run_dir):
    watermarks = Watermarks(RANKS, last_step=9)
    watermarks.windows[1].mark(12)
    account = process(run_dir, watermarks)
    account.look()
    apply(account, 10, 0)
    apply(account, 9, 0)
    apply(account, 12, 1)
    found = read(run_dir)
    assert found.twice() == [(0, 9), (1, 12)]
    assert found.missing(0, 0, 11) == []
    assert found.missing(1, 0, 13) == [(1, 10), (1, 11)]


def test_a_process_with_the_rows_of_a_checkpoint_takes_back_what_came_after_it(run_dir):
    first = process(run_dir)
    first.start(FRESH, -1)
    for step in range(6):
        apply(first, step, 0)
    second = process(run_dir, Watermarks(RANKS, last_step=2))
    second.start(FRESH, 2)
    for step in (3, 4):
        apply(second, step, 0)
    found = read(run_dir)
    assert found.taken_back == {(0, 3), (0, 4), (0, 5)}
    assert found.twice() == []
    assert found.missing(0, 0, 6) == [(0, 5)]
    assert found.processes == 2
    counts = count_updates(read_all(run_dir, [NAME]), 1, 0, 6)
    assert (counts.taken_back, counts.lost, counts.steps_again) == (3, 1, 2)


@pytest.mark.parametrize("applied", [True, False])
def test_the_memory_says_whether_an_update_was_applied_at_which_its_process_died(run_dir, applied):
    first = process(run_dir)
    first.start(FRESH, -1)
    apply(first, 0, 0, before=0)
    first.note(BEGUN, 1, [0], 1)
    process(run_dir).start(KEPT, -1, 2 if applied else 1)
    assert read(run_dir).missing(0, 0, 2) == ([] if applied else [(0, 1)])
    second = process(run_dir)
    second.look()
    apply(second, 1, 0, before=1)
    assert read(run_dir).twice() == ([(0, 1)] if applied else [])


def test_an_account_ends_with_its_folder_and_another_begins_with_another(run_dir):
    account = process(run_dir)
    account.look()
    apply(account, 0, 0)
    close_accounts(run_dir)
    account.look()
    apply(account, 1, 0)
    assert not (run_dir / "drill").exists()
    open_accounts(run_dir)
    account.look()
    apply(account, 2, 0)
    assert set(read(run_dir).applied) == {(0, 2)}


def test_what_a_killed_process_wrote_is_there(run_dir):
    child = os.fork()
    if not child:
        account = process(run_dir)
        account.start(FRESH, -1)
        step = 0
        while True:
            apply(account, step, 0)
            step += 1
    while last_step(run_dir, [NAME]) < 1000:
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = read(run_dir)
    last = last_step(run_dir, [NAME])
    assert last >= 1000
    assert found.missing(0, 0, last + 1) == []
    assert found.twice() == []


@pytest.mark.parametrize("seed", range(20))
def test_any_life_is_counted_as_by_a_twin_that_keeps_the_model(run_dir, seed):
    """The twin has, for each update, how often it is in the model, and in each checkpoint."""
    draw = random.Random(seed)
    model: Counter[tuple[int, int]] = Counter()
    saved = {-1: model.copy()}
    number, step = 0, 0
    account = process(run_dir)
    account.start(FRESH, -1)
    for _ in range(200):
        match draw.choices(("step", "twice", "lost", "save", "back", "killed"), (60, 2, 2, 5, 2, 5))[0]:
            case "step" | "twice" as event:
                for _ in range(2 if event == "twice" else 1):
                    apply(account, step, 0, 1, before=number)
                    model[0, step] += 1
                    model[1, step] += 1
                    number += 1
                step += 1
            case "lost":
                step += 1
            case "save":
                saved[step - 1] = Counter({update: times for update, times in model.items() if update[1] < step})
            case "back":
                base = draw.choice(list(saved))
                saved = {at: rows for at, rows in saved.items() if at <= base}
                model, step, number = saved[base].copy(), base + 1, 0
                account = process(run_dir, Watermarks(RANKS, last_step=base))
                account.start(FRESH, base)
            case "killed":
                account.note(BEGUN, step, [0], number)
                if draw.random() < 0.5:
                    model[0, step] += 1
                    number += 1
                account = process(run_dir)
                account.start(KEPT, -1, number)
    found = read(run_dir)
    assert found.applied == model
    counts = count_updates(read_all(run_dir, [NAME]), RANKS, 0, step)
    assert counts.applied == len(model)
    assert counts.twice == sum(times > 1 for times in model.values())
    assert counts.lost == sum((rank, each) not in model for rank in range(RANKS) for each in range(step))


def test_steps_of_a_job_that_goes_on_are_expected_once_their_permits_are_back(run_dir):
    account = process(run_dir)
    account.start(FRESH, -1)
    for step in range(10):
        apply(account, step, 0)
    for step in range(7):
        apply(account, step, 1)
    assert surely_applied([read(run_dir)], RANKS, 3) == 4
    assert surely_applied([read(run_dir)], 3, 3) == 0


def test_what_has_no_room_is_counted(run_dir, monkeypatch):
    monkeypatch.setattr("persia_cli.roles.update_account.MOST", 8)
    account = process(run_dir)
    account.start(FRESH, -1)
    for step in range(8):
        apply(account, step, 0)
    assert read(run_dir).left_out == 16 + 1 + RANKS - 8
