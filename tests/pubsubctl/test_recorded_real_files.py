"""Stories about the recorded answers of `ssh -G` and `ansible-inventory`.

The importers give the same answers, with or without the programs. Where the programs are installed,
their present answers are compared too, and those for files that are drawn from printed seeds.
"""

import hashlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from pubsubctl.errors import UserError
from pubsubctl.hosts.ssh.client_config import ClientConfig
from pubsubctl.inventory.importers import ansible
from pubsubctl.inventory.importers.findings import inventory_text, settle_names
from pubsubctl.inventory.importers.ssh_config import read_ssh_config
from pubsubctl.inventory.inventory import Gateway, Host, load_inventory
from tests.helpers import real_files
from tests.helpers.ansible_program import VARIABLE, interpreter
from tests.helpers.real_files import Case
from tests.helpers.ssh_program import OLDEST, RouteHop, ssh_version

SEED = 20_261_128
DRAWN = 12

real_ssh = pytest.mark.skipif(
    ssh_version() < OLDEST, reason="needs the program ssh of OpenSSH 8.7 or later"
)
real_ansible = pytest.mark.skipif(
    interpreter() is None, reason=f"needs ansible-inventory, in PATH or by {VARIABLE}"
)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", real_files.KEYS)


def filled(answer: Any, folder: Path) -> Any:
    if isinstance(answer, str):
        return real_files.placed(answer, folder)
    if isinstance(answer, list):
        return [filled(one, folder) for one in answer]
    if isinstance(answer, dict):
        return {key: filled(value, folder) for key, value in answer.items()}
    return answer


def reached(hop: Host | Gateway) -> dict[str, Any]:
    return RouteHop(hop.address, hop.port, hop.user or "", hop.identities).row()


def imported_routes(case: Case, folder: Path) -> Any:
    """Return the importer's result for a configuration, in the form of the recorded answers."""
    path = real_files.write_case(case, folder)
    text = path.read_bytes().decode("utf-8")
    try:
        found = read_ssh_config(text, path)
        names = case.get("names") or ClientConfig(text, path).names()
        imported = folder / "imported.toml"
        imported.write_text(inventory_text(found, "lab", path, skip_unusable=True))
    except UserError as error:
        return "refused" if "no host in it" not in error.problems[0] else {}
    inventory = load_inventory(imported)
    hosts = {host.name: host for host in inventory.hosts}
    routes: dict[str, Any] = {}
    ours, _ = settle_names(names)
    for name in names:
        host = hosts.get(ours[name])
        if host is not None:
            hops = [inventory.gateways[hop] for hop in host.jump]
            routes[name] = [reached(hop) for hop in (*hops, host)]
        elif any(f"host '{name}'" in str(entry) for entry in found.unusable):
            routes[name] = None
    return routes


def differences_of_ssh(case: Case, answer: Any, folder: Path) -> Any:
    """Return the hosts that the importer resolves differently; a gateway is no host."""
    folder.mkdir()
    ours, theirs = imported_routes(case, folder), filled(answer, folder)
    if theirs == "refused":
        is_refused = ours == "refused" or not any(ours.values())
        return None if is_refused else (ours, theirs)
    if ours == "refused":
        return ours, theirs
    wrong = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
    return wrong or None


def resolved_inventory(case: Case, folder: Path) -> Any:
    path = real_files.write_case(case, folder)
    try:
        groups = ansible._groups_of(path.read_bytes().decode("utf-8"), path)
        ansible.read_folders(groups, path)
        settled = groups.settle(ansible._USED)
        ungrouped = groups.members()["ungrouped"]
    except UserError:
        return "refused"
    shown = {
        name: [sorted(group.hosts), sorted(group.children)]
        for name, group in sorted(groups.groups.items())
        if name not in ("all", "ungrouped") and (group.hosts or group.children)
    }
    if ungrouped:
        shown["ungrouped"] = [sorted(ungrouped), []]
    return {
        "hosts": {
            name: real_files.texts_of({key: s.value for key, s in settings.items()})
            for name, settings in sorted(settled.items())
        },
        "groups": shown,
    }


def without_empty_groups(answer: Any) -> Any:
    if isinstance(answer, dict):
        groups = {name: rows for name, rows in answer["groups"].items() if any(rows)}
        return {**answer, "groups": groups}
    return answer


def test_each_recorded_configuration_is_imported_as_ssh_resolves_it(tmp_path: Path) -> None:
    recorded = real_files.cases("ssh")
    assert len(recorded) >= 60
    wrong = {
        case["name"]: found
        for case in recorded
        if (found := differences_of_ssh(case, case["answer"], tmp_path / case["name"])) is not None
    }
    assert wrong == {}, "case: (ours, theirs)"


