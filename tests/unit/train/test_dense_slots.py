"""Dense state in a memory file: what a slot has is what a checkpoint has, and one slot is always whole."""

import json
import os
from typing import Any

import pytest
import torch

from persia_cli.errors import MemoryFileError
from persia_cli.kernels.memory import HUGE_PAGE
from persia_cli.store.memory_file import SERVING, MemoryFile, new_file
from persia_cli.train.dense_slots import DESCRIPTION_BYTES, DenseSlot, DenseSlots, slot_bytes
from persia_cli.train.dense_state import dense_state, restore_dense
from persia_cli.train.precision import LossScale
from tests.support.dense import dense_files
from tests.unit.train.test_dense_state import CONFIGS, advance, built, equal


@pytest.fixture
def file():
    number = new_file("dense")
    yield number
    os.close(number)


def slots_in(file: int, nbytes: int, keep: bool = False) -> list[Any]:
    memory = MemoryFile(file, "a test", 2 * (nbytes + DESCRIPTION_BYTES) + 8 * HUGE_PAGE, keep)
    return [memory, DenseSlots(memory.array, nbytes)]


def taken_over(file: int, kept: list[Any], nbytes: int) -> DenseSlots:
    """The slots as the next process sees them; `kept` are the first one's, and are closed."""
    memory = kept[0]
    memory.state = SERVING
    memory.close()
    kept.clear()
    del memory
    slots: DenseSlots = slots_in(file, nbytes, keep=True)[1]
    return slots


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
@pytest.mark.parametrize("scale", [None, {"scale": 1024.0, "skipped": 3, "good": 7}])
def test_a_slot_has_what_a_checkpoint_has(file, config, scale):
    module, optimizer = built(config, seed=1)
    nbytes = slot_bytes(dense_state(module, optimizer))
    kept = slots_in(file, nbytes)
    advance(module, optimizer, 3)
    kept[1].write(3, dense_state(module, optimizer, scale))
    saved = dense_files(module, optimizer, scale)
    advance(module, optimizer, 2)
    found = taken_over(file, kept, nbytes).read(3)
    assert list(found) == [each.name for each in saved]
    for each in saved:
        assert json.dumps(found[each.name].record) == json.dumps(each.record)  # as a file has it
        assert list(found[each.name].tensors) == list(each.tensors)
        for name, tensor in each.tensors.items():
            same = found[each.name].tensors[name]
            assert (same.dtype, same.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(same, tensor)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_what_was_kept_goes_on_identically_and_alone(file, config):
    module, optimizer = built(config, seed=1)
    nbytes = slot_bytes(dense_state(module, optimizer))
    kept = slots_in(file, nbytes)
    state = None
    for step in range(4):
        if step < 2:
            state = dense_state(module, optimizer)  # from then on the optimizer has all its tensors
        kept[1].write(step, state)
        if step < 3:
            advance(module, optimizer, 1)
    slots = taken_over(file, kept, nbytes)
    again, restored = built(config, seed=2)
    restore_dense(slots.read(3), again, restored)
    assert equal(module, again)
    slots.write(4, dense_state(*built(config, seed=5)))  # what was read does not lie in the slots
    slots.write(5, dense_state(*built(config, seed=5)))
    advance(module, optimizer, 3)
    advance(again, restored, 3)
    assert equal(module, again)


def test_a_process_that_dies_while_it_writes_leaves_the_step_before(file, monkeypatch):
    module, optimizer = built(CONFIGS[2], seed=1)
    nbytes = slot_bytes(dense_state(module, optimizer))
    kept = slots_in(file, nbytes)
    kept[1].write(7, dense_state(module, optimizer))
    before = dense_files(module, optimizer)
    advance(module, optimizer, 1)
    monkeypatch.setattr(torch, "_foreach_copy_", lambda targets, sources: (targets[0].fill_(9.0), killed())[0])
    with pytest.raises(RuntimeError, match="killed"):
        kept[1].write(8, dense_state(module, optimizer))
    slots = taken_over(file, kept, nbytes)
    assert slots.steps == [7]
    assert torch.equal(slots.read(7)[before[0].name].tensors["first.weight"], before[0].tensors["first.weight"])


def killed() -> None:
    raise RuntimeError("killed")


def test_both_steps_are_there_until_one_is_chosen(file):
    module, optimizer = built(CONFIGS[0], seed=1)
    nbytes = slot_bytes(dense_state(module, optimizer))
    kept = slots_in(file, nbytes)
    for step in (4, 5, 6):
        kept[1].write(step, dense_state(module, optimizer))
    slots = taken_over(file, kept, nbytes)
    assert slots.steps == [5, 6]
    slots.read(5)
    assert slots.steps == [5]  # other ranks do step 5 again: what this one had of step 6 is no more


def test_what_cannot_be_kept_is_refused(file):
    module, optimizer = built(CONFIGS[0], seed=1)
    memory = MemoryFile(file, "a test", DESCRIPTION_BYTES + 4 * HUGE_PAGE, False)
    slot = DenseSlot(memory.array, 64)
    with pytest.raises(MemoryError, match="more than 64 bytes"):
        slot.write(1, dense_state(module, optimizer))
    assert slot.next is None
    with pytest.raises(MemoryFileError, match=r"torch\.complex64"):
        slot.write(1, [dense_state(module, optimizer)[0]._replace(tensors={"odd": torch.zeros(2, dtype=torch.cfloat)})])


def test_the_list_has_every_number_that_training_changes():
    """Whoever gives a loss scale another number must put it into `state`, or it is in neither checkpoint nor slot."""
    scale = LossScale()
    assert {name.lstrip("_") for name in vars(scale)} == set(scale.state())
