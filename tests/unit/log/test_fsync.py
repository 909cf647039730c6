"""What `fsync` promises: `always` waits for the flush, `interval` flushes in time, `never` does not flush."""

from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.nodekit import NodeKit


def publishing(**settings):
    kit = NodeKit(MemoryDisk(), **settings)
    client = kit.client()
    client.declare("q", durable=True)
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    kit.hold_flushes = True
    kit.disk.log.clear()
    client.publish("q", b"x", properties=PERSISTENT)
    return kit, client


def journal_flushes(kit):
    return [kind for kind, file in kit.disk.log if kind == "flush" and file.startswith("journal/")]


def test_always_confirms_after_the_flush():
    kit, client = publishing()
    assert client.take() == []
    assert len(journal_flushes(kit)) == 1


def test_interval_confirms_at_once_and_flushes_when_the_interval_is_over():
    kit, client = publishing(fsync="interval", fsync_interval_ms=500)
    assert client.take() == [methods.BasicAck(1, False)]
    assert not journal_flushes(kit)
    assert kit.node.next_timer() == kit.now.mono + 500_000
    kit.advance(0.4)
    assert not journal_flushes(kit)
    kit.advance(0.1)
    assert len(journal_flushes(kit)) == 1
    kit.hold_flushes = False
    kit.flush()
    kit.advance(5)
    assert len(journal_flushes(kit)) == 1, "nothing new, no flush"


def test_never_confirms_at_once_and_does_not_flush_queue_data():
    kit, client = publishing(fsync="never")
    assert client.take() == [methods.BasicAck(1, False)]
    kit.advance(10)
    assert not journal_flushes(kit)
    assert kit.node.next_timer() is None
