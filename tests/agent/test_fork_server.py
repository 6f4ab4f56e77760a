"""Tests of the agent's end of the fork server: notices of ended children."""

import os
import signal
import socket
import threading

import trio

from brokerd.agent.fork_server import ForkServer
from brokerd.agent.processes import ProcessIdentity
from brokerd.wire.control import PREFIX, Answer, encode_control, header_length
from tests.helpers.patience import PATIENCE_S


def test_the_fork_server_repeats_a_sigchld_that_arrived_during_a_fork() -> None:
    """No wait is possible before the pid of the new child arrives; one signal is not enough."""
    here, image = socket.socketpair()

    def answer() -> None:
        prefix = image.recv(PREFIX.size, socket.MSG_WAITALL)
        image.recv(header_length(prefix), socket.MSG_WAITALL)
        own = ProcessIdentity.of(os.getpid())
        row = {"pid": own.pid, "start_time": own.start_time}
        image.sendall(encode_control(Answer(1, row)))

    async def story() -> None:
        server = ForkServer(here, 1)
        with trio.open_signal_receiver(signal.SIGCHLD) as told, trio.fail_after(PATIENCE_S):
            thread = threading.Thread(target=answer)
            thread.start()
            child = await server.fork("some", {}, name="some")
            assert child == ProcessIdentity.of(os.getpid())
            assert not server.is_forking
            assert await anext(aiter(told)) == signal.SIGCHLD
            thread.join()
        server.close()

    trio.run(story)
    image.close()
