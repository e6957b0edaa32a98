"""The device of a rank: selected by name, refused if it is missing."""

import os

import pytest
import torch

from persia_cli.errors import ConfigError, UserError
from persia_cli.training.device import (
    choose_device,
    explained_full_memory,
    have_exclusive_gpus,
    prepare_torch,
)


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
        ("cuda", 0, "train.device=cuda: "),
        ("cuda:0", 0, "train.device=cuda:0: torch sees no CUDA device"),
        ("cuda:2", 2, "train.device=cuda:2: torch sees 2 CUDA devices"),
    ],
)
def test_a_device_that_is_not_there_is_refused(devices, name, count, sentence):
    devices(count)
    with pytest.raises(ConfigError, match=sentence):
        choose_device(name, 0)


@pytest.mark.parametrize(
    ("name", "count", "ranks", "own"),
    [
        ("auto", 2, 2, True),
        ("cuda", 4, 3, True),
        ("cuda", 1, 2, False),
        ("cuda:1", 2, 2, False),
        ("cpu", 2, 2, False),
        ("auto", 0, 2, False),
    ],
)
def test_ranks_that_may_share_a_gpu_have_no_own_device(devices, name, count, ranks, own):
    devices(count)
    assert have_exclusive_gpus(name, ranks) == own
    chosen = {choose_device(name, rank) for rank in range(ranks)} if count else set()
    assert not own or len(chosen) == ranks


def test_a_full_gpu_is_reported_with_a_remedy():
    words = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.18 GiB of which …"
    with pytest.raises(UserError, match=r"cuda:0 is full at train\.batch_size=8192 and dim 128: use") as raised:  # noqa: SIM117
        with explained_full_memory(torch.device("cuda:0"), 8192, 128):
            raise torch.OutOfMemoryError(words)
    assert str(raised.value).endswith("(CUDA out of memory. Tried to allocate 2.00 GiB)")


def test_a_full_host_is_reported_with_a_remedy() -> None:
    """Torch asks for 2^62 bytes; its other errors stay unchanged."""
    with pytest.raises(UserError, match=r"machine.*=4096"), explained_full_memory(torch.device("cpu"), 4096, 16):
        torch.empty(2**60, dtype=torch.float32)
    with pytest.raises(RuntimeError), explained_full_memory(torch.device("cpu"), 4096, 16):
        torch.ones(2) @ torch.ones(3)


def test_products_on_a_gpu_are_asked_to_be_reproducible(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    prepare_torch(torch.get_num_threads())
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] in (":4096:8", ":16:8")
