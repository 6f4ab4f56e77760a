"""Stories about outputs that cannot be written, and about hosts whose login prints."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from pubsubctl.errors import Unreachable
from pubsubctl.hosts.ssh.connections import SshConnections
from pubsubctl.hosts.ssh.line import Garbled, files_on
from pubsubctl.inventory.inventory import load_inventory
from pubsubctl.running.crates import CrateFile, crate_of

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")
INVENTORY = 'schema = "pubsubctl/inventory/1"\nname = "lab"\n[[hosts]]\nname = "n1"\n'


def ended(words: str, folder: Path) -> tuple[int, str]:
    """Return the status and the errors of a command of a shell, in which $P is pubsubctl."""
    done = subprocess.run(
        ["/bin/sh", "-c", words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "P": f"{sys.executable} -m pubsubctl"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="needs the device /dev/full")
@pytest.mark.parametrize("words", ["$P results list --json", "$P --version"])
def test_a_full_standard_output_is_a_sentence_and_no_verdict(tmp_path: Path, words: str) -> None:
    status, errors = ended(f"{words} >/dev/full", tmp_path)
    assert (status, errors) == (4, "error: standard output: no space left on device\n")


def test_a_closed_standard_output_is_a_sentence_and_no_verdict(tmp_path: Path) -> None:
    status, errors = ended("$P --version >&- <&-", tmp_path)
    assert status == 4
    assert errors == "error: standard output is closed; redirect it to a file or to /dev/null\n"


@pytest.mark.parametrize(
    "printed, text",
    [
        (b"Welcome to node n1!\nLast login: today\n", "Welcome to node n1!"),
        (b"hi\n", "hi"),
        (b"\n\n  Maintenance at 6.\n\0\0\0\5\2\0\0\0\3", "Maintenance at 6."),
    ],
)
def test_a_text_before_a_file_transfer_is_named(printed: bytes, text: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(printed + b"\0\0\0\5\2\0\0\0\3")
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(Garbled, match=f"^{text}$"):
            files_on(ours)


def test_a_login_that_prints_makes_the_host_unreachable_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(f'{INVENTORY}address = "10.0.0.1"\n')
    inventory = load_inventory(path)

    class Line:
        def transfer(self, work: object) -> None:
            raise Garbled("Welcome!")

    async def line(self: SshConnections, hop: object) -> Line:
        return Line()

    monkeypatch.setattr(SshConnections, "_line", line)

    async def story() -> Unreachable:
        async with SshConnections(inventory) as connections:
            with pytest.raises(Unreachable) as caught:
                await connections.try_transfer(inventory.hosts[0])
        return caught.value

    error = trio.run(story)
    assert error.exit_status == 6
    assert str(error) == (
        "n1: its login prints 'Welcome!' into file transfers; "
        "print in terminals only, for example after `[ -t 1 ] &&` in ~/.bashrc"
    )


@pytest.mark.parametrize("authors", [[], ["A. Author", "B. Author"]])
def test_an_archive_finds_all_recommended_fields_of_a_capsule(authors: list[str]) -> None:
    document = {"name": "paper", "published": "2026-11-28", "made_by": ["0.1.0 (abc)"]}
    names = ["capsule.json", "runs/a/1/log.jsonl", "runs/a/1/x.rec", "runs/a/1/f.svg", "SHA256SUMS"]
    crate = crate_of(
        document, [CrateFile(names[0]), *(CrateFile(n, 1, "0") for n in names[1:])], authors
    )
    by_id = {each["@id"]: each for each in crate["@graph"]}
    root = by_id["./"]
    for field in ("name", "description", "datePublished", "license", "author", "publisher"):
        assert root[field], field
    assert [each["@id"] for each in root["hasPart"]] == names
    linked = [*root["hasPart"], *root["author"], *root["mentions"], root["publisher"]]
    for one in (root["license"], *linked):
        assert by_id[one["@id"]]["name"]
        assert by_id[one["@id"]]["@type"]
    formats = [by_id[name]["encodingFormat"] for name in names]
    assert formats == [
        *("application/json", "application/x-ndjson", "application/octet-stream"),
        *("image/svg+xml", "text/plain"),
    ]
    people = [by_id[each["@id"]]["name"] for each in root["author"]]
    assert people == (authors or ["The authors of this capsule"])
