"""Named bugs of ges: what a mistake in one of its rules looks like."""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_FOLDER: Final = "brokerd/protocols/ges"


def _bug(name: str, leaves_out: str, file: str, *texts: tuple[str, str]) -> NamedBug:
    return NamedBug(name, leaves_out, tuple(Edit(f"{_FOLDER}/{file}", *text) for text in texts))


BUGS: Final = (
    _bug(
        "links-told-as-inside",
        "Outside a unit its connections are told with the unit in the place of an end.",
        "view.py",
        ("left if is_inside(end, left) else end for end", "end for end"),
    ),
    _bug(
        "believes-what-came-around",
        "Inside a unit nobody believes what comes back from outside.",
        "view.py",
        (
            "if end != self._place.address and self._place.is_in(end):",
            "if end != self._place.address and end == ():",
        ),
    ),
    _bug(
        "profiles-told-as-inside",
        "Outside a unit a profile is told with the unit in its broker's place.",
        "propagation.py",
        ("return left if level and is_inside(place, left) else place", "return place"),
    ),
    _bug(
        "lost-session-stays-in-graph",
        "A connection is there while both ends say so.",
        "graph.py",
        (
            "made = self._view.state(peer, self._neighbours[peer], DOWN)\n"
            "        self._tell_others((made,), peer)",
            "self._view.near((peer,))",
        ),
    ),
    _bug(
        "sent-to-all-units",
        "A unit gets what somebody in it wants.",
        "router.py",
        (
            "siblings = interested(self._place.own(level + 1))",
            "siblings = self._view.siblings(level)",
        ),
    ),
    _bug(
        "only-for-others",
        "What is published at a broker is for its own clients, too.",
        "router.py",
        ("return [here, cluster, *beyond]", "return [cluster, *beyond]"),
    ),
    _bug(
        "ways-come-back",
        "A way leaves a unit once.",
        "paths.py",
        ("and may(other) and len(other) <= len(here)", "and may(other)"),
    ),
    _bug(
        "one-way-only",
        "A way that is gone is replaced by another one.",
        "router.py",
        ("if target.reroutes > self._reroute_limit:", "if target.reroutes:"),
    ),
    _bug(
        "each-decides-anew",
        "A way that was decided on is kept to, and no unit decides on it again.",
        "router.py",
        (
            "target = self._advanced(came)",
            "target = replace(came, frames=())",
        ),
    ),
    _bug(
        "overtaken-is-delivered",
        "A broker delivers the numbers of a source in ascending order.",
        "forwarding.py",
        ("if number > latest]", "if number > 0]"),
    ),
    _bug(
        "started-before-all-know",
        "A subscription has started when all have answered.",
        "propagation.py",
        (
            "return all(each.version > version for each in waiting)",
            "return bool(version or waiting)",
        ),
    ),
    _bug(
        "waits-for-who-is-gone",
        "Who is away for long is not waited for.",
        "propagation.py",
        ("self._answered(origin, peer, lambda version: True)", "self._given_up.pop(peer, None)"),
    ),
    _bug(
        "given-up-for-ever",
        "Who was given up and is back is waited for.",
        "propagation.py",
        ("        self._given_up.pop(peer, None)\n", ""),
    ),
    _bug(
        "late-answers-count",
        "A version that took as long as `purge_ns` proves nothing, and a later one is stated.",
        "subscriptions.py",
        ("is_late = taken_ns >= self._purge_ns", "is_late = False"),
    ),
    _bug(
        "stated-anew-for-ever",
        "A subscription starts where every answer takes longer than `purge_ns`.",
        "subscriptions.py",
        ("if is_late and route.repetitions < REPETITIONS]", "if is_late]"),
    ),
    _bug(
        "leaver-has-answered",
        "A neighbour that leaves is waited for until `purge_ns` is over.",
        "core.py",
        (
            "            self._purge_later(peer)\n            self._graph.on_down(peer)",
            "            self._propagation.give_up(peer)\n            self._graph.on_down(peer)",
        ),
    ),
    _bug(
        "one-answer-is-enough",
        "All neighbours have to answer.",
        "propagation.py",
        (
            "                each.awaited.pop(peer, None)\n        done",
            "                each.awaited.clear()\n        done",
        ),
    ),
    _bug(
        "links-of-the-dead-stay",
        "Of who does not come back all say that its connections are gone.",
        "graph.py",
        ("self._tell_others(self._view.state_for(unit), None)", "self._view.near(unit)"),
    ),
    _bug(
        "the-dead-want-for-ever",
        "Of who does not come back all say that nobody there wants anything.",
        "propagation.py",
        ("            self.speak_for_broker(origin)\n", "            pass\n"),
    ),
    _bug(
        "dead-and-silent-about-wants",
        "A broker that hears that others speak for it says what its clients want.",
        "propagation.py",
        ("return known[0] == message.version[0]", "return False"),
    ),
    _bug(
        "dead-and-silent-about-links",
        "A broker that hears that others speak for it says what connections it has.",
        "view.py",
        (
            "if statement.by != self._broker:\n            return False\n        own",
            "return False\n        own",
        ),
    ),
    _bug(
        "wants-inside-not-asked",
        "What is said outside of a unit's brokers goes on to them.",
        "propagation.py",
        ("        message = self._precise(message)\n", ""),
    ),
    _bug(
        "only-outsiders-remember",
        "Of who is known outside of its unit only those in the unit say that it is gone.",
        "ageing.py",
        ("for origin in sorted(self._unknown):", "for origin in sorted(self._unknown)[:0]:"),
    ),
    _bug(
        "only-outsiders-remember-links",
        "Of who is known outside of its unit only those in the unit say that it has no connection.",
        "ageing.py",
        ("                self._graph.speak_for_unknown(origin)\n", ""),
    ),
    _bug(
        "left-and-heard-of-again",
        "Of who has left all say so again when they hear of it.",
        "core.py",
        ("if broker in self._left:", "if broker in self._left and not message.statements:"),
    ),
    _bug(
        "spoken-for-ever-again",
        "Who has said that it lives is spoken for ever more rarely.",
        "ageing.py",
        ("> self._patience.get(origin, LOOKS):", "> LOOKS:"),
    ),
    _bug(
        "units-send-each-other",
        "Who leaves a unit again at which a way has ended has given that way up.",
        "router.py",
        ("if not is_inside(chosen[-1], arrived):", "if not chosen:"),
    ),
    _bug(
        "missed-at-first-sight",
        "Who was missing at each look for `purge_ns` is gone.",
        "ageing.py",
        ("if self._missed[unit] > LOOKS:", "if self._missed[unit]:"),
    ),
    _bug(
        "alone-and-speaks-for-all",
        "Who has no session at all speaks for nobody.",
        "core.py",
        ("if self._sessions and self._ageing.look():", "if self._ageing.look():"),
    ),
    _bug(
        "waits-for-who-has-yet-to-start",
        "Nobody waits for a newcomer that has not been there.",
        "core.py",
        (
            "self._near[peer] = hierarchy.addresses[peer]\n"
            "                self._propagation.give_up(peer)",
            "self._near[peer] = hierarchy.addresses[peer]",
        ),
    ),
    _bug(
        "newcomer-is-nobody",
        "Whoever a newcomer is linked to is its neighbour from when it is told.",
        "core.py",
        (
            "        for peer in near:\n            if peer not",
            "        for peer in ():\n            if peer not",
        ),
        (
            "        self.change_neighbours(near)\n",
            "        self.change_neighbours([*self._near])\n",
        ),
    ),
    _bug(
        "leaver-stays-a-neighbour",
        "Who has left is no neighbour any more.",
        "core.py",
        (
            "        self.change_neighbours(near)\n",
            "        self.change_neighbours([*self._near])\n",
        ),
        (
            "for peer in [peer for peer in self._near if peer not in near]:",
            "for peer in ():",
        ),
    ),
    _bug(
        "links-of-who-has-left",
        "Of who has left all say at once that it has no connection.",
        "core.py",
        (
            "for broker in hierarchy.left:\n            self._graph.speak_for_broker(broker)\n",
            "for broker in hierarchy.left:\n",
        ),
    ),
    _bug(
        "who-has-left-wants",
        "Of who has left all say at once that nobody there wants anything.",
        "core.py",
        ("            self._propagation.speak_for_broker(broker)\n", ""),
    ),
    _bug(
        "slow-links-cost-the-same",
        "A link that is slow for long costs more.",
        "load.py",
        (
            "self._graph.charge(peer, factor)",
            "pass",
        ),
    ),
    _bug(
        "new-cost-untold",
        "Of what a link costs from now on all are told.",
        "graph.py",
        (
            "made = self._view.state(peer, self._neighbours[peer], factor)\n"
            "        self._tell_others((made,), None)",
            "self._view.state(peer, self._neighbours[peer], factor)",
        ),
    ),
    _bug(
        "cheaper-end-counts",
        "A link costs what the end says for which it is dearer.",
        "view.py",
        (
            "factor = max(each.factor for",
            "factor = min(each.factor for",
        ),
    ),
    _bug(
        "dear-at-first-sight",
        "A link costs more when two checks in a row call for it.",
        "load.py",
        (
            "if len(link.higher) >= CHECKS_TO_RISE:",
            "if link.higher:",
        ),
    ),
    _bug(
        "cheap-at-first-sight",
        "A link costs less when three checks in a row call for it.",
        "load.py",
        (
            "elif len(link.lower) >= link.checks_to_fall:",
            "elif link.lower:",
        ),
    ),
    _bug(
        "dear-for-ever",
        "A dear link is probed although nothing goes over it.",
        "load.py",
        (
            "dear = link.higher or self._graph.factor(peer) > UP",
            "dear = bool(link.higher)",
        ),
    ),
    _bug(
        "waits-for-an-answer",
        "A probe that has no answer has taken as long as it has been under way.",
        "load.py",
        (
            "return so_far if so_far > stated else None",
            "return None",
        ),
    ),
    _bug(
        "rises-and-falls-for-ever",
        "A link that rises again soon after it fell takes longer to fall.",
        "load.py",
        (
            "link.checks_to_fall = min(2 * link.checks_to_fall, MOST_CHECKS_TO_FALL)",
            "link.checks_to_fall = CHECKS_TO_FALL",
        ),
    ),
    _bug(
        "cheap-by-a-new-session",
        "A new session costs what the link did before.",
        "graph.py",
        (
            "self._view.state(peer, self._neighbours[peer], self.factor(peer))",
            "self._view.state(peer, self._neighbours[peer], UP)",
        ),
    ),
    _bug(
        "a-probe-per-publication",
        "A link is probed once between two checks.",
        "load.py",
        (
            "if not link.is_probed:",
            "if link.asked_ns is None:",
        ),
    ),
    _bug(
        "measured-unasked",
        "Nothing is measured where no parameter says what is slow.",
        "load.py",
        (
            "if not self._slow_ns:",
            "if self._slow_ns < 0:",
        ),
    ),
    _bug(
        "sent-to-another-cluster",
        "Clients are sent to brokers of their cluster.",
        "core.py",
        (
            "return address is not None and self.place.seen_as(address) == address",
            "return address is not None",
        ),
    ),
    _bug(
        "sent-to-who-is-away",
        "Clients are sent to brokers that are there.",
        "core.py",
        (
            "[peer for peer in self._near if self._is_near(peer) and self.is_linked(peer)]",
            "[peer for peer in self._near if self._is_near(peer)]",
        ),
        (
            "        self._hints.went(peer)\n        self._purge_later(peer)",
            "        self._purge_later(peer)",
        ),
    ),
    _bug(
        "sent-where-it-is-as-full",
        "Clients are sent where there are fewer, with them, too.",
        "hints.py",
        ("if number + 2 <= left]", "if number <= left]"),
    ),
    _bug(
        "sent-though-there-is-room",
        "Nobody is sent away by a broker with few clients.",
        "hints.py",
        ("if left <= self._limit or not better:", "if not better:"),
    ),
    _bug(
        "first-come-first-gone",
        "Those that came last are sent away.",
        "hints.py",
        ("for name in reversed(staying):", "for name in staying:"),
    ),
    _bug(
        "sent-again-and-again",
        "Who stays is not told again.",
        "hints.py",
        ("if name not in self._told:", "if name not in going:"),
    ),
    _bug(
        "on-its-way-and-nowhere",
        "Clients on their way count where they go.",
        "hints.py",
        ("self._step - 1 + under_way", "self._step - 1"),
    ),
    _bug(
        "each-client-is-told-of",
        "Numbers of clients are told in steps.",
        "hints.py",
        ("if abs(len(here) - self._said) >= self._step:", "if len(here) != self._said:"),
    ),
    _bug(
        "cut-off-at-first-sight",
        "Clients are sent away by a part that has been cut off for long.",
        "apart.py",
        (
            "self._deadlines.set(self._deadline, self._machine.now_ns + self._patience_ns())",
            "self._deadlines.set(self._deadline, self._machine.now_ns)",
        ),
    ),
    _bug(
        "every-part-is-cut-off",
        "The part with the lowest member goes on as it was.",
        "apart.py",
        (
            "if min(counted, default=self._home) in part:",
            "if len(part) >= len(self.members):",
        ),
    ),
    _bug(
        "cut-off-and-takes-clients",
        "A part that is cut off takes no new clients.",
        "apart.py",
        ("self._refuse(REFUSAL)", 'self._refuse("")'),
    ),
    _bug(
        "whole-and-takes-no-clients",
        "A cluster that is whole again takes clients everywhere.",
        "apart.py",
        ('                self._refuse("")\n', ""),
    ),
    _bug(
        "across-before-beyond",
        "Clients are sent beyond the cluster first, where somebody is known to be.",
        "apart.py",
        ("(*beyond, *across)))", "(*across, *beyond)))"),
    ),
    _bug(
        "misses-who-has-left",
        "Who has left is no member.",
        "apart.py",
        ("for each in hierarchy.present if", "for each in range(len(addresses)) if"),
    ),
    _bug(
        "roams-unasked",
        "Without the policy clients stay, and new ones are taken.",
        "apart.py",
        ("if self._policy == STAY or self._looked_at", "if self._looked_at"),
    ),
    _bug(
        "refuses-clients-for-ever",
        "Members unreachable for twice `purge_ns` do not decide any more which part is closed.",
        "apart.py",
        (
            "self._failed = {each: None for each in self.members if each not in part}",
            "self._failed = {}",
        ),
    ),
    _bug(
        "failed-though-it-returned",
        "A member that is reached again decides again which part is closed.",
        "apart.py",
        (
            "self._failed = {each: None for each in self._failed if each not in part}",
            "pass",
        ),
    ),
    _bug(
        "sends-before-its-address-is-taken",
        "A neighbour without the current address receives no connections and profiles.",
        "core.py",
        ("return peer in self._linked and self.reaches(peer)", "return self.reaches(peer)"),
    ),
    _bug(
        "probes-wait-for-the-address",
        "A probe is answered whether or not its sender has the current address.",
        "core.py",
        ("{**heard, **probes, **self", "{**heard, **self"),
        (
            "            RoutedPublications: self._forwarding.on_routed,\n        }",
            "            RoutedPublications: self._forwarding.on_routed,\n"
            "            LoadProbe: self._load.on_probe,\n"
            "            LoadAnswered: self._load.on_answered,\n        }",
        ),
    ),
    _bug(
        "to-and-fro-for-ever",
        "A broker that returns, and leaves again at once, waits longer each time.",
        "apart.py",
        ("        self._returns += 1\n", ""),
    ),
    _bug(
        "versions-leap",
        "A version that is too far ahead of the known one is refused.",
        "propagation.py",
        ("if known is not None and is_leap(known, message.version):", "if False:"),
    ),
    _bug(
        "profiles-of-nobody",
        "Profiles are accepted for brokers of the topology only.",
        "propagation.py",
        ("if message.origin not in self._brokers:", "if False:"),
    ),
    _bug(
        "profile-without-end",
        "A profile has a limited number of subscriptions.",
        "propagation.py",
        ("if len(entries) > self._room(message):", "if False:"),
    ),
    _bug(
        "forged-profile-stays",
        "A broker outbids a profile in its name that it has not stated.",
        "propagation.py",
        (
            "        if self._is_forged(message):\n            self._outbid(message.version)\n"
            "        elif self._is_refuted(message):",
            "        if self._is_refuted(message):",
        ),
    ),
    _bug(
        "forged-change-stays",
        "A broker outbids a change of its profile that it has not made.",
        "propagation.py",
        (
            "        if self._is_forged(message):\n            self._outbid(message.version)\n"
            "            return\n",
            "",
        ),
    ),
    _bug(
        "forged-connection-stays",
        "A broker outbids a statement in its name that it has not made.",
        "graph.py",
        ("if self._view.is_forged(statement):", "if False:"),
    ),
    _bug(
        "connections-of-nobody",
        "Connections are accepted for links of the topology only.",
        "graph.py",
        ("if (statement.low, statement.high) not in self._links:", "if False:"),
    ),
    _bug(
        "leap-while-nothing-is-known",
        "A known version that leaps from a stated one gives way to it.",
        "propagation.py",
        (
            "message.version > known or is_leap(message.version, known)",
            "message.version > known",
        ),
    ),
    _bug(
        "alone-and-unaware",
        "Who starts and meets nobody is cut off, too.",
        "core.py",
        (
            "            self._purge_later(peer)\n        self._fragment.look()\n",
            "            self._purge_later(peer)\n",
        ),
    ),
    _bug(
        "slow-brokers-go-on",
        "A broker that all its neighbours find slow for long ends.",
        "slow.py",
        ("self._machine.emit(Shutdown(reason))", "self._machine.emit"),
    ),
    _bug(
        "slow-by-one-link",
        "A broker is slow when all its neighbours find it slow.",
        "slow.py",
        ("if any(self._said_by(peer)", "if all(self._said_by(peer)"),
    ),
    _bug(
        "slow-for-good",
        "A broker that recovers in time is not slow any more.",
        "slow.py",
        ("            self._deadlines.cancel(deadline)\n", "            pass\n"),
    ),
    _bug(
        "slow-ones-blame-others",
        "Who finds all its links slow may be slow itself, and says nothing of others.",
        "slow.py",
        ("UP <= statement.factor < DEAREST", "UP <= statement.factor <= DEAREST"),
    ),
    _bug(
        "unmeasured-is-cheap",
        "Who finds one link dear asks how slow the others are.",
        "load.py",
        ("self._compares = parameters.slow_broker_ns > 0", "self._compares = False"),
    ),
    _bug(
        "one-word-is-enough",
        "One neighbour that finds a broker slow may be mistaken.",
        "slow.py",
        (">= WITNESSES", ">= 1"),
    ),
    _bug(
        "ends-unasked",
        "No broker ends for being slow where that is not asked for.",
        "slow.py",
        ("        if not self._slow_ns:\n            return\n", ""),
    ),
    _bug(
        "each-of-a-part-goes-alone",
        "Of a part that is to go elsewhere the lowest member goes first, and others follow it.",
        "apart.py",
        ("return wait_ns if is_first else wait_ns * 3 // 2", "return self._wait_ns"),
    ),
    _bug(
        "all-parts-are-one-unit",
        "Each part of a cluster is another unit.",
        "readdressing.py",
        ("free[rank], *self._home", "free[0], *self._home"),
    ),
    _bug(
        "beside-a-unit-that-it-has-no-way-to",
        "A part is beside the smallest unit that it has ways out of.",
        "readdressing.py",
        ("place = len(self._home) - 1 - min(levels)", "place = len(self._home) - 2"),
    ),
    _bug(
        "never-back-in-its-cluster",
        "Who meets a member of its cluster elsewhere goes back to its own address.",
        "readdressing.py",
        (
            "if self._is_of_cluster(peer) and message.address[:-1] != self._place.address[:-1]:",
            "if not self._is_of_cluster(peer) and not message.address:",
        ),
    ),
    _bug(
        "goes-where-it-came-from",
        "Who has come back does not follow those who are about to.",
        "apart.py",
        ("and self._machine.now_ns >= self._stays_until_ns", "and self._stays_until_ns >= 0"),
    ),
    _bug(
        "hears-who-knows-another-address",
        "What is seen from another address is not taken.",
        "readdressing.py",
        ("if self.hears(peer):", "if self.hears(peer) or peer in self._held:"),
    ),
    _bug(
        "neighbour-stays-where-it-was",
        "A neighbour is told what is seen from the address that it has.",
        "core.py",
        (
            "        self._near[peer] = address\n        self._graph.on_up",
            "        self._graph.on_up",
        ),
    ),
    _bug(
        "wants-at-its-old-address",
        "What clients want is wanted where their broker is.",
        "profiles.py",
        ("        own.place = place\n", ""),
    ),
    _bug(
        "knows-what-it-saw-before",
        "At another address a broker begins anew.",
        "view.py",
        ("        self.edges.clear()\n        self._latest.clear()\n", ""),
    ),
    _bug(
        "link-stays-where-it-was",
        "A connection is where its ends are.",
        "view.py",
        (
            "if before == edge and factor == self.edges[edge][link]:",
            "if before is not None and factor == self.edges[before][link]:",
        ),
    ),
)
"""Each as its name, the sentence that it leaves out, and where."""

MUTANTS: Final = {bug.name: bug for bug in BUGS}
