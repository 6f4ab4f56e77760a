"""Stories of fault commands at one broker: a random history of commands against a plain table."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from brokerd.errors import ControlError
from brokerd.protocols.interface import LOSS_ACCEPTED
from brokerd.runtime import fault_commands
from brokerd.runtime.commands import Commands
from brokerd.runtime.fault_commands import MAXIMUM_LEASE_MS
from brokerd.sessions.link_faults import LinkFaults

PEERS = {1: "b1", 2: "b2"}
IDS = ("f", "g", "h", "i")
LASTING_MS = 60_000


class Room:
    """A broker's commands with real faults; records lines of the log, and published events."""

    def __init__(self, *, fault_injection: bool = True) -> None:
        self.faults = LinkFaults()
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.published: list[str] = []
        self.changes = 0
        parts: Any = SimpleNamespace(
            faults=self.faults,
            faults_changed=self._change,
            record=lambda event, details: self.lines.append((event, details)),
            run_id="",
            names=PEERS,
            name="b0",
            fault_injection=fault_injection,
        )
        self.commands = Commands(parts, cast("Any", None), parts, parts, parts, parts, parts)
        self.commands.faults.publish_event = lambda event, details: self.published.append(
            details["fault_id"]
        )

    def _change(self) -> None:
        self.changes += 1

    async def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        return await self.commands.handlers()[command](arguments)

    def logged(self, event: str) -> list[str]:
        return [details["fault_id"] for name, details in self.lines if name == event]


