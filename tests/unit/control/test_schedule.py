"""Phases: a schedule stops at every boundary and nowhere else; a phase ends when all have reported its end."""

from random import Random
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.control.phases import (
    PendingRequests,
    Phase,
    PhaseKind,
    PhaseMachine,
    in_turns,
    schedule,
)
from persia_cli.control.watermarks import Permits

EVERY = st.none() | st.integers(1, 40)


@given(st.integers(0, 100), st.integers(0, 7), EVERY, EVERY, st.booleans())
def test_a_schedule_stops_where_it_must(
    steps: int, eval_steps: int, eval_every: int | None, save_every: int | None, save_at_end: bool
) -> None:
    phases = list(schedule(steps, eval_steps, eval_every=eval_every, save_every=save_every, save_at_end=save_at_end))
    assert [phase.kind for phase in phases].count("done") == 1
    assert phases[-1] == Phase("done")

    trained = [phase for phase in phases if phase.kind == "training"]
    assert [step for phase in trained for step in range(phase.first, phase.last)] == list(range(steps))
    stops = {step for step in range(1, steps + 1) for every in (eval_every, save_every) if every and step % every == 0}
    assert [phase.last for phase in trained] == sorted(stops | ({steps} if steps else set()))

    position, evaluated, early, saved = 0, [], [], []
    for phase in phases:
        if phase.kind == "training":
            position = phase.last
        elif phase.kind == "evaluating":
            assert position not in saved, "a checkpoint has the evaluation at the same step"
            evaluated.append(position)
        elif phase.kind == "saving" and phase.evaluation_due:
            assert position == steps, "the last evaluation may fail"
            early.append(position)
        elif phase.kind == "saving":
            assert phase.last == position
            saved.append(position)
    assert early == ([steps] if steps and eval_steps and save_at_end else [])
    evaluations = [step for step in range(1, steps + 1) if step == steps or (eval_every and step % eval_every == 0)]
    assert evaluated == (evaluations if eval_steps else [])
    saves = {step for step in range(1, steps + 1) if save_every and step % save_every == 0}
    assert saved == sorted(saves | ({steps} if steps and save_at_end else set()))


RANKS = frozenset({"nn-worker-0", "nn-worker-1"})
PARTICIPANTS: dict[PhaseKind, frozenset[str]] = {
    "training": RANKS,
    "evaluating": RANKS,
    "saving": frozenset({"embedding-server-0", "nn-worker-0"}),
    "done": RANKS | {"embedding-server-0"},
}


@given(st.data())
def test_reports_in_any_order_and_number_lead_through_all_phases(data: st.DataObject) -> None:
    machine = PhaseMachine(schedule(6, 2, eval_every=3, save_every=2, save_at_end=True), PARTICIPANTS)
    kinds: list[Literal["training", "evaluating", "saving", "done"]] = []
    while not kinds or kinds[-1] != "done":
        kinds.append(machine.advance().kind)
        reports = data.draw(st.permutations(sorted(PARTICIPANTS[kinds[-1]]) * 2))
        for name, number in (("stranger-0", 0), (reports[0], -1), (reports[0], 1)):
            assert not machine.finish(name, machine.number + number), "of others, or of another phase"
        ended = [machine.finish(name, machine.number) for name in reports]
        assert ended.count(True) == 1
        assert set(reports[: ended.index(True) + 1]) == PARTICIPANTS[kinds[-1]]
        machine.writing.clear()
    assert kinds == [phase.kind for phase in schedule(6, 2, eval_every=3, save_every=2, save_at_end=True)]


