"""The keys of a job: one pair, which all its processes hold, so that what leaves a machine is encrypted (CURVE).

A process is both server and client by the same pair. Who connects proves in the handshake that it has the secret key,
and servers admit the public key of their own pair and no other; so to know the public key alone opens nothing.
"""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from persia_cli.errors import UserError
from persia_cli.wire.private_file import read_private, write_private
from persia_cli.wire.token import TOKEN_BYTES

WHAT = "the job's keys"
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
        """What may be printed, to compare files of keys by."""
        return hashlib.blake2b(self.public_bytes, digest_size=4).hexdigest()


def new_keys() -> JobKeys:
    """Return a new random pair; raises UserError if the installed libzmq cannot encrypt safely."""
    _require_curve()
    public, secret = zmq.curve_keypair()
    return JobKeys(secret, public)


def write_keys(path: Path, keys: JobKeys) -> None:
    """Write keys atomically to a new file for this user alone; raises UserError if it exists or cannot be written."""
    write_private(path, keys.secret.decode(), WHAT)


def read_keys(path: Path) -> JobKeys:
    """Return the keys in a file; raises UserError if there are none, or if other users could read it."""
    text = read_private(path, WHAT)
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
