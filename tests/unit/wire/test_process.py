"""Processes that share memory, and the address by which a machine is reached."""

import os
import re
import socket
import subprocess
import sys

import numpy as np
import pytest

from persia_cli.wire import addresses
from persia_cli.wire.addresses import AddressError, address_towards, resolved, with_domain
from persia_cli.wire.message import BatchId
from persia_cli.wire.process import memory_domain, process_id, split_domain, this_process

BATCH = BatchId(split=0, step=7, rank=0)
BLOCK = np.arange(65536, dtype=np.uint8).reshape(256, 256)


def test_processes_that_see_each_other_have_one_memory_domain() -> None:
    other = [sys.executable, "-c", "from persia_cli.wire.process import memory_domain; print(memory_domain())"]
    assert subprocess.check_output(other, text=True).strip() == memory_domain()
    assert re.fullmatch("[0-9a-f]{16}", memory_domain())


def test_an_address_for_other_machines_has_its_memory_domain() -> None:
    assert split_domain(with_domain("tcp://10.1.2.3:7000")) == ("tcp://10.1.2.3:7000", memory_domain())
    for here in ("tcp://127.0.0.1:7000", "ipc:///tmp/a#b", "inproc://here"):
        assert with_domain(here) == here
        assert split_domain(here) == (here, "")


def test_a_parent_identifies_a_process_as_it_does_itself() -> None:
    found = "from persia_cli.wire.process import this_process as p; print(p().pid, p().began, p().domain)"
    child = subprocess.Popen([sys.executable, "-c", found], stdout=subprocess.PIPE, text=True)
    known = process_id(child.pid)
    said, _ = child.communicate()
    assert said.split() == [str(child.pid), str(known.began), known.domain]
    assert known.began > this_process().began > 0
    assert this_process() == process_id(os.getpid())
    assert this_process().domain == memory_domain()


def test_a_machine_finds_the_address_by_which_others_reach_it() -> None:
    assert address_towards("tcp://127.0.0.1:7000") == "127.0.0.1"


def test_names_of_hosts_become_addresses_before_they_are_used() -> None:
    assert resolved("tcp://localhost:7000") == "tcp://127.0.0.1:7000"
    for same in ("tcp://10.1.2.3:7000", "ipc://a/b", "tcp://*:1", "tcp://nothing", "nonsense"):
        assert resolved(same) == same
    with pytest.raises(AddressError, match=r"tcp://no-such-host.invalid:7: there is no host no-such-host.invalid"):
        resolved("tcp://no-such-host.invalid:7")


def test_an_unresolvable_name_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def look_up(host: str) -> tuple[str, list[str], list[str]]:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(-2, "Name or service not known")
        return host, [], ["10.1.2.3"]

    said: list[str] = []
    monkeypatch.setattr(addresses, "NAME_POLL_S", 0.01)
    monkeypatch.setattr(addresses.socket, "gethostbyname_ex", look_up)
    assert resolved("tcp://shop-coordinator-0-0.shop:7", 60.0, said.append) == "tcp://10.1.2.3:7"
    assert len(said) == 1
    assert "shop-coordinator-0-0.shop" in said[0]
    asked.clear()
    with pytest.raises(AddressError, match="there is no host shop"):
        resolved("tcp://shop:7")


def test_a_name_of_the_loopback_interface_is_refused_for_other_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"vm": ["127.0.1.1"], "both": ["127.0.1.1", "10.1.2.3", "10.1.2.4"]}
    known |= {same: [same] for same in ("127.0.0.2", "10.0.0.1")} | {"localhost": ["127.0.0.1"]}
    monkeypatch.setattr(addresses.socket, "gethostbyname_ex", lambda host: (host, [], known[host]))
    with pytest.raises(AddressError, match=r"^tcp://vm:7: this machine resolves vm to 127\.0\.1\.1"):
        resolved("tcp://vm:7", is_listener=True)
    assert resolved("tcp://vm:7") == "tcp://127.0.1.1:7"
    assert resolved("tcp://both:7", is_listener=True) == resolved("tcp://both:7") == "tcp://10.1.2.3:7"
    assert resolved("tcp://localhost:7", is_listener=True) == "tcp://127.0.0.1:7"
    for same in ("tcp://127.0.0.2:*", "tcp://10.0.0.1:7"):
        assert resolved(same, is_listener=True) == same
