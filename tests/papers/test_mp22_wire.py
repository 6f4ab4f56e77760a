"""Tests of the report's text messages, in a conversation with our server."""

import string
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.multi_proxy import messages as ours
from brokerd.wire.attributes import encode_attributes
from tests.helpers.paper_wire import (
    STATUSES,
    Get,
    Merge,
    Message,
    Periodic,
    Put,
    Status,
    Subscribe,
    Transfer,
    Unsubscribe,
    WrongMessage,
    decode,
    encode,
)
from tests.protocols.multi_proxy.test_server import SERVER, Disk

WORDS = st.text(string.ascii_letters + string.digits + "._:@-", min_size=1, max_size=12)
IDS = WORDS.filter(lambda word: word != "-1")
CONTENTS = st.binary(max_size=40) | st.text("/*s\r\n ", max_size=12).map(str.encode)
MESSAGES = st.one_of(
    st.builds(Subscribe, WORDS, WORDS),
    st.builds(Unsubscribe, WORDS, WORDS),
    st.builds(Get, WORDS, WORDS, IDS | st.just("")),
    st.builds(Put, WORDS, WORDS, st.integers(1, 10**18), CONTENTS),
    st.builds(Periodic, WORDS, st.lists(WORDS, max_size=4).map(tuple)),
    st.builds(Merge, WORDS, WORDS, WORDS),
    st.builds(
        Transfer, WORDS, WORDS,
        st.lists(st.tuples(WORDS, st.lists(WORDS, max_size=3).map(tuple)), max_size=3).map(tuple),
        st.lists(st.tuples(WORDS, CONTENTS), max_size=3).map(tuple),
    ),
    st.builds(Status, WORDS, st.sampled_from(STATUSES)),
    st.builds(Status, WORDS, st.just("OK"), IDS, CONTENTS),
)  # fmt: skip


@given(MESSAGES)
def test_an_encoded_wire_message_decodes_to_itself(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=60) | MESSAGES.map(encode).flatmap(lambda data: cut_and_changed(data)))
def test_arbitrary_bytes_are_refused_or_decode_consistently(data: bytes) -> None:
    try:
        message = decode(data)
    except WrongMessage:
        return
    assert decode(encode(message)) == message


def cut_and_changed(data: bytes) -> st.SearchStrategy[bytes]:
    place = st.integers(0, len(data) - 1)
    change = st.tuples(place, st.integers(0, 255))
    return place.map(lambda end: data[:end]) | change.map(
        lambda found: data[: found[0]] + bytes([found[1]]) + data[found[0] + 1 :]
    )


@pytest.mark.parametrize(
    "data, said",
    [
        (b"GET c1 news -1\r\n", "the header has no end"),
        (b"FETCH c1 news\r\n\r\n", "'FETCH' is none of SUBSCRIBE, "),
        (b"GET c1 news\r\n\r\n", "GET: 2 fields, not 3 to 3"),
        (b"GET c1  -1\r\n\r\n", "'': 1 to 128 of letters"),
        (b"SUBSCRIBE c1 a*b\r\n\r\n", r"'a\*b': 1 to 128 of letters"),
        (b"SUBSCRIBE c1 news\r\n\r\nx", "SUBSCRIBE has no body, this has 1 bytes"),
        (b"SUBSCRIBE c1 \xff\r\n\r\n", "not ASCII"),
        (b"PUT c1 news 0\r\n\r\nx", "counter '0': no whole number from 1"),
        (b"PUT c1 news 01\r\n\r\nx", "counter '01'"),
        (b"STATUS c1 FINE\r\n\r\n", "status 'FINE' is none of OK"),
        (b"STATUS c1 OK\r\n\r\nx", "without message id has no message"),
        (b"STATUS c1 OK -1\r\n\r\n", "-1 is the id of no message"),
        (b"TRANSFER s1 news\r\n\r\nc1 a", "the line of a subscriber has no end"),
        (b"TRANSFER s1 news\r\n\r\n*c1-1", "the id of a message has no end"),
        (b"TRANSFER s1 news\r\n\r\n*c1-1\r\n/x", "b'/x' stands for nothing"),
    ],
)
def test_an_invalid_wire_message_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(WrongMessage, match=said):
        decode(data)


@pytest.mark.parametrize("sender", ["", "a b", "a\r\n", "x" * 129])
def test_an_id_that_would_break_the_frame_is_not_sent(sender: str) -> None:
    with pytest.raises(WrongMessage):
        encode(Subscribe(sender, "news"))


