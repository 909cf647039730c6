"""Questions to other nodes: whoever asks is answered once, and answering holds nobody up."""

from collections.abc import Iterator
from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.node import inquiry, requests
from mirrormq.node import inquiryframes as frames
from mirrormq.node.inquiry import Ask, Replies
from mirrormq.node.inquiryframes import Rows, row_of
from mirrormq.node.membership import ENTERING
from mirrormq.node.steps import Answer
from mirrormq.wire import methods
from tests.support.clusterkit import LEADER, ClusterKit

SILENCE_S = limits.inquiry_silence_us / 1_000_000


@pytest.fixture
def cluster() -> Iterator[ClusterKit]:
    made = ClusterKit("home", "master", "third")
    yield made
    assert all(not node.inquiries._open for node in nodes(made)), "a question is open for ever"
    assert all(not node.inquiries._answers for node in nodes(made)), "an answer is under way for ever"
    assert all(node.inquiries._held == 0 for node in nodes(made))


def nodes(cluster: ClusterKit) -> list[Any]:
    return [cluster.node(name) for name in (LEADER, *cluster.members)]


def begin(cluster: ClusterKit, kind: str, *asked: str, at: str = "home", **fields: Any) -> list[Replies]:
    """Ask; the list gets what came of it."""
    found: list[Replies] = []
    cluster.node(at).inquiries.ask(Ask(0, kind, **fields), asked or ("master", "third"), found.append)
    cluster.run()
    return found


def ask(cluster: ClusterKit, kind: str, *asked: str, **fields: Any) -> dict[str, list[dict[str, Any]]]:
    """Ask those who answer."""
    (replies,) = begin(cluster, kind, *asked, **fields)
    assert not replies.missing
    return {node: [row_of(raw) for raw in rows] for node, rows in replies.rows.items()}


def admin(cluster: ClusterKit, request: requests.Request, at: str = "home") -> list[Answer]:
    found: list[Answer] = []
    cluster.node(at).admin(cluster.now, request, found.append)
    cluster.run()
    return found


def sent(cluster: ClusterKit, source: str, target: str) -> list[bytes]:
    """Frames of inquiries from now on, as they are sent."""
    found: list[bytes] = []
    carry = cluster.carry

    def listen(one: str, other: str, payload: bytes) -> None:
        if (one, other) == (source, target) and payload[:1] == frames.FIRST:
            found.append(payload)
        carry(one, other, payload)

    cluster.carry = listen  # type: ignore[method-assign]
    return found


# --- what is answered ---


def test_counters_of_a_queue_come_from_its_master(cluster: ClusterKit) -> None:
    client = cluster["master"].client()
    client.declare("orders", durable=True)
    for _ in range(3):
        client.publish("orders")
    found = ask(cluster, "queues")
    assert found["third"] == []
    (row,) = found["master"]
    record = cluster.node("home").state.queues["/", "orders"]
    assert (row["id"], row["messages"], row["consumers"], row["state"]) == (record.id, 3, 0, "running")
    assert ask(cluster, "queues", ids=(record.id, 999))["master"] == [row]
    assert ask(cluster, "queues", ids=(999,))["master"] == []
    assert ask(cluster, "queues", vhost=b"other")["master"] == []


def test_live_things_are_narrowed_where_they_are(cluster: ClusterKit) -> None:
    one, two = cluster["master"].client(), cluster["master"].client()
    one.declare("orders")
    one.consume("orders", "mine")
    two.open(2)
    rows = ask(cluster, "connections", "master")["master"]
    assert [row["pid"] for row in rows] == ["<master.1.1.0>", "<master.1.2.0>"]
    name = rows[1]["name"]
    assert ask(cluster, "connections", "master", name=name.encode())["master"] == rows[1:]
    assert ask(cluster, "connections", "master", vhost=b"other")["master"] == []
    assert len(ask(cluster, "channels", "master")["master"]) == 3
    channels = ask(cluster, "channels", "master", owner=name.encode())["master"]
    assert [row["number"] for row in channels] == [1, 2]
    first = ask(cluster, "channels", "master", name=f"{rows[0]['name']} (1)".encode())["master"]
    assert [consumer["consumer_tag"] for consumer in first[0]["consumer_details"]] == ["mine"]
    queue = cluster.node("home").state.queues["/", "orders"]
    assert len(ask(cluster, "consumers", "master", ids=(queue.id,))["master"]) == 1
    assert ask(cluster, "consumers", "master", ids=(queue.id + 1,))["master"] == []
    assert ask(cluster, "consumers", "master", vhost=b"other")["master"] == []