@pytest.mark.parametrize("seed", range(30))
def test_a_history_of_faults_has_the_effects_of_a_table(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(fault_commands, "HEALED_KEPT", 2)

    async def story() -> None:
        room = Room()
        active: dict[str, str] = {}
        ended: dict[str, int] = {}
        applied: list[str] = []
        healed: list[str] = []

        def end(fault_id: str) -> bool:
            if active.pop(fault_id, None) is None:
                return False
            ended[fault_id] = counted[fault_id]
            if len(ended) > 2:
                del ended[next(iter(ended))]
            healed.append(fault_id)
            return True

        counted: dict[str, int] = {}
        for _ in range(40):
            fault_id, peer = random.choice(IDS), random.choice([*PEERS.values()])
            request = {"fault_id": fault_id, "lease_ms": LASTING_MS}
            match random.choice(["apply", "renew", "heal", "expire", "count"]):
                case "apply" if active.get(fault_id, peer) == peer:
                    await room.ask("fault_apply", verb="absorb", peer=peer, **request)
                    if fault_id not in active:
                        counted[fault_id] = 0
                    active[fault_id] = peer
                    applied.append(fault_id)
                case "apply":
                    with pytest.raises(ControlError, match="exists already"):
                        await room.ask("fault_apply", verb="absorb", peer=peer, **request)
                case "renew" if fault_id in active:
                    await room.ask("fault_renew", **request)
                case "renew":
                    with pytest.raises(ControlError, match="is in force"):
                        await room.ask("fault_renew", **request)
                case "heal":
                    was = counted.get(fault_id) if fault_id in active else ended.get(fault_id)
                    found = await room.ask("fault_heal", fault_id=fault_id)
                    assert found["healed"] == end(fault_id)
                    assert found["counters"].get("absorbed_messages") == was
                case "expire":
                    room.commands.faults.expire(fault_id)
                    end(fault_id)
                case _:
                    number = next(each for each, name in PEERS.items() if name == peer)
                    room.faults.count(number, "in", absorbed_messages=3)
                    for each, its_peer in active.items():
                        counted[each] += 3 * (its_peer == peer)
            counters = await room.ask("fault_counters")
            shown = {each: row["absorbed_messages"] for each, row in counters.items()}
            assert shown == {**ended, **{each: counted[each] for each in active}}
            assert {each.fault_id for each in room.faults} == {*active}
        assert room.logged("fault_applied") == applied
        assert room.logged("fault_healed") == room.published == healed
        assert room.changes == len(applied) + len(healed)

    trio.run(story)


@pytest.mark.parametrize(
    "change, why",
    [
        ({"lease_ms": -1}, "lease_ms = -1"),
        ({"lease_ms": MAXIMUM_LEASE_MS + 1}, "lease_ms = "),
        ({"peer": "b7"}, "no link to 'b7'"),
        ({"verb": "partition", "peer": "", "parameters": {"peers": "b1"}}, "a list of names"),
        ({"verb": "partition", "peer": "", "parameters": {"peers": [""]}}, "a list of names"),
        ({"leash_ms": 5}, "unknown argument 'leash_ms'"),
        ({"lease_ms": True}, "must be of type int"),
        ({"verb": "vanish"}, "verb 'vanish'"),
    ],
)
def test_a_refused_fault_changes_nothing(change: dict[str, Any], why: str) -> None:
    async def story() -> None:
        room = Room()
        request = {"fault_id": "f", "verb": "absorb", "peer": "b1", "lease_ms": 1, **change}
        with pytest.raises(ControlError, match=why) as refused:
            await room.ask("fault_apply", **request)
        assert refused.value.kind == "user"
        assert (len(room.faults), room.changes, room.lines) == (0, 0, [])

    trio.run(story)


def test_commands_of_faults_need_a_broker_that_permits_them() -> None:
    async def story() -> None:
        room = Room(fault_injection=False)
        requests: dict[str, dict[str, Any]] = {
            "fault_apply": {"fault_id": "f", "verb": "absorb"},
            "fault_renew": {"fault_id": "f", "lease_ms": 1},
            "fault_heal": {"fault_id": "f"},
        }
        for command, arguments in requests.items():
            with pytest.raises(ControlError, match="fault_injection = false"):
                await room.ask(command, **arguments)
        assert await room.ask("fault_counters") == {}

    trio.run(story)


def test_a_fault_of_the_longest_lease_concerns_the_links_that_it_names() -> None:
    async def story() -> None:
        room = Room()
        longest = {"lease_ms": MAXIMUM_LEASE_MS}
        sides = {"peers": ["b1", "b2"]}
        await room.ask("fault_apply", fault_id="f", verb="partition", parameters=sides, **longest)
        await room.ask("fault_apply", fault_id="g", verb="cut", peer="b2", lease_ms=0)
        concerned = {
            fault.fault_id: [fault.concerns(peer, "out") for peer in PEERS] for fault in room.faults
        }
        assert concerned == {"f": [True, True], "g": [False, True]}
        assert [fault.ends_ns is None for fault in room.faults] == [False, True]

    trio.run(story)


ARGUMENTS = {
    "fault_apply": {"fault_id": "f", "verb": "absorb"},
    "fault_renew": {"fault_id": "f", "lease_ms": 1},
    "fault_heal": {"fault_id": "f"},
    "begin_run": {"run_id": "r", "folder": "/tmp"},
    "end_subscription": {"client": "s1", "number": 1},
    "farewell": {"broker": "b1"},
    "decommission": {"broker": "b1"},
}


@pytest.mark.parametrize("command", [*Room().commands.handlers()])
def test_each_command_refuses_an_unknown_argument_before_any_effect(command: str) -> None:
    async def story() -> None:
        room = Room()
        with pytest.raises(ControlError, match="unknown argument 'leash_ms'") as refused:
            await room.ask(command, **ARGUMENTS.get(command, {}), leash_ms=5)
        assert refused.value.kind == "user"
        assert (len(room.faults), room.lines, room.commands.started.is_set()) == (0, [], False)

    trio.run(story)


@pytest.mark.parametrize("command", ARGUMENTS)
def test_each_command_names_a_missing_argument(command: str) -> None:
    async def story() -> None:
        for name in ARGUMENTS[command]:
            rest = {key: value for key, value in ARGUMENTS[command].items() if key != name}
            with pytest.raises(ControlError, match=f"argument '{name}' is missing"):
                await Room().ask(command, **rest)

    trio.run(story)


def test_a_peer_is_missing_unless_it_answers_or_has_a_session() -> None:
    async def story() -> None:
        room = Room()

        async def probe(peer: int) -> str | None:
            await trio.sleep(peer)
            return {1: None, 2: "no answer", 3: "no answer"}[peer]

        links: Any = room.commands._links
        links.names[3] = "b3"
        links.probe, links.can_exchange = probe, lambda peer: peer == 3
        found = await room.ask("probe", peers=["b3", "b2", "b1"])
        begun_s = trio.current_time()
        soon = await room.ask("probe", peers=["b3", "b2", "b1"], within_ms=250)
        took_s = trio.current_time() - begun_s
        del links.names[3]
        assert (found["reached"], found["missing"]) == (["b1", "b3"], {"b2": "no answer"})
        assert sorted(found["took_us"]) == ["b1", "b2", "b3"]
        assert (soon["reached"], sorted(soon["missing"]), took_s) == (["b3"], ["b1", "b2"], 0.25)

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


def test_repeated_requests_begin_a_run_once() -> None:
    async def story() -> None:
        room = Room()
        log: Any = room.commands._log
        log.begin_run = lambda run_id, _: setattr(log, "run_id", run_id)
        for run_id in ("r1", "r1", "r2", "r2"):
            assert (await room.ask("begin_run", run_id=run_id, folder="/tmp"))["pid"] > 0
        assert [details["run_id"] for event, details in room.lines] == ["r1", "r2"]

    trio.run(story)


@pytest.mark.parametrize("loss", [None, {"cause": "its folder was empty", "loss": 3}])
def test_every_run_repeats_the_loss_that_was_accepted(loss: dict[str, Any] | None) -> None:
    async def story() -> None:
        room = Room()
        log: Any = room.commands._log
        log.begin_run = lambda run_id, _: setattr(log, "run_id", run_id)
        room.commands.accepted_loss = loss
        for number in range(2):
            begun = await room.ask("begin_run", run_id=f"r{number}", folder="/tmp")
            assert begun["accepted_loss"] == loss
        accepted = [details for event, details in room.lines if event == LOSS_ACCEPTED]
        assert accepted == ([loss, loss] if loss else [])

    trio.run(story)


def test_a_look_at_counters_records_those_of_active_faults_that_absorbed() -> None:
    room = Room()

    async def play() -> None:
        for fault_id, verb in (("f", "absorb"), ("g", "absorb"), ("h", "blackhole")):
            await room.ask(
                "fault_apply", fault_id=fault_id, verb=verb, peer="b1", lease_ms=LASTING_MS
            )
        room.faults.heal("g")
        for absorbed in (3, 4):
            room.faults.count(1, "both", absorbed_messages=absorbed, dropped_frames=1)
            room.faults.count(1, "in", absorbed_bytes=10)
            counted = await room.ask("fault_counters")
            assert {*counted} >= {"f", "h"}
        await room.ask("fault_heal", fault_id="f")
        counted = await room.ask("fault_counters")
        assert counted["f"]["absorbed_messages"] == 7

    trio.run(play)
    found = [details for event, details in room.lines if event == "fault_counted"]
    of_f = [each["absorbed_messages"] for each in found if each["fault_id"] == "f"]
    assert of_f == [3, 7], "a healed fault is counted in the answer only"
    assert all(each["absorbed_messages"] for each in found)
