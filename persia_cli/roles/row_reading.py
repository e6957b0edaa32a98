"""Rows for NN workers that only read them: embedding servers make none, and mark none as used."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from persia_cli.store.batch_rows import UniqueRows
from persia_cli.wire.client import Client
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import GroupKeys, GroupRows, LookedUp, LookUp, Rows
from persia_cli.wire.server import Peer, Server

NO_KEYS = GroupKeys(np.empty(0, np.uint64), np.empty(0, np.uint16))


class RowReading:
    """Asks all embedding servers for an embedding worker, and keeps nothing of what it was asked for."""

    def __init__(self, server: Server, servers: Sequence[Client], groups: int) -> None:
        """`server` answers; `servers` know so many groups of rows, dense weights included."""
        self._server, self._servers, self._groups = server, servers, groups

    def read(self, peer: Peer, batch: BatchId, groups: Mapping[int, UniqueRows], waiting_for: str) -> None:
        """Answer the peer with rows of some groups, by group number, in the name of a batch of its rank."""
        replies: dict[int, LookedUp] = {}
        for server, client in enumerate(self._servers):
            keys = [keys_of(server, groups[each]) if each in groups else NO_KEYS for each in range(self._groups)]
            client.request(
                LookUp(batch, create=False, groups=keys),
                on_reply=partial(self._on_rows, peer, groups, replies, server),
                waiting_for=waiting_for,
            )

    def _on_rows(
        self, peer: Peer, groups: Mapping[int, UniqueRows], replies: dict[int, LookedUp], server: int, reply: LookedUp
    ) -> None:
        replies[server] = reply
        if len(replies) == len(self._servers):
            self._server.reply(peer, Rows(0, (), 0, 0, rows_of(groups, replies)))


def keys_of(server: int, rows: UniqueRows) -> GroupKeys:
    """Return the keys of a group's rows that a server owns."""
    part = slice(rows.bounds[server], rows.bounds[server + 1])
    return GroupKeys(rows.keys[part], rows.tables[part])


def rows_of(groups: Mapping[int, UniqueRows], replies: Mapping[int, LookedUp]) -> list[GroupRows]:
    """Return the rows of some groups as all servers answered, in the order of servers."""
    answers = [replies[server] for server in range(len(replies))]
    return [
        GroupRows([answer.groups[number].rows for answer in answers], group.inverse, group.offsets)
        for number, group in groups.items()
    ]
