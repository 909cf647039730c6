"""The registry of misuse cases and the judge that turns what a broker answered into a comparable verdict.

A case is a short script over a `Session`. After it ran, the judge asks a harmless question: the answer, an
error of the channel, an error of the connection or the end of the TCP connection is the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.interop.misuse.session import Closed, Reply, Session, Unanswered

Script = Callable[[Session], None]
Verdict = dict[str, Any]

CASES: dict[str, Case] = {}
PLAYED_AT_ONCE = 12
GENERATED = [(re.compile(r"amq\.gen-[\w-]+"), "amq.gen-*"), (re.compile(r"amq\.ctag-[\w-]+"), "amq.ctag-*")]
NOT_TOLD = ("heartbeat", "header", "body")
TOLD_FIELDS = {
    "basic.return": ("reply_code", "reply_text", "exchange", "routing_key"),
    "queue.declare-ok": ("message_count", "consumer_count"),
    "queue.delete-ok": ("message_count",),
    "queue.purge-ok": ("message_count",),
    "basic.ack": ("delivery_tag", "multiple"),
    "basic.nack": ("delivery_tag", "multiple"),
    "protocol-header": ("bytes",),
}


@dataclass(frozen=True)
class Case:
    """`begin` is how far the connection is set up before the script: socket, connection or channel 1.

    `options` go to the Session: user, password, frame_max and so on.
    """

    name: str
    script: Script
    begin: str = "channel"
    options: Mapping[str, Any] = field(default_factory=dict)


def case(begin: str = "channel", **options: Any) -> Callable[[Script], Script]:
    """Register a script under the name of its function."""

    def register(script: Script) -> Script:
        add(script.__name__, script, begin, **options)
        return script

    return register


def add(name: str, script: Script, begin: str = "channel", **options: Any) -> None:
    if name in CASES:
        raise ValueError(f"two cases named {name}")
    CASES[name] = Case(name, script, begin, options)


def play(host: str, port: int, only: Collection[str] = ()) -> dict[str, Verdict]:
    """Play the cases against a broker, some at a time (RabbitMQ waits three seconds before it hangs up)."""
    wanted = [chosen for name, chosen in CASES.items() if not only or name in only]
    with ThreadPoolExecutor(PLAYED_AT_ONCE) as pool:
        verdicts = pool.map(lambda chosen: run(chosen, host, port), wanted)
        return {chosen.name: verdict for chosen, verdict in zip(wanted, verdicts, strict=True)}


def run(chosen: Case, host: str, port: int) -> Verdict:
    """Play one case against a broker."""
    session = Session(host, port, prefix=chosen.name, **chosen.options)
    try:
        if chosen.begin != "socket":
            session.open()
        if chosen.begin == "channel":
            session.open_channel()
        session.seen.clear()
        return _judge(session, chosen)
    finally:
        session.close()


def _judge(session: Session, chosen: Case) -> Verdict:
    ending: Reply | None = None
    scope = "none"
    try:
        chosen.script(session)
        ending = _ask(session, chosen.begin)
    except Closed:
        scope = "closed"
    except Unanswered:
        scope = "silence"
    if ending is not None:
        scope = ending.name.partition(".")[0]
    told = [reply for reply in session.seen if reply is not ending and reply.name not in NOT_TOLD]
    verdict: Verdict = {"scope": scope, "replies": [_told(reply) for reply in told]}
    if ending is not None:
        verdict |= {
            "code": ending.fields["reply_code"],
            "text": _plain(ending.fields["reply_text"]),
            "class_id": ending.fields["class_id"],
            "method_id": ending.fields["method_id"],
            "afterwards": _aftermath(session, ending),
        }
    return verdict


def _ask(session: Session, begin: str) -> Reply | None:
    """Return the close method that ended channel or connection, or None if the probe was answered."""
    for reply in session.seen:
        if reply.name in ("channel.close", "connection.close"):
            return reply
    answer = ""
    if begin == "channel":
        session.send("basic.qos", prefetch_count=0)
        answer = "basic.qos-ok"
    elif begin == "connection":
        session.send("channel.open")
        answer = "channel.open-ok"
    while True:
        reply = session.read()
        if reply.name in ("channel.close", "connection.close"):
            return reply
        if reply.name == answer:
            session.seen.remove(reply)
            return None
        if not answer and reply.name != "protocol-header":
            return None


def _aftermath(session: Session, ending: Reply) -> str:
    """After the close handshake: is the connection still of use, or is it hung up?"""
    told = len(session.seen)
    try:
        if ending.name == "channel.close":
            session.send("channel.close-ok", ending.channel)
            reply = session.call("channel.open", ending.channel)
            return "channel can be opened again" if reply.name == "channel.open-ok" else reply.name
        session.send("connection.close-ok", 0)
        return f"sent {session.read().name}"
    except Closed:
        return "hung up"
    except Unanswered:
        return "silence"
    finally:
        del session.seen[told:]


def _plain(text: str) -> str:
    for pattern, name in GENERATED:
        text = pattern.sub(name, text)
    return text


def _told(reply: Reply) -> str:
    fields = TOLD_FIELDS.get(reply.name, ())
    details = " ".join(f"{name}={_plain(str(reply.fields[name]))}" for name in fields)
    return f"{reply.name} {details}".strip()
