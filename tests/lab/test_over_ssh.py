"""Stories about deployments on hosts that are reached by SSH alone."""

import shutil
import signal
from pathlib import Path

import pytest

from results.reference.history_reader import judge_folder
from tests.end_to_end.conftest import wait_until
from tests.end_to_end.test_bench import SCHEDULE, WORKLOAD
from tests.helpers.patience import PATIENCE_S
from tests.lab.conftest import Controller

pytestmark = pytest.mark.lab


def brokers(lab: Controller) -> dict[str, dict[str, object]]:
    answer = lab.call("status", "-j")
    return {row["broker"]: row for row in answer.document["brokers"]}


def logins(lab: Controller, machine: str) -> int:
    """Return the number of login attempts at a machine, from the log of its server."""
    said = (lab.lab_folder / "log" / f"{machine}.log").read_text()
    return sum(said.count(word) for word in ("Accepted", "Failed", "Postponed"))


def test_a_deployment_over_ssh_is_created_once_faulted_healed_and_removed(lab: Controller) -> None:
    first = lab.call("deploy", "chain3", "-j")
    assert first.status == 0, first.err
    assert first.document["changed"] is True
    rows = brokers(lab)
    assert {row["state"] for row in rows.values()} == {"running"}
    assert len({row["host"] for row in rows.values()}) == 3
    second = lab.call("deploy", "chain3", "--expect-noop")
    assert (second.status, second.out) == (0, "nothing to do\n"), second.err

    frozen = lab.call("inject", "freeze", "c2", "--for", "1s", "-j")
    assert frozen.status == 0, frozen.err
    (fault,) = frozen.document["faults"]
    assert (fault["state"], fault["healed_by"]) == ("recovered", "schedule")
    assert {row["state"] for row in brokers(lab).values()} == {"running"}

    down = lab.call("down", "--verify")
    assert down.status == 0, down.err
    assert lab.left_behind() == []


def test_a_crash_under_load_over_ssh_loses_nothing_and_leaves_nothing(lab: Controller) -> None:
    project = lab.folder / "project"
    (project / "broken.toml").write_text(WORKLOAD)
    (project / "crash.toml").write_text(SCHEDULE)
    answer = lab.call("bench", "broken.toml", "--faults", "crash.toml", "--no-check", "-j")
    assert answer.status == 0, answer.err
    found = answer.document
    assert (found["state"], found["published"]) == ("complete", 600), found["reasons"]
    assert lab.left_behind() == []
    judgement = judge_folder(Path(found["run_directory"]))
    assert judgement.verdict == "VALID", judgement.because
    assert judgement.counts.recovered == judgement.counts.at_risk > 0


@pytest.mark.parametrize("how", ["unknown", "changed"])
def test_no_login_happens_at_a_host_with_another_key(lab: Controller, how: str) -> None:
    copy = lab.folder / how
    copy.mkdir()
    shutil.copy(lab.lab_folder / "inventory.toml", copy)
    known = copy / f"known_hosts.{lab.name}"
    lines = (lab.lab_folder / known.name).read_text().splitlines()
    one, another = (f"10.213.{_network(lab)}.{number} " for number in (11, 12))
    stranger = next(line.split(maxsplit=1)[1] for line in lines if line.startswith(another))
    kept = [line for line in lines if not line.startswith(one)]
    known.write_text("\n".join(kept + [one + stranger] * (how == "changed")) + "\n")
    before = known.read_bytes()
    tried = logins(lab, "n01")

    answer = lab.call("deploy", "chain3", "-i", str(copy / "inventory.toml"))
    assert answer.status == 6, answer.err  # others were reached, and nothing was done on them
    assert "SHA256:" in answer.err
    assert "n01" in answer.err
    assert "inventory trust n01" in answer.err
    assert known.read_bytes() == before
    assert logins(lab, "n01") == tried
    assert lab.left_behind() == []


@pytest.mark.sampled
def test_a_host_behind_two_gateways_is_deployed_to(controller: Controller) -> None:
    assert controller.lab("up", "--hosts", "1", "--gateways", "2").status == 0
    controller.environment["PUBSUBCTL_INVENTORY"] = controller.name
    answer = controller.call("deploy", "chain3")
    assert answer.status == 0, answer.err
    assert {row["state"] for row in brokers(controller).values()} == {"running"}
    for machine in ("n01", "gw2"):
        said = (controller.lab_folder / "log" / f"{machine}.log").read_text().splitlines()
        came = {row.split(" from ")[1].split()[0] for row in said if "Accepted publickey" in row}
        assert {address.rpartition(".")[2] for address in came} == {"3"}, "from the gateway only"
    # The key of an inner gateway counts as much as a host's.
    known = controller.lab_folder / f"known_hosts.{controller.name}"
    lines = known.read_text().splitlines(keepends=True)
    inner = next(line.split()[0] for line in lines if ".2 " in line and line != lines[0])
    known.write_text("".join(line for line in lines if not line.startswith(inner + " ")))
    refused = controller.call("status")
    assert refused.status == 6, refused.err
    assert "gw2" in refused.err
    known.write_text("".join(lines))
    assert controller.call("down", "--verify").status == 0
    assert controller.left_behind() == []


@pytest.mark.sampled
def test_a_lost_host_is_named_and_cleaned_when_it_is_back(lab: Controller) -> None:
    assert lab.call("deploy", "chain3").status == 0
    host = str(brokers(lab)["c2"]["host"])
    assert lab.lab("off", host).status == 0
    seen = lab.call("status")
    assert seen.status == 5, seen.err
    assert host in seen.err
    assert seen.out.count("running") == 2, seen.out
    gone = lab.call("down", "--verify")
    assert gone.status in (5, 6, 7), gone.err
    assert host in gone.err
    assert "or file is left on n" in gone.out
    assert host not in gone.out
    assert lab.lab("on", host).status == 0
    again = lab.call("down", "--verify")
    assert again.status == 0, again.err
    assert "; the program stays installed, --purge removes it" in again.out
    assert lab.left_behind() == []


@pytest.mark.sampled
def test_a_second_operator_receives_the_owner_time_and_purpose_of_the_lock(lab: Controller) -> None:
    assert lab.call("deploy", "chain3").status == 0
    process = lab.start("inject", "freeze", "c2", "--for", "300s")
    try:
        wait_until("c2 is frozen", lambda: _faults(lab))
        for arguments in (["deploy", "chain3"], ["down"], ["inject", "cut", "c1", "--for", "1s"]):
            refused = lab.call(*arguments)
            assert refused.status == 4, refused.err
            assert "for `inject freeze" in refused.err
            assert f"pid {process.pid}" in refused.err
            assert " since 2" in refused.err
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert _faults(lab) == []
    assert {row["state"] for row in brokers(lab).values()} == {"running"}
    assert lab.call("down", "--verify").status == 0
    assert lab.left_behind() == []


def _faults(lab: Controller) -> list[object]:
    found = lab.call("status", "-j").document["faults"]
    assert isinstance(found, list)
    return found


def _network(lab: Controller) -> int:
    return int(next(iter(lab.machines().values())).split(".")[2])
