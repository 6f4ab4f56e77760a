"""Stories about two operators and one lab."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.agent.host.private_files import (
    interrupted_command,
    lock_holder,
    lock_path,
    operator_lock,
)
from brokerd.errors import ControlError


def test_the_second_operator_receives_the_holder_time_and_purpose_of_a_lock(tmp_path: Path) -> None:
    root = tmp_path / "inventory" / "host"
    with operator_lock(root, "bench demo"):
        holder = lock_holder(root)
        assert holder is not None
        with pytest.raises(ControlError) as caught, operator_lock(root, "deploy"):
            pytest.fail("two operators at once")
    said = str(caught.value)
    assert caught.value.kind == "busy"
    assert f"{holder['who']} (pid {os.getpid()}) since {holder['since']}" in said
    assert "for `bench demo`" in said
    assert "T" in holder["since"]


@pytest.mark.parametrize(
    "purpose, advice",
    [
        ("deploy", "; wait for its end, or end it there with Ctrl-C"),
        ("inject freeze-b1", "belong to its schedule (`bench WORKLOAD --faults FILE`)"),
    ],
)
def test_the_second_operator_receives_advice(tmp_path: Path, purpose: str, advice: str) -> None:
    root = tmp_path / "host"
    with (
        operator_lock(root, "bench demo"),
        pytest.raises(ControlError) as caught,
        operator_lock(root, purpose),
    ):
        pytest.fail("two operators at once")
    assert advice in str(caught.value)


def test_a_released_lock_leaves_no_files_and_can_be_acquired_again(tmp_path: Path) -> None:
    root = tmp_path / "inventory" / "host"
    for _ in range(2):
        with operator_lock(root, "deploy"):
            pass
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError), operator_lock(root, "deploy"):
        raise ZeroDivisionError
    assert lock_holder(root) is None


def test_the_lock_of_an_operator_that_was_killed_is_free(tmp_path: Path) -> None:
    root = tmp_path / "host"
    program = (
        "import os, pathlib, signal\nfrom brokerd.agent.host.private_files import operator_lock\n"
        f"with operator_lock(pathlib.Path({str(root)!r}), 'a long purpose', 'w' * 200):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    assert lock_path(root).exists()
    assert lock_holder(root) is None
    assert interrupted_command(root).startswith("`a long purpose` of ")
    with operator_lock(root, "deploy"):
        holder = lock_holder(root)
        assert holder is not None
        assert (holder["purpose"], holder["pid"]) == ("deploy", os.getpid())
        assert interrupted_command(root) == ""
    assert not lock_path(root).exists()
    assert interrupted_command(root) == ""


def test_a_lock_that_its_process_never_released_names_the_interrupted_command(
    tmp_path: Path,
) -> None:
    root = tmp_path / "host"
    lock = operator_lock(root, "deploy demo", "ann@lab", 7)
    lock.__enter__()
    assert interrupted_command(root) == ""
    holder = lock_holder(root)
    assert holder is not None
    del lock  # as at the end of a helper that lost its connection
    assert lock_holder(root) is None
    assert interrupted_command(root) == f"`deploy demo` of ann@lab, begun {holder['since']}"


def test_a_helper_that_loses_its_operator_names_the_interrupted_command(tmp_path: Path) -> None:
    root = tmp_path / "host"
    program = (
        "import pathlib\nfrom brokerd.agent.host import server\n"
        "class Lost:\n"
        "    def __init__(self, handlers):\n        self.handlers = handlers\n"
        "    async def serve_stream(self, stream):\n"
        "        await self.handlers['lock']({'purpose': 'deploy x', 'who': 'ann', 'pid': 7})\n"
        "server.ControlServer = Lost\n"
        f"server.serve_host(pathlib.Path({str(root)!r}), 'n1')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdin=subprocess.DEVNULL)
    assert lock_holder(root) is None
    assert interrupted_command(root).startswith("`deploy x` of ann, begun ")


@pytest.mark.parametrize("content", ["", "torn {", "[]", '{"who": "ann"}'])
def test_a_lock_without_a_purpose_names_no_command(tmp_path: Path, content: str) -> None:
    root = tmp_path / "host"
    lock_path(root).write_text(content)
    assert interrupted_command(root) == ""


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    lock_path(tmp_path / "host").symlink_to(victim)
    with pytest.raises(OSError, match="ymbolic"), operator_lock(tmp_path / "host", "deploy"):
        pytest.fail("took a lock through a link")
    assert victim.read_text() == "untouched"
