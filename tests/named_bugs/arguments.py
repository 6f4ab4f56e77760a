"""Arguments of stories that TOML cannot express, by the name of the bug.

The arguments complete `arguments` of the row.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from brokerd.client.state import Home
from brokerd.model.identity import SourceId
from brokerd.protocols.definition import Order
from brokerd.protocols.gryphon.messages import EVERYWHERE, AckExpected, CopyWrite
from brokerd.protocols.gryphon.replication import WriteKind
from brokerd.protocols.multi_proxy.messages import Carry, Messages, Owned
from pubsubctl.errors import HostError, Interrupted
from results.reference import risk as reference_risk
from results.reference import verdict as reference_verdict
from results.repetitions.numbers import NUMBERS
from results.rules import risks, verdicts
from results.rules.terms import Guarantee
from tests.helpers import plain_times
from tests.helpers.histories import MUTATIONS
from tests.helpers.stream_runs import STREAM
from tests.protocols.ges_reliable import test_second_time as ges_again
from tests.protocols.multi_proxy import test_repeated_transfers as moved_twice
from tests.protocols.parts import test_neighbours as neighbours
from tests.results.test_false_witnesses import SAMPLE
from tests.results.test_risks import fault
from tests.results.test_witnesses import by_spark
from tests.simulator import test_exploration as exploration
from tests.storage import test_crashes as crashes
from tests.storage.test_meta_store import index_lost, on_disk

_SOUND: Final = Path(__file__).parents[1] / "simulator/plans/sound"

ARGUMENTS: Final[Mapping[str, Mapping[str, object]]] = {
    "lack-of-memory-is-a-bug": {"error": MemoryError()},
    "error-of-an-interrupt-is-its-own": {"error": HostError("a"), "raised": Interrupted},
    "more-than-zero-is-less": {"number": NUMBERS[0]},
    # forged messages
    "malformed-marker-is-decoded": {"payload": b"x"},
    "markers-take-the-fast-path": {"payload": b"x"},
    "last-part-of-a-copy-is-not-checked": {
        "writes": (CopyWrite(WriteKind.RECORDS, "events", 9, 0, (b"r",)),)
    },
    "ticks-without-a-later-one": {
        "peer": 0,
        "message": AckExpected(STREAM, (1 << 63) - 1, EVERYWHERE),
        "why": "tick 92233",
    },
    # load generators
    "unfinished-recovery-meets-a-bound": {"holds": None},
    # rules
    **dict.fromkeys(  # noqa: RUF024
        ("sessions-behind-the-end-of-a-run-are-logged", "stopped-brokers-log-sessions-at-once"),
        {"theirs_ns": None},
    ),
    "incarnations-are-of-any-process": {"incarnation": None},
    # effects
    "delay-seen-at-one-end": {"near_us": None},
    # small worlds
    "fingerprints-leave-out-ranges": {"one": range(1), "other": range(2)},
    "paths-of-sleeping-actions": {"world": exploration.TWINS[0]},
    "prompt-subscribers-are-invisible": {"world": exploration.PROMPT_TWINS[1]},
    # ges_reliable
    "once-slow-a-storage-stays-slow": {
        "kind": ges_again.Putting,
        "wholly": False,
        "silences": (3,),
    },
    "once-slow-a-registry-stays-slow": {
        "kind": ges_again.Registering,
        "wholly": True,
        "silences": (3,),
    },
    "once-slow-a-followed-storage-stays-slow": {
        "kind": ges_again.Fetching,
        "wholly": True,
        "silences": (3,),
    },
    # multi_proxy
    **dict.fromkeys(  # noqa: RUF024
        ("moves-on-and-is-not-frozen", "age-expires-moving-streams"),
        {
            "order": moved_twice.merged_on_the_way,
            "first": moved_twice.time_passes,
            "second": moved_twice.nothing,
        },
    ),
    "proxies-take-owners-from-access-brokers": {"kind": Owned},
    "proxies-carry-topics-of-access-brokers": {"kind": Carry},
    "forwarded-deliveries-are-not-counted": {"kind": Messages},
    # parts
    "neighbours-return-with-their-waits": {"episode": neighbours.left_out_of_reach},
    # agent
    "slows-down-before-that-is-written": {"seen": {False}},
    "slows-nothing-down": {"seen": {True, False}},
    "one-way-is-both-ways": {"chains": {"incoming"}},
    "ssh-by-one-side-only": {"chains": {"incoming"}},
    # client
    "any-name-is-dialled-with": {"changes": {"name": "\ud800"}},
    "redirect-to-another-name-is-followed": {"home": Home("b", "d", "best_effort", may_lose=True)},
    # lost_state
    "any-signature-accepts-a-loss": {"changes": {"secret": b"x" * 32}},
    # oracle
    "memory-without-order-before-a-move": {"order": Order.NONE},
    "topics-move-in-the-order-of-their-publisher": {"order": Order.TOPIC},
    "overtaken-publication-was-had": {"order": Order.TOPIC},
    "gap-announced-before-a-move-is-owed": {"order": Order.TOPIC},
    "whole-move-may-lose-in-no-order": {"order": Order.NONE},
    "lost-deliveries-before-a-move-are-owed": {"order": Order.TOPIC},
    "gap-is-owed-to-a-client-without-memory": {"again": (1, 3, 4)},
    "gap-excuses-later-publications": {"again": (4,)},
    # plans
    "moves-to-an-absent-broker": {"path": _SOUND / "moved_to_where_nobody_is.plan"},
    "gap-of-an-ended-process-is-owed": {"path": _SOUND / "ended_before_the_gap.plan"},
    # publishers
    "continues-without-a-record": {"source": SourceId(3, 1, 1)},
    # reference
    "beginning-never-missing": {"mutation": MUTATIONS["drop_the_first_after_accept"]},
    "acknowledged-numbers-counted-as-rows": {"folder": SAMPLE},
    "content-not-compared": {"mutation": MUTATIONS["corrupt_payload"]},
    "reuse-not-looked-for": {"mutation": MUTATIONS["reuse_sequence_number"]},
    "doubt-before-proof": {"decide": reference_verdict.decide},
    "late-after-every-delivery": {"decide": reference_verdict.decide},
    "busy-machine-excuses-any-loss": {"decide": reference_verdict.decide},
    "nothing-at-risk-is-fine": {"decide": reference_verdict.decide},
    "risk-ignores-clock-errors": {"is_in": reference_risk.is_certainly_sent_in},
    "kill-restarts-the-window": {"windows_of": reference_risk.times_of_risk},
    # rules
    "ender-need-not-strike-as-much": {"windows_of": risks.risk_windows},
    "restart-opens-a-window": {
        "faults": [fault("1", "kill", 2), fault("2", "restart", 7)],
        "windows": [("1+2", 2, 7, "release")],
    },
    "window-ends-with-the-heal-of-a-dead-broker": {"windows_of": risks.risk_windows},
    "clocks-agree": {"is_in": plain_times.is_certainly_in},
    "at-least-once-forgives-loss": {"guarantee": Guarantee("at-least-once")},
    "order-of-total-only": {"decide": verdicts.decide},
    "valid-in-spite-of-doubts": {"decide": verdicts.decide},
    "unobserved-fault-is-accepted": {"doubts": verdicts.doubts_about_faults},
    "busy-excuses-everything": {"decide": verdicts.decide},
    "busy-excuses-holes": {"decide": verdicts.decide},
    "busy-machine-proves-losses": {"decide": verdicts.decide},
    "busy-machine-excuses-each-protocol": {"decide": verdicts.decide},
    "withheld-on-a-busy-machine-is-proof": {"decide": verdicts.decide},
    "schedule-without-a-phase": {"worked_out": by_spark},
    # sessions
    "header-into-the-next-frame": {"prefix": bytes((0, 0, 0, 8, 0, 0, 0, 5))},
    "length-checked-once-it-is-all-there": {"prefix": bytes((0, 0, 0, 61))},
    # storage
    "folder-of-logs-without-its-name": {"operations": (crashes.one,)},
    "segments-removed-together": {"operations": (crashes.three_in_two_logs, crashes.chop)},
    "segment-without-a-beginning-stays": {"operations": (crashes.one,)},
    "durable-before-all-is-written": {"operations": (crashes.over_sectors,)},
    "durable-end-is-a-torn-end": {"record_property": print},
    "marked-before-it-is-durable": {"operations": (crashes.one,)},
    "another-deployments-rows-stay": {"kept": on_disk},
    "incarnation-in-memory-only": {"kept": on_disk},
    "damage-not-looked-for": {"damage": index_lost},
}
