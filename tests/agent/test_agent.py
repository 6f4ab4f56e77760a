"""Stories about an agent and real processes: started, stopped, killed, frozen, left, adopted."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from brokerd.agent.paths import AgentPaths
from brokerd.agent.processes import ProcessIdentity, boot_id
from brokerd.agent.watchdog import run_hold_watchdog, write_lease
from brokerd.errors import ControlError
from tests.helpers.agents import Lab, make_lab, next_event, run, until
from tests.helpers.descriptors import no_free_descriptors
from tests.helpers.patience import PATIENCE_S
from tests.helpers.small_disk import fill_disk, mounted_disk


@pytest.fixture
def lab() -> Iterator[Lab]:
    with make_lab() as made:
        yield made


@pytest.fixture(scope="module")
def calm_lab() -> Iterator[Lab]:
    """Yield an agent with a process b1, for tests without changes."""
    with make_lab() as made:
        made.start_agent()

        async def start() -> None:
            async with made.client() as client:
                await made.start(client, "b1")

        run(start)
        yield made


# ---------------------------------------------------------------- a full disk


def test_processes_end_and_are_stopped_although_the_disk_is_full(
    lab: Lab,
) -> None:
    with mounted_disk(lab.root, 1):
        lab.root.chmod(0o700)

        async def story() -> None:
            agent = lab.start_agent()
            async with lab.client() as client:
                first = await lab.start(client, "b1")
                await lab.start(client, "b2")
                await lab.start(client, "b3")
                fill_disk(lab.root)
                size_bytes = -1
                while size_bytes != (size_bytes := lab.paths.journal.stat().st_size):
                    with suppress(ControlError):
                        await client.hold(60_000)
                events = await client.listen()
                first.signal(signal.SIGKILL)
                await next_event(events, "process_exited")
                assert (await client.stop("b2"))["state"] == "stopped"
                rows = (await client.shutdown())["processes"]
                assert [rows[name]["exit_cause"] for name in rows] == [
                    "unexpected",
                    *["planned"] * 2,
                ]
            assert agent.wait(PATIENCE_S) == 0

        run(story)
        lab.clear()


# ---------------------------------------------------------------- start and stop


def test_a_started_process_answers_and_a_stopped_one_has_ended_in_order(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            events = await client.listen()
            identity = await lab.start(client, "b1")
            assert (await client.broker("b1", "status"))["pid"] == identity.pid
            row = await client.stop("b1")
            assert (row["state"], row["exit_code"], row["exit_cause"]) == ("stopped", 0, "planned")
            assert not row["forced"]
            assert not identity.is_alive()
            assert [await events.receive() for _ in range(2)][1] == (
                "process_exited",
                {
                    "process": "b1",
                    "pid": identity.pid,
                    "state": "stopped",
                    "exit_code": 0,
                    "exit_signal": None,
                    "exit_cause": "planned",
                    "t_exit_ns": row["t_exit_ns"],
                },
            )
            assert (await client.stop("b1"))["state"] == "stopped", "again changes nothing"
            assert (lab.root / "run" / "b1" / "stdout.log").read_text() == "ready\n"

    run(story)


def test_starting_again_is_idempotent_and_another_configuration_is_refused(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            first = await lab.start(client, "b1")
            assert await lab.start(client, "b1") == first
            with pytest.raises(ControlError, match="runs with another configuration"):
                await lab.start(client, "b1", stubborn=True)
            await client.stop("b1")
            assert await lab.start(client, "b1", stubborn=True) != first

    run(story)


def test_concurrent_starts_create_one_process_per_name(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        started: list[ProcessIdentity] = []
        async with lab.client() as client:

            async def start(name: str) -> None:
                started.append(await lab.start(client, name))

            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(start, f"b{number}")
                    nursery.start_soon(start, f"b{number}")
            assert len({identity.pid for identity in started}) == 10
            await client.shutdown()

    run(story)


def test_a_child_inherits_nothing_of_the_agent_but_its_memory(lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            core = min(os.sched_getaffinity(0))
            identity = await lab.start(client, "b1", core=core)
            status = await client.broker("b1", "status")
            assert status["session_id"] == identity.pid
            assert status["sigint"]
            assert status["mask"] == 0
            assert status["umask"] == 0o077
            assert status["cores"] == [core]
            assert status["parent"] == agent.pid
            targets = [os.readlink(f"/proc/{identity.pid}/fd/{n}") for n in (0, 1, 2)]
            folder = str(lab.root / "run" / "b1")
            assert targets == ["/dev/null", f"{folder}/stdout.log", f"{folder}/stderr.log"]
            # Beyond those: its lock, its event loop, its socket; none of the agent's.
            files = {
                os.readlink(f"/proc/{identity.pid}/fd/{name}")
                for name in os.listdir(f"/proc/{identity.pid}/fd")
            }
            assert str(lab.paths.process_file("b1")) in files
            for others in (lab.paths.lock, lab.paths.journal):
                assert str(others) not in files

    run(story)


def test_a_process_that_ignores_sigterm_is_killed_after_the_timeout(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1", stubborn=True)
            row = await client.stop("b1", timeout_ms=50)
            assert row["forced"]
            assert (row["exit_signal"], row["exit_cause"]) == (9, "planned")

    run(story)


@pytest.mark.parametrize(
    "how,exit_code,cause,said",
    [
        ("raise", 70, "unexpected", "ZeroDivisionError: too round"),
        ("config", 78, "unexpected", "b1: x.toml: speed = 0"),
        ("return", 0, "planned", ""),
    ],
)
def test_a_process_exit_is_recorded_with_its_cause_and_its_stderr(
    lab: Lab, how: str, exit_code: int, cause: str, said: str
) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            events = await client.listen()
            await lab.start(client, "b1", role="failing", how=how)
            details = await next_event(events, "process_exited")
            assert (details["exit_code"], details["exit_cause"]) == (exit_code, cause)
            assert said in (lab.root / "run" / "b1" / "stderr.log").read_text()
            assert (await client.disk())["disk_bytes"] == {}, "it was told of no folder of its own"
            listed = await client.files("b1")
            sizes = {file["name"]: file["size_bytes"] for file in listed["files"]}
            assert set(sizes) == {"exit.json", "stderr.log", "stdout.log"}
            assert all(len(file["sha256"]) == 64 for file in listed["files"])

    run(story)


def test_the_status_of_one_process_is_its_row_alone(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            await lab.start(client, "b2")
            every = (await client.status())["processes"]
            (row,) = (await client.status("b2"))["processes"].items()
            moving = {key: row[1][key] for key in ("processor_s", "busiest_thread_s")}
            assert row == ("b2", {**every["b2"], **moving})

    run(story)


def test_a_process_runs_at_its_configured_nice_level(lab: Lab) -> None:
    async def story() -> None:
        lab.prefix = ("nice", "-n", "3")
        base = min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1", nice=7)
            pid = (await client.status("b1"))["processes"]["b1"]["pid"]
            assert os.getpriority(os.PRIO_PROCESS, pid) == min(base + 7, 19)
            await lab.start(client, "b2")
            pid = (await client.status("b2"))["processes"]["b2"]["pid"]
            assert os.getpriority(os.PRIO_PROCESS, pid) == base

    run(story)


def test_child_processes_end_with_a_killed_process(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            child_file = lab.folder / "child"
            events = await client.listen()
            await lab.start(client, "b1", role="failing", how="child", child_file=str(child_file))
            details = await next_event(events, "process_exited")
            assert details["exit_signal"] == 9
            pid = int(child_file.read_text())
            await until(lambda: not os.path.exists(f"/proc/{pid}"), "waited for, too")

    run(story)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "command,arguments,reason",
    [
        ("stop", {"process": "b2"}, "did you mean 'b1'"),
        ("broker", {"process": "x", "command": "status", "arguments": {}}, "no process called 'x'"),
        ("broker", {"process": "b1", "command": "statu", "arguments": {}}, "did you mean 'status'"),
        ("signal", {"process": "b1", "signal": "KIL"}, "did you mean 'KILL'"),
        ("stop", {"process": "b1", "timeout": 3}, "did you mean 'timeout_ms'"),
        ("stop", {"process": "b1", "timeout_ms": True}, "timeout_ms is a bool"),
        ("stop", {}, "argument 'process' is missing"),
        ("stop", {"process": "b1", "timeout_ms": -1}, "timeout_ms = -1"),
        ("shutdown", {"timeout_ms": -1}, "timeout_ms = -1"),
        ("hold", {"lease_ms": 1 << 62}, f"lease_ms = {1 << 62}"),
        ("facts", {"all": True}, "it takes none"),
        ("status", {"process": "b2"}, "did you mean 'b1'"),
        ("statsu", {}, "did you mean 'status'"),
        ("files", {"process": "b1", "folder": "../.."}, "not below"),
        ("files", {"process": "b1", "folder": "/etc"}, "not below"),
        ("fault_renew", {"fault_id": "f", "lease_ms": 500}, "unknown here"),
        ("hold", {"lease_ms": -1}, "lease_ms = -1"),
    ],
)
def test_a_wrong_request_is_refused_by_name(
    calm_lab: Lab, command: str, arguments: dict[str, object], reason: str
) -> None:
    async def story() -> None:
        async with calm_lab.client() as client:
            with pytest.raises(ControlError, match=reason) as caught:
                await client.control.request(command, **arguments)
            assert caught.value.kind == "user"
            assert (await client.broker("b1", "status"))["applied"] == []

    run(story)


@pytest.mark.parametrize(
    "name,role,more,reason",
    [
        ("../b1", "sleeper", {}, "is not of"),
        ("B1", "sleeper", {}, "is not of"),
        ("b2", "slepper", {}, "no role 'slepper'"),
        ("b2", "sleeper", {"log_folder": "/etc"}, "not below"),
        ("b2", "sleeper", {"log_folder": "run/../../x"}, "not below"),
        ("b2", "sleeper", {"log_folder": ""}, "is not a folder"),
        ("b2", "sleeper", {"core": 99_999}, "core = 99999; available"),
        ("b2", "sleeper", {"core": True}, "core = True"),
    ],
)
def test_a_start_that_cannot_be_is_refused_and_starts_nothing(
    calm_lab: Lab, name: str, role: str, more: dict[str, object], reason: str
) -> None:
    async def story() -> None:
        async with calm_lab.client() as client:
            config = {**calm_lab.config(name), "log_folder": "run/new", **more}
            with pytest.raises(ControlError, match=reason) as caught:
                await client.start(name, role, config, config["control_socket"])
            assert caught.value.kind == "user"
            rows = (await client.status())["processes"]
            assert [name for name, row in rows.items() if row["state"] == "running"] == ["b1"]

    run(story)


# ---------------------------------------------------------------- the agent's own life


def test_shutdown_leaves_nothing(lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            identities = [await lab.start(client, name) for name in ("b1", "b2", "stubborn-one")]
            await client.fault_apply("f1", "freeze", "b2", lease_ms=60_000)
            rows = (await client.shutdown(timeout_ms=5_000))["processes"]
            assert {row["state"] for row in rows.values()} == {"stopped"}
            assert rows["b2"]["exit_code"] == 0, "thawed first, so that it could end in order"
        await trio.to_thread.run_sync(agent.wait)
        assert agent.returncode == 0
        assert not any(identity.is_alive() for identity in identities)
        assert lab.descendants() == []
        assert not lab.socket.parent.exists()

    run(story)


def test_sigterm_ends_the_agent_as_shutdown_does(lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            agent.send_signal(signal.SIGTERM)
            await trio.to_thread.run_sync(agent.wait)
        assert not identity.is_alive()
        assert lab.descendants() == []

    run(story)


def test_two_agents_on_one_root_are_refused(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            second, answer = lab.try_agent()
            assert "another agent has this root" in answer["error"]
            assert await trio.to_thread.run_sync(second.wait) == 4
            assert (await client.broker("b1", "status"))["state"] == "running"

    run(story)


def test_processes_outlive_a_killed_agent_and_the_next_one_adopts_them(lab: Lab) -> None:
    async def story() -> None:
        first = lab.start_agent()
        async with lab.client() as client:
            lives = await lab.start(client, "lives")
            dies = await lab.start(client, "dies")
            ended = await lab.start(client, "ended")
            await client.stop("ended")
        first.kill()
        first.wait()
        dies.signal(signal.SIGKILL)
        await until(lambda: not dies.is_alive())
        assert lives.is_alive()

        lab.start_agent()
        async with lab.client() as client:
            rows = (await client.status())["processes"]
            assert (rows["lives"]["pid"], rows["lives"]["state"]) == (lives.pid, "running")
            assert rows["lives"]["adopted"]
            assert (rows["dies"]["state"], rows["dies"]["exit_cause"]) == ("exited", "unknown")
            assert (rows["dies"]["exit_code"], rows["dies"]["exit_signal"]) == (None, None)
            assert (rows["ended"]["exit_code"], rows["ended"]["exit_cause"]) == (0, "planned")
            assert rows["ended"]["pid"] == ended.pid
            assert await lab.start(client, "lives") == lives, "still idempotent"
            assert (await client.broker("lives", "status"))["pid"] == lives.pid
            row = await client.stop("lives")
            assert (row["state"], row["exit_cause"]) == ("stopped", "planned")
            assert row["exit_code"] is None, "its status went to somebody else"
            assert await lab.start(client, "dies") != dies

    run(story)


def test_an_adopted_process_can_be_killed_and_restarted_with_its_configuration(lab: Lab) -> None:
    async def story() -> None:
        first = lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
        first.kill()
        first.wait()
        second = lab.start_agent()
        async with lab.client() as client:
            await client.fault_apply("k", "kill", "b1")
            row = (await client.status())["processes"]["b1"]
            assert (row["exit_cause"], row["exit_signal"]) == ("fault:k", None)
            await client.fault_apply("r", "restart", "b1")
            assert (await lab.answers(client, "b1"))["parent"] == second.pid
            row = (await client.status())["processes"]["b1"]
            assert not row["adopted"]

    run(story)


def test_an_agent_that_dies_during_a_process_start_loses_no_process(
    lab: Lab,
) -> None:
    """The journal has `start` without a pid; the process reports its pid itself."""

    async def story() -> None:
        first = lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
        first.kill()
        first.wait()
        lines = lab.paths.journal.read_text().splitlines(keepends=True)
        assert '"started"' in lines[-1]
        lab.paths.journal.write_text("".join(lines[:-1]) + lines[-1][:10])  # and a torn line
        lab.start_agent()
        async with lab.client() as client:
            row = (await client.status())["processes"]["b1"]
            assert (row["pid"], row["state"]) == (identity.pid, "running")

    run(story)


def test_an_agent_neither_adopts_nor_signals_a_reused_pid(
    lab: Lab,
) -> None:
    async def story() -> None:
        first = lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
        first.kill()
        first.wait()
        identity.signal(signal.SIGKILL)
        await until(lambda: not identity.is_alive())
        stranger = subprocess.Popen(["sleep", "1000"])
        try:
            # Its pid, as if it had been given out again since.
            for path in (lab.paths.process_file("b1"), lab.paths.journal):
                text = path.read_text()
                path.write_text(text.replace(f'"pid": {identity.pid}', f'"pid": {stranger.pid}'))
            lab.start_agent()
            async with lab.client() as client:
                row = (await client.status())["processes"]["b1"]
                assert (row["state"], row["pid"]) == ("exited", stranger.pid)
                with pytest.raises(ControlError, match="not running"):
                    await client.signal("b1", "KILL")
                await client.stop("b1")
                await client.shutdown()
            assert not ProcessIdentity(stranger.pid, identity.start_time).signal(signal.SIGKILL)
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()

    run(story)


def test_an_agent_refuses_to_start_beside_processes_of_another_deployment(lab: Lab) -> None:
    async def story() -> None:
        first = lab.start_agent("d1")
        async with lab.client() as client:
            await lab.start(client, "b1")
        first.kill()
        first.wait()
        second, answer = lab.try_agent("d2")
        assert "processes of deployment d1 still run here: b1" in answer["error"]
        assert await trio.to_thread.run_sync(second.wait) == 4
        third = lab.start_agent("d1")
        async with lab.client() as client:
            await client.shutdown()
        await trio.to_thread.run_sync(third.wait)
        lab.start_agent("d2")
        async with lab.client() as client:
            assert (await client.status())["processes"] == {}

    run(story)


def test_a_journal_that_is_none_is_refused(lab: Lab) -> None:
    lab.paths.make()
    lab.paths.journal.write_text('{"entry": "agent"\n{"entry": "end"}\n')
    agent, answer = lab.try_agent()
    assert "journal.jsonl:1: not an entry" in answer["error"]
    assert agent.wait() == 4


# ---------------------------------------------------------------- the deployment's lease


def test_an_agent_stops_a_deployment_after_its_hold_expired(lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            await client.hold(60_000)
            await client.hold(100)  # the controller dies here
        assert await trio.to_thread.run_sync(agent.wait) == 0
        assert not identity.is_alive()
        assert lab.descendants() == []

    run(story)


def test_an_agent_has_its_lease_from_its_start_until_it_is_released(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent(lease_ms=90_000)
        async with lab.client() as client:
            assert 0 < (await client.status())["lease"]["left_ms"] <= 90_000
            await lab.start(client, "b1")
            await client.hold(60_000)
            assert 0 < (await client.status())["lease"]["left_ms"] <= 60_000
            await client.hold(0)
            assert (await client.status())["lease"] is None
            leases = list(lab.paths.leases.iterdir())
            assert leases == []

    run(story)


def test_the_lease_of_a_deployment_ends_it_although_the_agent_is_dead(lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            await client.hold(300)
            agent.kill()
            agent.wait()
        await until(lambda: not identity.is_alive(), "killed by the watchdog")
        await until(lambda: lab.descendants() == [])

    run(story)


def test_a_new_agent_keeps_the_lease_of_the_old_one(lab: Lab) -> None:
    async def story() -> None:
        first = lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            await client.hold(600_000)
            first.kill()
            first.wait()
        second = lab.start_agent(lease_ms=30_000)
        async with lab.client() as client:
            assert 30_000 < (await client.status())["lease"]["left_ms"] <= 600_000
            await client.hold(100)
        assert await trio.to_thread.run_sync(second.wait) == 0
        assert not identity.is_alive()

    run(story)


def test_a_watchdog_kills_after_its_lease_unless_it_was_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(ProcessIdentity, "signal", lambda each, _number: killed.append(each.pid))
    paths = AgentPaths(tmp_path / "root")
    paths.make()
    lease_file = paths.leases / "deployment.json"
    row = {"pid": 4711, "start_time": 1, "boot_id": boot_id()}
    paths.process_file("b1").write_text(json.dumps(row))
    config = {"root": str(paths.root), "lease_file": str(lease_file)}
    run_hold_watchdog(config)
    assert killed == []
    write_lease(lease_file, 0)
    run_hold_watchdog(config)
    assert killed == [4711]


def test_the_agent_reports_facts_of_its_host(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            facts = await client.facts()
            assert facts["name"] == "here"
            assert facts["memory_bytes"] > 0
            assert facts["cores"] == sorted(os.sched_getaffinity(0))

    run(story)


def test_everything_on_disk_is_for_its_owner_alone(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            await client.fault_apply("f1", "freeze", "b1", lease_ms=60_000)
            await client.fault_heal("f1")
            await client.stop("b1")
            for path in [*lab.root.rglob("*"), *lab.socket.parent.iterdir()]:
                assert not Path(path).lstat().st_mode & 0o077, path

    run(story)


def test_an_agent_without_a_free_descriptor_answers_and_signals_later(lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            process = await lab.start(client, "b1")
            with no_free_descriptors(agent.pid):
                row = (await client.status())["processes"]["b1"]
                assert row["state"] == "running"
                assert row["processor_s"] is None
                assert row["frozen"] is None
            row = (await client.status())["processes"]["b1"]
            assert row["processor_s"] >= 0
            await client.stop("b1")
            assert not process.is_alive()

    run(story)
