"""S-LOG-1: a packed run names no host and no user, and is the same run."""

import errno
import json
import re
import shutil
import socket
from pathlib import Path

import pytest

from bench.run.series import open_series
from pubsubctl.errors import PreflightFailed, UserError
from pubsubctl.runs import redaction
from pubsubctl.runs.redaction import copy_without_place, pack_run
from results.reference.history_reader import judge_folder
from results.tables.logs import read_logs
from results.tables.manifest import read_run
from results.tables.seals import seal, verify_seal
from tests.helpers.runs import Scenario, write_demo_run
from tests.pubsubctl.conftest import Call

WITNESSED = Path(__file__).parents[1] / "results" / "witnessed_run"
INVENTORY = """\
schema = "pubsubctl/inventory/1"
name = "secretlab"
[defaults]
user = "alicia"
jump = "gatehouse"
# alicia keeps these in the cellar of gatehouse.example.org
[gateways.gatehouse]
address = "gatehouse.example.org"
[[hosts]]
name = "babbage[1:3]"
address = "192.0.2.[11:13]"
vars = { failure_domain = "cellar", root = "/data/alicia/runs" }
"""
CANARIES = (
    "babbage", "192.0.2.1", "alicia", "gatehouse", "example.org", "cellar", "secretlab",
    socket.gethostname(), "/home/bob", "cave", "hush",
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_demo_run(tmp_path_factory.mktemp("runs"), Scenario(measure_s=1.0, rate=5))
    (run / "spec" / "inventory.toml").write_text(INVENTORY)
    for number in (1, 2, 3):
        (run / "raw" / f"local{number}").rename(run / "raw" / f"babbage{number}")
    for path in [*run.rglob("*.json"), *run.rglob("*.jsonl")]:
        path.write_text(path.read_text().replace("local", "babbage"))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["argv"] = ["/opt/hush/bin/pubsubctl", "-i", "labs/cave.toml", "bench", "/home/bob/w"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "raw" / "babbage2" / "b1" / "stderr.log").write_text(
        f"b1: alicia@babbage2 (192.0.2.12:21000) via gatehouse.example.org in "
        f"/data/alicia/runs on {socket.gethostname()}; \udcff b1-sub-1\n",
        errors="surrogateescape",
    )
    seal(run)
    return run


def test_no_name_of_a_host_or_user_is_left_and_the_logs_are_the_same(
    written: Path, tmp_path: Path
) -> None:
    packed = pack_run(written, tmp_path / "packed")
    assert packed.left_out == ("spec/inventory.toml",)
    everything = b"".join(
        str(path.relative_to(packed.folder)).encode() + path.read_bytes()
        for path in sorted(packed.folder.rglob("*"))
        if path.is_file()
    )
    assert [name for name in CANARIES if name.encode() in everything] == []
    assert b"b1: user@h2 (h2:21000) via g1 in /root-of-h1 on controller" in everything
    verify_seal(packed.folder)
    before, after = (read_logs(read_run(folder)) for folder in (written, packed.folder))
    assert [p.name for p in after.processes] == [p.name for p in before.processes]
    assert {p.host for p in after.processes} == {"h1", "h2", "h3"}
    assert after.rows == before.rows > 0
    assert after.doubts == before.doubts


EVERY_STRING = """\
schema = "pubsubctl/inventory/1"
name = "zqname"
[defaults]
user = "zquser"
jump = "zqgate"
identity = "~/.ssh/zqkey"
known_hosts = "~/zqfolder/zqhosts"
python = "/opt/zqtool/bin/zqpython"
failure_domain = "zqroom"
bench_nic = "zqnic0"
[gateways.zqgate]
address = "zqdoor.zqtown.example"
user = "zqporter"
identity = "~/.ssh/zqgatekey"
[groups.zqgroup]
hosts = ["zqhost1"]
[groups.zqother.vars]
data_dir = "/mnt/zqdisk/zqdata"
[[hosts]]
name = "zqhost[1:3]"
address = "zqhost[1:3].zqlab.example"
groups = ["zqother"]
vars = { root = "/scratch/zqroot" }
[expect]
governor = "zqgovernor"
"""


def test_no_word_of_any_string_of_an_inventory_is_left(tmp_path: Path) -> None:
    """Each string has a unique word, which logs and files of the run contain alone and whole."""
    run = write_demo_run(tmp_path / "runs", Scenario(measure_s=1.0, rate=5))
    (run / "spec" / "inventory.toml").write_text(EVERY_STRING)
    words = sorted({*re.findall(r"zq\w+", EVERY_STRING), "zqhost1", "zqhost2", "zqhost3"})
    strings = re.findall(r'"([^"\n]*zq[^"\n]*)"', EVERY_STRING)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["labels"] = {"groups": {"zqgroup": ["zqhost1"]}, "said": [*words, *strings]}
    (run / "manifest.json").write_text(json.dumps(manifest))
    (log,) = sorted((run / "raw").rglob("b1/stderr.log")) or [run / "raw" / "note.log"]
    home = str(Path("~/.ssh/zqkey").expanduser())
    log.write_text("\n".join([*words, *strings, home, "zqhost2.zqlab.example:22"]))
    seal(run)
    packed = pack_run(run, tmp_path / "packed").folder
    everything = "".join(
        f"{path.relative_to(packed)} {path.read_text(errors='replace')}"
        for path in sorted(packed.rglob("*"))
        if path.is_file()
    )
    assert [word for word in words if word in everything] == []
    (packed_log,) = sorted((packed / "raw").rglob(log.name))[-1:]
    renamed = dict(zip(words, packed_log.read_text().splitlines(), strict=False))
    assert (renamed["zquser"], renamed["zqporter"]) == ("user", "user")
    assert read_logs(read_run(packed)).doubts == read_logs(read_run(run)).doubts


def test_a_packed_run_with_its_own_clock_keeps_its_identity(tmp_path: Path) -> None:
    """The id of a simulated run is part of its published fences."""
    run = write_demo_run(tmp_path / "runs", Scenario(measure_s=1.0, rate=5))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["clock"]["boot_id"] = manifest["run_id"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    seal(run)
    packed = pack_run(run, tmp_path / "packed").folder
    assert read_run(packed).run_id == read_run(run).run_id
    before, after = read_logs(read_run(run)), read_logs(read_run(packed))
    assert after.doubts == before.doubts
    assert after.rows == before.rows > 0


def test_host_names_are_kept_on_request(written: Path, tmp_path: Path) -> None:
    packed = pack_run(written, tmp_path / "packed", keep_hosts=True)
    assert (packed.folder / "raw" / "babbage2").is_dir()
    assert (packed.folder / "spec" / "inventory.toml").read_text() == INVENTORY


def test_a_host_with_the_name_of_a_broker_cannot_be_renamed(written: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(written, tmp_path / "run"))
    (run / "spec" / "inventory.toml").write_text(INVENTORY.replace("babbage", "b"))
    seal(run)
    with pytest.raises(UserError, match=r"'b1' names a host.*--keep-hosts"):
        pack_run(run, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_the_command_packs_once(call: Call, written: Path, tmp_path: Path) -> None:
    answer = call("results", "pack", str(written), "-o", str(tmp_path / "packed"), "-j")
    assert answer.status == 0
    assert answer.document["left_out"] == ["spec/inventory.toml"]
    again = call("results", "pack", str(written), "-o", str(tmp_path / "packed"))
    assert again.status == 2
    assert "exists already" in again.err


@pytest.mark.parametrize("copier", ["pack_run", "copy_without_place"])
def test_a_copy_on_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copier: str
) -> None:
    def fail(source: Path, target: Path) -> None:
        target.write_bytes(b"part")
        raise OSError(errno.ENOSPC, "No space left on device", str(source))

    monkeypatch.setattr("shutil.copyfile", fail)
    with pytest.raises(PreflightFailed, match="packed: cannot be written: no space left"):
        getattr(redaction, copier)(WITNESSED, tmp_path / "copies" / "packed")
    assert [*(tmp_path / "copies").iterdir()] == []


def test_a_series_is_not_packed_and_names_its_runs(call: Call, tmp_path: Path) -> None:
    series = open_series(tmp_path, "story", {"seed": 1}, ["calm"], 2, hosts={})
    for place, instance in enumerate(series.remaining()):
        series.end(instance, tmp_path / f"20261124T00000{place}Z-abcdef", "complete")
    series.close({})
    verbs = (["results", "pack", "-o", "copy"], ["why", "p1:1", "s1"], ["clock", "show"])
    for verb, *words in verbs:
        answer = call(verb, *words, str(series.path))
        assert answer.status == 2, answer.err
        assert "this is a series; name one of its runs: 20261124T000000Z-abcdef, " in answer.err


def test_a_copied_series_contains_no_names_of_hosts_and_users(tmp_path: Path) -> None:
    series = open_series(
        tmp_path,
        "story",
        {"seed": 1, "workload": "/home/alice/w.toml"},
        ["calm"],
        1,
        hosts={"n1.lab.example": {"cores": "own"}},
    )
    for instance in series.remaining():
        series.end(instance, tmp_path / "20261124T000000Z-abcdef", "complete")
    series.close({})
    copy_without_place(series.path, tmp_path / "copy")
    assert (tmp_path / "copy" / "spec" / "plan.json").is_file()
    texts = [path.read_text() for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert not any("lab.example" in text or "alice" in text for text in texts)
    assert any("/home/user/w.toml" in text for text in texts)


EVERY_ADDRESS = """\
schema = "pubsubctl/inventory/1"
name = "lab"
[defaults]
jump = "door"
[gateways.door]
address = "203.0.113.77"
[[hosts]]
name = "babbage1"
address = "192.0.2.61"
vars = { bench_address = "198.51.100.21" }
[[hosts]]
name = "babbage2"
address = "2001:db8:77::2"
vars = { bench_address = "198.51.100.22" }
[[hosts]]
name = "babbage3"
address = "192.0.2.63"
vars = { bench_address = "2001:db8:88::3" }
"""


def test_no_address_of_an_inventory_is_left(tmp_path: Path) -> None:
    """A host has an address for logins and may have another address for the bench network."""
    run = write_demo_run(tmp_path / "runs", Scenario(measure_s=1.0, rate=5))
    (run / "spec" / "inventory.toml").write_text(EVERY_ADDRESS)
    addresses = re.findall(r'address = "([^"]+)"', EVERY_ADDRESS)
    assert len(addresses) == 7
    (log,) = sorted((run / "raw").rglob("b1/stderr.log")) or [run / "raw" / "note.log"]
    log.write_text("\n".join([*addresses, *(f"[{each}]:21000" for each in addresses)]))
    seal(run)
    packed = pack_run(run, tmp_path / "packed").folder
    everything = "".join(
        path.read_text(errors="replace") for path in sorted(packed.rglob("*")) if path.is_file()
    )
    assert [each for each in addresses if each in everything] == []


EVERY_WORD = """\
schema = "pubsubctl/inventory/1"
name = "word-lab"
[gateways.word-gate]
address = "word-gate-address.example"
user = "word-gate-user"
[[hosts]]
name = "word-host"
address = "word-address.example"
vars = { bench_address = "192.0.2.77", user = "word-user", failure_domain = "word-rack", \
jump = "word-gate", root = "/word-root/a", data_dir = "/word-data/b" }
"""


def test_no_word_of_an_inventory_is_left_in_a_log(tmp_path: Path) -> None:
    """Each text that names a person or a place stands in a log of the run."""
    run = write_demo_run(tmp_path / "runs", Scenario(measure_s=1.0, rate=5))
    (run / "spec" / "inventory.toml").write_text(EVERY_WORD.replace("\\\n", ""))
    words = [each for each in re.findall(r'"([^"]+)"', EVERY_WORD) if "pubsubctl" not in each]
    assert len(words) == 11
    log = next(iter(sorted((run / "raw").glob("*/*")))) / "stderr.log"
    log.write_text("\n".join(f"at {each}: it ends" for each in words))
    seal(run)
    packed = pack_run(run, tmp_path / "packed").folder
    everything = "".join(
        path.read_text(errors="replace") for path in sorted(packed.rglob("*")) if path.is_file()
    )
    assert [each for each in words if each in everything] == []


def test_a_packed_run_has_the_verdict_of_the_run(tmp_path: Path) -> None:
    packed = pack_run(WITNESSED, tmp_path / "packed")
    assert packed.renamed
    judgement = judge_folder(packed.folder)
    assert (judgement.verdict, judgement.doubts) == ("VALID", ())
