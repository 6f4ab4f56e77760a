"""Named bugs of gryphon: what a mistake in one of its rules looks like.

Paper: [GD02] §2, §3, rule by rule.
"""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_FOLDER: Final = "brokerd/protocols/gryphon"


def _bug(name: str, file: str, *texts: tuple[str, str]) -> NamedBug:
    return NamedBug(name, tuple(Edit(f"{_FOLDER}/{file}", *text) for text in texts))


BUGS: Final = (
    _bug(
        "M01-horizon-ignored",
        "subend.py",
        ("horizon = knowledge.horizon(position)", "horizon = knowledge.highest"),
    ),
    _bug(
        "M02-silence-over-unknown",
        "ostreams.py",
        ("lowest = max(run[0], stream.knowledge.final + 1", "lowest = max(1"),
    ),
    _bug(
        "M03-done-when-handed-out",
        "subend.py",
        ("return self._open[0].first - 1 if self._open else self.position", "return self.position"),
    ),
    _bug(
        "M04-done-when-anybody-is",
        "stream.py",
        ("return self.finish(min(done))", "return self.finish(max(done))"),
    ),
    _bug(
        "M05-curiosity-never-forgotten",
        "stream.py",
        (
            "start, end, _ = self._asked_until.popleft()\n"
            "            self.asked.remove(start, end)",
            "self._asked_until.popleft()",
        ),
    ),
    _bug(
        "M06-silent-for-who-has-not-asked",
        "relay.py",
        (
            "fresh = stream.knowledge.accumulate(message.start, message.end, run)",
            "mine = not message.again or stream.subend.gaps\n"
            "        fresh = stream.knowledge.accumulate(\n"
            "            message.start, message.end, run if mine else None\n"
            "        )",
        ),
    ),
    _bug(
        "M07-range-one-too-long",
        "ostreams.py",
        (
            "yield start, cut, events.within(start, cut)",
            "yield start, cut, events.within(start, cut - 1)",
        ),
    ),
    _bug(
        "M08-seen-before-durable",
        "pubends.py",
        (
            "self._disk.append(LOG, (_HEAD.pack(pubend, first) + bytes(head), *payload), see)",
            "see(); self._disk.append(LOG, (_HEAD.pack(pubend, first) + head, *payload), int)",
        ),
    ),
    _bug(
        "M09-tick-used-again",
        "pubends.py",
        ("self._last[pubend] = max(self._last[pubend], last)", "self._last[pubend] = 0"),
    ),
    _bug(
        "M10-no-ack-expected",
        "core.py",
        ("self._relay.expect_acks(stream, last)", "pass"),
    ),
    _bug(
        "M42-ticks-from-the-clock-alone",
        "pubends.py",
        (
            "first = max(self._last[pubend] + 1, self._clock.tick(self._disk.machine.now_ns))",
            "first = self._clock.tick(self._disk.machine.now_ns)",
        ),
        ("self._clock.go_on(self._disk.machine.now_ns, max(self._last))", "pass"),
    ),
    _bug(
        "chopped-before-written",
        "pubends.py",
        ("self._disk.commit(rows, chop)", "chop()"),
    ),
    _bug(
        "published-not-recovered",
        "pubends.py",
        ("self._assigned[run.source] = max(run.last, self._assigned.get(run.source, 0))", "pass"),
        ("self._durable[run.source] = self._assigned[run.source]", "pass"),
    ),
    _bug(
        "final-takes-what-is-open",
        "stream.py",
        ("return max(self._done[child], self.knowledge.final)", "return self.knowledge.highest"),
    ),
    _bug(
        "tick-lease-not-written",
        "pubends.py",
        (
            "if self._said[pubend] < through <= self.reserved and is_free:",
            "if self._said[pubend] < through and is_free:",
        ),
    ),
    _bug(
        "silence-over-pending",
        "pubends.py",
        ("is_free = not pending or pending[0] > through", "is_free = True"),
    ),
    _bug(
        "event-inside-silence",
        "pubends.py",
        (
            "silent = self._last[pubend] = self._silent_after(pubend, last, len(rest))",
            "self._last[pubend] = last\n"
            "        silent = self._silent_after(pubend, last, len(rest))",
        ),
    ),
    _bug(
        "silence-beyond-the-lease",
        "pubends.py",
        ("through = silent if silent <= self.reserved else last", "through = silent"),
    ),
    _bug(
        "merge-waits-for-one",
        "merge.py",
        ("through = min(horizons, default=0)", "through = max(horizons, default=0)"),
    ),
    _bug(
        "merged-as-they-come",
        "merge.py",
        ("places = sorted(", "places = list("),
    ),
    _bug(
        "clock-left-behind",
        "pubends.py",
        ("self._clock.go_on(self._disk.machine.now_ns, through)", "pass"),
    ),
    _bug(
        "resumes-each-stream-alone",
        "clients.py",
        ("begins_after[stream] = max(last, begins_after.get(stream, 0))", "pass"),
    ),
    _bug(
        "final-of-one-cell-told-to-another",
        "ostreams.py",
        ("                    final = stream.knowledge.final\n", "                    pass\n"),
    ),
    _bug(
        "acks-not-told-beside",
        "relay.py",
        (
            "if cell == theirs:\n                    self.acks.pass_on(stream, cell)",
            "",
        ),
    ),
    _bug(
        "way-kept-after-a-loss",
        "links.py",
        ("self._said.pop(peer, None)\n        self._down.clear()", "self._said.pop(peer, None)"),
    ),
    _bug(
        "one-member-for-all",
        "links.py",
        ("if (direct | around) & ~covered:", "if not covered:"),
    ),
    _bug(
        "never-sideways",
        "links.py",
        ("if self._has_session(each) and direct & ~covered:", "if False:"),
    ),
    _bug(
        "asked-beside-in-vain",
        "links.py",
        ("if near or not sideways:", "if True:"),
    ),
    _bug(
        "forgotten-only-when-asked-again",
        "parameters.py",
        ("return self.nack_repetition_ns * 3 // 4", "return self.nack_repetition_ns"),
    ),
    _bug(
        "known-news-not-passed-on",
        "relay.py",
        (
            "if not message.again:\n            self.below.forward",
            "if not message.again and fresh:\n            self.below.forward",
        ),
    ),
    _bug(
        "unknown-filter-is-false",
        "filters.py",
        ("known.predicates is None or known.everything", "known.everything"),
    ),
    _bug(
        "narrowed-when-a-link-is-lost",
        "core.py",
        (
            "self._relay.lost(event.peer)",
            "self._relay.lost(event.peer)\n"
            "        if event.peer in self.filters:\n"
            "            self.filters.replace(self.filters.version(event.peer), {})",
        ),
    ),
    _bug(
        "begins-with-the-stream",
        "own_filter.py",
        ("max(tick, had, self._position(stream))", "had"),
    ),
    _bug(
        "begins-too-late",
        "exchange.py",
        ("tuple(self._known())", "tuple(tick + 100_000 for tick in self._known())"),
    ),
    _bug(
        "begins-behind-what-a-crash-takes",
        "core.py",
        (
            "known=self._known",
            "known=lambda: self._pubends._last",
        ),
    ),
    _bug(
        "begins-before-it-is-held-against",
        "exchange.py",
        (
            "rows = [Change(FILTERED, str(each.broker), [*each[1:]]) for each in versions]\n"
            "        self._disk.commit(rows, written)",
            "written()",
        ),
    ),
    _bug(
        "M13-older-filter-kept",
        "exchange.py",
        (
            "for version in newer:\n            self._table.replace(version, None)\n"
            "        if newer:",
            "newer = [each for each in newer if not self._knows(each.broker)]\n"
            "        for version in newer:\n            self._table.replace(version, None)\n"
            "        if newer:",
        ),
    ),
    _bug(
        "beginning-forgotten",
        "own_filter.py",
        (
            'change = Change(BEGINS, f"{local.client}/{local.number}", row)',
            'change = Change(BEGINS, f"{local.client}/{local.number}", [[b, *[0] * len(t)] '
            "for b, *t in row])",
        ),
    ),
    _bug(
        "filtered-for-one-cell-told-to-another",
        "ostreams.py",
        ("part, whose = run.after(final), EVERYWHERE", "part, whose = part, cell"),
    ),
    _bug(
        "silence-over-what-is-wanted",
        "ostreams.py",
        ("return lowest if before is None else before + 1", "return lowest"),
    ),
    _bug(
        "done-with-what-is-wanted",
        "ostreams.py",
        ("through if wanted is None else min(through, wanted - 1)", "through"),
    ),
    _bug(
        "acks-wait-for-what-nobody-wants",
        "relay.py",
        ("self.below.skip_unwanted(stream)", "()"),
    ),
    _bug(
        "waits-for-what-is-not-wanted-any-more",
        "filters.py",
        ("self.changes += 1\n", "pass\n"),
    ),
    _bug(
        "kept-beside-although-unwanted",
        "relay.py",
        (
            "for cell in self.below.skip_unwanted(stream):\n"
            "            self.acks.pass_on(stream, cell)",
            "[*self.below.skip_unwanted(stream)]",
        ),
    ),
    _bug(
        "kept-and-not-asked-after",
        "relay.py",
        ("self.expect_acks(stream, overdue)", "pass"),
    ),
    _bug(
        "asked-beside-and-silent",
        "relay.py",
        ("self._machine.send(peer, Done(message.onto, (through,)))", "pass"),
    ),
    _bug(
        "bracket-ends-at-what-nobody-wants",
        "ostreams.py",
        (
            "before = self._filters.last_wanted(events, cell, lowest, end)",
            "before = events.before(end)",
        ),
    ),
    _bug(
        "M11-answers-for-everybody",
        "ostreams.py",
        ("wanted = stream.wanted(peer, start, end)", "wanted = [(start, end)]"),
    ),
    _bug(
        "M12-sideways-again",
        "ostreams.py",
        (
            "yield onto, down(stream.identity, onto, sideways=False)",
            "yield onto, down(stream.identity, onto)",
        ),
    ),
    _bug(
        "asked-beside-again",
        "relay.py",
        ("sideways=peer not in self._routes.peers", "sideways=True"),
    ),
    _bug(
        "asks-what-it-has-just-asked",
        "stream.py",
        ("for gap in self.asked.gaps(start, end):", "for gap in [(start, end)]:"),
    ),
    _bug(
        "asks-what-it-is-just-asking",
        "stream.py",
        ("self.asked.add(*gap)\n", "pass\n"),
    ),
    _bug(
        "asks-for-a-tick-more",
        "relay.py",
        (
            "unknown += knowledge.known.gaps(start, end)",
            "unknown += knowledge.known.gaps(start, end + 1)",
        ),
    ),
    _bug(
        "done-with-all-that-is-known",
        "acks.py",
        (
            "[(each.identity, each.done_by(cell)) for each in streams]",
            "[(each.identity, each.knowledge.highest) for each in streams]",
        ),
    ),
    _bug(
        "done-goes-back",
        "stream.py",
        ("if through <= self._done[child]:", "if through == self._done[child]:"),
    ),
    _bug(
        "no-silence-before-an-event",
        "relay.py",
        (
            "stream.knowledge.accumulate(start, silent + 1, run)",
            "stream.knowledge.accumulate(run.first, silent + 1, run)",
        ),
    ),
    _bug(
        "silent-behind-an-event",
        "relay.py",
        (
            "stream.knowledge.accumulate(start, silent + 1, run)",
            "stream.knowledge.accumulate(start, silent + 2, run)",
        ),
    ),
    _bug(
        "chops-all-there-is",
        "pubends.py",
        ("first = logged[0].first if logged else self._next", "first = self._next"),
    ),
    _bug(
        "curious-of-what-it-was-told",
        "ostreams.py",
        (
            "(stream, peer, known):\n            stream.satisfy(peer, start, end)\n",
            "(stream, peer, known):\n            pass\n",
        ),
    ),
    _bug(
        "keeps-what-is-final",
        "knowledge.py",
        ("self.events.drop_through(through)", "pass"),
    ),
    _bug(
        "not-final-before-it-is-asked",
        "relay.py",
        (
            "self.acks.pass_on(stream, cell)\n                self.settle(stream)",
            "self.acks.pass_on(stream, cell)",
        ),
    ),
    _bug(
        "neighbouring-ranges-stay-apart",
        "intervals.py",
        ("first = bisect_left(ends, start)  #", "first = bisect_right(ends, start)  #"),
    ),
    _bug(
        "acknowledged-when-assigned",
        "pubends.py",
        ("return self._durable.get(source, 0)", "return self._assigned.get(source, 0)"),
    ),
    _bug(
        "another-number-than-its-publishers",
        "pubends.py",
        (
            "(OriginRun(run.source, run.sequences),)",
            "(OriginRun(run.source, range(run.first + 1, run.last + 2)),)",
        ),
    ),
    _bug(
        "asked-for-what-is-known",
        "relay.py",
        ("stream.answered(start, end)", "pass"),
    ),
    _bug(
        "begins-at-the-lowest-answer",
        "joins.py",
        ("max(asking.ticks.values())", "min(asking.ticks.values())"),
    ),
    _bug(
        "begins-at-its-clock",
        "pubends.py",
        ("self.assign_silence(stream, tick)", "pass"),
    ),
    _bug(
        "begins-unasked",
        "core.py",
        ("if parameters.is_total else None", "if False else None"),
    ),
    _bug(
        "asked-once-for-all",
        "joins.py",
        ("if asking.is_second:", "if True:"),
    ),
    _bug(
        "answered-before-it-is-written",
        "joins.py",
        (
            "self._disk.commit((Change(MERGED, key, True),), merge)",
            "merge(); self._disk.commit((Change(MERGED, key, True),), int)",
        ),
    ),
    _bug(
        "forgets-whom-it-waits-for",
        "joins.py",
        ("for key in recovered.get(MERGED, {}):", "for key in ():"),
    ),
    _bug(
        "join-asked-in-vain",
        "joins.py",
        (
            "self._deadlines.set((JOINING, stream), self._machine.now_ns + asking.waited_ns)",
            "pass",
        ),
    ),
    _bug(
        "final-silence-is-not-told",
        "relay.py",
        ("asked = [*stream.curious] if self._filters.is_on else ()", "asked = ()"),
    ),
    _bug(
        "silence-replaces-events",
        "knowledge.py",
        (
            "part = part_of(run, low, high) if run is not None else None",
            "part = part_of(run, low, high) if run and low == start else None",
        ),
    ),
    _bug(
        "gaps-wait-in-ever-more-pieces",
        "gaps.py",
        ("    if before and not before.asked and", "    if before and before.asked and"),
    ),
    _bug(
        "answers-unbounded",
        "ostreams.py",
        (
            "room_bytes = min(self._flow.answer_room_bytes(peer), JOINED_BYTES)",
            "room_bytes = JOINED_BYTES",
        ),
    ),
    _bug(
        "window-never-given-back",
        "flow_control.py",
        (
            "self._machine.send(peer, WindowUpdate(again, taken))",
            "pass",
        ),
    ),
    _bug("answered-on-by-nobody", "flow_control.py", ("self._on_answers(peer)", "pass")),
    _bug(
        "asked-once-whether-it-was-taken",
        "flow_control.py",
        (
            "window.probed_bytes = window.sent_bytes\n"
            "            self._machine.send(peer, WindowProbe(again, window.sent_bytes))\n"
            "        self._settle()",
            "pass\n        self._settle()",
        ),
    ),
    _bug("never-waits", "core.py", ("may_log=lambda: not self.flow.holds_up(),", "")),
    _bug("waits-for-ever", "core.py", ("on_room=lambda: self._pubends.go_on(),", "on_room=int,")),
    _bug(
        "takes-what-it-cannot-pass-on",
        "flow_control.py",
        ("if owed and not self.holds_up(again=again, but=cell):", "if owed:"),
    ),
    _bug("stall-holds-for-ever", "flow_control.py", ("window.is_stalled = True", "pass")),
    _bug(
        "told-however-much-is-not-taken",
        "ostreams.py",
        ("if not self._flow.may_tell(peer):", "if False:"),
    ),
    _bug(
        "missed-and-not-told-so",
        "flow_control.py",
        ("self._on_missed(peer, missed)", "pass"),
    ),
    _bug(
        "waits-for-who-is-gone",
        "flow_control.py",
        ("self._full.pop(key, None)\n            self._owed", "self._owed"),
    ),
)
"""What each leaves out: nothing is handed to clients behind an unknown tick; silence is said of
known ticks only; clients are done with what they have acknowledged; all are done, not one of
them; the same may be asked for again after a while; an event that comes again is one also where
nobody here has asked; an answer holds the last event of its range; what is published is seen
when it is on disk; a tick is one event's for ever, whatever clocks show; the last events of a
stream are asked after; a log is chopped when what it had is written down; what comes twice is
published once; what a child has is what it has said; a gap's events are taken also where a part
of what came is known; what one cell is done with another may lack; who passes acks up knows of
all below; ways are found anew when links change; several are told where none gets to all; the
rest goes sideways, and so does a question; silence is said of ticks that no restart and no event
under way has, nor one that comes later, and of none beyond the lease; a merge waits for all
streams, and sorts them; the clock goes on from ticks that were assigned; who has an event in
total order has all before; what somebody asks for again is passed on although it comes sooner
than it was sent; news go to all also where they have come as an answer to one; a filter that is
not known is true, and stays what it was when a link is lost; a subscription begins behind the
ticks that are known at its pubends, which are on disk, and not later; pubends write down which
filter they know before they say so; an older filter is not used where a newer one is known to be;
what goes sideways is for others, too; a bracket ends at what its cell wants, and at nothing else; a
cell is done with what it does not want, and with nothing else; and all members of the cell above
know; who keeps what others are done with asks after it, and a broker of its cell answers. A pubend
begins when all have answered twice, which they do when they have written it down for ever, and
behind the highest answer, whatever its clock shows; it asks until they do. Who has asked for
silence that is final is told. What waits to be asked for is one piece. Who
has taken less than a window is answered no further, and goes on where it has taken it, which it
says; it is asked again whether it has. What is published waits for who is slow, until there is
room, and a broker on the way says that it has none; not for who takes nothing, nor for who is gone;
who was not told of all is told that.
"""

MUTANTS: Final = {bug.name: bug for bug in BUGS}
