"""The group that the NN workers of a job form: where one dies, all begin again together, as the next group."""


class RankGroup:
    """Which ranks have joined the group of now, of `size` ranks; groups are numbered 0, 1, 2, …"""

    def __init__(self, size: int) -> None:
        self.size, self.number = size, 0
        self._here: set[int] = set()

    @property
    def is_whole(self) -> bool:
        """True once every rank is in the group; until then none of them begins."""
        return len(self._here) == self.size

    def join(self, rank: int) -> bool:
        """Take note that a new process of a rank is here; returns True if that makes the group whole."""
        if self.is_whole:
            return False  # the process repeats its request
        self._here.add(rank)
        return self.is_whole

    def lose(self, rank: int) -> None:
        """Take note that the process of a rank has died; if the group was whole, there has to be another."""
        if self.is_whole:
            self.number += 1
            self._here.clear()
        self._here.discard(rank)
