"""What nodes say to each other about sinks: a bad frame costs its link; nothing staged is left over."""

import random
from typing import Any

import msgspec
import pytest

from mirrormq.node import peerframes
from mirrormq.node.peerframes import SinkAsk, Taken, Told
from tests.support.mirroredkit import MirroredKit
from tests.support.sinkkit import SinkClient, row

STAGING = "mirrormq.sink.s1"
BAD = [
    b"\xc1",
    b"",
    b"\x80",
    b"\x93\x01\x02\x03",
    b"\x91" * 5_000,
    msgspec.msgpack.encode({"batch": "0", "partition": 0, "timeout": 1}),
    msgspec.msgpack.encode({"batch": 0, "partition": 1 << 32, "timeout": 1}),
    msgspec.msgpack.encode({"batch": 0, "partition": 0, "timeout": 1 << 63}),
    msgspec.msgpack.encode({"batch": -1, "partition": 0, "timeout": 1}),
    msgspec.msgpack.encode({"tx": 5}),
    msgspec.msgpack.encode({"tx": "no number"}),
    msgspec.msgpack.encode({"txs": ["1", 2], "batch": 0, "wait": 0}),
    msgspec.msgpack.encode({"txs": 1, "batch": 0, "wait": float("nan")}),
]


class Client(SinkClient):
    """A client that lets the whole cluster go on."""

    def settle(self) -> None:
        self.kit.group.advance(0.5)


def opened() -> tuple[MirroredKit, Client, Client]:
    """A sink whose master is a, with a client there and one on b."""
    kit = MirroredKit()
    kit.policy()
    kit["a"].client().declare("q", durable=True)
    kit.advance(0.5)
    near = Client(kit["a"])
    near.open()
    assert kit.view(STAGING).master == "a"
    return kit, near, Client(kit["b"])


def staging(kit: MirroredKit) -> Any:
    return kit["a"].node.vhosts["/"].queues[STAGING]


def say(kit: MirroredKit, source: str, target: str, frame: bytes) -> None:
    """A node sends what no node would."""
    kit[target].node.peer_frame(kit.now, source, memoryview(frame))
    kit.advance(0.3)


def freeze(kit: MirroredKit, stream: Any) -> None:
    """The staging queue is to go to a node that does not hear of the last block: nothing is written for a
    while.
    """
    copies = kit["a"].node.copies
    assert copies is not None
    kit.cuts.add(frozenset(("a", "c")))
    stream.on_data(row("q", bytes(500_000)))
    kit.advance(0.2)
    assert staging(kit).stored > 0
    assert copies.mirrors.transfer(kit.view(STAGING).id, "c", kit.now)
    kit.advance(0.1)
    assert not staging(kit).log.is_open


def thaw(kit: MirroredKit) -> None:
    """It stays where it was."""
    kit.advance(8)
    kit.cuts.clear()
    assert staging(kit).log.is_open


@pytest.mark.parametrize("what", ["begin", "finish", "commit", "abort", "state", "nothing"])
@pytest.mark.parametrize("body", BAD, ids=lambda body: repr(body[:20]))
def test_what_cannot_be_read_of_an_ask_costs_the_link_or_is_refused(what: str, body: bytes) -> None:
    kit, near, far = opened()
    say(kit, "b", "a", peerframes.encode(SinkAsk(1, staging(kit).record.id, what, body)))
    kit.advance(1)
    assert far.commit(0, far.stage([row("q", b"1")]))["state"] == "committed"
    assert near.ask("sink_state")["open"] == []


@pytest.mark.parametrize("body", [*BAD, msgspec.msgpack.encode({"code": 1, "text": "x"})], ids=repr)
def test_an_answer_that_cannot_be_read_costs_the_link_and_is_unavailable(body: bytes) -> None:
    kit, _, far = opened()
    call = far.begin("stage", batch=0, partition=0)
    [number] = kit["b"].node.switch.link("a").sinks.asked
    say(kit, "a", "b", peerframes.encode(Told(number, body)))
    assert call.error.code == "unavailable"
    kit.advance(1)
    assert far.commit(0, far.stage([row("q", b"1")]))["state"] == "committed"


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_peer_says_about_sinks_the_nodes_go_on(seed: int) -> None:
    rng = random.Random(seed)
    kit, near, far = opened()
    queue = staging(kit).record.id
    for _ in range(40):
        far.begin("stage", batch=rng.randrange(3), partition=0)
        kit.run()
        fields = {
            rng.choice(
                ("tx", "txs", "batch", "wait", "partition", "timeout", "code", "text", "void")
            ): rng.choice(
                (0, -1, 1 << 32, (1 << 64) - 1, "0" * 16, "ff", [], ["0"], None, 1.5, True, {}, b"x")
            )
            for _ in range(rng.randrange(6))
        }
        body = bytearray(msgspec.msgpack.encode(fields))
        if rng.random() < 0.3:
            body[rng.randrange(len(body))] = rng.randrange(256)
        number = rng.choice([1, *kit["b"].node.switch.link("a").sinks.asked])
        tx = rng.choice([1, *kit["a"].node.switch.link("b").sinks.stages])
        what = rng.choice(("begin", "finish", "commit", "abort", "state", ""))
        frames = {
            ("b", "a"): [
                peerframes.encode(SinkAsk(1, rng.choice((queue, 0, 77)), what, bytes(body))),
                peerframes.staged(
                    (tx, rng.choice((0, 5, queue)), rng.randrange(3), rng.randrange(6)), bytes(body)
                ),
            ],
            ("a", "b"): [
                peerframes.encode(Told(number, bytes(body))),
                peerframes.encode(Taken(tx, rng.choice((0, 1 << 40)))),
            ],
        }
        (source, target), some = rng.choice(list(frames.items()))
        say(kit, source, target, rng.choice(some))
    kit.advance(2)
    assert near.commit(5, near.stage([row("q", b"1")], batch=5))["state"] == "committed"
    assert far.commit(6, far.stage([row("q", b"1")], batch=6))["state"] == "committed"


def test_a_transaction_that_ends_while_the_queue_might_move_leaves_nothing_behind() -> None:
    kit, near, _ = opened()
    call = near.begin("stage", batch=0, partition=0)
    near.settle()
    freeze(kit, call.stream)
    call.stream.on_end({})
    near.settle()
    assert call.error.code == "unavailable"
    thaw(kit)
    assert staging(kit).stored == 0


def test_rows_from_afar_that_cannot_be_written_while_the_queue_might_move_end_their_transaction() -> None:
    kit, _, far = opened()
    call = far.begin("stage", batch=0, partition=0)
    far.settle()
    freeze(kit, call.stream)
    call.stream.on_data(row("q", bytes(500_000)))
    far.settle()
    thaw(kit)
    call.stream.on_end({})
    far.settle()
    assert call.error.code in ("gone", "unavailable")
    assert staging(kit).stored == 0


@pytest.mark.parametrize(
    "fields",
    [{"partition": 1 << 32}, {"partition": -1}, {"tx_timeout": float("nan")}, {"tx_timeout": 0}],
    ids=repr,
)
def test_a_transaction_that_no_log_could_keep_is_refused(fields: dict[str, Any]) -> None:
    _, near, _ = opened()
    assert near.refusal("stage", **{"batch": 0, "partition": 0, **fields})[0] == "refused"


def test_a_commit_that_is_to_wait_for_no_number_of_seconds_waits_for_none() -> None:
    _, near, _ = opened()
    assert near.commit(0, near.stage([row("q", b"1")]), wait=float("nan"))["state"] == "committed"
