"""The requests of replicas that wait for an answer: for instructions, and for work items of data loaders."""

from persia_cli.control.position import EVAL, TRAIN, WorkItems
from persia_cli.roles.coordinator.state import JobState
from persia_cli.wire.job_messages import Instruction, Item, Next, TakeItem
from persia_cli.wire.server import Peer

ITEM_STEPS = 16
"""Steps in one work item of a data loader."""


class WorkQueue:
    """The unanswered requests for work; no item is assigned before the first instruction.

    A step is assigned to one loader, and again only when that has died before every rank had finished the step.
    """

    def __init__(self, state: JobState) -> None:
        """Begin with all training steps of the job to assign."""
        self._state, job = state, state.job
        self._items = {TRAIN: WorkItems(job.first_step, job.steps, ITEM_STEPS), EVAL: WorkItems(0, 0, ITEM_STEPS)}
        self._instructions: list[Instruction] = []
        """The instructions of this phase; a replica that takes part gets each after it has done the one before."""
        self._nexts: dict[str, tuple[Peer, int]] = {}
        self._takes: dict[tuple[str, int], tuple[Peer, TakeItem]] = {}
        self._returned: dict[int, list[tuple[int, int]]] = {TRAIN: [], EVAL: []}
        """Steps that dead loaders had not finished."""
        self._unfinished: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """Steps assigned to each loader and split, and not reported as finished."""
        self._given: dict[tuple[str, int], tuple[Peer, Item]] = {}
        """The last answer to each loader and split."""

    def evaluate(self, first: int, last: int) -> None:
        """Assign the evaluation steps [first, last) to loaders, from the next instruction on."""
        self._items[EVAL] = WorkItems(first, last, ITEM_STEPS)

    def end_evaluation(self) -> None:
        """Assign no further evaluation steps; all are evaluated, though loaders report steps only with the next."""
        self._items[EVAL] = WorkItems(0, 0, ITEM_STEPS)
        self._returned[EVAL].clear()
        self._unfinished = {key: steps for key, steps in self._unfinished.items() if key[1] == TRAIN}

    def take_back(self, name: str) -> int:
        """Assign the unfinished steps of a dead data loader again; return their number."""
        steps = 0
        for split, returned in self._returned.items():
            items = self._unfinished.pop((name, split), [])
            returned += items
            returned.sort()
            steps += sum(last - first for first, last in items)
            self._takes.pop((name, split), None)
        self._deal()
        return steps

    def end_phase(self) -> None:
        """Give no instruction until the next phase begins: a new process must not repeat the finished phase."""
        self._instructions.clear()

    def instruct(self, instruction: Instruction) -> None:
        """Give the first instruction of a phase to all replicas that wait for one or will ask."""
        self._instructions.clear()
        self.change(instruction)

    def change(self, instruction: Instruction) -> None:
        """Give a further instruction of the same phase to all replicas that have the ones before."""
        self._instructions.append(instruction)
        for name in list(self._nexts):
            self._answer(name)
        self._deal()

    def on_next(self, peer: Peer, message: Next) -> None:
        """Register a replica's request for the instruction after number `after`."""
        name = self._state.find(message.sender).name
        self._nexts[name] = (peer, message.after)
        self._answer(name)

    def _answer(self, name: str) -> None:
        peer, after = self._nexts[name]
        for instruction in self._instructions:
            if after < instruction.number:
                del self._nexts[name]
                self._state.reply(peer, instruction)
                return

    def on_take_item(self, peer: Peer, message: TakeItem) -> None:
        """Register a loader's request for steps of a split; a repeated request gets the same steps."""
        name = self._state.find(message.sender, only="data-loader").name
        asked, item = self._given.get((name, message.split), (None, None))
        if item is not None and asked == peer:
            # The server forgets old answers. A repeat must not get the next steps then, since no loader
            # would load the ones before.
            self._state.reply(peer, item)
            return
        unfinished = self._unfinished.get((name, message.split), [])
        self._unfinished[name, message.split] = [steps for steps in unfinished if steps[1] > message.finished]
        self._takes[name, message.split] = (peer, message)
        self._deal()

    def _deal(self) -> None:
        if not self._instructions:
            return
        for key, (peer, take) in list(self._takes.items()):
            returned = self._returned[take.split]
            steps = returned.pop(0) if returned else self._items[take.split].take()
            if steps is not None:
                self._unfinished.setdefault(key, []).append(steps)
                item = Item(first=steps[0], last=steps[1], end=False)
            elif take.split == TRAIN:
                item = Item(first=0, last=0, end=True)
            else:
                continue
            del self._takes[key]
            self._given[key] = (peer, item)
            self._state.reply(peer, item)