def test_the_last_checkpoint_can_be_begun_anew_and_none_before() -> None:
    participants = {"training": RANKS, "saving": frozenset({"s", "t"}), "done": RANKS}
    machine = PhaseMachine(schedule(6, 0, save_every=3, save_at_end=True), participants)
    kinds: list[tuple[str, int]] = []
    again = 2
    while not kinds or kinds[-1][0] != "done":
        assert not machine.is_blocked
        assert not machine.is_last_save(3)
        if machine.is_last_save(6) and again:
            again -= 1
            machine.save_again()
        phase = machine.advance()
        kinds.append((phase.kind, phase.last))
        for name in sorted(machine.waiting):
            machine.finish(name, machine.number)
            machine.finish_writing(name, machine.saved_step)
    saved = ("saving", 6)
    assert kinds == [("training", 3), ("saving", 3), ("training", 6), saved, saved, saved, ("done", 0)]


def test_alternating_adds_a_pause_before_each_turn_and_nothing_else() -> None:
    phases = list(in_turns(schedule(7, 2, eval_every=5, save_at_end=True), 3))
    assert phases == [
        Phase("idle", last=0),
        Phase("training", 0, 3),
        Phase("idle", last=3),
        Phase("training", 3, 5),
        Phase("evaluating", 0, 2),
        Phase("idle", last=5),
        Phase("training", 5, 7),
        Phase("saving", last=7, evaluation_due=True),
        Phase("evaluating", 2, 4),
        Phase("saving", last=7),
        Phase("done"),
    ]


def test_a_checkpoint_and_the_end_wait_for_the_files_of_the_last_one() -> None:
    parts = frozenset({"embedding-server-0", "nn-worker-0"})
    taking_part: dict[PhaseKind, frozenset[str]] = {
        "training": frozenset({"nn-worker-0"}),
        "saving": parts,
        "done": parts,
    }
    machine = PhaseMachine(schedule(6, 0, save_every=3, save_at_end=True), taking_part)

    def finish_all() -> None:
        for name in sorted(machine.waiting):
            machine.finish(name, machine.number)

    for step in (3, 6):
        assert not machine.is_blocked
        assert machine.advance() == Phase("training", step - 3, step)
        finish_all()
        if step == 6:
            assert machine.is_blocked, "the checkpoint of step 3 is still written"
            assert not machine.finish_writing("nn-worker-0", 6), "of a checkpoint that has not begun"
            assert machine.finish_writing("nn-worker-0", 3)
            assert not machine.finish_writing("nn-worker-0", 3), "a repeat"
        assert not machine.is_blocked
        assert machine.advance() == Phase("saving", last=step)
        assert machine.finish_writing("embedding-server-0", step), "its files may be written before the phase is over"
        finish_all()
        assert not machine.begin_agreement(), "nothing is in progress that could be cut short"
        assert machine.is_blocked == (step == 6)
        if machine.is_blocked:
            assert machine.finish_writing("nn-worker-0", step)
            assert not machine.is_blocked
    assert machine.advance() == Phase("done")


@given(st.integers(1, 60), st.integers(0, 3), EVERY, EVERY, st.booleans(), st.data())
def test_requests_lose_no_step_and_save_none_twice(
    steps: int, eval_steps: int, eval_every: int | None, save_every: int | None, save_at_end: bool, data: st.DataObject
) -> None:
    """Over any number of lives, each ended by a signal at any moment: every step once, and each evaluation.

    The next life repeats an aborted evaluation before it trains.
    """
    trained: list[int] = []
    evaluated: list[int] = []
    first, due, saved = 0, False, -1
    for life in range(20):
        requests, here = PendingRequests(), set[tuple[int, bool]]()
        phases = schedule(
            *(steps, eval_steps),
            eval_every=eval_every,
            save_every=save_every,
            save_at_end=save_at_end,
            first=first,
            requests=requests,
            evaluation_due=due,
            is_saved=saved == first,
        )
        began, position = len(trained), first
        for phase in phases:
            if life < 19:
                requests.save = requests.save or data.draw(st.sampled_from([None, None, "request", "minutes"]))
                requests.end |= data.draw(st.integers(0, 5)) == 0
            if phase.kind in ("training", "evaluating") and (
                requests.end or (requests.save and phase.kind == "training")
            ):
                reached = data.draw(st.integers(phase.first, phase.last))
                phase.is_cut, phase.last = reached < phase.last, reached
            if phase.kind == "training":
                assert not due
                trained += range(phase.first, phase.last)
                position = phase.last
            elif phase.kind == "evaluating" and not phase.is_cut:
                evaluated.append(position)
                due = False
            elif phase.kind == "saving":
                assert phase.last == position
                assert (position, phase.evaluation_due) not in here
                here.add((position, phase.evaluation_due))
                first, due, saved = position, phase.evaluation_due, position
        assert phase.kind == "done"
        if phase.is_cut:
            assert requests.end
            assert len(trained) == began or first == position, "what was trained is saved"
        else:
            break
    assert not phase.is_cut
    assert trained == list(range(steps))
    expected = [step for step in range(1, steps + 1) if step == steps or (eval_every and step % eval_every == 0)]
    assert evaluated == (expected if eval_steps else [])