def test_a_node_tells_of_itself_what_its_process_knows_and_what_it_holds(cluster: ClusterKit) -> None:
    client = cluster["master"].client()
    client.declare("orders")
    client.publish("orders")
    client.publish("orders")
    client.consume("orders", no_ack=False)
    cluster.node("master").inquiries.describe = lambda: {"pid": 4711, "settings": {"secret": 1}}
    (row,) = ask(cluster, "node", "master")["master"]
    assert (row["name"], row["os_pid"]) == ("master", "4711")
    assert "settings" not in row
    assert row["totals"] == {"connections": 1, "channels": 1, "consumers": 1, "ready": 0, "unacked": 2}


# --- closing ---


def test_a_connection_is_closed_on_whatever_node_it_is(cluster: ClusterKit) -> None:
    clients = [cluster[name].client() for name in ("home", "master", "third")]
    for client, pid in zip(clients, ("<home.1.1.0>", "<master.1.1.0>", "<third.1.1.0>"), strict=True):
        (answer,) = admin(cluster, requests.CloseConnection(connection=pid, reason="maintenance"))
        assert answer == Answer({"closed": 1})
        closed = client.expect(methods.ConnectionClose, 0)
        assert closed.reply_text == "CONNECTION_FORCED - maintenance"


def test_a_connection_is_closed_by_a_name_that_only_another_node_knows(cluster: ClusterKit) -> None:
    client = cluster["third"].client()
    name = next(iter(cluster.node("third").connections.values())).name
    (answer,) = admin(cluster, requests.CloseConnection(connection=name))
    assert answer.value == {"closed": 1}
    client.expect(methods.ConnectionClose, 0)


@pytest.mark.parametrize(
    "name", ["<master.1.99.0>", "<home.1.1.0>", "<gone.1.1.0>", "nothing", "x" * 4000, "\ud800", "<.1.1.0>"]
)
def test_a_connection_that_nobody_has_is_refused(cluster: ClusterKit, name: str) -> None:
    (answer,) = admin(cluster, requests.CloseConnection(connection=name))
    assert answer.problem is not None
    assert answer.problem.kind == "no_such_connection"
    assert not cluster.cuts


def test_a_connection_of_a_node_that_is_down_is_refused_with_its_name(cluster: ClusterKit) -> None:
    cluster.kill("third")
    (answer,) = admin(cluster, requests.CloseConnection(connection="<third.1.1.0>"))
    assert answer.problem is not None
    assert answer.problem.text.endswith("node third is down")


def test_closing_all_connections_reaches_all_nodes_and_keeps_to_its_limit(cluster: ClusterKit) -> None:
    for name in ("home", "master", "third"):
        for _ in range(2):
            cluster[name].client()
    (answer,) = admin(cluster, requests.CloseConnections(vhost="/", limit=3))
    assert answer.value == {"closed": 3}
    (answer,) = admin(cluster, requests.CloseConnections(user="guest", limit=-1))
    assert answer.value["closed"] >= 3
    for name in ("home", "master", "third"):
        states = {found.shown_state for found in cluster.node(name).connections.values()}
        assert "running" not in states


def test_closing_all_connections_names_the_nodes_that_did_not_take_part(cluster: ClusterKit) -> None:
    cluster["master"].client()
    cluster.kill("third")
    (answer,) = admin(cluster, requests.CloseConnections())
    assert answer.value == {"closed": 1, "missing": {"third": "is down"}}


# --- nodes that do not answer ---


def test_a_node_that_is_down_is_not_waited_for(cluster: ClusterKit) -> None:
    cluster.kill("third")
    (replies,) = begin(cluster, "connections")
    assert dict(replies.missing) == {"third": inquiry.DOWN}
    assert list(replies.rows) == ["master"]


def test_a_silent_node_is_given_up_and_the_others_are_shown(cluster: ClusterKit) -> None:
    cluster.hold("third", "home")
    found = begin(cluster, "connections")
    cluster.advance(SILENCE_S - 1)
    assert not found
    cluster.advance(1)
    assert dict(found[0].missing) == {"third": inquiry.SILENT}
    assert list(found[0].rows) == ["master"]
    cluster.release()
    assert len(found) == 1, "a late answer changes nothing"


