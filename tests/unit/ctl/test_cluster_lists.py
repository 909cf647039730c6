"""Lists of a cluster on the command line: what is chosen, and which nodes are said to be missing."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from mirrormq.client.admin import AdminClient
from tests.unit.ctl.fakes import FakeNode, Terminal

QUEUES = [
    {"name": "here", "node": "mirrormq@here", "state": "running", "messages": 1},
    {"name": "there", "node": "mirrormq@there", "state": "running", "messages": 2},
    {"name": "gone", "node": "mirrormq@gone", "state": "down"},
]


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys, FakeNode(list_queues=QUEUES))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["here", "there", "gone"]),
        (("--online",), ["here", "there"]),
        (("--offline",), ["gone"]),
        (("--online", "--offline"), ["here", "there", "gone"]),
    ],
)
def test_queues_are_listed_by_whether_they_can_be_used(
    terminal: Terminal, options: tuple[str, ...], names: list[str]
) -> None:
    found = terminal.run("-s", "list_queues", "name", *options)
    assert found.out.split() == names
    assert terminal.node.asked == [("list_queues", {"vhost": "/"})]


def test_local_queues_are_asked_for_as_such(terminal: Terminal) -> None:
    terminal.run("list_queues", "--local", "--offline")
    assert terminal.node.asked == [("list_queues", {"vhost": "/", "local": True})]


def test_a_node_whose_rows_are_missing_is_named_where_no_script_reads(terminal: Terminal) -> None:
    terminal.node.missing = {"b@h": "is down", "a@h": "does not answer"}
    found = terminal.run("-q", "list_queues", "name")
    assert found.code == 0
    assert found.err.splitlines() == [
        "Warning: node a@h does not answer; what only it knows is not shown",
        "Warning: node b@h is down; what only it knows is not shown",
    ]
    assert "Warning" not in found.out
    assert terminal.run("-s", "list_queues", "name").err == ""


def test_unresponsive_queues_are_those_of_nodes_that_do_not_answer(terminal: Terminal) -> None:
    terminal.node.missing = {"mirrormq@gone": "is down", "mirrormq@there": "does not answer"}
    assert terminal.run("-s", "list_unresponsive_queues").out == "there\n"


def test_closing_all_connections_says_which_nodes_took_no_part(terminal: Terminal) -> None:
    terminal.node.answers["close_connections"] = {"closed": 2, "missing": {"b@h": "is down"}}
    for words in (("close_all_connections", "x"), ("close_all_user_connections", "u", "x")):
        found = terminal.run("-q", *words)
        assert found.out == "Closed 2 connections\n"
        assert found.err.startswith("Warning: node b@h is down; its connections were not closed")


HEADERS = {
    '[{"node":"b","reason":"is down"}]': {"b": "is down"},
    "no json": {},
    '{"node": 1}': {},
    "[1]": {},
}


@pytest.fixture
def answering() -> Iterator[tuple[str, list[str]]]:
    """A server that answers each request with one of these headers, and its address."""
    heads = list(HEADERS)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for head in heads:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(
                        f"HTTP/1.1 200 OK\r\nX-MirrorMQ-Missing: {head}\r\n"
                        "Content-Length: 2\r\nConnection: close\r\n\r\n[]".encode()
                    )

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", heads
        thread.join(10)


def test_the_client_reads_which_nodes_are_missing(answering: tuple[str, list[str]]) -> None:
    url, heads = answering
    with AdminClient(url, timeout=10) as client:
        for head in heads:
            assert client.ctl("list_queues") == json.loads("[]")
            assert client.missing == HEADERS[head]
