"""The memory of a rank: who gets one, what a death at a step means, and that a save comes back whole."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from persia_cli.errors import ConfigError, MemoryFileError, PoisonError
from persia_cli.plan.job import JobPlan
from persia_cli.roles import rank_memory
from persia_cli.roles.rank_memory import RankMemory, wants_memory
from persia_cli.store.memory_file import new_file
from persia_cli.train.dense_trainer import DenseTrainer
from persia_cli.train.distributed import World
from tests.support.jobs import plan
from tests.support.small import WORDS


@pytest.fixture
def file() -> Iterator[int]:
    number = new_file("rank")
    yield number
    os.close(number)


@pytest.fixture
def planned(tmp_path: Path) -> JobPlan:
    return plan(WORDS, tmp_path / "run")


def lives(file: int, job: JobPlan, trainer: DenseTrainer) -> RankMemory:
    """The memory of the next process."""
    return RankMemory(file, job.run, job.job, trainer, 0, 2)


def test_two_deaths_in_one_step_are_poison_and_others_are_not(file: int, planned: JobPlan) -> None:
    trainer = DenseTrainer(planned.run, World())
    memory = lives(file, planned, trainer)
    memory.note_state(0, trainer)
    memory.serve()

    def dies_in(step: int, following: int, of_its_own: bool = False) -> int:
        nonlocal memory
        memory.begin(step)
        if of_its_own:
            memory.leave()
        del memory
        memory = lives(file, planned, trainer)
        assert memory.is_taken_over
        return memory.count_death(following)

    assert dies_in(4, following=5) == 0  # between two steps
    assert dies_in(5, following=5) == 1
    assert dies_in(6, following=5) == 2  # another rank had not committed step 5
    assert dies_in(6, following=6, of_its_own=True) == 1
    with pytest.raises(PoisonError, match="2 processes have died in the same training step 6: its batch is poison"):
        dies_in(6, following=6)


def test_a_save_is_there_until_the_coordinator_knows_of_it(file: int, planned: JobPlan) -> None:
    trainer = DenseTrainer(planned.run, World())
    memory = lives(file, planned, trainer)
    memory.note_state(0, trainer)
    memory.serve()
    saved = memory.keep_save("run/step-7", 7, 11, trainer)
    memory.note_state(1, trainer)
    del memory
    memory = lives(file, planned, trainer)
    found = memory.unfinished_save()
    assert found is not None
    assert (found.folder, found.step, found.number) == ("run/step-7", 7, 11)
    assert [each.name for each in found.files] == [each.name for each in saved]
    for one, other in zip(found.files, saved, strict=True):
        assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())
    memory.end_save(6)
    assert memory.unfinished_save() is not None
    memory.end_save(7)
    assert memory.unfinished_save() is None


def test_memory_that_is_not_whole_is_begun_anew_and_that_of_another_job_refused(
    file: int, planned: JobPlan, tmp_path: Path
) -> None:
    trainer = DenseTrainer(planned.run, World())
    memory = lives(file, planned, trainer)
    memory.note_state(0, trainer)  # and it dies before it says so
    del memory
    memory = lives(file, planned, trainer)
    assert not memory.is_taken_over
    memory.serve()
    del memory
    other = plan([*WORDS, "seed=9"], tmp_path / "other")
    with pytest.raises(MemoryFileError, match="another layout"):
        lives(file, other, trainer)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], True),
        (["mode=hybrid"], False),  # gradients would leave later than they could
        (["mode=hybrid", "recovery.dense_memory=every_step"], True),
        (["recovery.dense_memory=off"], False),
        (["model.hidden=[2048,2048]"], False),
        (["model.hidden=[2048,2048]", "recovery.dense_memory=every_step"], True),
        (["model.hidden=[512,512]"], False),  # a copy would take as long as the step
        (["model.hidden=[512,512]", "train.batch_size=512"], True),
        (["model.hidden=[512,512]", "train.batch_size=512", "cluster.nn_workers=4"], False),
    ],
)
def test_auto_is_for_networks_whose_copy_costs_little(tmp_path: Path, words: list[str], wanted: bool) -> None:
    job = plan([*WORDS, *words], tmp_path / "run")
    assert wants_memory(job.run, job.job, 0, DenseTrainer(job.run, World()).state) == wanted


def test_a_gpu_keeps_nothing(planned: JobPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = DenseTrainer(planned.run, World())
    monkeypatch.setattr(rank_memory, "device_of", lambda run, rank: torch.device("cuda", 0))
    assert not wants_memory(planned.run, planned.job, 0, trainer.state)
    forced = plan([*WORDS, "recovery.dense_memory=every_step"], tmp_path / "forced")
    with pytest.raises(ConfigError, match=r"nn-worker-0 trains on cuda:0; use auto or off, or train\.device=cpu"):
        wants_memory(forced.run, forced.job, 0, trainer.state)


DRIFTING = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape.dense + sum(feature.dim for feature in shape.pooled), shape.tasks)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, batch):
        self.seen = self.seen + 1  # another tensor, where most networks change the one they have
        return self.layer(torch.cat([batch.dense, *(group.flatten(1) for group in batch.groups)], dim=1))
"""


def drift(trainer: DenseTrainer) -> None:
    """Call the network as a step does."""
    before = trainer.state()[0].tensors["seen"].clone()
    module = trainer._module
    module.seen = module.seen + 1
    assert not torch.equal(trainer.state()[0].tensors["seen"], before)


def test_a_network_that_puts_another_tensor_in_the_place_of_a_buffer_is_kept_too(file: int, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(DRIFTING)
    model = f"model={{kind: custom, dim: 4, file: {tmp_path / 'net.py'}, name: Net, args: {{}}}}"
    job = plan([*WORDS, model], tmp_path / "run")
    trainer = DenseTrainer(job.run, World())
    memory = lives(file, job, trainer)
    for step in range(4):
        memory.note_state(step, trainer)
        kept = {name: value for each in memory.slots.read(step).values() for name, value in each.tensors.items()}
        live = {name: value for each in trainer.state() for name, value in each.tensors.items()}
        assert kept.keys() == live.keys()
        assert all(torch.equal(kept[name], live[name]) for name in live)
        drift(trainer)
