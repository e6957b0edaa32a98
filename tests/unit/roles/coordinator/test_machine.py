"""The invariants of the coordinator hold under random deaths, late and repeated messages, saves, failures and ends."""

from collections import Counter
from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from persia_cli.control.portions import KEPT, PlannedPortion
from persia_cli.control.position import EVAL, TRAIN
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.following import Found
from persia_cli.roles.coordinator.state import (
    BeginCheckpoint,
    Effect,
    FindPortion,
    PublishCheckpoint,
    Reply,
    Start,
    TaskEnded,
    Write,
)
from persia_cli.roles.coordinator.work import ITEM_STEPS
from persia_cli.store.checkpoints.saved import SavedFile, encode_files
from persia_cli.wire.job_messages import (
    Death,
    Done,
    Fail,
    Halted,
    Instruction,
    Item,
    Next,
    NextItem,
    Ready,
    Saved,
    SavedNow,
    SaveModel,
    SaveNow,
    Verdict,
)
from persia_cli.wire.message import Message, ProcessId, Sender
from persia_cli.wire.messages import Pending, Refused
from persia_cli.wire.server import Peer
from tests.support.coordination import Coordination
from tests.support.runs import make_run

STEPS, EVAL_STEPS = 5 * ITEM_STEPS, ITEM_STEPS + 3
LOADERS = ("data-loader-0", "data-loader-1")
SERVER, RANKS = "embedding-server-0", ("nn-worker-0", "nn-worker-1")
WORKER = "embedding-worker-0"
NAMES = (*LOADERS, WORKER, SERVER, *RANKS)
WRITERS = (SERVER, RANKS[0])
MORTAL = (*LOADERS, WORKER, SERVER)


class Replica:
    """A process of a replica, and what it has received."""

    def __init__(self, pid: int, incarnation: int) -> None:
        self.process, self.incarnation = ProcessId(pid), incarnation
        self.number = 0
        """Number of the last instruction that it has."""
        self.items: dict[int, list[tuple[int, int]]] = {TRAIN: [], EVAL: []}
        """Steps that it has been given."""


