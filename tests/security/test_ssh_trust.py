"""Tests of S-SSH-3: the first contact with a machine, and the decision about its key."""

from pathlib import Path

import pytest

from tests.helpers.ssh_inventory import write_inventory
from tests.helpers.ssh_login import Server, login_attempts, print_of
from tests.helpers.ssh_server import KeyPair, make_key, running_sshd
from tests.pubsubctl.conftest import Call
from tests.security.conftest import real_sshd


def known_hosts_of(project: Path) -> Path:
    return project / "inventories" / "known_hosts.ssh-test"


TRUST = ("-i", "ssh-test", "inventory", "trust", "n01")


@pytest.mark.parametrize("verb", ["doctor", "status"])
def test_commands_report_the_unknown_key_and_the_remedy(
    met: Server,
    project: Path,
    call: Call,
    verb: str,
) -> None:
    answer = call("-i", "ssh-test", verb)
    assert answer.status != 0
    said = answer.out + answer.err
    assert print_of(met.host_key) in said
    assert "inventory trust n01" in said
    assert login_attempts(met) == []
    assert not known_hosts_of(project).exists()


def test_a_script_without_a_fingerprint_trusts_no_host(
    met: Server,
    project: Path,
    call: Call,
) -> None:
    for more in ((), ("--yes",)):
        answer = call(*TRUST, *more)
        assert answer.status == 2
        assert "--fingerprint" in answer.err
    assert not known_hosts_of(project).exists()
    assert login_attempts(met) == []


def test_the_right_fingerprint_is_trusted_and_the_file_is_private(
    met: Server,
    project: Path,
    call: Call,
) -> None:
    shown = call(*TRUST, "--dry-run", "--json")
    assert shown.status == 0
    (machine,) = shown.document["machines"]
    assert machine["state"] == "unknown"
    assert not known_hosts_of(project).exists()

    answer = call(*TRUST, "--fingerprint", print_of(met.host_key), "--json")
    assert answer.status == 0, answer.err
    (machine,) = answer.document["machines"]
    assert machine["fingerprint"] == print_of(met.host_key)
    assert machine["state"] == "added"
    assert known_hosts_of(project).stat().st_mode & 0o777 == 0o600
    assert met.host_key.public in known_hosts_of(project).read_text()
    assert login_attempts(met) == []

    before = known_hosts_of(project).read_bytes()
    again = call(*TRUST, "--fingerprint", print_of(met.host_key), "--json")
    assert again.document["machines"][0]["state"] == "known"
    assert known_hosts_of(project).read_bytes() == before


def test_a_wrong_fingerprint_is_refused(
    met: Server,
    project: Path,
    call: Call,
    tmp_path: Path,
) -> None:
    answer = call(*TRUST, "--fingerprint", print_of(make_key(tmp_path / "other")))
    assert answer.status == 6
    assert print_of(met.host_key) in answer.err
    assert not known_hosts_of(project).exists()
    assert call(*TRUST, "--fingerprint", "SHA256:short").status == 2


@pytest.mark.parametrize("answered", ["yes\n", "y\n", "no\n", ""])
def test_a_person_is_shown_the_fingerprint_and_has_to_type_yes(
    met: Server,
    project: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    answered: str,
) -> None:
    class Person:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answered

    monkeypatch.setattr("sys.stdin", Person())
    answer = call(*TRUST)
    assert print_of(met.host_key) in answer.err
    if answered == "yes\n":
        assert answer.status == 0
        assert met.host_key.public in known_hosts_of(project).read_text()
    else:
        assert answer.status == 6
        assert not known_hosts_of(project).exists()


def test_a_changed_key_is_not_trusted_either(
    met: Server,
    project: Path,
    call: Call,
    tmp_path: Path,
) -> None:
    old = make_key(tmp_path / "old")
    known_hosts_of(project).write_text(f"[127.0.0.1]:{met.port} {old.public}\n")
    before = known_hosts_of(project).read_bytes()
    answer = call(*TRUST, "--fingerprint", print_of(met.host_key))
    assert answer.status == 6
    assert "remove these lines" in answer.err
    assert known_hosts_of(project).read_bytes() == before


@real_sshd
def test_gateways_are_trusted_before_their_hosts(
    project: Path,
    call: Call,
    tmp_path: Path,
    user_key: KeyPair,
) -> None:
    with (
        running_sshd(tmp_path / "gw", authorized=[user_key]) as gateway,
        running_sshd(tmp_path / "n01", authorized=[user_key]) as host,
    ):
        write_inventory(
            project / "inventories",
            {"n01": host},
            user_key,
            gateways={"gw": gateway},
            jumps={"n01": "gw"},
            known=False,
        )
        prints = [print_of(server.host_key) for server in (gateway, host)]
        half = call(*TRUST, "--fingerprint", prints[0])
        assert half.status == 6
        assert gateway.host_key.public in known_hosts_of(project).read_text()
        whole = call(*TRUST, "--fingerprint", prints[1], "--json")
        states = [(row["name"], row["state"]) for row in whole.document["machines"]]
        assert states == [("gw", "known"), ("n01", "added")]


@pytest.mark.parametrize("asked_for", [False, True])
def test_the_command_line_asks_for_it(
    met: Server,
    project: Path,
    call: Call,
    home: Path,
    asked_for: bool,
) -> None:
    (home / ".ssh" / "config").write_text("Host *\n    ProxyCommand /no/such/command\n")
    flags = ["--use-ssh-config"] if asked_for else []
    answer = call(*TRUST, "--dry-run", *flags)
    assert answer.status == (6 if asked_for else 0)
    assert ("/no/such/command" in answer.err) == asked_for
