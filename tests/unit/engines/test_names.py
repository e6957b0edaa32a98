"""Names of hosts in the options of `persia launch-role`."""

from pathlib import Path

import pytest

from persia_cli.commands.launch_role import launch_role
from persia_cli.engines import role
from persia_cli.engines.role_options import RoleOptions
from persia_cli.wire.addresses import AddressError
from persia_cli.wire.secret import new_keys, write_keys

HERE = "tcp://127.0.0.1"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RoleOptions]:
    """The replicas that were started."""
    found: list[RoleOptions] = []
    monkeypatch.setattr(role, "run_process", found.append)
    return found


def test_a_replica_may_listen_and_be_reached_at_a_name(started: list[RoleOptions], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    write_keys(keys, new_keys())
    launch_role("data-loader", "tcp://localhost:7000", "0", advertise="tcp://localhost:*", key_file=keys)
    launch_role("data-loader", "tcp://localhost:7000", "0", bind="tcp://localhost:*", key_file=keys)
    assert [(each.coordinator, each.bind, each.advertise) for each in started] == [
        (f"{HERE}:7000", None, f"{HERE}:*"),
        (f"{HERE}:7000", f"{HERE}:*", None),
    ]


@pytest.mark.parametrize("option", ["coordinator", "bind", "advertise"])
def test_a_coordinator_does_not_listen_where_only_its_own_machine_reaches_it(
    option: str, started: list[RoleOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"vm": "127.0.1.1"}
    monkeypatch.setattr("socket.gethostbyname_ex", lambda host: (host, [], [known.get(host, host)]))
    options = {"coordinator": f"{HERE}:7000"} | {option: "tcp://vm:7001"}
    with pytest.raises(AddressError, match="this machine resolves vm to 127"):
        launch_role("coordinator", index="0", run_dir=tmp_path / "run", **options)
    assert not started