class CoordinatedJob(RuleBasedStateMachine):
    """Two loaders, a server and two ranks, whose processes die and repeat messages."""

    SETTINGS: ClassVar[dict[str, Any]] = {"eval": {"every_epochs": None, "every_steps": ITEM_STEPS}}
    STEPS = STEPS

    def __init__(self) -> None:
        super().__init__()
        run = make_run(
            checkpoint={"every_steps": 2 * ITEM_STEPS, "every_minutes": 1},
            recovery={"max_restarts": 1000},
            cluster={"kind": "local", "data_loaders": 2, "nn_workers": 2},
            **self.SETTINGS,
        )
        data = Job("train", "run", None, 32 * STEPS, 32 * EVAL_STEPS, self.STEPS, EVAL_STEPS)
        self.job = Coordination(run, data)
        self.replicas: dict[str, Replica] = {}
        self.sent: list[tuple[Peer, Message]] = []
        self.answered = Counter[Peer]()
        self.tasks: list[Any] = []
        self.last_takes: dict[tuple[str, int], Peer] = {}
        """The last request of each loader for steps of a split."""
        self.begun: list[int] = []
        self.published = list[int]()
        self.folder: dict[str, bool] = {}
        """Participants of the present save, and whether each has written its part."""
        self.pid = 0
        for name in NAMES:
            self._begin(name)
        for name in NAMES:
            self._send(name, Ready(self._sender(name), 0))

    def _begin(self, name: str) -> None:
        self.pid += 1
        role, _, index = name.rpartition("-")
        before = self.replicas.get(name)
        self.replicas[name] = Replica(self.pid, before.incarnation + 1 if before else 1)
        self._take(self.job.hello(role, int(index), self.replicas[name].process))

    def _sender(self, name: str) -> Sender:
        role, _, index = name.rpartition("-")
        return Sender(role, int(index), self.replicas[name].incarnation)

    def _send(self, name: str, message: Message) -> list[Effect]:
        peer = Peer(f"{name}#{self.replicas[name].process.pid}".encode() if name in NAMES else name.encode(), self.pid)
        self.pid += 1
        self.sent.append((peer, message))
        return self._take(self.job.send(peer, message))

    def _take(self, effects: list[Effect]) -> list[Effect]:
        for each in effects:
            if isinstance(each, Reply):
                self._receive(each.peer, each.message)
            elif isinstance(each, Start):
                self.tasks.append(each.task)
                if isinstance(each.task, PublishCheckpoint):
                    self._check_save(each.task)
            elif isinstance(each, Write) and each.fields.get("phase", "failed") not in ("failed", "stopped"):
                self.begun.append(self.job.state.phases.number)
                if each.fields["phase"] == "evaluating":
                    self._forget_evaluation()
        return effects

    def _forget_evaluation(self) -> None:
        """Each evaluation has the same steps; a loader is charged with those of the present one alone."""
        for replica in self.replicas.values():
            replica.items[EVAL].clear()

    def _receive(self, peer: Peer, message: Message) -> None:
        self.answered[peer] += 1
        assert not isinstance(message, Pending)
        name, _, pid = peer.identity.decode().partition("#")
        replica = self.replicas.get(name)
        if replica is None or replica.process.pid != int(pid or 0):
            assert not isinstance(message, Item) or self.answered[peer] > 1, "a dead process is given no steps"
            return
        if isinstance(message, Instruction):
            replica.number = max(replica.number, message.number)
        elif isinstance(message, Item) and self.answered[peer] > 1:
            assert peer not in self.last_takes.values() or message == self.job.to(peer)[0], "a repeat gets the same"
        elif isinstance(message, Item) and not message.end:
            request = next(sent for to, sent in self.sent if to == peer)
            assert isinstance(request, NextItem)
            replica.items[request.split].append((message.first, message.last))
            self._check_item(request, message)

    def _check_item(self, request: NextItem, item: Item) -> None:
        assert not item.portion

    def _find(self) -> Any:
        raise AssertionError("only data that grows has portions")

    def _charged(self, steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the training steps that a loader is charged with, of those that it has been given."""
        return steps

    def _check_save(self, task: PublishCheckpoint) -> None:
        assert self.folder.keys() == set(WRITERS)
        assert task.step == self.job.state.phases.saved_step
        assert task.failure or all(self.folder.values()), "every part is written"
        assert len(task.files) == sum(self.folder.values())
        self.published.append(self.job.state.phases.number)

    @property
    def is_open(self) -> bool:
        state = self.job.state
        return not (state.is_over or state.is_ending)

    @rule(loader=st.sampled_from(LOADERS), split=st.sampled_from((TRAIN, EVAL)))
    def take_item(self, loader: str, split: int) -> None:
        finished = 0
        replica = self.replicas[loader]
        if split == TRAIN and self.job.state.phases.current and self.job.state.phases.current.kind != "training":
            finished = self.job.state.phases.current.last if self.job.state.phases.current.kind == "saving" else 0
        replica.items[split] = [steps for steps in replica.items[split] if steps[1] > finished]
        self._send(loader, NextItem(self._sender(loader), split, finished))
        self.last_takes[loader, split] = self.sent[-1][0]

    @precondition(lambda self: self.last_takes)
    @rule(data=st.data())
    def repeat_take(self, data: st.DataObject) -> None:
        """The last request for steps arrives again, and the server has forgotten its answer."""
        peer = self.last_takes[data.draw(st.sampled_from(sorted(self.last_takes)))]
        self._take(self.job.send(peer, next(message for to, message in self.sent if to == peer)))

    @rule()
    def end_phase(self) -> None:
        """The disk does all of its tasks, and every replica its part."""
        while self.tasks:
            self.end_task(fails=False)
        number = self.job.state.phases.number
        for name in NAMES:
            if self.job.state.phases.number == number:
                self.work(name, save=True)

    @rule(name=st.sampled_from(NAMES))
    def ask(self, name: str) -> None:
        self._send(name, Next(self._sender(name), self.replicas[name].number))

    @rule(name=st.sampled_from(NAMES), save=st.booleans())
    def work(self, name: str, save: bool) -> None:
        """Carry out the present instruction; a part of a checkpoint may be written only later."""
        phases = self.job.state.phases
        if phases.agreement is not None and name in RANKS and name not in phases.agreement.answers:
            if phases.agreement.ranks and phases.current is not None:
                middle = (phases.agreement.first + phases.agreement.last) // 2
                self._send(name, Halted(self._sender(name), phases.agreement.number, middle))
            return
        if phases.current is not None and phases.current.kind == "saving" and not self.folder:
            return
        if save:
            self.write(name)
        self._send(name, Done(self._sender(name), phases.first_number))

    @rule(name=st.sampled_from(WRITERS), fails=st.booleans())
    def write_later(self, name: str, fails: bool) -> None:
        self.write(name, fails)

    def write(self, name: str, fails: bool = False) -> None:
        state = self.job.state
        if name not in self.folder or name not in state.phases.writing:
            return
        self.folder[name] = not fails
        files = () if fails else (SavedFile("rows", name, 1, "0" * 32),)
        self._send(
            name,
            Saved(self._sender(name), state.phases.saved_step, encode_files(files), "a full disk" if fails else ""),
        )

    @precondition(lambda self: self.tasks)
    @rule(fails=st.booleans())
    def end_task(self, fails: bool) -> None:
        """The oldest task on the disk is done."""
        task, result = self.tasks.pop(0), None  # type: Any, Any
        if isinstance(task, BeginCheckpoint):
            self.folder = dict.fromkeys(WRITERS, False)
            result = SaveModel("folder", task.phase.last)
        elif isinstance(task, PublishCheckpoint):
            failed = fails or task.failure
            result = [{"event": "save_failed" if failed else "saved", "step": task.step, "path": "p", "text": "t"}]
            self.folder = {}
        elif isinstance(task, FindPortion):
            result = self._find()
        self._take(self.job.handle(TaskEnded(self.job.now, task, result)))

    @rule(name=st.sampled_from(MORTAL))
    def die(self, name: str) -> None:
        """A process dies; its supervisor reports that, perhaps twice, and the next one joins."""
        role, _, index = name.rpartition("-")
        dead, phases = self.replicas[name], self.job.state.phases
        was_open = self.is_open
        died = Death(role, int(index), dead.process, -9)
        before = [each for each in self.job.events if each["event"] == "died"]
        if name in phases.writing and self.folder and not (phases.current and name in phases.waiting):
            self.folder[name] = False
        for _ in range(2):
            effects = self._send("supervisor", died)
        verdict = next(each.message for each in effects if isinstance(each, Reply))
        assert isinstance(verdict, Verdict)
        deaths = [each for each in self.job.events if each["event"] == "died"]
        assert len(deaths) == len(before) + verdict.restart, "each death counts once"
        if not verdict.restart:
            assert not was_open or (phases.current is not None and phases.current.kind == "done")
            return
        if name in LOADERS:
            evaluates = phases.current is not None and phases.current.kind == "evaluating"
            charged = self._charged(dead.items[TRAIN]) + (dead.items[EVAL] if evaluates else [])
            replacement = self.job.machine._deaths._replacements[name]
            assert replacement.again == sum(last - first for first, last in charged)
        self._begin(name)
        self._send(name, Ready(self._sender(name), 0))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """An old message arrives again: of a dead process, or one whose answer the server has forgotten."""
        peer, message = data.draw(st.sampled_from(self.sent))
        is_dead = getattr(message, "sender", None) not in {self._sender(name) for name in NAMES}
        # A loader requests steps one item at a time, so of a living one only the last request can come again.
        if isinstance(message, Death | Ready | SaveNow) or (isinstance(message, NextItem) and not is_dead):
            return
        state = self.job.state
        self._take(self.job.wait())  # what is due by now happens with any event, and is no effect of this message
        number, writing = state.phases.number, set(state.phases.writing)
        answers = self.answered[peer]
        effects = self._take(self.job.send(peer, message))
        if is_dead:
            assert all(isinstance(each, Reply) and isinstance(each.message, Refused) for each in effects)
            assert (state.phases.number, state.phases.writing) == (number, writing)
        assert self.answered[peer] <= answers + 1

    @rule()
    def save_now(self) -> None:
        self._send("command", SaveNow())

    @rule(seconds=st.sampled_from((0.1, 1.0, 4.0, 70.0)))
    def time_passes(self, seconds: float) -> None:
        for _ in range(int(max(seconds, 1))):
            for name in NAMES:
                self._take(self.job.beat(name) if not self.job.member(name).died else [])
            self._take(self.job.wait(min(seconds, 1.0)))

    @rule(name=st.sampled_from(("SIGTERM", "SIGUSR1")))
    @precondition(lambda self: self.pid % 7 == 0)
    def signal(self, name: str) -> None:
        self._take(self.job.signal(name))

    @rule()
    @precondition(lambda self: self.pid % 41 == 0)
    def fail(self) -> None:
        self._send(RANKS[0], Fail(self._sender(RANKS[0]), "it has failed", 1))

    @invariant()
    def no_step_is_with_two_living_loaders(self) -> None:
        for split in (TRAIN, EVAL):
            steps = Counter(
                step
                for name in LOADERS
                for first, last in self.replicas[name].items[split]
                for step in range(first, last)
            )
            assert not steps or max(steps.values()) == 1

    @invariant()
    def phases_begin_in_order_and_once(self) -> None:
        assert self.begun == sorted(set(self.begun))

    @invariant()
    def each_save_is_published_once(self) -> None:
        assert len(self.published) == len(set(self.published))
        saving = [task for task in self.tasks if isinstance(task, PublishCheckpoint)]
        assert len(saving) <= 1

    @invariant()
    def no_command_is_answered_twice(self) -> None:
        for peer, message in self.sent:
            if isinstance(message, SaveNow):
                assert sum(isinstance(each, SavedNow) for each in self.job.to(peer)) <= 1


class GrowingJob(CoordinatedJob):
    """The same for data that grows, each portion of which is scored before it is trained."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "dataset": {"split": {"kind": "train"}, "follow": {"poll_s": 1}},
        "eval": {"next": True},
    }
    STEPS = 10**6

    def __init__(self) -> None:
        self.found: list[PlannedPortion] = []
        super().__init__()

    def _find(self) -> Found:
        """Find a portion of one to 40 steps, or none."""
        if self.pid % 3 == 0:
            return Found(0.0, waiting=1.0 if self.pid % 2 else None)
        step, sample = (self.found[-1].end, 0) if self.found else (0, 0)
        rows = 1 + self.pid * 31 % 1280
        self.found.append(PlannedPortion(len(self.found) + 1, step, -(-rows // 32), sample, rows, [], "", 0.0))
        return Found(0.0, self.found[-1])

    def _check_item(self, request: NextItem, item: Item) -> None:
        portion = self.found[item.portion - 1]
        assert item.portion in (*request.portions, *(known.number for known in item.portions)), "the loader can read it"
        assert item.begin <= item.first < item.last <= item.begin + portion.steps
        if request.split == TRAIN:
            assert item.begin == portion.first_step

    def _charged(self, steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
        step = self.job.state.step
        return [(max(first, step), last) for first, last in steps if last > step]

    @invariant()
    def phases_train_portions_that_are_recorded(self) -> None:
        phase = self.job.state.phases.current
        if phase is not None and phase.kind == "training":
            assert any(each.first_step <= phase.first <= phase.last <= each.end for each in self.found)

    @invariant()
    def one_look_at_a_time(self) -> None:
        assert sum(isinstance(task, FindPortion) for task in self.tasks) <= 1
        assert self.job.machine.state.portions is not None
        assert len(self.job.machine.state.portions.from_number(0)) <= KEPT


TestCoordinatedJob = CoordinatedJob.TestCase
TestGrowingJob = GrowingJob.TestCase
TestCoordinatedJob.settings = TestGrowingJob.settings = settings(max_examples=25, stateful_step_count=50)
