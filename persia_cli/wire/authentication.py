"""The authentication of clients by the secret of the job.

Clients log in with ZMTP's CURVE mechanism over TCP if the job has keys, else with PLAIN and the token as password.
libzmq asks a thread of this module whether the key or password is right (ZAP, RFC 27 of ZeroMQ). It reads no message of
a client that has not logged in.
"""

import hmac
import logging
import threading

import zmq

from persia_cli.wire.secret import JobKeys, JobSecret

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
