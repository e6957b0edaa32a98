"""The requests of replicas that wait for an answer: for instructions, and for work items of data loaders."""

from persia_cli.control.position import EVAL, TRAIN, WorkItems
from persia_cli.wire.job_messages import Instruction, Item, TakeItem
from persia_cli.wire.server import Peer, Server

ITEM_STEPS = 16
"""Steps in one work item of a data loader."""


class WorkQueue:
    """Keeps who asks until it can be answered; no work is dealt out before the first instruction."""

    def __init__(self, server: Server, first_step: int, train_steps: int) -> None:
        """Keep the training steps [first_step, train_steps) for data loaders."""
        self._server = server
        self._items = {TRAIN: WorkItems(first_step, train_steps, ITEM_STEPS), EVAL: WorkItems(0, 0, ITEM_STEPS)}
        self._instructions: list[Instruction] = []
        """Those of this phase; whom they concern has done the ones before, and nobody else needs them."""
        self._nexts: dict[str, tuple[Peer, int]] = {}
        self._takes: dict[tuple[str, int], tuple[Peer, TakeItem]] = {}
        self._returned: dict[int, list[tuple[int, int]]] = {TRAIN: [], EVAL: []}
        """Steps that loaders had when they died."""
        self._unfinished: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """Steps that each loader was given and that are not known to be finished, by loader and split."""
        self._given: dict[tuple[str, int], tuple[Peer, Item]] = {}
        """The last answer to each loader and split. The server's own memory of answers forgets old ones; a repeat must
        not be given the next steps then, for nobody would load the ones before."""

    def evaluate(self, first: int, last: int) -> None:
        """Let loaders have the evaluation steps [first, last), from the next instruction on."""
        self._items[EVAL] = WorkItems(first, last, ITEM_STEPS)
        self._unfinished = {key: steps for key, steps in self._unfinished.items() if key[1] == TRAIN}

    def take_back(self, name: str) -> int:
        """Deal the unfinished steps of a data loader that has died again; return how many that are."""
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
        """Give no instruction until the next phase begins: a new process must not repeat the phase that is over."""
        self._instructions.clear()

    def instruct(self, instruction: Instruction) -> None:
        """Give the first instruction of a phase to all that wait for one, and to those that ask for it from now on."""
        self._instructions.clear()
        self.change(instruction)

    def change(self, instruction: Instruction) -> None:
        """Give a further instruction about the same phase to all that have the ones before."""
        self._instructions.append(instruction)
        for name in list(self._nexts):
            self._answer(name)
        self._deal()

    def ask(self, name: str, peer: Peer, after: int) -> None:
        """A replica asks for the instruction that follows number `after`."""
        self._nexts[name] = (peer, after)
        self._answer(name)

    def _answer(self, name: str) -> None:
        peer, after = self._nexts[name]
        for instruction in self._instructions:
            if after < instruction.number:
                del self._nexts[name]
                self._server.reply(peer, instruction)
                return

    def take(self, name: str, peer: Peer, message: TakeItem) -> None:
        """A data loader asks for steps of a split, one request after the other; a repeat gets the same steps again."""
        asked, item = self._given.get((name, message.split), (None, None))
        if item is not None and asked == peer:
            self._server.reply(peer, item)
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
            self._server.reply(peer, item)
