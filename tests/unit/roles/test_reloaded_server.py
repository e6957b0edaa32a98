"""An embedding server whose rows are of a checkpoint, while its ranks are further: which updates it applies."""

from dataclasses import replace

import numpy as np

from persia_cli.control.position import TRAIN
from persia_cli.plan.job import Reload
from persia_cli.store.wire_rows import decode_rows
from persia_cli.wire.figures import LOST, SINCE
from persia_cli.wire.messages import Ack, GroupGradients, GroupKeys, LookUp, Update
from persia_cli.wire.parts import BatchId
from tests.support.alone import alone
from tests.support.stranger import Stranger
from tests.unit.roles.test_exactly_once import (
    DIM,
    GRADIENTS,
    KEYS,
    RATE,
    TABLES,
    job_of,
    rows_at,
    run_of,
)

SINCE_STEP, FINISHED = 2, 3
STALENESS = 2


def look_up(step: int, finished: int) -> LookUp:
    return LookUp(BatchId(0, TRAIN, step, 0), True, finished, [GroupKeys(KEYS, TABLES)])


def update(step: int, finished: int) -> Update:
    return Update(BatchId(0, TRAIN, step, 0), finished, 0, [GroupGradients(KEYS, TABLES, GRADIENTS)])


def test_updates_that_come_again_are_applied_and_the_others_are_counted() -> None:
    run = run_of("hybrid")
    run = run.model_copy(update={"mode": run.mode.model_copy(update={"staleness": STALENESS})})
    with alone(run, job_of()) as roles, Stranger(roles.servers[0], roles.token) as stranger:
        initial = rows_at(stranger, BatchId(0, TRAIN, 0, 0))
        stranger.is_refused("counts the steps before 1 as finished", update(1, 1))

    reload = Reload(finished=FINISHED, is_drained=False, number=1, saved=0, hits=70, misses=20, evicted=0)
    job = replace(job_of(), first_step=SINCE_STEP, reload=reload)
    step = decode_rows(GRADIENTS, DIM, "float32") * RATE
    with alone(run, job) as roles, Stranger(roles.servers[0], roles.token) as stranger:
        [link, *_] = roles.links
        # Its look-up was answered by the process before, with rows that this one does not have yet.
        assert stranger.ask(update(5, 4)) == Ack()
        reply = stranger.ask_for(look_up(6, 5))
        # Up to step 4 all is finished and lost, step 5 is applied: the rows of step 6 are fresh.
        assert reply.watermark == 5
        assert (reply.totals.hits, reply.totals.misses) == (70 + 3, 20 + 3)
        np.testing.assert_allclose(decode_rows(reply.groups[0].rows, DIM, "float32"), initial - step, rtol=1e-5)
        assert link.figures().updates[SINCE] == SINCE_STEP
        for again in range(2):
            assert stranger.ask(update(6, 5)) == Ack()
            assert link.figures().updates["repeated"] == again
        assert LOST not in link.figures().updates
        for later in range(7, 10):
            rows = stranger.ask_for(look_up(later, later)).groups[0].rows
            stranger.ask_for(update(later, later))
        np.testing.assert_allclose(decode_rows(rows, DIM, "float32"), initial - 4 * step, rtol=1e-5)
        updates = link.figures().updates
        assert (updates["applied"], updates[LOST]) == (5, 3)
        stranger.is_refused("counts the steps before 10 as finished", update(9, 10))
