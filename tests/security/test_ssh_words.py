"""Tests of S-INV-1: words arrive at a host unchanged, and no command is ever a text."""

import ast
import os
import random
import subprocess
from pathlib import Path

import pytest

from pubsubctl.errors import UserError
from pubsubctl.hosts.ssh.config_syntax import command_line
from tests.helpers.product_code import python_files

NASTY = [
    *"'\"`$\\|&;<>(){}[]*?!#~= \t\n\r-/%",
    *("$(touch PWNED)", "`touch PWNED`", "; touch PWNED", "&& touch PWNED", "${IFS}", "$'\\x41'"),
    *("--", "-n", "-e", "\\0", "\\n", "ü", "δ", "漢", "🙂", "\x01", "\x1b[31m", "\x7f", "a", "Z9"),
]


def test_any_word_arrives_as_it_is_through_a_real_shell(tmp_path: Path) -> None:
    seed = int(os.environ.get("QUOTING_SEED", "20260101"))
    chance = random.Random(seed)
    wanted = 100_000
    words = ["".join(chance.choices(NASTY, k=chance.randrange(0, 6))) for _ in range(wanted)]
    for begin in range(0, wanted, 2_000):
        batch = words[begin : begin + 2_000]
        line = command_line(["printf", r"%s\0", *batch])
        done = subprocess.run(["sh", "-c", line], capture_output=True, cwd=tmp_path, check=True)
        assert done.stderr == b"", f"seed {seed}"
        arrived = done.stdout.decode().split("\0")[:-1]
        assert arrived == batch, f"seed {seed}, from word {begin}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["\0", "a\0b", "\ud800", "x" * 131_072])
def test_words_that_no_command_line_can_carry_are_refused(word: str) -> None:
    with pytest.raises(UserError):
        command_line(["printf", word])


def test_a_command_is_never_a_text() -> None:
    with pytest.raises(AssertionError, match="a list of words"):
        command_line("rm -rf /")


def test_commands_begin_in_one_module_only_and_are_never_written_as_text() -> None:
    starts = {"exec_command", "invoke_shell", "open_session", "create_session", "sudo"}
    for path, tree in python_files(*starts, "ssh.connections"):
        uses_connections = "ssh.connections" in path.read_text(encoding="utf-8")
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr in starts and "protocols" not in path.parts:
                assert path.name == "fabric_connection.py", f"{path}:{node.lineno}"
            if uses_connections and node.func.attr in ("run", "open") and len(node.args) > 1:
                words = node.args[1]
                is_text = isinstance(words, ast.JoinedStr | ast.BinOp) or (
                    isinstance(words, ast.Constant) and isinstance(words.value, str)
                )
                assert not is_text, f"{path}:{node.lineno}: a command is a list of words"
