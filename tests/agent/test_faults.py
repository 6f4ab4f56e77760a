"""Stories about faults: applied, observed, and healed by command or by lease."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
import trio

from brokerd.agent.processes import ProcessIdentity
from brokerd.errors import ControlError
from tests.helpers.agents import Lab, is_reaped, make_lab, next_event, run, until
from tests.helpers.patience import PATIENCE_S


@pytest.fixture
def lab() -> Iterator[Lab]:
    with make_lab() as made:
        yield made


@pytest.fixture(scope="module")
def calm_lab() -> Iterator[Lab]:
    """Yield an agent, for tests without changes."""
    with make_lab() as made:
        made.start_agent()
        yield made


LONG_MS = 600_000


# ---------------------------------------------------------------- kill and restart


def test_a_kill_is_recorded_as_signal_9_by_this_fault(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            fault = await client.fault_apply("f1", "kill", "b1")
            assert fault["result"]["exit_signal"] == 9
            assert fault["result"]["pid"] == identity.pid
            assert fault["t_applied_ns"] <= fault["result"]["t_exit_ns"]
            row = (await client.status())["processes"]["b1"]
            assert (row["state"], row["exit_signal"], row["exit_cause"]) == (
                "exited",
                9,
                "fault:f1",
            )
            assert not identity.is_alive()

    run(story)


def test_a_term_lets_it_end_in_order_and_is_a_fault_all_the_same(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            fault = await client.fault_apply("f1", "term", "b1")
            assert (fault["result"]["exit_code"], fault["result"]["exit_signal"]) == (0, None)
            assert (await client.status())["processes"]["b1"]["exit_cause"] == "fault:f1"

    run(story)


def test_files_of_a_stopped_process_are_damaged_and_those_of_a_running_one_are_not(
    lab: Lab,
) -> None:
    data = lab.folder / "data"
    data.mkdir()
    (data / "log").write_bytes(bytes(10))

    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1", folder=str(data))
            await lab.start(client, "b2")
            drawn = {"draw": 37}
            with pytest.raises(ControlError, match="b1 is running; kill it first"):
                await client.fault_apply("c", "corrupt", "b1", parameters=drawn)
            for name in ("b1", "b2"):
                await client.fault_apply(f"k-{name}", "kill", name)
            with pytest.raises(ControlError, match="b2 has no folder with data"):
                await client.fault_apply("c2", "corrupt", "b2", parameters=drawn)
            for parameters, why in (
                ({}, "draw = None; from 0 to"),
                ({**drawn, "damage": "bits"}, "damage = 'bits'; did you mean 'bit'"),
                ({**drawn, "file": 3}, "file = 3 is no text"),
            ):
                with pytest.raises(ControlError, match=why):
                    await client.fault_apply("c3", "corrupt", "b1", parameters=parameters)
            assert (data / "log").read_bytes() == bytes(10)
            fault = await client.fault_apply("c1", "corrupt", "b1", parameters=drawn)
            assert (fault["result"]["file"], fault["result"]["offset_bytes"]) == ("log", 7)
            assert (data / "log").read_bytes() == bytes(7) + b"\x08" + bytes(2)
            assert (await client.fault_look("c1"))["present"]
            (data / "log").write_bytes(bytes(10))
            assert not (await client.fault_look("c1"))["present"]

    run(story)


def test_a_restarted_process_is_a_new_one_with_the_old_configuration(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            before = await lab.start(client, "b1")
            await client.fault_apply("k", "kill", "b1")
            fault = await client.fault_apply("r", "restart", "b1")
            after = ProcessIdentity(fault["result"]["pid"], fault["result"]["start_time"])
            assert after != before
            assert (await lab.answers(client, "b1"))["pid"] == after.pid
            row = (await client.status())["processes"]["b1"]
            assert (row["state"], row["exit_cause"]) == ("running", None)

    run(story)


def test_a_kill_requested_twice_is_applied_once(lab: Lab) -> None:
    """A controller that lost the reply repeats the request; the broker must not be killed twice."""

    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            first = await client.fault_apply("k", "kill", "b1")
            await client.fault_apply("r", "restart", "b1")
            await lab.answers(client, "b1")
            assert await client.fault_apply("k", "kill", "b1") == first
            assert (await client.status())["processes"]["b1"]["state"] == "running"
            with pytest.raises(ControlError, match="k is another fault already"):
                await client.fault_apply("k", "term", "b1")

    run(story)


# ---------------------------------------------------------------- cpu-share

SHARE = {"share_percent": 30}


def test_a_process_has_its_share_of_time_until_it_is_healed(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            await client.fault_apply("f1", "cpu-share", "b1", parameters=SHARE, lease_ms=LONG_MS)
            seen = await client.fault_look("f1")
            assert 0 < seen["stopped_samples"] < seen["samples"], seen
            assert (await client.broker("b1", "status"))["state"] == "running"
            with pytest.raises(ControlError, match="slowed down already, by f1"):
                await client.fault_apply("f2", "freeze", "b1", lease_ms=LONG_MS)
            (watchdog,) = lab.called("pubsub:share")
            await client.fault_heal("f1")
            assert not watchdog.is_alive()
            assert not identity.is_stopped()
            assert await client.fault_look("f1") == {"present": False}
            await client.fault_apply("f3", "freeze", "b1", lease_ms=LONG_MS)
            with pytest.raises(ControlError, match="frozen already, by f3"):
                await client.fault_apply("f4", "cpu-share", "b1", parameters=SHARE, lease_ms=200)
            await client.fault_heal("f3")

    run(story)


@pytest.mark.parametrize("share", [None, 0, 100, "30", 30.5])
def test_a_share_that_cannot_be_is_refused(lab: Lab, share: object) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            parameters = {} if share is None else {"share_percent": share}
            with pytest.raises(ControlError, match=r"share_percent = .*; from 1 to 99"):
                await client.fault_apply(
                    "f1", "cpu-share", "b1", parameters=parameters, lease_ms=LONG_MS
                )

    run(story)


def test_a_share_ends_with_its_lease_although_the_agent_was_killed(lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            await client.fault_apply("f1", "cpu-share", "b1", parameters=SHARE, lease_ms=500)
            (watchdog,) = lab.called("pubsub:share")
        agent.kill()
        await until(lambda: not watchdog.is_alive(), "the watchdog ends with the lease")
        await until(lambda: not identity.is_stopped(), "and leaves nobody stopped")

    run(story)


# ---------------------------------------------------------------- freeze


def test_a_frozen_process_is_stopped_until_it_is_healed(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            fault = await client.fault_apply("f1", "freeze", "b1", lease_ms=LONG_MS)
            assert fault["result"]["stopped"]
            assert identity.is_stopped()
            assert (await client.status())["processes"]["b1"]["frozen"]
            with pytest.raises(ControlError, match="frozen already, by f1"):
                await client.fault_apply("f2", "freeze", "b1", lease_ms=LONG_MS)
            watchdogs = lab.called("pubsub:thaw")
            healed = await client.fault_heal("f1")
            assert (healed["state"], healed["healed_by"]) == ("healed", "request")
            assert not identity.is_stopped()
            assert (await client.broker("b1", "status"))["state"] == "running"
            await until(lambda: not any(dog.is_alive() for dog in watchdogs))
            assert watchdogs
            assert list(lab.paths.leases.iterdir()) == []
            assert await client.fault_heal("f1") == healed, "healed twice changes nothing"
            assert (await client.fault_heal("f2"))["state"] == "unknown"

    run(story)


def test_a_freeze_ends_with_its_lease_and_notifies_listeners(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            events = await client.listen()
            identity = await lab.start(client, "b1")
            asked_ns = time.monotonic_ns()
            await client.fault_apply("f1", "freeze", "b1", lease_ms=200)
            details = await next_event(events, "fault_healed")
            assert (details["fault_id"], details["by"]) == ("f1", "lease")
            assert not identity.is_stopped()
            fault = (await client.status())["faults"][0]
            assert fault["t_healed_ns"] - asked_ns >= 200_000_000

    run(story)


def test_a_renewed_lease_holds_and_the_watchdog_knows(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            await client.fault_apply("f1", "freeze", "b1", lease_ms=5_000)
            renewed = await client.fault_renew("f1", LONG_MS)
            assert renewed["lease_left_ms"] > LONG_MS / 2
            other = await lab.start(client, "b2")
            await client.fault_apply("f2", "freeze", "b2", lease_ms=5_500)
            await until(lambda: not other.is_stopped(), "a later lease that was not renewed ends")
            assert identity.is_stopped()
            await client.fault_heal("f1")
            assert not identity.is_stopped()

    run(story)


def test_a_freeze_is_healed_although_the_agent_was_killed(lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            await client.fault_apply("f1", "freeze", "b1", lease_ms=5_000)
            agent.kill()
            agent.wait()
        assert identity.is_stopped()
        await until(lambda: not identity.is_stopped(), "thawed by the watchdog")
        assert identity.is_alive()
        lab.start_agent()
        async with lab.client() as client:
            assert (await client.broker("b1", "status"))["pid"] == identity.pid
            fault = (await client.status())["faults"][0]
            assert (fault["state"], fault["healed_by"]) == ("healed", "lease")
            await client.shutdown()

    run(story)


def test_a_watchdog_heals_its_fault_on_sigterm(lab: Lab) -> None:
    """A shutdown of a host without an agent ends processes without regard to faults."""

    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            await client.fault_apply("f1", "freeze", "b1", lease_ms=LONG_MS)
            agent.kill()
            agent.wait()
        (watchdog,) = lab.called("pubsub:thaw")
        watchdog.signal(signal.SIGTERM)
        await until(lambda: not identity.is_stopped(), "thawed long before its lease")
        await until(lambda: not watchdog.is_alive())

    run(story)


def test_a_new_agent_adopts_the_freeze_of_its_predecessor(lab: Lab) -> None:
    async def story() -> None:
        first = lab.start_agent()
        async with lab.client() as client:
            identity = await lab.start(client, "b1")
            await client.fault_apply("f1", "freeze", "b1", lease_ms=LONG_MS)
        first.kill()
        first.wait()
        watchdogs = lab.called("pubsub:thaw")
        assert watchdogs
        lab.start_agent()
        async with lab.client() as client:
            fault = (await client.status())["faults"][0]
            assert fault["state"] == "applied"
            assert 0 < fault["lease_left_ms"] <= LONG_MS
            assert identity.is_stopped()
            await client.fault_heal("f1")
            assert not identity.is_stopped()
            await until(lambda: not any(dog.is_alive() for dog in watchdogs))

    run(story)


def test_the_kill_of_a_frozen_process_ends_its_freeze(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            events = await client.listen()
            await lab.start(client, "b1")
            await client.fault_apply("f1", "freeze", "b1", lease_ms=LONG_MS)
            watchdogs = lab.called("pubsub:thaw")
            fault = await client.fault_apply("f2", "kill", "b1")
            assert fault["result"]["exit_signal"] == 9
            details = await next_event(events, "fault_healed")
            assert (details["fault_id"], details["by"]) == ("f1", "process-death")
            await client.fault_apply("f3", "restart", "b1")
            assert not (await client.status())["processes"]["b1"]["frozen"]
            await until(lambda: not any(dog.is_alive() for dog in watchdogs))
            # Waited for, too: a zombie of it would be a child of the agent for ever.
            await until(lambda: all(is_reaped(dog) for dog in watchdogs))

    run(story)


# ---------------------------------------------------------------- links: the broker's own


def test_a_link_fault_is_passed_on_to_its_broker_with_its_lease(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            fault = await client.fault_apply(
                "f1", "cut", "b1", peer="s1", direction="out", lease_ms=LONG_MS
            )
            assert fault["t_applied_ns"] == fault["result"]["t_applied_ns"], "the broker's stamp"
            assert (await client.broker("b1", "status"))["faults"] == ["f1"]
            await client.fault_renew("f1", LONG_MS)
            await client.fault_heal("f1")
            assert (await client.broker("b1", "status"))["faults"] == []
            assert (await client.status())["faults"][0]["state"] == "healed"

    run(story)


def test_a_link_fault_is_healed_when_its_lease_ends(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            events = await client.listen()
            await lab.start(client, "b1")
            await client.fault_apply("f1", "absorb", "b1", lease_ms=100)
            details = await next_event(events, "fault_healed")
            assert details["by"] == "lease"
            assert (await client.broker("b1", "status"))["faults"] == []

    run(story)


def test_a_refused_link_fault_has_failed_and_is_not_there(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            with pytest.raises(ControlError, match="no peer called 'nobody'"):
                await client.fault_apply("f1", "cut", "b1", peer="nobody", lease_ms=LONG_MS)
            assert (await client.status())["faults"][0]["state"] == "failed"
            assert (await client.broker("b1", "status"))["faults"] == []

    run(story)


@pytest.mark.parametrize(
    "arguments,reason",
    [
        ({"verb": "stall"}, "no verb 'stall'"),
        ({"verb": "blackhol"}, "did you mean 'blackhole'"),
        ({"verb": "cut", "lease_ms": 0}, "lease_ms = 0"),
        ({"verb": "freeze", "lease_ms": -5}, "lease_ms = -5"),
        ({"verb": "cut", "direction": "sideways", "lease_ms": 500}, "direction = 'sideways'"),
        ({"verb": "kill", "peer": "s1"}, "kill is for processes"),
        ({"verb": "kill", "process": "b2"}, "did you mean 'b1'"),
        ({"verb": "kill", "parameters": {"signal": "9"}}, "no signal '9'"),
        ({"verb": "kill", "parameters": {"signal": "USR1"}}, "SIGUSR1 does not kill"),
        ({"verb": "kill", "parameters": {"sig": "TERM"}}, "takes no parameter 'sig'"),
        ({"verb": "restart"}, "b1 is running; kill it first"),
        ({"verb": "kill", "fault_id": ""}, "cannot be an id"),
        ({"verb": "host-los", "lease_ms": 500}, "did you mean 'host-loss'"),
        ({"verb": "freeze", "lease_ms": 500, "parameters": {"backend": "nft"}}, "not done by nft"),
        (
            {"verb": "cut", "lease_ms": 500, "parameters": {"backend": "tc"}},
            "backend = 'tc'; known: broker, nft",
        ),
        (
            {"verb": "cut", "lease_ms": 500, "parameters": {"backend": "nft", "own": "x"}},
            "nft needs `peers`",
        ),
        (
            {"verb": "delay", "lease_ms": 500, "parameters": {"delay": 5}},
            "did you mean 'delay_ms'",
        ),
    ],
)
def test_a_fault_that_cannot_be_is_refused_and_nothing_happens(
    calm_lab: Lab, arguments: dict[str, object], reason: str
) -> None:
    async def story() -> None:
        async with calm_lab.client() as client:
            identity = await calm_lab.start(client, "b1")
            with pytest.raises(ControlError, match=reason) as caught:
                await client.control.request(
                    "fault_apply", **{"fault_id": "f1", "process": "b1", **arguments}
                )
            assert caught.value.kind == "user"
            assert identity.is_alive()
            assert not identity.is_stopped()

    run(story)


# ---------------------------------------------------------------- machines


def test_a_lost_process_stays_down_until_its_host_recovers(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            before = await lab.start(client, "b1")
            await client.fault_apply("f1", "host-loss", "b1", lease_ms=LONG_MS)
            row = (await client.status())["processes"]["b1"]
            assert (row["state"], row["exit_signal"], row["exit_cause"]) == (
                *("exited", 9),
                "fault:f1",
            )
            assert (await client.status())["faults"][0]["state"] == "applied", "its end is no heal"
            healed = await client.fault_heal("f1")
            assert healed["state"] == "healed"
            assert (await lab.answers(client, "b1"))["pid"] != before.pid
            assert await client.fault_heal("f1") == healed

    run(story)


def test_an_agent_that_ends_starts_nothing_again(lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            await client.fault_apply("f1", "host-loss", "b1", lease_ms=LONG_MS)
            await client.shutdown()
        agent.wait()
        assert lab.descendants() == []

    run(story)


def test_the_next_agent_starts_the_processes_of_a_lost_machine(lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        async with lab.client() as client:
            before = await lab.start(client, "b1")
            await client.fault_apply("f1", "host-loss", "b1", lease_ms=300)
            agent.kill()
            agent.wait()
        assert not before.is_alive()
        lab.start_agent()
        async with lab.client() as client:
            with trio.fail_after(PATIENCE_S):
                while (await client.status())["faults"][0]["state"] != "healed":
                    await trio.sleep(0.01)
            assert (await client.status())["faults"][0]["healed_by"] == "lease"
            assert (await lab.answers(client, "b1"))["pid"] != before.pid

    run(story)


# ---------------------------------------------------------------- everything at once


def test_healing_everything_finds_faults_of_other_controllers_too(lab: Lab) -> None:
    """The heal covers a stop from a shell, and a fault that bypassed the agent."""

    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            config = lab.config("b1")
            started = await client.start("b1", "broker", config, config["control_socket"])
            identity = ProcessIdentity(started["pid"], started["start_time"])
            await lab.answers(client, "b1")
            await client.broker(
                "b1",
                "fault_apply",
                {"fault_id": "x", "verb": "cut", "peer": "s1", "lease_ms": LONG_MS},
            )
            other = await lab.start(client, "b2")
            await client.fault_apply("f1", "freeze", "b2", lease_ms=LONG_MS)
            identity.signal(signal.SIGSTOP)
            await until(identity.is_stopped)
            answer = await client.fault_heal_all()
            assert answer["left"] == []
            assert {row["fault_id"] for row in answer["healed"]} == {"f1", "x", "stop of b1"}
            assert not identity.is_stopped()
            assert not other.is_stopped()
            assert (await client.broker("b1", "status"))["faults"] == []
            assert await client.fault_heal_all() == {"healed": [], "left": []}

    run(story)


def test_heal_all_reports_an_unreachable_broker(lab: Lab) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            config = lab.config("b1")
            await client.start("b1", "broker", config, config["control_socket"])
            await lab.answers(client, "b1")
            os.unlink(config["control_socket"])
            answer = await client.fault_heal_all()
            assert answer["healed"] == []
            assert "b1 did not report its faults" in answer["left"][0]

    run(story)


# ---------------------------------------------------------------- identities


def test_an_identity_with_another_start_time_is_another_process() -> None:
    own = ProcessIdentity.of(os.getpid())
    stranger = ProcessIdentity(own.pid, own.start_time + 1)
    assert own.is_alive()
    assert not stranger.is_alive()
    assert not stranger.signal(signal.SIGKILL), "we would not be here"
    with pytest.raises(ProcessLookupError, match="another process by now"):
        stranger.open()
