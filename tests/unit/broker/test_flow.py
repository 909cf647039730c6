"""Alarms: publishers are held, told and released; everybody else goes on."""

import pytest

from mirrormq.wire import methods
from tests.support.fakehost import FakeHost, connected


@pytest.mark.parametrize(
    ("alarms", "reason"), [(["memory"], "memory"), (["disk"], "disk"), (["memory", "disk"], "disk & memory")]
)
def test_a_publisher_is_told_which_resource_is_low(alarms, reason):
    host = FakeHost()
    client = connected(host)
    for name in alarms:
        host.set_alarm(name, True)
    assert client.all() == []
    client.publish("q", b"x")
    assert client.expect(methods.ConnectionBlocked, 0).reason == f"low on {reason}"


def test_a_held_publish_goes_on_when_the_last_alarm_is_over():
    host = FakeHost()
    client = connected(host)
    client.declare("q")
    host.set_alarm("memory", True)
    client.publish("q", b"held")
    client.publish("q", b"behind it")
    client.expect(methods.ConnectionBlocked, 0)
    host.set_alarm("disk", True)
    host.set_alarm("memory", False)
    assert client.all() == []
    assert host.vhosts["/"].queues["q"].message_count == 0
    host.set_alarm("disk", False)
    client.expect(methods.ConnectionUnblocked, 0)
    host.end_pass()
    assert host.vhosts["/"].queues["q"].message_count == 2


def test_a_client_that_does_not_publish_notices_nothing():
    host = FakeHost()
    client = connected(host)
    host.set_alarm("memory", True)
    client.declare("q")
    client.call(methods.BasicConsume(queue="q"), methods.BasicConsumeOk)
    host.set_alarm("memory", False)
    assert client.all() == []


def test_what_was_sent_before_the_publish_is_served():
    host = FakeHost()
    client = connected(host)
    host.set_alarm("memory", True)
    client.declare("q")
    client.publish("q", b"x")
    client.send(methods.BasicQos())
    assert [type(method) for method in client.all()] == [methods.ConnectionBlocked]


def test_clients_that_do_not_understand_blocked_are_held_silently():
    host = FakeHost()
    client = connected(host, capabilities={})
    client.declare("q")
    host.set_alarm("memory", True)
    client.publish("q", b"x")
    assert client.all() == []
    host.set_alarm("memory", False)
    host.end_pass()
    assert client.all() == []
    assert host.vhosts["/"].queues["q"].message_count == 1


def test_a_connection_opened_during_an_alarm_is_held_too():
    host = FakeHost()
    host.set_alarm("disk", True)
    client = connected(host)
    client.publish("q", b"x")
    client.expect(methods.ConnectionBlocked, 0)


def test_a_held_client_is_not_taken_for_dead():
    host = FakeHost()
    client = connected(host, heartbeat=5)
    host.set_alarm("memory", True)
    client.publish("q", b"x")
    host.advance(60)
    assert not client.is_closed()
    host.set_alarm("memory", False)
    host.advance(5)
    assert not client.is_closed()
    host.advance(10)
    assert client.is_closed()


def test_reports_tell_blocking_from_blocked_and_flow():
    host = FakeHost()
    client = connected(host)
    connection = client.connection
    assert connection.shown_state == "running"
    connection.park("ahead")
    assert connection.shown_state == "flow"
    connection.unpark("ahead")
    host.set_alarm("memory", True)
    assert connection.shown_state == "blocking"
    client.publish("q", b"x")
    assert connection.shown_state == "blocked"
    host.set_alarm("memory", False)
    assert connection.shown_state == "running"


def test_a_held_connection_that_is_closed_by_an_operator_says_so():
    host = FakeHost()
    client = connected(host)
    host.set_alarm("memory", True)
    client.publish("q", b"x")
    client.expect(methods.ConnectionBlocked, 0)
    client.connection.force_close("enough")
    client.expect(methods.ConnectionClose, 0)
    assert host.effects.items[-1] == ("resume", 1)
    client.send(methods.ConnectionCloseOk(), 0)
    assert client.is_closed()
    host.set_alarm("memory", False)
    assert client.all() == []


def test_a_queue_whose_consumers_cannot_follow_parks_its_publisher():
    host = FakeHost()
    client = connected(host)
    client.connection.park("ahead")
    client.send(methods.BasicQos())
    assert client.all() == []
    assert host.effects.items[-1] == ("pause", 1)
    client.connection.unpark("ahead")
    client.expect(methods.BasicQosOk)
    assert host.effects.items[-1] == ("resume", 1)
