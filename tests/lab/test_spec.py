"""Stories about the parts of a lab and its requirements; no lab is created."""

from pathlib import Path

import pytest

from pubsubctl.inventory.inventory import load_inventory
from pubsubctl.lab import network
from pubsubctl.lab.journal import read_journal, write_line
from pubsubctl.lab.spec import MOST_GATEWAYS, MOST_HOSTS, LabSpec
from pubsubctl.lab.ssh_files import inventory_text
from tests.pubsubctl.conftest import Call, call, project

__all__ = ["call", "project"]  # fixtures

LONGEST_NAME = "a-lab-of-11"


def spec(hosts: int = 2, gateways: int = 0) -> LabSpec:
    return LabSpec(LONGEST_NAME, "00ff10a9b7c4", hosts, gateways, tuple(range(gateways + 1)))


def test_the_largest_lab_has_every_name_and_address_once() -> None:
    largest = spec(MOST_HOSTS, MOST_GATEWAYS)
    addresses = [each for machine in largest.machines for each in largest.addresses(machine)]
    ports = [leg.port for machine in largest.machines for leg in machine.legs]
    for names in (addresses, ports, largest.namespaces):
        assert len(set(names)) == len(names)
    assert all(len(name) <= 15 for name in (*ports, largest.link))
    assert len(largest.machines) == MOST_HOSTS + MOST_GATEWAYS
    assert LabSpec.from_mapping(largest.to_mapping()) == largest


def test_the_inventory_of_a_lab_is_one_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "inventory.toml"
    path.write_text(inventory_text(spec(3, 2), tmp_path / "user_key", "/usr/bin/python3"))
    inventory = load_inventory(path)
    assert [host.name for host in inventory.hosts] == ["n01", "n02", "n03"]
    assert {host.jump for host in inventory.hosts} == {("gw1", "gw2")}
    assert inventory.known_hosts == tmp_path / f"known_hosts.{LONGEST_NAME}"
    assert [gateway.address for gateway in inventory.gateways.values()] == [
        "10.213.0.2",
        "10.213.1.2",
    ]
    assert not inventory.loopback_only


def test_lab_up_names_the_packages_of_missing_programs(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(network, "tool_environment", lambda: {"PATH": str(tmp_path)})
    (tmp_path / "nft").write_text("")
    (tmp_path / "nft").chmod(0o755)
    answer = call("lab", "up")
    assert answer.status == 4
    assert "needs root" in answer.err
    assert "apt-get install iproute2 openssh-server)" in answer.err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["lab", "up", "--name", "x" * 12], "up to 11 of a-z, 0-9 and -"),
        (["lab", "up", "--name", "-x"], "up to 11"),
        (["lab", "up", "--name", "../x"], "up to 11"),
        (["lab", "up", "--hosts", "0"], "--hosts = 0; from 1 to 64"),
        (["lab", "up", "--gateways", "5"], "--gateways = 5; from 0 to 4"),
        (["lab", "up", "--name", "local"], "choose another --name"),
        (["lab", "down", "--name", "lba"], "no lab called 'lba'; there is none"),
        (["lab", "status"], "`pubsubctl lab up` makes one"),
    ],
)
def test_a_lab_that_cannot_be_is_refused(call: Call, arguments: list[str], said: str) -> None:
    answer = call(*arguments)
    assert answer.status == 2
    assert said in answer.err


def test_a_torn_last_line_of_the_journal_counts_as_not_written(tmp_path: Path) -> None:
    folder = tmp_path / LONGEST_NAME
    folder.mkdir()
    assert read_journal(folder).spec is None
    write_line(folder, spec().to_mapping())
    write_line(folder, {"ready": True})
    whole = (folder / "journal.jsonl").read_bytes()
    for length in range(len(whole)):
        (folder / "journal.jsonl").write_bytes(whole[:length])
        assert not read_journal(folder).is_ready
    (folder / "journal.jsonl").write_bytes(whole)
    assert read_journal(folder).spec == spec()
    assert read_journal(folder).is_ready