def test_a_node_that_was_silent_for_long_is_not_asked_at_all(cluster: ClusterKit) -> None:
    cluster.hold("third", "home")
    cluster.advance(limits.peer_suspect_us / 1_000_000 + 1)
    (replies,) = begin(cluster, "connections")
    assert dict(replies.missing) == {"third": inquiry.DOWN}
    cluster.release()


def test_a_link_that_breaks_ends_its_questions_at_once(cluster: ClusterKit) -> None:
    cluster.hold("third", "home")
    found = begin(cluster, "connections")
    cluster.cut("third", "home")
    assert dict(found[0].missing) == {"third": inquiry.BROKEN}
    cluster.heal("third", "home")
    assert list(ask(cluster, "connections")) == ["master", "third"]


def test_half_an_answer_is_never_shown(cluster: ClusterKit) -> None:
    for _ in range(limits.inquiry_rows_per_pass + 1):
        cluster["master"].client()
    cluster.hold("master", "home")
    found = begin(cluster, "connections", "master")
    cluster.deliver("master", "home", 1)
    cluster.cut("master", "home")
    assert found == [Replies({}, {"master": inquiry.BROKEN})]


def test_the_time_to_wait_is_the_nodes_next_timer(cluster: ClusterKit) -> None:
    cluster.hold("third", "home")
    begin(cluster, "connections")
    node = cluster.node("home")
    assert node.inquiries.next_at() == cluster.now.mono + limits.inquiry_silence_us
    timer = node.next_timer()
    assert timer is not None
    assert timer <= node.inquiries.next_at()
    cluster.advance(SILENCE_S)
    assert node.inquiries.next_at() == 0
    cluster.release()


# --- bounds ---


def test_an_answer_is_built_in_parts_over_several_passes(cluster: ClusterKit) -> None:
    most = limits.inquiry_rows_per_pass
    for _ in range(2 * most + 1):
        cluster["master"].client()
    parts = sent(cluster, "master", "home")
    for asker in (1, 2):
        cluster.node("home").inquiries.ask(Ask(0, "connections"), ["master"], lambda _: None)
        assert asker
    cluster.run()
    read = [frames.decode(part) for part in parts]
    assert all(isinstance(part, Rows) and len(part.rows) <= most for part in read)
    assert sum(len(part.rows) for part in read if isinstance(part, Rows)) == 2 * (2 * most + 1)
    assert all(len(part) <= limits.peer_chunk_bytes for part in parts)
    numbers = [part.number for part in read if isinstance(part, Rows)]
    assert numbers[:4] == [1, 2, 1, 2], "askers take turns"


def test_a_pass_builds_no_more_rows_than_it_may(cluster: ClusterKit) -> None:
    for _ in range(limits.inquiry_rows_per_pass + 5):
        cluster["master"].client()
    master = cluster.node("master")
    for number in (1, 2, 3):
        master.peer_frame(cluster.now, "third", frames.encode(Ask(number, "connections")))
    parts = sent(cluster, "master", "third")
    cluster["master"].step()
    rows = [frames.decode(part) for part in parts]
    assert sum(len(part.rows) for part in rows if isinstance(part, Rows)) <= limits.inquiry_rows_per_pass
    assert master.needs_pass
    cluster.run()


def test_nothing_is_built_for_a_link_that_is_full(cluster: ClusterKit) -> None:
    for _ in range(2 * limits.inquiry_rows_per_pass):
        cluster["master"].client()
    master = cluster.node("master")
    master.link_full(cluster.now, "home")
    parts = sent(cluster, "master", "home")
    found = begin(cluster, "connections", "master")
    assert not found
    assert not parts
    assert not master.inquiries.needs_pass, "a full link must not keep the loop busy"
    master.link_writable(cluster.now, "home")
    cluster.run()
    assert len(found[0].rows["master"]) == 2 * limits.inquiry_rows_per_pass


def test_large_rows_travel_in_small_parts_and_too_large_ones_not_at_all(cluster: ClusterKit) -> None:
    for number in range(4):
        cluster["master"].client()
        connection = cluster.node("master").connections[number + 1]
        connection.client_properties = {"about": "x" * (20_000 if number else limits.inquiry_row_bytes_max)}
    parts = sent(cluster, "master", "home")
    rows = ask(cluster, "connections", "master")["master"]
    assert [row["pid"] for row in rows] == ["<master.1.2.0>", "<master.1.3.0>", "<master.1.4.0>"]
    assert [len(part) < limits.peer_chunk_bytes for part in parts] == [True] * len(parts)
    assert len(parts) == 2


