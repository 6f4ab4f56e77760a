"""Named bugs of durable subscriptions: what a mistake in one of their rules looks like.

Paper: [DS03] §3, §4, rule by rule.
"""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_FOLDER: Final = "brokerd/protocols/durable"


def _bug(name: str, file: str, *texts: tuple[str, str]) -> NamedBug:
    return NamedBug(name, tuple(Edit(f"{_FOLDER}/{file}", *text) for text in texts))


BUGS: Final = (
    _bug(
        "previous-of-another",
        "filter_records.py",
        (
            "content = _PACK_ONE(tick, one, newest.get(one, NO_RECORD))",
            "content = _PACK_ONE(tick, one, index - 1 or NO_RECORD)",
        ),
        (
            "words += each, newest.get(each, NO_RECORD)",
            "words += each, index - 1 or NO_RECORD",
        ),
    ),
    _bug(
        "chopped-is-silent",
        "batch_read.py",
        ("limit = max(self._limit, log.chopped_tick)", "limit = self._after"),
    ),
    _bug(
        "newest-in-place-of-oldest",
        "batch_read.py",
        ("self._upto = self._found.pop() - 1", "self._found.popleft()"),
    ),
    _bug(
        "written-twice",
        "filter_log.py",
        ("if tick > last:", "if tick > last - 8:"),
    ),
    _bug(
        "rows-before-matches",
        "commits.py",
        (
            "self._disk.sync(self._log, lambda: self._on_synced(taken))",
            "self._on_synced(taken)",
        ),
    ),
    _bug(
        "told-before-rows",
        "commits.py",
        (
            "self._disk.commit(self._rows(taken), lambda: self._on_committed(taken))",
            "self._disk.commit(self._rows(taken), int); self._on_committed(taken)",
        ),
    ),
    NamedBug(
        "released-before-written",
        (
            Edit(
                f"{_FOLDER}/hosted_streams.py",
                "each.lane(self.identity).committed",
                "each.lane(self.identity).acknowledged",
            ),
            Edit(
                f"{_FOLDER}/hosted_streams.py",
                "min([self.delivered, *committed])",
                "min([self.position, *committed])",
            ),
            Edit(f"{_FOLDER}/hosting.py", "found = self._released.get(stream)", "found = None"),
        ),
    ),
    _bug(
        "no-floor",
        "catching_up.py",
        ("lane.floor = had\n", "lane.floor = 0\n"),
    ),
    _bug(
        "accepted-before-written",
        "hosting.py",
        (
            "self._disk.commit(changes, lambda: self._on_kept(client, local))",
            "self._on_kept(client, local); self._disk.commit(changes, int)",
        ),
    ),
    _bug(
        "answered-before-committed",
        "token_commits.py",
        (
            "self._disk.commit(_rows(taken), lambda: self._on_durable(shard, taken))",
            "self._disk.commit(_rows(taken), int); self._on_durable(shard, taken)",
        ),
    ),
    _bug(
        "redelivered-unmarked",
        "consuming.py",
        ("if lane.given > lane.acknowledged", "if lane.given > lane.acknowledged < 0"),
    ),
    _bug(
        "restart-marks-nothing",
        "consuming.py",
        ("local.lane(identity).given = ANY", "local.lane(identity).given = 0"),
    ),
    _bug(
        "token-of-the-client",
        "consuming.py",
        ("local.presented[stream] = max(last, local.lane(stream).acknowledged)", "continue"),
    ),
    _bug(
        "commit-waits-for-a-pubend",
        "consuming.py",
        ("            self._tokens.prove(local)\n", "            return\n"),
    ),
    _bug(
        "commit-of-the-future",
        "consuming.py",
        ("            self._tokens.prove(local)\n", "            pass\n"),
    ),
    _bug(
        "committed-again-is-not-answered",
        "token_commits.py",
        ("self._then(taken)", "self._then([each for each in taken if _rows([each])])"),
    ),
    _bug(
        "not-truncated",
        "filter_log.py",
        ("if record.tick > self._keep_through:", "if False:"),
    ),
    _bug(
        "live-too-early",
        "catching_up.py",
        ("elif catchup.given >= hosted.position:", "elif catchup.given > lane.floor:"),
    ),
    _bug(
        "released-when-anybody-has",
        "release.py",
        (
            "return min([self._own(stream.identity), *below])",
            "return max([self._own(stream.identity), *below])",
        ),
    ),
    _bug(
        "silence-said-over-what-is-out",
        "silence.py",
        ("if lane.mode is Mode.LIVE and not lane.out and lane.floor <= position:", "if True:"),
    ),
    _bug(
        "future-token-is-a-floor",
        "tokens.py",
        ("if local.is_attached and lane.floor > self._hosted[lane.stream].position:", "if False:"),
    ),
    _bug(
        "open-matches-forgotten",
        "hosted_streams.py",
        (
            "return self.position > self.delivered or bool(self._open)",
            "return self.position > self.delivered",
        ),
    ),
    _bug(
        "younger-is-lost",
        "retention.py",
        ("parameters.max_retain_ns\n", "parameters.max_retain_ns // 4\n"),
    ),
    _bug(
        "no-grace",
        "retention.py",
        ("self._machine.now_ns + max(self._grace_ns, self._max_retain_ns)", "0"),
    ),
    _bug(
        "lost-before-told",
        "retention.py",
        ("self._settle(stream)", "stream.finish(stream.held); self._settle(stream)"),
    ),
    _bug(
        "live-from-the-beginning",
        "catching_up.py",
        (
            "lane.floor = Mode.LIVE, None, catchup.given",
            "lane.floor = Mode.LIVE, None, 0",
        ),
    ),
    _bug(
        "gap-to-the-end-of-what-is-lost",
        "catchup.py",
        ("(self._begun[0] if self._begun else first), last", "first, self.lost.through"),
    ),
    _bug(
        "a-gap-per-batch",
        "catchup.py",
        ("if self.given >= self.lost.through:", "if True:"),
    ),
    _bug(
        "lost-is-silent",
        "catching_up.py",
        ("self._say_lost(lane, [each])", "pass"),
    ),
    _bug(
        "origins-up-to-what-is-published",
        "retention.py",
        ("kept.get(source, through + 1) - 1", "through"),
    ),
    _bug(
        "restart-forgets-where-streams-are",
        "hosting.py",
        ("subend.position = max(subend.position, hosted.delivered)", "pass"),
    ),
    _bug(
        "hold-forgotten",
        "core.py",
        ("return own if held is None else min(own, held)", "return own"),
    ),
    _bug(
        "hold-not-on-disk",
        "holds.py",
        ("self._holds[found] = _Named(generation, ticks, is_on_disk=True)", "continue"),
    ),
    _bug(
        "let-go-before-it-is-held",
        "arrivals.py",
        (
            "asked.until_ns > self._machine.now_ns or self._is_over(arrival, asked)\n"
            "            for broker, asked",
            "True\n            for broker, asked",
        ),
    ),
    _bug(
        "come-without-matches",
        "catching_up.py",
        ("max(had, lane.acknowledged, lane.matched_after)", "max(had, lane.acknowledged)"),
    ),
    _bug(
        "answered-from-silence",
        "fetching.py",
        (
            "        if not left:\n            return\n",
            "        if not left:\n            return\n"
            "        if left.last <= knowledge.highest:\n"
            "            self._answer(peer, identity, NOTHING_LOST, list(left), None)\n"
            "            return\n",
        ),
    ),
    _bug(
        "token-forgotten-between-connect-and-subscribe",
        "moving.py",
        (
            "moving.brought = {number: dict(seen) for number, seen in message.resume}",
            "moving.brought = {n: dict(s) for n, s in message.resume"
            " if n not in client.subscriptions}",
        ),
    ),
    _bug(
        "ended-stay-is-told-to-nobody",
        "moving.py",
        (
            "        if local.generation != generation:\n            return\n",
            "        if local.generation != generation or local.is_over:\n            return\n",
        ),
    ),
    _bug(
        "fetched-by-each-alone",
        "fetching.py",
        ("            self._lately.add(run)\n", "            pass\n"),
    ),
    _bug(
        "fetched-from-another-stream",
        "fetched_events.py",
        ("            if run.source != identity:\n", "            if not run:\n"),
    ),
    _bug(
        "asked-for-without-limit",
        "catchup_window.py",
        ("        if self._has_room(lane):\n", "        if hosted:\n"),
    ),
    _bug(
        "one-pubend-for-another",
        "catchup_window.py",
        (
            "return self._events.get(lane.stream, 0) < self._limit",
            "return sum(self._events.values()) < self._limit",
        ),
    ),
    _bug(
        "not-admitted-again",
        "catching_up.py",
        ("while not self._is_going_on and", "while self._is_going_on and"),
    ),
    _bug(
        "divergence-unsaid",
        "catchup_watch.py",
        ("if behind >= before:", "if behind < 0:"),
    ),
    _bug(
        "forgotten-before-it-is-over",
        "hosting.py",
        (
            "        super()._on_ended(over)\n        self._commits.soon()\n",
            "        super()._on_ended(over)\n"
            "        lanes = [lane for each in self._ours(over) for lane in each.lanes.values()]\n"
            "        rows = [Change(ACKNOWLEDGED, lane_key(lane), None) for lane in lanes]\n"
            "        self._machine.emit(Commit(tuple(rows), None))\n"
            "        self._commits.soon()\n",
        ),
    ),
    _bug(
        "released-by-nobody-and-forgotten",
        "hosting.py",
        (
            "        found = self._released.get(stream)\n",
            "        if not self._all and not self._ending:\n"
            "            return hosted.stream.subend.done\n"
            "        found = self._released.get(stream)\n",
        ),
        ("if hosted.position > hosted.seen:", "if hosted.position > hosted.seen and self._all:"),
    ),
    _bug(
        "expected-only-what-is-known",
        "core.py",
        (
            "max(stream.knowledge.highest, stream.subend.expected, stream.done_by(cell))",
            "stream.knowledge.highest",
        ),
    ),
    _bug(
        "decommission-forgotten",
        "decommissioning.py",
        ("            self._take(int(key))\n", "            pass\n"),
    ),
    _bug(
        "decommissioned-is-let-in",
        "decommissioning.py",
        (
            "Decommissioned((*self._gone,))",
            "Decommissioned(tuple(each for each in self._gone if each != peer))",
        ),
    ),
    _bug(
        "decommissioned-before-all-is-held",
        "core.py",
        ("arrivals = self._durable.arrivals.unheld(broker)", "arrivals = 0"),
    ),
    _bug(
        "decommissioned-is-asked-to-let-go",
        "arrivals.py",
        ("            arrival.untold.pop(broker, None)\n", "            pass\n"),
    ),
    _bug(
        "decommissioned-holds-back",
        "core.py",
        ("            stream.drop(cell)\n", "            pass\n"),
    ),
    _bug(
        "decommissioned-with-what-is-only-there",
        "core.py",
        ("                unfinished,\n", "                False,\n"),
    ),
    _bug(
        "old-session-counts",
        "lanes.py",
        (
            "        self.out.clear()\n",
            "        [setattr(each, 'open', 0) for each in self.out]; self.settle()\n",
        ),
    ),
    _bug(
        "fetched-unbounded",
        "fetching.py",
        (
            "room_bytes = min(self._flow.answer_room_bytes(peer), JOINED_BYTES)",
            "room_bytes = JOINED_BYTES",
        ),
    ),
    _bug(
        "fetched-on-by-nobody",
        "core.py",
        ("        self._fetching.answer_more(peer)\n", ""),
    ),
)
"""What each leaves out: a record names the one before of the same subscription; nobody knows for
whom chopped ticks were; a batch that is full has the oldest; what comes again is written once;
matches are on disk before it is written down how far they go, and that before anybody hears of
it; nobody says that more is released
than is written down; what a client has is not given to it again; a subscription that was called
started is on disk; what is behind the last commit is dropped at a restart; a stream of one's own
ends where the common one is; everybody has to release; silence is said of what is behind
everything given; matches are done also where a later subscription begins behind them; a restart
goes on where it had come to; what was fetched is kept a while for others; events of one stream
are of that stream; those who catch up ask for so much and no more; whoever waits to ask comes to
it; who comes no nearer is said; no subscription comes back
that has acknowledged nothing; what was out to an old session is acknowledged by
nobody; what is younger is kept; who was live has time to come back; what somebody live was not told
of is kept, however old; a gap ends with the last of what is for whom it is told; it is one; it is
told; its publications are those that are lost; nobody waits for a pubend but for what is of it;
nobody has what its pubend has not published; what is held is not released; it is held after a
restart, too; nobody lets go before it is; nobody knows what was for whom before it came; only a
pubend knows what is silent; what a client says of a subscription counts until it asks for it. Who
has taken less than a window is sent no more of what it fetches, and goes on when it has. Who is
given up is so after a restart, too, and is told so when it is back; nobody is given up before what
came from there is held, nor with publications that others lack; nobody waits for its answer, or
for what it has not acknowledged; a broker where nobody subscribes knows after a restart, too, what
it has released; who goes live has what was given before. What ends where it has come back to ends
where it has been meanwhile; nobody waits for what of a token only one pubend can tell, and that
is asked. Who forgot what it was done with is told of it, also by one that does not know it.
"""

MUTANTS: Final = {bug.name: bug for bug in BUGS}
"""By name."""