def test_each_recorded_inventory_is_imported_as_ansible_resolves_it(tmp_path: Path) -> None:
    recorded = real_files.cases("ansible")
    assert len(recorded) >= 80
    wrong = {}
    for case in recorded:
        ours = resolved_inventory(case, tmp_path / case["name"])
        theirs = without_empty_groups(case["answer"])
        if ours != theirs:
            wrong[case["name"]] = (ours, theirs)
    assert wrong == {}, "case: (ours, theirs)"


@real_ssh
def test_drawn_configurations_are_imported_as_ssh_resolves_them(tmp_path: Path) -> None:
    wrong = {}
    for seed in range(SEED, SEED + DRAWN):
        case = real_files.drawn_configuration(seed)
        folder = tmp_path / f"asked-{seed}"
        folder.mkdir()
        answer = real_files.answer_of_ssh(case, folder)
        if found := differences_of_ssh(case, answer, tmp_path / f"{seed}"):
            wrong[seed] = found
    assert wrong == {}, "seed: (ours, theirs)"


@real_ansible
def test_drawn_inventories_are_resolved_as_by_ansible(tmp_path: Path) -> None:
    asked = [real_files.drawn_inventory(seed) for seed in range(SEED, SEED + DRAWN)]
    python = interpreter()
    assert python is not None
    answers = real_files.answers_of_ansible(python, asked, tmp_path / "asked")
    wrong = {}
    for case, answer in zip(asked, answers, strict=True):
        ours = resolved_inventory(case, tmp_path / case["name"])
        if ours != without_empty_groups(answer):
            wrong[case["name"]] = (ours, answer)
    assert wrong == {}, "case: (ours, theirs)"


def settings_of(text: str) -> tuple[str, ...]:
    return ClientConfig(text, Path("config")).settings("n1.x").identities


def test_tokens_of_the_connection_are_filled_in() -> None:
    here = socket.gethostname()
    text = "Host n1.x\nHostName h.x\nPort 7\nUser u\nIdentityFile /k/{}\n"
    digest = hashlib.sha1(f"{here}h.x7u".encode(), usedforsecurity=False).hexdigest()
    assert settings_of(text.format("%C")) == (f"/k/{digest}",)
    assert settings_of(text.format("%k-%j")) == ("/k/n1.x-",)
    assert settings_of(text.format("%k") + "HostKeyAlias al # x\n") == ("/k/al",)
    assert settings_of(text.format("%j") + "ProxyJump a,b@gw:22\n") == ("/k/gw",)
    host, uid = here.split(".")[0], os.getuid()
    assert settings_of(text.format("%l-%L-%i-%%")) == (f"/k/{here}-{host}-{uid}-%",)
    with pytest.raises(UserError, match="'%C' cannot be filled in"):
        settings_of(text.format("%C") + "ProxyJump gw\n")


def test_a_misspelt_keyword_of_a_connection_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        ClientConfig("Host n1\n  Usr lab\n  IdentiyFile ~/k\n", Path("config"))
    assert caught.value.problems == (
        "config:2: 'Usr lab': 'Usr' is no keyword of OpenSSH; did you mean 'user'?",
        "config:3: 'IdentiyFile ~/k': 'IdentiyFile' is no keyword of OpenSSH; "
        "did you mean 'identityfile'?",
    )
    config = ClientConfig("IgnoreUnknown Usr\nHost n1\n  Usr x\n  Novelty 1\n", Path("config"))
    assert config.notes == ["config:4: Novelty is no keyword of OpenSSH, and is skipped"]


def test_forwarded_ports_do_not_change_how_a_host_is_reached(tmp_path: Path) -> None:
    text = "n1 ansible_ssh_common_args='-R 80:l:80 -L 1:l:1 -D 99 -J gw'\n"
    found = ansible.read_ansible(text, Path("hosts"))
    path = tmp_path / "lab.toml"
    path.write_text(inventory_text(found, "lab", Path("hosts")))
    assert load_inventory(path).host("n1").jump == ("gw",)
    assert any("'-R 80:l:80' is not taken over" in note for note in found.notes)


def test_a_key_of_yaml_that_is_there_twice_is_noted(tmp_path: Path) -> None:
    text = "all:\n  hosts:\n    n1:\n    n1: {ansible_user: a, ansible_user: b}\n"
    found = ansible.read_ansible(text, tmp_path / "h.yml")
    assert found.hosts[0].variables == {"user": "b"}
    assert f"{tmp_path}/h.yml:4: 'n1' is there twice; the last value counts" in found.notes


def test_one_gateway_for_two_users_is_no_loop(tmp_path: Path) -> None:
    text = "Host n1\n ProxyJump ops@gw\nMatch user ops\n ProxyCommand ssh -W %h:%p gw\n"
    found = read_ssh_config(text, tmp_path / "config")
    path = tmp_path / "lab.toml"
    path.write_text(inventory_text(found, "lab", Path("config")))
    inventory = load_inventory(path)
    hops = [inventory.gateways[name] for name in inventory.host("n1").jump]
    assert [(hop.address, hop.user) for hop in hops] == [("gw", None), ("gw", "ops")]
