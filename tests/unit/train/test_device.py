"""The device of a rank: chosen by name, refused where it is not there."""

import numpy as np
import pytest
import torch

from persia_cli.errors import ConfigError
from persia_cli.train.device import CPU, Copier, choose_device, drawing_from


@pytest.fixture
def devices(monkeypatch):
    """Let torch see so many CUDA devices."""

    def see(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return see


@pytest.mark.parametrize(
    ("name", "count", "rank", "chosen"),
    [
        ("cpu", 2, 0, "cpu"),
        ("auto", 0, 0, "cpu"),
        ("auto", 2, 0, "cuda:0"),
        ("auto", 2, 3, "cuda:1"),
        ("cuda", 2, 1, "cuda:1"),
        ("cuda", 1, 1, "cuda:0"),
        ("cuda:1", 2, 0, "cuda:1"),
    ],
)
def test_a_rank_gets_the_device_it_is_named(devices, name, count, rank, chosen):
    devices(count)
    assert choose_device(name, rank) == torch.device(chosen)


@pytest.mark.parametrize(
    ("name", "count", "sentence"),
    [
        ("cuda", 0, "train.device=cuda: torch sees no CUDA device here; use train.device=auto or cpu"),
        ("cuda:0", 0, "train.device=cuda:0: torch sees no CUDA device"),
        ("cuda:2", 2, "train.device=cuda:2: torch sees 2 CUDA devices, numbered from 0; use"),
    ],
)
def test_a_device_that_is_not_there_is_refused(devices, name, count, sentence):
    devices(count)
    with pytest.raises(ConfigError, match=sentence):
        choose_device(name, 0)


def test_random_numbers_follow_from_the_seed_and_leave_the_others_alone():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    drawn = []
    for seed in (5, 5, 6):
        with drawing_from(seed, CPU):
            drawn.append(torch.rand(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_copies_have_memory_of_their_own_and_come_back():
    copier = Copier(CPU)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    array.flags.writeable = False
    there = copier.copy(array)
    copier.join()
    there += 1
    assert array[0, 0] == 0
    (back,) = copier.fetch([there])
    assert np.array_equal(back, array + 1)
    assert back.flags.c_contiguous
