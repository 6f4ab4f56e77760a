"""Stories about `lab up` and `lab down`: a lab is complete or absent, and leaves no trace."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.patience import PATIENCE_S
from tests.lab.conftest import INTERFACES, NAMESPACES, Chosen, Controller

pytestmark = pytest.mark.lab

NEXT_LOOK_S = 0.0005


def ssh(controller: Controller, address: str, *words: str, options: tuple[str, ...] = ()) -> str:
    """Return the output of the ordinary client with strict settings."""
    folder = controller.lab_folder
    settings = {
        "UserKnownHostsFile": str(folder / f"known_hosts.{controller.name}"),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "IdentityFile": str(folder / "user_key"),
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "User": "root",
    }
    flags = [f"-o{name}={value}" for name, value in settings.items()]
    command = ["ssh", "-F", "none", *options, *flags, address, *words]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return result.stdout + result.stderr


def links_and_spaces(controller: Controller) -> tuple[set[str], set[str]]:
    """Return the machine's network interfaces and namespaces, without those of other labs."""
    found = [{path.name for path in folder.glob("*")} for folder in (INTERFACES, NAMESPACES)]
    links, spaces = (
        {name for name in names if not name.startswith("psl-") or controller.name in name}
        for names in found
    )
    return links, spaces


def test_machines_are_of_their_own_and_down_leaves_no_trace(controller: Controller) -> None:
    links_before, spaces_before = links_and_spaces(controller)
    answer = controller.lab("up", "--hosts", "2", "-j")
    assert answer.status == 0, answer.err
    assert answer.document["changed"]
    assert links_and_spaces(controller)[0] - links_before == {f"psl-{controller.name}"}
    machines = controller.machines()
    assert list(machines) == ["n01", "n02"]
    (controller.folder / "seen").write_text("by the controller")
    for name, address in machines.items():
        marked = ssh(controller, address, "touch", f"/tmp/{name}", "~/mark", "&&", "hostname")
        assert marked.strip() == name
        seen = ssh(controller, address, "ls", "/tmp", "~", str(controller.folder / "seen"))
        assert name in seen
        assert "mark" in seen
        assert "No such file" in seen, "the controller's /tmp is not the machine's"
        assert len({other for other in machines if other in seen}) == 1
        keys = f"{controller.lab_folder}/machines/{name}/ssh/ssh_host_ed25519_key.pub"
        assert (
            Path(keys).read_text().split()[1]
            in (controller.lab_folder / f"known_hosts.{controller.name}").read_text()
        )

    again = controller.lab("up", "--hosts", "2")
    assert again.status == 0
    assert "is there already" in again.out
    other = controller.lab("up", "--hosts", "3")
    assert other.status == 4
    assert "with 2 hosts" in other.err
    listed = controller.call("inventory", "list", "-i", controller.name).out
    assert all(address in listed for address in machines.values())

    alone = ("setsid", "-f", "sleep", "1000", ">/dev/null", "2>&1")
    assert ssh(controller, machines["n01"], *alone) == ""
    assert len(controller.processes()) > 2
    assert controller.lab("down").status == 0
    assert controller.traces() == []
    assert links_and_spaces(controller) == (links_before, spaces_before)
    assert controller.lab("down").status == 2, "there is no such lab any more"
    assert controller.call("lab", "down").out == "there is no lab\n"


def test_only_keys_open_a_machine_and_hosts_carry_nothing_on(controller: Controller) -> None:
    assert controller.lab("up", "--hosts", "2").status == 0
    one, two = controller.machines().values()
    refused = ssh(controller, one, "true", options=("-oPubkeyAuthentication=no",))
    assert "Permission denied (publickey)" in refused
    assert "Permission denied" in ssh(controller, one, "true", options=("-oUser=nobody",))
    carried = ssh(controller, one, options=("-W", f"{two}:22"))
    assert "administratively prohibited" in carried
    listening = json.loads(
        subprocess.run(
            ["ip", "-json", "-n", f"psl-{controller.name}-01", "address", "show", "dev", "eth0"],
            capture_output=True,
            check=True,
        ).stdout
    )
    for row in listening[0]["addr_info"]:
        if row["scope"] == "global":
            assert ssh(controller, row["local"], "hostname").strip() == "n01"


