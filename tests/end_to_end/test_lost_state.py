"""Stories about a broker with a lost disk: commands show the cause, and one repairs the broker."""

import os
import shutil
import signal

import pytest

from tests.end_to_end.conftest import Lab, wait_until

pytestmark = pytest.mark.end_to_end


def test_a_broker_without_its_disk_is_shown_with_the_cause_and_brought_back(lab: Lab) -> None:
    deploy = ("deploy", "chain3-cells", "--protocol", "gryphon")
    first = lab.call(*deploy, "--json")
    assert first.status == 0, first.err
    assert lab.call(*deploy, "--accept-loss", "c9").status == 2
    assert (
        "c1 is running, and a loss is accepted at a start"
        in lab.call(*deploy, "--accept-loss", "c1").err
    )

    (folder,) = {path.parent for path in lab.folder.rglob("c1/**/meta.sqlite3")}
    row = broker(lab, "c1")
    os.kill(row["pid"], signal.SIGKILL)
    wait_until("c1 has ended", lambda: broker(lab, "c1")["state"] != "running")
    refused = lab.call(*deploy, "--accept-loss", "c1")
    assert refused.status != 0
    assert "no loss of its state is known" in refused.err

    shutil.rmtree(folder)
    lost = lab.call(*deploy)
    assert lost.status == 5, (lost.status, lost.err)
    assert "lost state that was durable" in lost.err
    assert "--accept-loss c1" in lost.err
    assert "lost state that was durable" in lab.call("status").out

    back = lab.call(*deploy, "--accept-loss", "c1", "--json")
    assert back.status == 0, back.err
    assert {broker(lab, name)["state"] for name in ("c1", "c2", "c3")} == {"running"}
    os.kill(broker(lab, "c1")["pid"], signal.SIGKILL)
    wait_until("c1 has ended", lambda: broker(lab, "c1")["state"] != "running")
    assert lab.call(*deploy).status == 0, "the loss is accepted for good"
    assert lab.call("down", "--verify").status == 0


def broker(lab: Lab, name: str) -> dict[str, object]:
    """Return the row of a broker in `status`."""
    rows = lab.call("status", "--json").document["brokers"]
    (row,) = (each for each in rows if each["broker"] == name)
    assert isinstance(row, dict)
    return row