def test_more_questions_than_a_link_may_have_are_refused(cluster: ClusterKit) -> None:
    cluster.hold("master", "home")
    found = [begin(cluster, "connections", "master") for _ in range(limits.inquiries_open_max + 1)]
    assert found[-1] == [Replies({}, {"master": inquiry.BUSY})]
    cluster.release()
    assert all(len(replies) == 1 for replies in found)


def test_a_node_refuses_more_questions_than_a_link_may_have(cluster: ClusterKit) -> None:
    master = cluster.node("master")
    parts = sent(cluster, "master", "third")
    for number in range(limits.inquiries_open_max + 1):
        master.peer_frame(cluster.now, "third", frames.encode(Ask(number, "connections")))
    assert len(master.inquiries._answers) == limits.inquiries_open_max
    cluster.run()
    assert frames.decode(parts[0]) == Rows(limits.inquiries_open_max, True, [], inquiry.BUSY)


def test_an_answer_that_is_too_long_is_given_up(cluster: ClusterKit, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2 * limits.inquiry_rows_per_pass):
        cluster["master"].client()
    monkeypatch.setattr(limits, "inquiry_bytes_max", 1000)
    (replies,) = begin(cluster, "connections", "master")
    assert dict(replies.missing) == {"master": inquiry.LONG}


# --- who may ask, and what is no question ---


def test_a_node_that_starts_or_does_not_know_the_kind_says_so(cluster: ClusterKit) -> None:
    (replies,) = begin(cluster, "secrets", "master")
    assert dict(replies.missing) == {"master": "does not know this question"}
    cluster.node("master").membership.phase = ENTERING
    cluster.node("master").inquiries.peer_frame("home", frames.encode(Ask(1, "connections")))
    parts = sent(cluster, "master", "home")
    cluster["master"]._drain()
    assert [frames.decode(part) for part in parts] == [Rows(1, True, [], "is starting")]
    cluster.node("master").membership.phase = "ready"


def test_a_node_that_is_no_member_is_told_nothing(cluster: ClusterKit) -> None:
    node = cluster.node("master")
    node.inquiries.link_change("stranger", True)
    node.inquiries.peer_frame("stranger", frames.encode(Ask(1, "connections")))
    assert not node.inquiries._answers
    node.inquiries.link_change("stranger", False)


@pytest.mark.parametrize(
    "payload",
    [frames.FIRST, frames.FIRST + b"\xc0", frames.encode(Rows(1, False, []))],
)
def test_a_bad_inquiry_costs_its_link_and_nothing_more(cluster: ClusterKit, payload: bytes) -> None:
    cluster.hold("third", "home")
    found = begin(cluster, "connections", "third")
    cluster.node("home").peer_frame(cluster.now, "third", payload)
    cluster.run()
    assert [(one, other) for one, other, _ in cluster.cuts] == [("home", "third")]
    assert dict(found[0].missing) == {"third": inquiry.BROKEN}
    cluster.cuts.clear()


def test_an_answer_by_somebody_who_was_not_asked_costs_the_link(cluster: ClusterKit) -> None:
    cluster.hold("master", "home")
    found = begin(cluster, "connections", "master")
    cluster.node("home").peer_frame(cluster.now, "third", frames.encode(Rows(1, True, [])))
    cluster.run()
    assert [(one, other) for one, other, _ in cluster.cuts] == [("home", "third")]
    cluster.release()
    assert list(found[0].rows) == ["master"]


def test_an_answer_nobody_waits_for_any_more_is_stopped(cluster: ClusterKit) -> None:
    for _ in range(2 * limits.inquiry_rows_per_pass):
        cluster["third"].client()
    cluster.node("third").link_full(cluster.now, "home")
    found = begin(cluster, "connections", "third")
    cluster.advance(SILENCE_S)
    assert dict(found[0].missing) == {"third": inquiry.SILENT}
    assert not cluster.node("third").inquiries._answers
    cluster.node("third").link_writable(cluster.now, "home")


def test_whoever_asks_nobody_is_answered_at_once(cluster: ClusterKit) -> None:
    found: list[Replies] = []
    cluster.node("home").inquiries.ask(Ask(0, "queues"), [], found.append)
    assert found == [Replies({}, {})]
    assert cluster.node("home").inquiries.others() == [LEADER, "master", "third"]
