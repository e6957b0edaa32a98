"""The secret of a job: a token, with which its processes log in, and optional keys, which encrypt connections over TCP.

The keys are one pair, which all processes of the job have (CURVE). A process is both server and client with the same
pair. A client proves in the handshake that it has the secret key, and servers admit only the public key of this pair;
so the public key alone is useless.

Clients log in with ZMTP's CURVE mechanism over TCP if the job has keys, else with PLAIN and the token as password.
libzmq asks a thread of this module whether the key or password is right (ZAP, RFC 27 of ZeroMQ). It reads no message of
a client that has not logged in.
"""

import hashlib
import hmac
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import zmq
from zmq.utils import z85

from persia_cli.disk import read_private, write_private
from persia_cli.errors import UserError, WireError

TOKEN_BYTES = 16
"""128 bits, which cannot be guessed."""
TOKEN = "token"
"""Name of the file."""
THE_TOKEN = "the job's token"
POLL_S = 0.05
MESSAGE_AFTER_S = 1.0


def new_token() -> bytes:
    """Return a new random token."""
    return secrets.token_bytes(TOKEN_BYTES)


def write_token(path: Path, token: bytes) -> None:
    """Write a token atomically to a new file; raises UserError if the file exists or cannot be written."""
    write_private(path, token.hex(), THE_TOKEN)


def read_token(path: Path) -> bytes:
    """Return the token in a file; raises UserError if there is none, or if other users could read it."""
    text = read_private(path, THE_TOKEN)
    if not re.fullmatch(f"[0-9a-f]{{{2 * TOKEN_BYTES}}}", text):
        raise UserError(f"{path} does not contain a token; give the file that the job's coordinator wrote")
    return bytes.fromhex(text)


def await_file(path: Path, limit_s: float, notify: Callable[[str], None]) -> None:
    """Wait for the file of a token; raise WireError if it does not exist after `limit_s`."""
    begin, notified = time.monotonic(), False
    while not path.exists():
        waited = time.monotonic() - begin
        if waited > limit_s:
            raise WireError(
                f"the token file {path} does not exist after {limit_s:g} s; the job's coordinator writes it, so check "
                "that the coordinator runs"
            )
        if waited > MESSAGE_AFTER_S and not notified:
            notified = True
            notify(f"waiting for {path}, which the job's coordinator writes")
        time.sleep(POLL_S)


THE_KEYS = "the job's keys"
KEY_CHARACTERS = 40
"""A key of 32 bytes in Z85 (RFC 32 of ZeroMQ)."""
SAFE_VERSION = (4, 3, 3)
"""libzmq before it let clients without keys stall a server (CVE-2020-15166)."""
MAKE = "make a file of keys with `persia keys new FILE`"


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The key pair of a job, as Z85 texts."""

    secret: bytes = field(repr=False)
    public: bytes

    @property
    def public_bytes(self) -> bytes:
        """The public key as a handshake carries it."""
        return bytes(z85.decode(self.public))

    @property
    def token(self) -> bytes:
        """The token of a job with these keys, from which they cannot be computed."""
        return hashlib.blake2b(self.secret, digest_size=TOKEN_BYTES, person=b"persia token").digest()

    @property
    def fingerprint(self) -> str:
        """A digest that may be printed, to compare files of keys."""
        return hashlib.blake2b(self.public_bytes, digest_size=4).hexdigest()


def new_keys() -> JobKeys:
    """Return a new random pair; raises UserError if the installed libzmq cannot encrypt safely."""
    _require_curve()
    public, secret = zmq.curve_keypair()
    return JobKeys(secret, public)


def write_keys(path: Path, keys: JobKeys) -> None:
    """Write keys atomically to a new file for this user alone; raises UserError if it exists or cannot be written."""
    write_private(path, keys.secret.decode(), THE_KEYS)


def read_keys(path: Path) -> JobKeys:
    """Return the keys in a file; raises UserError if there are none, or if other users could read it."""
    text = read_private(path, THE_KEYS)
    _require_curve()
    if not re.fullmatch(rf"[!-~]{{{KEY_CHARACTERS}}}", text):
        raise UserError(f"{path} does not contain keys; {MAKE}")
    secret = text.encode()
    try:
        return JobKeys(secret, zmq.curve_public(secret))
    except (zmq.ZMQError, ValueError):
        raise UserError(f"{path} does not contain keys; {MAKE}") from None


def _require_curve() -> None:
    if not zmq.has("curve") or zmq.zmq_version_info() < SAFE_VERSION:
        raise UserError(
            f"libzmq {zmq.zmq_version()} cannot encrypt safely; install pyzmq from PyPI, which has its own: "
            "pip install --force-reinstall pyzmq"
        )


@dataclass(frozen=True, slots=True)
class JobSecret:
    """The token of a job and, if it has keys, the pair that the token comes from."""

    token: bytes = field(repr=False)
    keys: JobKeys | None = None

    @classmethod
    def of(cls, keys: JobKeys) -> Self:
        """Return the secret of a job with these keys."""
        return cls(keys.token, keys)


def read_secret(path: Path) -> JobSecret:
    """Return the secret in a file of keys or of a token; raises UserError for others, or if other users can read it."""
    if len(read_private(path, "the job's secret")) == KEY_CHARACTERS:
        return JobSecret.of(read_keys(path))
    return JobSecret(read_token(path))


# Login

USER = b"persia"
DOMAIN = b"persia"
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
"""Address at which libzmq sends its authentication requests."""
HANDSHAKE_MS = 4_000
"""Milliseconds that a client has to log in."""

log = logging.getLogger(__name__)


def is_encrypted(secret: JobSecret, address: str) -> bool:
    """Return True if connections to this address use the job's keys."""
    return secret.keys is not None and address.startswith("tcp://")


