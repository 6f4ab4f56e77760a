"""Stories about running a command on many hosts."""

import pytest

from tests.pubsubctl.conftest import Call


def test_every_host_answers_behind_its_name(call: Call) -> None:
    answer = call("exec", "--", "echo", "hello")
    assert (answer.status, answer.out) == (0, "t1 | hello\nt2 | hello\n")


def test_words_reach_the_host_as_they_are(call: Call) -> None:
    words = ["a b", "$HOME", "`id`", "; rm -rf x", "*", "'", "--json", ""]
    answer = call("exec", "-l", "t1", "--", "printf", "<%s>", *words)
    assert answer.out == "t1 | " + "".join(f"<{word}>" for word in words) + "\n"


def test_each_failing_host_is_reported_without_stopping_the_others(call: Call) -> None:
    answer = call("exec", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert answer.status == 5
    assert [row["status"] for row in answer.document["hosts"]] == [3, 3]
    assert [row["stdout"] for row in answer.document["hosts"]] == ["out\n", "out\n"]
    assert "host t1: sh: status 3" in answer.err
    assert "t2 ! err" in answer.err


@pytest.mark.parametrize(
    "command, said",
    [
        (["no-such-command"], "status 127"),
        (["sh", "-c", "kill -KILL $$"], "was ended by a signal"),
        (["--timeout", "100ms", "--", "sleep", "60"], "not done after 0.1 s"),
    ],
)
def test_an_unsuccessful_command_exits_with_status_5(
    call: Call, command: list[str], said: str
) -> None:
    arguments = command if "--" in command else ["--", *command]
    answer = call("exec", "-l", "t1", *arguments)
    assert answer.status == 5
    assert said in answer.err


def test_a_command_that_ignores_sigterm_is_killed_without_a_warning(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pubsubctl.hosts.connectors.local._STOP_PATIENCE_S", 0.05)
    stubborn = "trap '' TERM; exec sleep 600"
    answer = call("exec", "-l", "t1", "--timeout", "100ms", "--", "sh", "-c", stubborn)
    assert answer.status == 5
    assert "not done after 0.1 s" in answer.err
    assert "RuntimeWarning" not in answer.err


def test_output_cannot_steer_the_terminal(call: Call) -> None:
    answer = call("exec", "-l", "t1", "--", "printf", "a\\033[2Jb\\n")
    assert answer.out == "t1 | a\\x1b[2Jb\n"


def test_a_limit_that_matches_nothing_runs_nothing(call: Call) -> None:
    assert call("exec", "-l", "nobody", "--", "true").status == 2


def test_a_dry_run_only_prints_the_commands(call: Call) -> None:
    answer = call("exec", "-n", "--", "touch", "a file")
    assert (answer.status, answer.out) == (0, "would run touch 'a file' on t1, t2\n")
