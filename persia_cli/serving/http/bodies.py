"""The body of a request, decompressed as it arrives, within the bound of its size."""

import zlib

from persia_cli.serving.http.refused import CLOSE, RefusedRequestError, bad

PLAIN = b"identity"
COMPRESSED = {b"gzip", b"x-gzip", b"deflate"}
EITHER = zlib.MAX_WBITS | 32
"""The argument of zlib for gzip and deflate, by the first bytes."""


class Body:
    """The bytes of a body. The part beyond the bound is read and dropped, since a client reads no answer before it has
    sent everything."""

    def __init__(self, encoding: bytes, most: int) -> None:
        """`encoding` is the header Content-Encoding; raises RefusedRequestError for an unknown one."""
        kind = encoding.strip().lower()
        if kind not in {PLAIN, *COMPRESSED}:
            raise RefusedRequestError(
                415, "the body has a Content-Encoding that this server does not read; send gzip, deflate or none",
                {"accept-encoding": "gzip, deflate", **CLOSE},
            )  # fmt: skip
        self._inflater = None if kind == PLAIN else zlib.decompressobj(EITHER)
        self._most, self._size = most, 0
        self._parts: list[bytes] = []
        self._damage = ""

    def add(self, part: bytes) -> None:
        """Add the next bytes from the client; at most one byte beyond the bound is decompressed."""
        if self._size > self._most or self._damage:
            return
        if self._inflater is not None:
            try:
                part = self._inflater.decompress(part, self._most + 1 - self._size)
            except zlib.error as error:
                self._damage = str(error)
                return
        self._size += len(part)
        if self._size <= self._most:
            self._parts.append(part)

    def whole(self) -> bytes:
        """Return all bytes; raises RefusedRequestError for a body that is too large, or not compressed as it says."""
        if self._size > self._most:
            raise RefusedRequestError(413, f"the body is larger than the {self._most:,} bytes that are allowed", CLOSE)
        inflater = self._inflater
        if self._damage or (inflater is not None and (not inflater.eof or inflater.unused_data)):
            raise bad(f"the body cannot be decompressed: {self._damage or 'it does not end where its content does'}")
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
