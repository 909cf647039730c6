"""The raw test client itself, against a scripted peer on a socket pair: it sends what it is told."""

import socket
import struct
from collections.abc import Iterator

import pytest

from mirrormq.wire import methods
from mirrormq.wire.properties import Properties, encode_properties
from mirrormq.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, PROTOCOL_HEADER
from tests.support.raw import Closed, Frame, RawClient, Unexpected, encode_frame


class Peer:
    """The broker's end: what it will say is put into the socket beforehand."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def says(self, channel: int, *answers: methods.Method) -> None:
        for method in answers:
            self.sock.sendall(encode_frame(FRAME_METHOD, channel, methods.encode(method)))


@pytest.fixture
def pair() -> Iterator[tuple[RawClient, Peer]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.settimeout(5)
        yield RawClient(ours), Peer(theirs)


def test_handshake_and_channel_send_the_usual_dialogue(pair: tuple[RawClient, Peer]) -> None:
    client, peer = pair
    peer.says(
        0, methods.ConnectionStart(), methods.ConnectionTune(2047, 131072, 60), methods.ConnectionOpenOk()
    )
    peer.says(7, methods.ChannelOpenOk())
    client.handshake("u", "p", "v", frame_max=4096)
    assert client.open_channel(7) == 7
    assert client.frame_max == 4096
    broker = RawClient(peer.sock)
    assert peer.sock.recv(8) == PROTOCOL_HEADER
    start_ok = broker.expect(0, methods.ConnectionStartOk)
    assert (start_ok.mechanism, start_ok.response) == ("PLAIN", b"\x00u\x00p")
    assert broker.expect(0, methods.ConnectionTuneOk) == methods.ConnectionTuneOk(2047, 4096, 0)
    assert broker.expect(0, methods.ConnectionOpen).virtual_host == "v"
    broker.expect(7, methods.ChannelOpen)


def test_content_is_cut_to_frame_max_and_put_together_again(pair: tuple[RawClient, Peer]) -> None:
    client, peer = pair
    client.send_content(3, Properties(message_id="m"), b"x" * 250, frame_max=108)
    broker = RawClient(peer.sock)
    content = broker.expect_content(3)
    assert (content.body, content.frames) == (b"x" * 250, 3)
    assert content.raw_properties == encode_properties(Properties(message_id="m"))
    assert content.properties.message_id == "m"


def test_an_empty_body_has_no_body_frame(pair: tuple[RawClient, Peer]) -> None:
    client, peer = pair
    client.publish(1, methods.BasicPublish(routing_key="q"))
    broker = RawClient(peer.sock)
    assert broker.expect(1, methods.BasicPublish).routing_key == "q"
    assert broker.read_frame() == Frame(FRAME_HEADER, 1, struct.pack(">HHQ", 60, 0, 0) + b"\x00\x00")


def test_expect_skips_heartbeats_and_names_what_came_instead(pair: tuple[RawClient, Peer]) -> None:
    client, peer = pair
    RawClient(peer.sock).send_heartbeat()
    peer.says(1, methods.ChannelClose(404, "NOT_FOUND - no queue"))
    with pytest.raises(Unexpected, match=r"wanted queue.declare-ok on channel 1, got .*NOT_FOUND - no queue"):
        client.expect(1, methods.QueueDeclareOk)


def test_frames_up_to_the_end_of_the_stream_are_returned(pair: tuple[RawClient, Peer]) -> None:
    client, peer = pair
    peer.sock.sendall(encode_frame(FRAME_HEARTBEAT, 0, b"") + encode_frame(FRAME_BODY, 1, b"b") + b"\x01\x00")
    peer.sock.close()
    assert client.read_until_closed() == [Frame(FRAME_HEARTBEAT, 0, b""), Frame(FRAME_BODY, 1, b"b")]
    with pytest.raises(Closed) as caught:
        client.read_frame()
    assert caught.value.rest == b"\x01\x00"
    assert client.is_closed()
