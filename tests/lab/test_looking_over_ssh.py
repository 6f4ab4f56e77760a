"""Stories about hosts that are inspected over SSH before an installation."""

import json

import pytest

from tests.lab.conftest import Controller

pytestmark = pytest.mark.lab


def test_doctor_and_facts_look_at_hosts_that_have_nothing_of_ours(lab: Controller) -> None:
    answer = lab.call("doctor", "--only", "reach,host-key,python,root,address,fsync,machines", "-j")
    assert answer.status == 0, answer.err
    findings = answer.document["findings"]
    names = [row["name"] for row in lab.call("inventory", "list", "-j").document["hosts"]]
    for check in ("reach", "host-key", "python", "root", "address", "fsync"):
        said = [row for row in findings if row["id"] == check]
        assert all(row["severity"] in ("ok", "warn") for row in said)
        assert {row["text"].partition(":")[0] for row in said} >= {*names}
    # Namespaces of one machine count as one machine, regardless of addresses.
    assert [row["severity"] for row in findings if row["id"] == "machines"] == ["warn"]
    facts = lab.call("inventory", "facts", "-j").document["hosts"]
    assert [row["name"] for row in facts] == names
    assert len({row["facts"]["boot_id"] for row in facts}) == 1
    assert lab.left_behind() == []


def test_doctor_reports_the_fingerprint_of_an_unknown_host_key_without_a_login(
    lab: Controller,
) -> None:
    (known,) = lab.lab_folder.glob("known_hosts*")
    before = {path.name: path.read_text() for path in (lab.lab_folder / "log").glob("*.log")}
    kept = known.read_text()
    known.write_text("")
    try:
        answer = lab.call("doctor", "--only", "reach,host-key,ports", "-j")
    finally:
        known.write_text(kept)
    assert answer.status == 6
    said = json.dumps(answer.document)
    assert "SHA256:" in said
    assert "inventory trust" in said
    for path in (lab.lab_folder / "log").glob("*.log"):
        assert "Accepted" not in path.read_text()[len(before[path.name]) :]