def log_in(socket: zmq.Socket[bytes], secret: JobSecret, address: str) -> None:
    """Make a client's socket prove that it has the secret; before it connects to `address`."""
    if secret.keys is not None and is_encrypted(secret, address):
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret.keys.secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, secret.keys.public)
        socket.setsockopt(zmq.CURVE_SERVERKEY, secret.keys.public)
    else:
        socket.setsockopt(zmq.PLAIN_USERNAME, USER)
        socket.setsockopt(zmq.PLAIN_PASSWORD, _password_of(secret.token))


def require_login(socket: zmq.Socket[bytes], keys: JobKeys | None) -> None:
    """Make a server's socket require that its clients log in."""
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    # Without such a thread, libzmq would admit any key to a CURVE server. This option makes it require an answer, so
    # that no further client is admitted if the thread has ended.
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    if keys is None:
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
    else:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


def authenticate(context: zmq.Context[zmq.Socket[bytes]], secret: JobSecret) -> None:
    """Start the thread that admits the clients of a context's servers; it ends with the context."""
    # pyzmq's ThreadAuthenticator imports asyncio, which costs a role 70 ms, and its `stop` blocks if it has failed.
    requests: zmq.Socket[bytes] = zmq.Context.shadow(context).socket(
        zmq.REP
    )  # `destroy` of the context leaves it to the thread
    requests.setsockopt(zmq.LINGER, 0)
    requests.bind(ZAP_ENDPOINT)
    threading.Thread(target=_answer, args=(requests, secret), name="authentication", daemon=True).start()


def _answer(requests: zmq.Socket[bytes], secret: JobSecret) -> None:
    with requests:
        try:
            while True:
                _answer_one(requests, secret)
        except zmq.ContextTerminated:
            pass
        except Exception:
            log.exception("authentication has failed, so this process admits no further client")


def _answer_one(requests: zmq.Socket[bytes], secret: JobSecret) -> None:
    version, request, domain, _, _, mechanism, *proof = requests.recv_multipart()
    right = domain == DOMAIN and _is_right(secret, mechanism, proof)
    status, text = (b"200", b"") if right else (b"400", b"the secret is not that of this job")
    requests.send_multipart([version, request, status, text, b"", b""])


def _is_right(secret: JobSecret, mechanism: bytes, proof: list[bytes]) -> bool:
    if mechanism == b"CURVE":
        # The handshake has proved that the client has the secret key to this public one.
        return secret.keys is not None and hmac.compare_digest(proof[0], secret.keys.public_bytes)
    right = mechanism == b"PLAIN" and proof[0] == USER
    return right and hmac.compare_digest(proof[1], _password_of(secret.token))


def _password_of(token: bytes) -> bytes:
    return token.hex().encode()
