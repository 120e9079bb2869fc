"""Channels carry whole messages, in order, without blocking the sender."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from horsies_django.worker.ipc.channel import (
    Channel,
    SocketChannel,
    memory_pair,
    send_all,
    wait_receive,
)

Pair = Callable[[], tuple[Channel, Channel]]


def socket_pair() -> tuple[SocketChannel, SocketChannel]:
    here, there = socket.socketpair()
    return SocketChannel(here), SocketChannel(there)


both = pytest.mark.parametrize("pair", [socket_pair, memory_pair])


@both
def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    here, there = pair()
    for number in range(100):
        here.send([(number, "x" * number)])
    got: list[object] = []
    while len(got) < 100:
        got += wait_receive(there)
    assert got == [[(number, "x" * number)] for number in range(100)]


@both
def test_an_empty_channel_gives_nothing_and_does_not_wait(pair: Pair) -> None:
    here, there = pair()
    assert there.receive() == []
    assert here.receive() == []


@both
def test_the_end_of_the_other_side_is_told_after_its_last_message(pair: Pair) -> None:
    here, there = pair()
    here.send("last")
    here.close()
    assert wait_receive(there) == ["last"]
    with pytest.raises(EOFError):
        wait_receive(there)


def test_a_sender_does_not_wait_for_a_receiver_that_does_not_read() -> None:
    here, there = socket_pair()
    big = "x" * 4_000_000
    here.send(big)
    assert not here.flush()  # the rest is kept, the sender goes on
    reader = threading.Thread(target=lambda: got.extend(wait_receive(there)))
    got: list[str] = []
    reader.start()
    send_all(here, "after")
    reader.join(30)
    while len(got) < 2:
        got += wait_receive(there)
    assert got == [big, "after"]


def test_sending_to_a_peer_that_is_gone_raises_nothing() -> None:
    here, there = socket_pair()
    there.close()
    here.send("nobody hears this")
    assert here.flush()