class Rank:
    """A rank that starts and finishes steps within its permits, and executes instructions in order."""

    def __init__(self, bound: int) -> None:
        self.permits = Permits(bound)
        self.inbox: list[tuple[int, str, int]] = []
        self.started: list[int] = []
        self.open = False

    def obey(self) -> tuple[int, int] | None:
        number, work, last = self.inbox.pop(0)
        if work == "hold":
            return number, self.permits.pause()
        if work == "begin" or self.open:
            self.open = True
            self.permits.begin(last)
        return None

    def work(self, draw: Random) -> None:
        if draw.random() < 0.5 and (step := self.permits.next_step()) is not None:
            self.started.append(step)
        unfinished = [step for step in self.started if not self.permits.finished.done(step)]
        if unfinished:
            self.permits.give_back(draw.choice(unfinished))


@settings(max_examples=100)
@given(st.integers(1, 4), st.integers(1, 5), st.booleans(), st.randoms(use_true_random=False))
def test_ranks_that_are_held_at_any_moment_end_at_one_step(ranks: int, bound: int, ends: bool, draw: Random) -> None:
    names = frozenset(f"nn-worker-{rank}" for rank in range(ranks))
    requests = PendingRequests()
    phases = schedule(25, 0, save_every=9, save_at_end=True, requests=requests)
    machine = PhaseMachine(phases, {"training": names, "saving": frozenset({"s"}), "done": names})
    workers = {name: Rank(bound) for name in sorted(names)}
    saves: list[int] = []
    while (phase := machine.advance()).kind != "done":
        if phase.kind == "saving":
            saves.append(phase.last)
            assert all(worker.started == list(range(phase.last)) for worker in workers.values())
            machine.finish("s", machine.number)
            machine.finish_writing("s", phase.last)
            continue
        begun = machine.number
        for worker in workers.values():
            worker.inbox.append((begun, "begin", phase.last))
        wished_at, turns = draw.randrange(40 * ranks), 0
        while machine.waiting:
            turns += 1
            if turns > wished_at and machine.agreement is None and not requests.end and len(saves) < 8:
                requests.save, requests.end = "request", ends
                assert machine.begin_agreement()
                for worker in workers.values():
                    worker.inbox.append((machine.number, "hold", 0))
            name = draw.choice(sorted(workers))
            worker = workers[name]
            if worker.inbox and (answer := worker.obey()) is not None:
                held = machine.cut(name, *answer)
                assert machine.cut(name, *answer) is None
                for other in workers.values() if held else ():
                    other.inbox.append((machine.number, "cut", held.last))
            worker.work(draw)
            if worker.open and worker.permits.drained and (begun, "begin") not in [each[:2] for each in worker.inbox]:
                worker.open = False
                machine.finish(name, begun)
        assert len({tuple(worker.started) for worker in workers.values()}) == 1
    trained = workers["nn-worker-0"].started
    assert trained == list(range(len(trained)))
    assert len(saves) == len(set(saves)), "no step is saved twice"
    assert not trained or saves[-1] == len(trained), "what was trained is saved"
    assert phase.is_cut == (len(trained) < 25)
