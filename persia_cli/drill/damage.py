"""Damaged messages: frames of valid ones with bits turned over, parts cut off or missing, sent with the job's token."""

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from persia_cli.drill.processes import secret_file_of
from persia_cli.errors import UserError, WireError
from persia_cli.launch.running import PROC, RunningProcess
from persia_cli.wire import sockets
from persia_cli.wire.frames import MalformedMessage, decode, encode
from persia_cli.wire.job_messages import Hello, Next, TakeItem
from persia_cli.wire.message import BatchId, Message, ProcessId, Sender
from persia_cli.wire.messages import (
    GroupGradients,
    GroupKeys,
    LookUp,
    Pull,
    PutIds,
    PutSamples,
    Refused,
    Update,
    WaitCredit,
)
from persia_cli.wire.secret import read_secret
from persia_cli.wire.sockets import Context

MESSAGES = 200
"""Damaged messages of one drill."""
BATCH = BatchId(split=0, step=1, rank=0)
ROWS = 16
ANSWER_S = 10.0
POLL_S = 0.005


def send_damaged(
    target: RunningProcess, role: str, others: Sequence[RunningProcess], wait: Callable[[float], None]
) -> tuple[int, float | None]:
    """Send damaged messages to a replica; return how many, and the seconds until the first was refused, if one was.

    `others` are processes of the job that know its secret. Raises UserError if there is no way to the replica.
    """
    files = [file for file in map(secret_file_of, others) if file is not None]
    if not files:
        raise UserError("no process of the job says where its secret is, so no frame can be sent to it")
    context = Context(read_secret(files[0]))
    try:
        return _send(context, _address(target), role, wait)
    finally:
        context.destroy(linger=0)


def _send(context: Context, address: str, role: str, wait: Callable[[float], None]) -> tuple[int, float | None]:
    socket = sockets.dealer(context, address, f"drill#{os.getpid()}".encode())
    draw = random.Random(1)
    begin, refused_s, sent = time.monotonic(), None, 0
    deadline = begin + ANSWER_S
    answered = 0
    # Messages arrive in order, so all have when the last one is refused: what is on its way is lost with the socket.
    while answered < MESSAGES and time.monotonic() < deadline:
        number = sent + 1
        if sent < MESSAGES and sockets.send(
            socket, damaged(draw, number, _message(draw, role), context.token, to_be_answered=number == MESSAGES)
        ):
            sent += 1
        else:
            wait(POLL_S)
        answered = max(answered, _refused(socket, context.token))
        if refused_s is None and answered:
            refused_s = time.monotonic() - begin
    return sent, refused_s


def _refused(socket: sockets.Socket, token: bytes) -> int:
    """Return the number of the message that a refusal which has come is for, 0 if none has."""
    try:
        frames = sockets.receive(socket)
        if frames is None:
            return 0
        number, message = decode(frames, token=token)
    except WireError:
        return 0
    return number if isinstance(message, Refused) else 0


def damaged(
    draw: random.Random, number: int, message: Message, token: bytes, to_be_answered: bool = False
) -> list[bytes]:
    """Return the frames of a message with damage by which every receiver must refuse it, whatever its state.

    If it is `to_be_answered`, its number can still be read, so that the receiver can say so.
    """
    whole = [bytes(frame) for frame in encode(number, message, token=token)]
    while True:
        frames = list(whole)
        place = draw.randrange(len(frames))
        match draw.choice(("bit", "shorter", "missing", "kind")):
            case "kind":
                frames[0] = bytes([draw.choice([0x00, 0x7F, 0xFF])]) + frames[0][1:]
            case "missing":
                del frames[max(place, 1) :]
            case "shorter":
                # Not of the first frame, which would make the message a stranger's.
                place = max(place, 1) if len(frames) > 1 else place
                frames[place] = frames[place][: draw.randrange(len(frames[place]) or 1)]
            case "bit":
                place = 1
                at, bit = draw.randrange(len(frames[place])), draw.randrange(8)
                frames[place] = frames[place][:at] + bytes([frames[place][at] ^ 1 << bit]) + frames[place][at + 1 :]
        try:
            decode(frames, token=token)
        except MalformedMessage as error:
            if error.request == number or not to_be_answered:
                return frames
        # Damage that no receiver could see would change the model, as it would without a drill.


def _message(draw: random.Random, role: str) -> Message:
    keys = np.array([draw.getrandbits(64) for _ in range(ROWS)], np.uint64)
    tables = np.zeros(ROWS, np.uint16)
    sender = Sender("data-loader", 0, 1)
    ours: dict[str, list[Message]] = {
        "embedding-server": [
            LookUp(BATCH, create=True, groups=[GroupKeys(keys, tables)]),
            Update(BATCH, reductions=0, groups=[GroupGradients(keys, tables, np.zeros((ROWS, 64), np.uint8))]),
        ],
        "embedding-worker": [
            PutIds(BATCH, 0, ids=keys, offsets=np.arange(ROWS + 1, dtype=np.uint32)),
            Pull(BATCH, dense_rows=0),
        ],
        "nn-worker": [
            WaitCredit(split=0, step=1),
            PutSamples(
                BATCH, np.ones(1), np.zeros((ROWS, 2), np.float32), np.zeros((ROWS, 1), np.float32), None, None, None
            ),
        ],
        "coordinator": [
            Next(sender, after=0),
            TakeItem(sender, split=0, finished=0),
            Hello("data-loader", 0, ProcessId(1), "drill", "0", 0, "ipc://drill"),
        ],
    }
    return draw.choice(ours[role])


def _address(process: RunningProcess) -> str:
    """Return the address at which a process listens: a Unix socket, or a port of the loopback interface (proc(5))."""
    numbers = set()
    for file in (PROC / str(process.pid) / "fd").iterdir():
        try:
            numbers.add(str(Path.readlink(file)).removeprefix("socket:[").rstrip("]"))
        except OSError:
            continue
    for line in (PROC / "net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        # Num RefCount Protocol Flags Type St Inode Path; the flag says that it accepts connections.
        if fields[3] == "00010000" and fields[6] in numbers and len(fields) > 7 and fields[7].startswith("/"):
            return f"ipc://{fields[7]}"
    for line in (PROC / "net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in numbers:
            return f"tcp://127.0.0.1:{int(fields[1].partition(':')[2], 16)}"
    raise UserError(f"process {process.pid} listens nowhere")
