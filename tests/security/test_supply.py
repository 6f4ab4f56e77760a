"""Tests of dependencies and environment: package floors and the unit (S-PIP-2, S-UNIT-1)."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "brokerd" / "systemd" / "brokerd@.service"

FLOORS = {
    "cbor2": (5, 9),  # before: deep nesting was a RecursionError, which no decoder error covers
    "cryptography": (43, 0),
    "paramiko": (5, 0),
}


def test_locked_packages_meet_the_security_floors() -> None:
    lock = (ROOT / ".setup" / "requirements.lock").read_text(encoding="utf-8")
    for package, floor in FLOORS.items():
        found = re.search(rf"^{package}==(\d+)\.(\d+)", lock, re.MULTILINE)
        assert found is not None, f"{package} is not locked"
        assert (int(found[1]), int(found[2])) >= floor, found[0]


SYSTEMD_ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd-analyze is not installed")
def test_the_unit_is_confined(tmp_path: Path) -> None:
    def exposure(text: str) -> subprocess.CompletedProcess[str]:
        unit = tmp_path / "brokerd@b1.service"
        unit.write_text(text, encoding="utf-8")
        command = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
        return subprocess.run(
            [*command, "--threshold=20", str(unit)], capture_output=True, text=True, check=False
        )

    shipped = exposure(UNIT.read_text(encoding="utf-8"))
    assert shipped.returncode == 0, shipped.stdout[-500:] + shipped.stderr
    bare = exposure("[Service]\nExecStart=/opt/pubsub/bin/python -m brokerd\n")
    assert bare.returncode != 0, "the measure would let anything through"


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_every_setting_of_the_unit(tmp_path: Path) -> None:
    def complaints(text: str) -> str:
        unit = tmp_path / "brokerd@b1.service"
        unit.write_text(text.replace("/opt/pubsub/bin/python", sys.executable), encoding="utf-8")
        command = ["systemd-analyze", "verify", "--recursive-errors=no", str(unit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return "\n".join(row for row in done.stderr.splitlines() if unit.name in row)

    shipped = UNIT.read_text(encoding="utf-8")
    assert complaints(shipped) == ""
    assert "MemoryDenyRiteExecute" in complaints(shipped.replace("DenyWrite", "DenyRite"))


def test_brokers_run_as_an_unprivileged_user_and_request_no_privileges() -> None:
    """S-SUDO-1: tasks for root (nftables, namespaces) need a root of their own, never sudo."""
    settings = dict(
        row.split("=", 1)
        for row in UNIT.read_text(encoding="utf-8").splitlines()
        if "=" in row and not row.startswith("#")
    )
    assert settings["User"] == "pubsub"
    assert settings["NoNewPrivileges"] == "yes"
    assert settings["CapabilityBoundingSet"] == settings["AmbientCapabilities"] == ""
    asking = re.compile(r"\b(sudo|doas|pkexec|su -c|setuid|setcap)\b")
    programs = [
        path
        for top in ("brokerd", "bench", "fault_injection", "pubsubctl", "results")
        for path in (ROOT / top).rglob("*.py")
    ]
    assert len(programs) > 100
    assert [path for path in programs if asking.search(path.read_text(encoding="utf-8"))] == []