class Front:
    """A front end that translates the report's messages into an access broker's requests."""

    CLIENTS: Final = {"anna": 2, "ben": 3}
    TOPICS: Final = {"news": 3}

    def __init__(self) -> None:
        self.disk = Disk()
        self._number = 0
        self._followed: dict[str, dict[int, int]] = {name: {} for name in self.CLIENTS}
        """By client: the last acknowledged publication in each topic."""
        self._given: dict[tuple[str, str], int] = {}

    def restart(self) -> None:
        """Restart the server's process."""
        self.disk.start(2)

    def say(self, text: str) -> str:
        """Return the reply to a message, both in wire format."""
        request = decode(text.encode())
        answer = encode(self._answer(request))
        return answer.decode()

    def _answer(self, request: Message) -> Status:
        assert isinstance(request, Subscribe | Unsubscribe | Put | Get), request
        sender, topic = request.sender, self.TOPICS[request.topic]
        done = self._followed[sender]
        if isinstance(request, Put):
            source = SourceId(self.CLIENTS[sender], 0, 1)
            run = PublicationRun(
                source, range(request.counter, request.counter + 1),
                (encode_attributes({"kind": request.topic}),), b"\0", len(request.content),
                (request.content,),
            )  # fmt: skip
            told = self.disk.tell(ours.Put(SERVER, self.CLIENTS[sender], topic, 0, run))
            (stored,) = [each for each in told if isinstance(each, ours.Stored)]
            return Status(sender, "OK" if stored.through >= request.counter else "INTERNAL_ERROR")
        if isinstance(request, Get):
            return self._get(request, topic) if topic in done else Status(sender, "NOT_SUBSCRIBED")
        is_new = isinstance(request, Subscribe)
        if is_new == (topic in done):
            return Status(sender, "ALREADY_SUBSCRIBED" if is_new else "NOT_SUBSCRIBED")
        self._number += 1
        wanted = ({*done} | {topic}) if is_new else ({*done} - {topic})
        told = self.disk.tell(
            ours.Follow(SERVER, self.CLIENTS[sender], 1, self._number, tuple(sorted(wanted)))
        )
        (following,) = [each for each in told if isinstance(each, ours.Following)]
        self._followed[sender] = {each.topic: each.done for each in following.topics}
        return Status(sender, "OK")

    def _get(self, request: Get, topic: int) -> Status:
        done = self._followed[request.sender]
        done[topic] = max(done[topic], self._given.get((request.sender, request.last), 0))
        self._number += 1
        wanted = ours.Wanted(SERVER, topic, done[topic], done[topic], 1)
        home = self.CLIENTS[request.sender]
        told = self.disk.tell(ours.Get(SERVER, home, 1, self._number, (wanted,)))
        for each in told:
            if isinstance(each, ours.Messages) and each.home == home:
                ((source, sequences),) = each.run.origins
                ((position, _, content),) = each.run.publications()
                names = {number: name for name, number in self.CLIENTS.items()}
                message_id = f"{names[source.broker]}-{sequences[0]}"
                self._given[request.sender, message_id] = position
                return Status(request.sender, "OK", message_id, bytes(content))
        return Status(request.sender, "NO_MESSAGES")


def test_a_conversation_in_the_words_of_the_report() -> None:
    """A subscribed client receives each message once, until it unsubscribes.

    Paper: [MP22] §2 and §3.1.
    """
    front = Front()
    assert front.say("GET anna news -1\r\n\r\n") == "STATUS anna NOT_SUBSCRIBED\r\n\r\n"
    assert front.say("PUT ben news 1\r\n\r\nbefore") == "STATUS ben OK\r\n\r\n"
    assert front.say("SUBSCRIBE anna news\r\n\r\n") == "STATUS anna OK\r\n\r\n"
    assert front.say("SUBSCRIBE anna news\r\n\r\n") == "STATUS anna ALREADY_SUBSCRIBED\r\n\r\n"
    assert front.say("GET anna news -1\r\n\r\n") == "STATUS anna NO_MESSAGES\r\n\r\n"
    for _ in range(2):  # the answer to the first was lost
        assert front.say("PUT ben news 2\r\n\r\none") == "STATUS ben OK\r\n\r\n"
    assert front.say("PUT anna news 1\r\n\r\ntwo") == "STATUS anna OK\r\n\r\n"
    for _ in range(2):  # nothing is gone before the client has said that it has it
        assert front.say("GET anna news -1\r\n\r\n") == "STATUS anna OK ben-2\r\n\r\none"
    front.restart()
    assert front.say("PUT ben news 2\r\n\r\none") == "STATUS ben OK\r\n\r\n"
    assert front.say("GET anna news ben-2\r\n\r\n") == "STATUS anna OK anna-1\r\n\r\ntwo"
    assert front.say("GET anna news anna-1\r\n\r\n") == "STATUS anna NO_MESSAGES\r\n\r\n"
    assert front.say("PUT ben news 3\r\n\r\nlate") == "STATUS ben OK\r\n\r\n"
    assert front.say("UNSUBSCRIBE anna news\r\n\r\n") == "STATUS anna OK\r\n\r\n"
    assert front.say("GET anna news anna-1\r\n\r\n") == "STATUS anna NOT_SUBSCRIBED\r\n\r\n"
    assert front.say("SUBSCRIBE anna news\r\n\r\n") == "STATUS anna OK\r\n\r\n"
    assert front.say("GET anna news -1\r\n\r\n") == "STATUS anna NO_MESSAGES\r\n\r\n"