MOMENTS: dict[str, Callable[[Controller], bool]] = {
    "the lock is taken": lambda lab: lab.lab_folder.with_suffix(".lock").exists(),
    "its folder is there": lambda lab: lab.lab_folder.is_dir(),
    "its journal is there": lambda lab: (lab.lab_folder / "journal.jsonl").exists(),
    "the switch is there": lambda lab: (NAMESPACES / f"psl-{lab.name}-sw").exists(),
    "the link is there": lambda lab: (INTERFACES / f"psl-{lab.name}").exists(),
    "a machine's network is there": lambda lab: any(NAMESPACES.glob(f"psl-{lab.name}-0*")),
    "a machine is being started": lambda lab: bool(list(lab.lab_folder.glob("log/*"))),
    "one machine is known": lambda lab: "started" in _journal(lab),
    "three machines are known": lambda lab: _journal(lab).count("started") == 3,
    "it is ready": lambda lab: "ready" in _journal(lab),
}


def test_lab_down_removes_the_remains_of_a_killed_lab_up(
    controller: Controller, chosen: Chosen
) -> None:
    for what in chosen(list(MOMENTS)):
        process = controller.start("lab", "up", "--name", controller.name, "--hosts", "3")
        while not MOMENTS[what](controller) and process.poll() is None:
            time.sleep(NEXT_LOOK_S)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        answer = controller.lab("down")
        assert answer.status == 0, f"killed when {what}: {answer.err}"
        assert controller.traces() == [], f"killed when {what}"


def test_lab_up_starts_anew_after_a_killed_lab_up(controller: Controller) -> None:
    process = controller.start("lab", "up", "--name", controller.name, "--hosts", "6")
    while "started" not in _journal(controller) and process.poll() is None:
        time.sleep(NEXT_LOOK_S)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    answer = controller.lab("up", "--hosts", "2")
    assert answer.status == 0, answer.err
    assert "removing the rest of an interrupted" in answer.err
    for name, address in controller.machines().items():
        assert ssh(controller, address, "hostname").strip() == name
    assert controller.lab("down").status == 0
    assert controller.traces() == []


def test_ctrl_c_removes_the_partial_lab(controller: Controller) -> None:
    process = controller.start("lab", "up", "--name", controller.name, "--hosts", "3")
    while not list(controller.lab_folder.glob("log/*")) and process.poll() is None:
        time.sleep(NEXT_LOOK_S)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert controller.traces() == []


def test_lab_commands_leave_foreign_objects_with_the_same_name(controller: Controller) -> None:
    space, link = f"psl-{controller.name}-02", f"psl-{controller.name}"
    try:
        subprocess.run(["ip", "netns", "add", space], check=True)
        answer = controller.lab("up", "--hosts", "2")
        assert answer.status == 4
        assert f"namespace {space} is there already" in answer.err
        assert controller.call("lab", "list").out.startswith("there is no lab")
        assert (NAMESPACES / space).exists()
    finally:
        subprocess.run(["ip", "netns", "delete", space], check=True)
    assert controller.lab("up", "--hosts", "1").status == 0
    subprocess.run(["ip", "link", "delete", link], check=True)
    try:
        subprocess.run(["ip", "link", "add", link, "type", "bridge"], check=True)
        answer = controller.lab("down")
        assert answer.status == 7, "an interface of that name is left, and it is not the lab's"
        assert (INTERFACES / link).exists()
    finally:
        subprocess.run(["ip", "link", "delete", link], check=True)
    assert controller.traces() == []


def _journal(controller: Controller) -> str:
    try:
        return (controller.lab_folder / "journal.jsonl").read_text()
    except OSError:
        return ""
