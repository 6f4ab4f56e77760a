"""Named bugs of multi_proxy: what a mistake in one of its rules looks like.

Paper: [MP22] §3, §4, rule by rule; several are mistakes that the paper's public code makes.
"""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_FOLDER: Final = "brokerd/protocols/multi_proxy"


def _bug(name: str, file: str, *texts: tuple[str, str]) -> NamedBug:
    return NamedBug(name, tuple(Edit(f"{_FOLDER}/{file}", *text) for text in texts))


BUGS: Final = (
    _bug(
        "stored-before-it-is-written",
        "topic_log.py",
        (
            "self._disk.append(LOG, (_HEAD.pack(number, first) + bytes(head), *payload), store)",
            "store(); self._disk.append(LOG, (_HEAD.pack(number, first) + head, *payload), int)",
        ),
    ),
    _bug("puts-twice", "topic_log.py", ("rest = run.after(had)", "rest = run")),
    _bug("put-before-the-one-before", "topic_log.py", ("if previous > had:", "if previous < 0:")),
    _bug(
        "chopped-with-its-sources",
        "topic_log.py",
        ('changes[PUT, f"{gone.topic}.{source}"] = gone.sequence', "source.strip()"),
    ),
    _bug(
        "positions-begin-anew",
        "topic_log.py",
        ("changes[RELEASED, str(gone.topic)] = gone.last", "changes.pop((RELEASED, ''), None)"),
    ),
    _bug(
        "released-when-anybody-is-done",
        "server.py",
        (
            "through = min((topic.durable, *done))",
            "through = min(topic.durable, max(done or [1 << 60]))",
        ),
    ),
    _bug(
        "never-released",
        "server.py",
        ("follower.done[wanted.topic] = wanted.done", "self._machine.now_ns += 0"),
    ),
    _bug("older-follow-kept", "server.py", ("version < follower.version", "version < _NEVER")),
    _bug(
        "followed-before-it-is-written",
        "server.py",
        ("self._disk.commit(changes, written)", "self._disk.commit(changes, int); written()"),
    ),
    _bug(
        "head-before-it-is-written",
        "server.py",
        (
            "self.log.sync(lambda: self._answer(home, answer))",
            "self._answer(home, answer)",
        ),
    ),
    _bug(
        "follows-one-too-late",
        "server.py",
        ("topic: before.get(topic, head) for", "topic: before.get(topic, head) + 1 for"),
    ),
    _bug(
        "answers-what-is-not-new",
        "server.py",
        (
            "self.log.topic(wanted.topic).after(wanted.after, most)",
            "self.log.topic(wanted.topic).after(wanted.after + 1, most)",
        ),
    ),
    _bug(
        "done-when-handed-out",
        "gets.py",
        (
            "return self.handed[0].first - 1 if self.handed else self.after or 0",
            "return self.after or 0",
        ),
    ),
    _bug(
        "over-a-hole",
        "gets.py",
        ("topic.after is None or run.first > topic.after + 1", "topic.after is None"),
    ),
    _bug(
        "begins-unfollowed",
        "gets.py",
        ("if beginning is not None and not beginning.awaited:", "if beginning is not None:"),
        (
            "            if not beginning.awaited:\n"
            "                beginning.then(beginning.heads)",
            "            pass",
        ),
    ),
    _bug(
        "goes-on-at-the-head",
        "gets.py",
        ("topic.after = each.done", "topic.after = each.head"),
    ),
    _bug(
        "recovers-unfollowed",
        "clients.py",
        (
            "            self._on_kept(client, local)\n            return\n",
            "            row = []\n",
        ),
    ),
    _bug(
        "follows-piece-by-piece",
        "gets.py",
        (
            "            if self._incarnation:\n                self._follow(followed)",
            "            self._incarnation = self._incarnation or 1\n"
            "            self._follow(followed)",
        ),
    ),
    _bug(
        "done-with-the-last-topic",
        "puts.py",
        (
            "return min(firsts) - 1 if firsts else self.submitted",
            "return max(firsts) - 1 if firsts else self.submitted",
        ),
    ),
    _bug(
        "puts-only-the-last-again",
        "puts.py",
        ("                for run in chain:\n", "                for run in [chain[-1]]:\n"),
    ),
    _bug(
        "never-asks-again",
        "ways.py",
        ("        self._resend(server)\n        self._set(way)", "        self._set(way)"),
    ),
    _bug(
        "keeps-to-its-proxy",
        "ways.py",
        ("way.proxy = self._next_proxy(server, way.proxy)\n        self._resend", "self._resend"),
    ),
    _bug(
        "new-way-begins-empty",
        "ways.py",
        (
            "            if way.proxy is not None:\n                self._resend(way.server)",
            "            pass",
        ),
    ),
)
"""What each leaves out: stored is what is on disk; what comes twice is put once, also when the log
that had it is chopped; what is put names what comes before it; a position is one publication's for
ever; all who follow are done, not one of them, and in the end nothing stays; a later request of a
home wins; what a home follows is on disk before it is told, and so are the positions that it is
told; it goes on behind where it was done; done is what clients have acknowledged; nothing is handed
out behind a hole; a subscription has started when all servers know of it, also one that a crash has
found half-way; a home says all that it follows at once; a publisher is done when all topics are;
what is put again begins with the first; who has no answer asks again, over another proxy; a new way
carries all that the old one has not answered.
"""

MUTANTS: Final = {bug.name: bug for bug in BUGS}
