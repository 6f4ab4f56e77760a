"""Named bugs of gryphon: what a mistake in one of its rules looks like.

Paper: [GD02] §2, §3, rule by rule.
"""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_FOLDER: Final = "brokerd/protocols/gryphon"


def _bug(name: str, leaves_out: str, file: str, *texts: tuple[str, str]) -> NamedBug:
    return NamedBug(name, leaves_out, tuple(Edit(f"{_FOLDER}/{file}", *text) for text in texts))


BUGS: Final = (
    _bug(
        "M01-horizon-ignored",
        "Nothing behind an unknown tick is handed to clients.",
        "subend.py",
        ("horizon = knowledge.horizon(position)", "horizon = knowledge.highest"),
    ),
    _bug(
        "M02-silence-over-unknown",
        "Silence is said of known ticks only.",
        "ostreams.py",
        ("lowest = max(run[0], stream.knowledge.final + 1", "lowest = max(1"),
    ),
    _bug(
        "M03-done-when-handed-out",
        "A client is done with what it has acknowledged.",
        "subend.py",
        ("return self._open[0].first - 1 if self._open else self.position", "return self.position"),
    ),
    _bug(
        "M04-done-when-anybody-is",
        "A stream is done when all of its children are.",
        "stream.py",
        ("return self.finish(min(done))", "return self.finish(max(done))"),
    ),
    _bug(
        "M05-curiosity-never-forgotten",
        "A range may be asked for again after a while.",
        "stream.py",
        (
            "start, end, _ = self._asked_until.popleft()\n"
            "            self.asked.remove(start, end)",
            "self._asked_until.popleft()",
        ),
    ),
    _bug(
        "kept-of-what-was-answered",
        "Nothing is kept of questions that are answered.",
        "stream.py",
        (
            "            self.asked.remove(start, end)\n"
            "        if not self.asked:\n"
            "            self._asked_until.clear()\n"
            "        return",
            "            self.asked.remove(start, end)\n        return",
        ),
    ),
    _bug(
        "M06-silent-for-who-has-not-asked",
        "An event that is sent again is one also where nobody has asked for it.",
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
        "An answer holds the last event of its range.",
        "ostreams.py",
        (
            "yield start, cut, events.within(start, cut)",
            "yield start, cut, events.within(start, cut - 1)",
        ),
    ),
    _bug(
        "M08-seen-before-durable",
        "A publication is seen when it is on disk.",
        "pubends.py",
        (
            "self._disk.append(LOG, (_HEAD.pack(pubend, first) + bytes(head), *payload), see)",
            "see(); self._disk.append(LOG, (_HEAD.pack(pubend, first) + head, *payload), int)",
        ),
    ),
    _bug(
        "M09-tick-used-again",
        "A tick is one event's for ever.",
        "pubends.py",
        ("self._last[pubend] = max(self._last[pubend], last)", "self._last[pubend] = 0"),
    ),
    _bug(
        "M10-no-ack-expected",
        "The last events of a stream are asked after.",
        "core.py",
        ("self._relay.expect_acks(stream, last)", "pass"),
    ),
    _bug(
        "M42-ticks-from-the-clock-alone",
        "Ticks grow, whatever the clock shows.",
        "pubends.py",
        (
            "first = max(self._last[pubend] + 1, self._clock.tick(self._disk.machine.now_ns))",
            "first = self._clock.tick(self._disk.machine.now_ns)",
        ),
        ("self._clock.go_on(self._disk.machine.now_ns, max(self._last))", "pass"),
    ),
    _bug(
        "chopped-before-written",
        "A log is chopped when the rows that replace it are on disk.",
        "pubends.py",
        ("self._disk.commit(rows, chop)", "chop()"),
    ),
    _bug(
        "published-not-recovered",
        "A publication that is retried after a restart is one.",
        "pubends.py",
        ("self._assigned[run.source] = max(run.last, self._assigned.get(run.source, 0))", "pass"),
        ("self._durable[run.source] = self._assigned[run.source]", "pass"),
    ),
    _bug(
        "final-takes-what-is-open",
        "A child has what it has said that it has, and no more.",
        "stream.py",
        ("return max(self._done[child], self.knowledge.final)", "return self.knowledge.highest"),
    ),
    _bug(
        "tick-lease-not-written",
        "Silence is said within the lease that is on disk.",
        "pubends.py",
        (
            "if self._said[pubend] < through <= self.reserved and is_free:",
            "if self._said[pubend] < through and is_free:",
        ),
    ),
    _bug(
        "silence-over-pending",
        "Silence is said of no tick that an event under way has.",
        "pubends.py",
        ("is_free = not pending or pending[0] > through", "is_free = True"),
    ),
    _bug(
        "event-inside-silence",
        "An event's tick is behind all silence that was said.",
        "pubends.py",
        (
            "silent = self._last[pubend] = self._silent_after(pubend, last, len(rest))",
            "self._last[pubend] = last\n"
            "        silent = self._silent_after(pubend, last, len(rest))",
        ),
    ),
    _bug(
        "silence-beyond-the-lease",
        "Silence between events stays within the lease, too.",
        "pubends.py",
        ("through = silent if silent <= self.reserved else last", "through = silent"),
    ),
    _bug(
        "merge-waits-for-one",
        "A merge waits for all of its streams.",
        "merge.py",
        ("through = min(horizons, default=0)", "through = max(horizons, default=0)"),
    ),
    _bug(
        "merged-as-they-come",
        "A merge sorts by tick.",
        "merge.py",
        ("places = sorted(", "places = list("),
    ),
    _bug(
        "clock-left-behind",
        "The clock goes on from the ticks that were assigned in advance.",
        "pubends.py",
        ("self._clock.go_on(self._disk.machine.now_ns, through)", "pass"),
    ),
    _bug(
        "begins-untold",
        "In total order, a client is told where it goes on in all streams, and says it again.",
        "clients.py",
        ("        return tuple(found)\n", "        return ()\n"),
    ),
    _bug(
        "told-that-it-has-what-waits",
        "A client that comes back without memory has not had what it did not acknowledge.",
        "clients.py",
        ("min(handed_out, waiting[stream] - 1)", "handed_out"),
    ),
    _bug(
        "final-of-one-cell-told-to-another",
        "What is final for one cell may be owed to another.",
        "ostreams.py",
        ("                    final = stream.knowledge.final\n", "                    pass\n"),
    ),
    _bug(
        "acks-not-told-beside",
        "Brokers of a cell tell each other what those below have acknowledged.",
        "relay.py",
        (
            "if cell == theirs:\n                    self.acks.pass_on(stream, cell)",
            "",
        ),
    ),
    _bug(
        "way-kept-after-a-loss",
        "Routes are found anew when a link changes.",
        "links.py",
        ("self._said.pop(peer, None)\n        self._down.clear()", "self._said.pop(peer, None)"),
    ),
    _bug(
        "one-member-for-all",
        "Several brokers of a cell are told where none reaches all.",
        "links.py",
        ("if (direct | around) & ~covered:", "if not covered:"),
    ),
    _bug(
        "never-sideways",
        "What no link down reaches goes through another broker of the same cell.",
        "links.py",
        ("if self._has_session(each) and direct & ~covered:", "if False:"),
    ),
    _bug(
        "asked-beside-in-vain",
        "A question that no broker above can take goes sideways.",
        "links.py",
        ("if near or not sideways:", "if True:"),
    ),
    _bug(
        "forgotten-only-when-asked-again",
        "A question is forgotten before it is repeated, so that the repetition is passed on.",
        "parameters.py",
        ("return self.nack_repetition_ns * 3 // 4", "return self.nack_repetition_ns"),
    ),
    _bug(
        "known-news-not-passed-on",
        "First-time knowledge is passed on also where it has come before as an answer.",
        "relay.py",
        (
            "if not message.again:\n            self.below.forward",
            "if not message.again and fresh:\n            self.below.forward",
        ),
    ),
    _bug(
        "unknown-filter-is-false",
        "A filter that is not known passes everything.",
        "filters.py",
        ("known.predicates is None or known.everything", "known.everything"),
    ),
    _bug(
        "narrowed-when-a-link-is-lost",
        "A filter stays what it was when a link is lost.",
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
        "A subscription begins behind the ticks that its pubends know.",
        "own_filter.py",
        ("max(tick, had, self._position(stream))", "had"),
    ),
    _bug(
        "begins-too-late",
        "A subscription begins at the ticks that its pubends know, and not later.",
        "exchange.py",
        ("tuple(self._known())", "tuple(tick + 100_000 for tick in self._known())"),
    ),
    _bug(
        "forged-filter-stays",
        "A broker outbids a filter in its name that it has not stated.",
        "exchange.py",
        (
            "return version.broker == self._broker and version > self._table",
            "return version.broker == -1 and version > self._table",
        ),
    ),
    _bug(
        "begins-behind-what-a-crash-takes",
        "The ticks at which a subscription begins are on disk.",
        "core.py",
        (
            "known=self._known",
            "known=lambda: self._pubends._last",
        ),
    ),
    _bug(
        "begins-before-it-is-held-against",
        "A pubend writes down which filter it knows before it says so.",
        "exchange.py",
        (
            "rows = [Change(FILTERED, str(each.broker), [*each[1:]]) for each in versions]\n"
            "        self._disk.commit(rows, written)",
            "written()",
        ),
    ),
    _bug(
        "M13-older-filter-kept",
        "An older filter is not used where a newer one is known to be.",
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
        "Where a subscription begins is on disk.",
        "own_filter.py",
        (
            'change = Change(BEGINS, f"{local.client}/{local.number}", row)',
            'change = Change(BEGINS, f"{local.client}/{local.number}", [[b, *[0] * len(t)] '
            "for b, *t in row])",
        ),
    ),
    _bug(
        "filtered-for-one-cell-told-to-another",
        "What is filtered for one cell is told to no other.",
        "ostreams.py",
        ("part, whose = run.after(final), EVERYWHERE", "part, whose = part, cell"),
    ),
    _bug(
        "silence-over-what-is-wanted",
        "Silence ends at the last event that its cell wants.",
        "ostreams.py",
        ("return lowest if before is None else before + 1", "return lowest"),
    ),
    _bug(
        "done-with-what-is-wanted",
        "A cell is done with no event that it wants.",
        "ostreams.py",
        ("through if wanted is None else min(through, wanted - 1)", "through"),
    ),
    _bug(
        "acks-wait-for-what-nobody-wants",
        "A cell is done with what it does not want.",
        "relay.py",
        ("self.below.skip_unwanted(stream)", "()"),
    ),
    _bug(
        "waits-for-what-is-not-wanted-any-more",
        "A changed filter is looked at again.",
        "filters.py",
        ("self.changes += 1\n", "pass\n"),
    ),
    _bug(
        "kept-beside-although-unwanted",
        "All brokers of the cell above hear that a cell wants nothing.",
        "relay.py",
        (
            "for cell in self.below.skip_unwanted(stream):\n"
            "            self.acks.pass_on(stream, cell)",
            "[*self.below.skip_unwanted(stream)]",
        ),
    ),
    _bug(
        "kept-and-not-asked-after",
        "Who keeps what others are done with asks after it.",
        "relay.py",
        ("self.expect_acks(stream, overdue)", "pass"),
    ),
    _bug(
        "asked-beside-and-silent",
        "A broker that is asked what its cell is done with answers.",
        "relay.py",
        ("self._machine.send(peer, Done(message.onto, (through,)))", "pass"),
    ),
    _bug(
        "bracket-ends-at-what-nobody-wants",
        "The bracket of a range ends at an event that its cell wants.",
        "ostreams.py",
        (
            "before = self._filters.last_wanted(events, cell, lowest, end)",
            "before = events.before(end)",
        ),
    ),
    _bug(
        "M11-answers-for-everybody",
        "An answer holds the ticks that were asked for.",
        "ostreams.py",
        ("wanted = stream.wanted(peer, start, end)", "wanted = [(start, end)]"),
    ),
    _bug(
        "M12-sideways-again",
        "What has gone sideways goes sideways no further.",
        "ostreams.py",
        (
            "yield onto, down(stream.identity, onto, sideways=False)",
            "yield onto, down(stream.identity, onto)",
        ),
    ),
    _bug(
        "asked-beside-again",
        "A question that has gone sideways goes sideways no further.",
        "relay.py",
        ("sideways=peer not in self._routes.peers", "sideways=True"),
    ),
    _bug(
        "asks-what-it-has-just-asked",
        "What is asked for already is not asked for again.",
        "stream.py",
        ("for gap in self.asked.gaps(start, end):", "for gap in [(start, end)]:"),
    ),
    _bug(
        "asks-what-it-is-just-asking",
        "What is being asked for counts as asked.",
        "stream.py",
        ("self.asked.add(*gap)\n", "pass\n"),
    ),
    _bug(
        "waits-although-its-peer-is-there",
        "A session that its peer closed after long is dialled at once.",
        "core.py",
        ("if dials_at_once(", "if established_ns < 0 and dials_at_once("),
    ),
    _bug(
        "one-message-for-a-whole-gap",
        "Each piece of a gap is a message of its own.",
        "core.py",
        (
            "[(piece,) for piece in stream.subend.gaps.due(self.now_ns)]",
            "[stream.subend.gaps.due(self.now_ns)]",
        ),
    ),
    _bug(
        "asks-for-a-tick-more",
        "A question ends where it was asked to end.",
        "relay.py",
        (
            "unknown += knowledge.known.gaps(start, end)",
            "unknown += knowledge.known.gaps(start, end + 1)",
        ),
    ),
    _bug(
        "done-with-all-that-is-known",
        "An acknowledgement covers what is done, not what is known.",
        "acks.py",
        (
            "[(each.identity, each.done_by(cell)) for each in streams]",
            "[(each.identity, each.knowledge.highest) for each in streams]",
        ),
    ),
    _bug(
        "done-goes-back",
        "Acknowledgements never go back.",
        "stream.py",
        ("if through <= self._done[child]:", "if through == self._done[child]:"),
    ),
    _bug(
        "no-silence-before-an-event",
        "The ticks before an event are silent.",
        "relay.py",
        (
            "stream.knowledge.accumulate(start, silent + 1, run)",
            "stream.knowledge.accumulate(run.first, silent + 1, run)",
        ),
    ),
    _bug(
        "silent-behind-an-event",
        "A tick behind an event is silent only where it is said.",
        "relay.py",
        (
            "stream.knowledge.accumulate(start, silent + 1, run)",
            "stream.knowledge.accumulate(start, silent + 2, run)",
        ),
    ),
    _bug(
        "chops-all-there-is",
        "A log is chopped up to the first event that somebody lacks.",
        "pubends.py",
        ("first = logged[0].first if logged else self._next", "first = self._next"),
    ),
    _bug(
        "curious-of-what-it-was-told",
        "An answer ends the curiosity that it satisfies.",
        "ostreams.py",
        (
            "(stream, peer, known):\n            stream.satisfy(peer, start, end)\n",
            "(stream, peer, known):\n            pass\n",
        ),
    ),
    _bug(
        "keeps-what-is-final",
        "Events that are final are dropped.",
        "knowledge.py",
        ("self.events.drop_through(through)", "pass"),
    ),
    _bug(
        "not-final-before-it-is-asked",
        "A stream is settled when an acknowledgement comes.",
        "relay.py",
        (
            "self.acks.pass_on(stream, cell)\n                self.settle(stream)",
            "self.acks.pass_on(stream, cell)",
        ),
    ),
    _bug(
        "neighbouring-ranges-stay-apart",
        "Neighbouring ranges of ticks are one range.",
        "intervals.py",
        ("first = bisect_left(ends, start)  #", "first = bisect_right(ends, start)  #"),
    ),
    _bug(
        "acknowledged-when-assigned",
        "A publisher is acknowledged what is on disk.",
        "pubends.py",
        ("return self._durable.get(source, 0)", "return self._assigned.get(source, 0)"),
    ),
    _bug(
        "another-number-than-its-publishers",
        "A publication keeps its publisher's number.",
        "pubends.py",
        (
            "(OriginRun(run.source, run.sequences),)",
            "(OriginRun(run.source, range(run.first + 1, run.last + 2)),)",
        ),
    ),
    _bug(
        "asked-for-what-is-known",
        "What has come is not asked for any more.",
        "relay.py",
        ("stream.answered(start, end)", "pass"),
    ),
    _bug(
        "begins-at-the-lowest-answer",
        "A pubend begins behind the highest answer.",
        "joins.py",
        ("max(asking.ticks.values())", "min(asking.ticks.values())"),
    ),
    _bug(
        "begins-at-its-clock",
        "A pubend begins at the agreed tick, whatever its clock shows.",
        "pubends.py",
        ("self.assign_silence(stream, tick)", "pass"),
    ),
    _bug(
        "begins-unasked",
        "In total order a pubend asks all before it begins.",
        "core.py",
        ("if parameters.is_total else None", "if False else None"),
    ),
    _bug(
        "asked-once-for-all",
        "A pubend begins when all have answered twice.",
        "joins.py",
        ("if asking.is_second:", "if True:"),
    ),
    _bug(
        "answered-before-it-is-written",
        "That a pubend is merged is on disk before it is answered.",
        "joins.py",
        (
            "self._disk.commit((Change(MERGED, key, True),), merge)",
            "merge(); self._disk.commit((Change(MERGED, key, True),), int)",
        ),
    ),
    _bug(
        "forgets-whom-it-waits-for",
        "Whom a merge waits for outlives a restart.",
        "joins.py",
        ("for key in recovered.get(MERGED, {}):", "for key in ():"),
    ),
    _bug(
        "join-asked-in-vain",
        "A pubend asks until all have answered.",
        "joins.py",
        (
            "self._deadlines.set((JOINING, stream), self._machine.now_ns + asking.waited_ns)",
            "pass",
        ),
    ),
    _bug(
        "final-silence-is-not-told",
        "Who has asked for ticks that are final is told so.",
        "relay.py",
        ("asked = [*stream.curious] if self._filters.is_on else ()", "asked = ()"),
    ),
    _bug(
        "silence-replaces-events",
        "A run's events stay events where a part of its ticks was known.",
        "knowledge.py",
        (
            "part = part_of(run, low, high) if run is not None else None",
            "part = part_of(run, low, high) if run and low == start else None",
        ),
    ),
    _bug(
        "gaps-wait-in-ever-more-pieces",
        "Neighbouring gaps that are not asked for yet are one gap.",
        "gaps.py",
        ("    if before and not before.asked and", "    if before and before.asked and"),
    ),
    _bug(
        "answers-unbounded",
        "An answer is no longer than the room in its window.",
        "ostreams.py",
        (
            "room_bytes = min(self._flow.answer_room_bytes(peer, stream.identity), JOINED_BYTES)",
            "room_bytes = JOINED_BYTES",
        ),
    ),
    _bug(
        "window-never-given-back",
        "Who takes an answer says so.",
        "flow_control.py",
        (
            "self._machine.send(peer, WindowUpdate(origin, again, taken))",
            "pass",
        ),
    ),
    _bug(
        "answered-on-by-nobody",
        "An answer that had no room goes on when there is room.",
        "flow_control.py",
        ("self._on_answers(peer)", "pass"),
    ),
    _bug(
        "asked-once-whether-it-was-taken",
        "Who has not said what it has taken is asked until it does.",
        "flow_control.py",
        (
            "window.probed_bytes = window.sent_bytes\n"
            "            self._machine.send(peer, WindowProbe(origin, again, window.sent_bytes))\n"
            "        self._settle()",
            "pass\n        self._settle()",
        ),
    ),
    _bug(
        "never-waits",
        "Publications wait at their pubend for a broker that is slow.",
        "core.py",
        ("may_log=lambda: not self.flow.holds_up(),", ""),
    ),
    _bug(
        "waits-for-ever",
        "Publications go on when there is room.",
        "core.py",
        ("on_room=lambda: self._pubends.go_on(),", "on_room=int,"),
    ),
    _bug(
        "takes-what-it-cannot-pass-on",
        "A broker without room below says above that it has none.",
        "flow_control.py",
        ("if owed and not any(True for _ in full):", "if owed:"),
    ),
    _bug(
        "stall-holds-for-ever",
        "Nobody waits for a broker that takes nothing.",
        "flow_control.py",
        ("window.is_stalled = True", "pass"),
    ),
    _bug(
        "told-however-much-is-not-taken",
        "Nothing first-time is sent beyond a window.",
        "ostreams.py",
        ("if not self._flow.may_tell(peer, stream.identity):", "if False:"),
    ),
    _bug(
        "missed-and-not-told-so",
        "A cell that was not told of all hears how far it could know.",
        "flow_control.py",
        ("self._on_missed(peer, missed)", "pass"),
    ),
    _bug(
        "answers-each-that-waited-for-its-log",
        "Who asks again while a log is read has asked once.",
        "core.py",
        ("self._early = list(asked_once(self._early))", "pass"),
    ),
    _bug(
        "waits-for-who-is-gone",
        "Nobody waits for a broker whose session has ended.",
        "flow_control.py",
        ("self._full.pop(key, None)\n            self._owed", "self._owed"),
    ),
    _bug(
        "publisher-changes-its-pubend",
        "A publisher is at one pubend for ever.",
        "pubends.py",
        ("if now != pubend and", "if now == -1 and"),
    ),
    _bug(
        "opposite-ways-wait-for-each-other",
        "What goes sideways waits for nothing of another way.",
        "flow_control.py",
        (
            "if (of == origin and sender != own) if cell == own else cell != origin:",
            "if cell != (origin if origin is None else sender):",
        ),
    ),
)

MUTANTS: Final = {bug.name: bug for bug in BUGS}
