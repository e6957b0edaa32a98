"""The network interfaces of this machine, by their addresses."""

import array
import fcntl
import socket
import struct

from persia_cli.wire.addresses import AddressError

SIOCGIFCONF = 0x8912
"""ioctl: all addresses of IPv4, each with the name of its interface (netdevice(7))."""
NAME_BYTES, ENTRY_BYTES, ADDRESS_AT = 16, 40, 20
MOST_ADDRESSES = 1024


def interface_of(address: str) -> str:
    """Return the name of the interface with this IP address; raises AddressError if no interface has it."""
    entries = array.array("B", bytes(MOST_ADDRESSES * ENTRY_BYTES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("iL", len(entries), entries.buffer_info()[0])
        [nbytes] = struct.unpack_from("i", fcntl.ioctl(asking.fileno(), SIOCGIFCONF, request))
    for at in range(0, nbytes, ENTRY_BYTES):
        entry = entries[at : at + ENTRY_BYTES].tobytes()
        if socket.inet_ntoa(entry[ADDRESS_AT : ADDRESS_AT + 4]) == address:
            return entry[:NAME_BYTES].partition(b"\0")[0].decode().partition(":")[0]
    raise AddressError(f"no network interface of this machine has the address {address}; check --bind")
