"""The options of `format("mirrormq")`: every name known, every value checked, before a broker is asked.

Guarantees
- An unknown option is an error that names the nearest one; so is an option of reading given to a writer.
- A password never shows: not in reprs, not in messages, not in a URL (one with a password is refused).
- What is given to Spark as text comes out as typed values; nobody else reads option texts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, cast

from mirrormq.spark import urls
from mirrormq.spark.schema import Mode, nearest
from mirrormq.spark.urls import DEFAULT_URL, PASSWORD_VARIABLE, PASSWORD_WAYS

MODES = ("browse", "cursor", "consume", "changes")
ARROW_BYTES_MAX = 1 << 30

CONTACT = (
    "url", "password", "passwordFile", "tls.ca", "tls.cert", "tls.key", "tls.verify", "timeout",
)  # fmt: skip
READING = (
    "queue", "queues", "queuePattern", "mode", "cursor", "startingOffsets", "startingTimestamp",
    "endingOffsets", "endingTimestamp", "failOnDataLoss", "maxRecordsPerTrigger", "maxBytesPerTrigger",
    "minRecordsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "includeHeaders",
    "includeBody", "pushdown", "readFrom", "arrowBatchBytes", "asyncProgress", "remove",
)  # fmt: skip
WRITING = (
    "queue", "exchange", "routingKey", "delivery", "confirmTimeout", "txTimeout", "sinkId", "batchId",
    "mirrorOf", "mirrorSources", "takeFrom",
)  # fmt: skip
OF_SPARK = frozenset(
    ["checkpointlocation", "queryname", "outputmode", "asyncprogresstrackingenabled",
     "asyncprogresstrackingcheckpointintervalms"]
)  # fmt: skip
"""What Spark itself puts among the options of a streaming writer."""

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FLAGS = {"true": True, "false": False}

Offsets = str | Mapping[str, object]
Delivery = Literal["exactly-once", "at-least-once"]


class OptionRefused(ValueError):
    """An option that cannot be."""


@dataclass(frozen=True)
class Tls:
    """Files and checks of a TLS connection."""

    ca: str | None
    cert: str | None
    key: str | None = field(repr=False)
    verify: bool


@dataclass(frozen=True)
class Contact:
    """Where brokers are and who asks."""

    hosts: tuple[tuple[str, int], ...]
    vhost: str
    user: str
    password: str = field(repr=False)
    tls: Tls | None
    timeout: float


@dataclass(frozen=True)
class ReadOptions:
    """How to read."""

    contact: Contact
    queues: tuple[str, ...]
    pattern: str | None
    mode: Mode | None
    """None: not given, so browse in a batch and cursor in a stream."""
    cursor: str | None
    starting: Offsets | None
    starting_us: int | None
    ending: Offsets | None
    ending_us: int | None
    fail_on_data_loss: bool
    max_records: int | None
    max_bytes: int | None
    min_records: int | None
    max_delay: float
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    include_body: bool
    pushdown: bool
    node: str | None
    """Read from this member only."""
    masters_only: bool
    arrow_bytes: int
    async_progress: bool
    removes: bool
    """In mode consume: does what the query has read leave the queue, or only what its sink takes?"""


@dataclass(frozen=True)
class WriteOptions:
    """How to write."""

    contact: Contact
    exchange: str | None
    routing_key: str | None
    delivery: Delivery
    confirm_timeout: float
    tx_timeout: float | None
    sink: str | None
    batch: int
    """Of a batch write: its number in the sink."""
    mirror_of: str | None
    """The cluster whose messages these are, if the virtual host mirrors one."""
    sources: tuple[tuple[str, str], ...]
    """(queue, the id of the queue there that it mirrors)"""
    take_from: str | None
    """The queue that the rows were read from, and leave when they are committed."""


class Given:
    """Option texts by name, whatever the case."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._texts = {name.lower(): str(text).strip() for name, text in options.items()}
        by_lower = {name.lower() for name in known}
        for name in self._texts:
            if name not in by_lower and name not in OF_SPARK:
                raise OptionRefused(f"there is no option '{name}' for {what}{nearest(name, list(known))}")

    def text(self, name: str) -> str | None:
        """The text of an option; None if it was not given."""
        return self._texts.get(name.lower())

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in _FLAGS:
            raise OptionRefused(f"option '{name}' is true or false, not '{text}'")
        return _FLAGS[text.lower()]

    def count(self, name: str, *, highest: int = 1 << 53) -> int | None:
        """A number from 1 on."""
        text = self.text(name)
        if text is None:
            return None
        if not text.isdecimal() or not 1 <= int(text) <= highest:
            raise OptionRefused(f"option '{name}' is a number from 1 to {highest}, not '{text}'")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        """A duration: 500ms, 30s, 15m, 2h; a bare number is seconds."""
        text = self.text(name)
        if text is None:
            return default
        found = _DURATION.fullmatch(text.lower())
        if found is None or int(found[1]) == 0:
            raise OptionRefused(f"option '{name}' is a duration such as 500ms, 30s or 15m, not '{text}'")
        return int(found[1]) * _SECONDS[found[2] or "s"]

    def choice(self, name: str, known: tuple[str, ...]) -> str | None:
        """One of several words."""
        text = self.text(name)
        if text is None:
            return None
        if text.lower() not in known:
            raise OptionRefused(f"option '{name}' cannot be '{text}'{nearest(text, list(known))}")
        return text.lower()

    def micros(self, name: str) -> int | None:
        """A time: milliseconds since 1970, or ISO 8601 (UTC unless it says otherwise)."""
        text = self.text(name)
        if text is None:
            return None
        if text.isdecimal():
            return int(text) * 1000
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise OptionRefused(
                f"option '{name}' is a time in ISO 8601 or milliseconds since 1970, not '{text}'"
            ) from None
        aware = time if time.tzinfo else time.replace(tzinfo=UTC)
        return int((aware - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a reader."""
    given = Given(options, CONTACT + READING, "reading")
    queues, pattern = _queues(given)
    mode = cast("Mode | None", given.choice("mode", MODES))
    cursor = given.text("cursor")
    if cursor is not None and (not cursor or len(cursor.encode()) > 255):
        raise OptionRefused("option 'cursor' is a name of 1 to 255 bytes")
    if cursor is not None and mode == "browse":
        raise OptionRefused("option 'cursor' has no meaning in mode browse, which holds nothing")
    _only_one(given, "maxRecordsPerTrigger", "maxBytesPerTrigger")
    _only_one(given, "startingOffsets", "startingTimestamp")
    _only_one(given, "endingOffsets", "endingTimestamp")
    node, masters_only = _read_from(given)
    return ReadOptions(
        contact=_contact(given),
        queues=queues,
        pattern=pattern,
        mode=mode,
        cursor=cursor,
        starting=_offsets(given, "startingOffsets"),
        starting_us=given.micros("startingTimestamp"),
        ending=_offsets(given, "endingOffsets"),
        ending_us=given.micros("endingTimestamp"),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        max_records=given.count("maxRecordsPerTrigger"),
        max_bytes=given.count("maxBytesPerTrigger"),
        min_records=given.count("minRecordsPerTrigger"),
        max_delay=given.seconds("maxTriggerDelay", 900.0),
        min_partitions=given.count("minPartitions", highest=100_000),
        max_records_per_partition=given.count("maxRecordsPerPartition"),
        include_headers=given.flag("includeHeaders", default=True),
        include_body=given.flag("includeBody", default=True),
        pushdown=given.flag("pushdown", default=False),
        node=node,
        masters_only=masters_only,
        arrow_bytes=given.count("arrowBatchBytes", highest=ARROW_BYTES_MAX) or 8 << 20,
        async_progress=given.flag("asyncProgress", default=False),
        removes=_removes(given, mode),
    )


def _removes(given: Given, mode: str | None) -> bool:
    if given.text("remove") is not None and mode != "consume":
        raise OptionRefused("option 'remove' is for mode consume: the other modes remove nothing")
    return given.flag("remove", default=True)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a writer."""
    given = Given(options, CONTACT + WRITING, "writing")
    queue, exchange, key = given.text("queue"), given.text("exchange"), given.text("routingKey")
    if queue is not None and (exchange is not None or key is not None):
        raise OptionRefused("option 'queue' stands for exchange '' and its name as routing key: give either")
    if queue is not None:
        exchange, key = "", queue
    for name, text in (("exchange", exchange), ("routingKey", key)):
        if text is not None and len(text.encode()) > 255:
            raise OptionRefused(f"option '{name}' has at most 255 bytes")
    delivery = given.choice("delivery", ("exactly-once", "at-least-once")) or "exactly-once"
    sink = given.text("sinkId")
    if sink is not None and re.fullmatch(r"[0-9A-Za-z_-]{1,64}", sink) is None:
        raise OptionRefused("option 'sinkId' has 1 to 64 letters, digits, '-' and '_'")
    return WriteOptions(
        contact=_contact(given),
        exchange=exchange,
        routing_key=key,
        delivery=cast("Delivery", delivery),
        confirm_timeout=given.seconds("confirmTimeout", 60.0),
        tx_timeout=given.seconds("txTimeout", 0.0) or None,
        sink=sink,
        batch=_batch(given, sink),
        mirror_of=given.text("mirrorOf"),
        sources=_sources(given),
        take_from=_take_from(given, delivery),
    )


def _take_from(given: Given, delivery: str) -> str | None:
    name = given.text("takeFrom")
    if name is None:
        return None
    if not 1 <= len(name.encode()) <= 255:
        raise OptionRefused("option 'takeFrom' is the name of a queue")
    if delivery != "exactly-once" or given.text("mirrorOf") is not None:
        raise OptionRefused("option 'takeFrom' needs delivery exactly-once, and is not for mirrors")
    return name


def _batch(given: Given, sink: str | None) -> int:
    text = given.text("batchId")
    if text is None:
        return 0
    if sink is None or not text.isdecimal() or int(text) >= 1 << 53:
        raise OptionRefused("option 'batchId' is a number from 0 on, and needs a sinkId")
    return int(text)


def _sources(given: Given) -> tuple[tuple[str, str], ...]:
    text = given.text("mirrorSources")
    if text is None:
        return ()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise OptionRefused("option 'mirrorSources' is JSON with the source's queue id for each queue")
    return tuple(sorted(found.items()))


def _only_one(given: Given, *names: str) -> None:
    there = [name for name in names if given.text(name) is not None]
    if len(there) > 1:
        raise OptionRefused(f"options {' and '.join(there)} exclude each other: give one")


def _queues(given: Given) -> tuple[tuple[str, ...], str | None]:
    there = [name for name in ("queue", "queues", "queuePattern") if given.text(name) is not None]
    if len(there) != 1:
        found = f"there are {', '.join(there)}" if there else "there is none"
        raise OptionRefused(f"exactly one of the options queue, queues, queuePattern is needed; {found}")
    text = given.text(there[0]) or ""
    if there[0] == "queuePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionRefused(f"option 'queuePattern' is no regular expression: {error}") from None
        return (), text
    names = (text,) if there[0] == "queue" else tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise OptionRefused(f"option '{there[0]}' names no queue")
    if len(set(names)) != len(names):
        raise OptionRefused("option 'queues' names a queue twice")
    return names, None


def _read_from(given: Given) -> tuple[str | None, bool]:
    text = given.text("readFrom") or "auto"
    if text.lower() in {"auto", "master"}:
        return None, text.lower() == "master"
    if text.lower().startswith("node="):
        return text[5:].strip(), False
    raise OptionRefused(f"option 'readFrom' is auto, master or node=NAME, not '{text}'")


def _offsets(given: Given, name: str) -> Offsets | None:
    from mirrormq.spark.offsets import BadOffsets, parse_given

    text = given.text(name)
    if text is None:
        return None
    try:
        return parse_given(text)
    except BadOffsets as error:
        raise OptionRefused(f"option '{name}': {error}") from None


def _contact(given: Given) -> Contact:
    try:
        url = urls.parsed(urls.given_url(given.text("url")) or DEFAULT_URL)
    except urls.UrlRefused as refused:
        raise OptionRefused(str(refused)) from None
    return Contact(
        hosts=url.hosts,
        vhost=url.vhost,
        user=url.user,
        password=_password(given, url.user),
        tls=_tls(given, url.is_tls),
        timeout=given.seconds("timeout", 30.0),
    )


def _password(given: Given, user: str) -> str:
    _only_one(given, "password", "passwordFile")
    if (text := given.text("password")) is not None:
        return text
    if (path := given.text("passwordFile")) is not None:
        try:
            return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionRefused(f"passwordFile '{path}' cannot be read: {type(error).__name__}") from None
    if (held := os.environ.get(PASSWORD_VARIABLE)) is not None:
        return held
    if user == "guest":
        return "guest"
    raise OptionRefused(f"user '{user}' needs a password: {PASSWORD_WAYS}")


def _tls(given: Given, is_wanted: bool) -> Tls | None:
    names = ("tls.ca", "tls.cert", "tls.key", "tls.verify")
    if not is_wanted:
        there = [name for name in names if given.text(name) is not None]
        if there:
            raise OptionRefused(f"option '{there[0]}' needs a url that begins with amqps://")
        return None
    for name in ("tls.ca", "tls.cert", "tls.key"):
        path = given.text(name)
        if path is not None and not Path(path).is_file():
            raise OptionRefused(f"option '{name}': there is no file '{path}'")
    return Tls(
        ca=given.text("tls.ca"),
        cert=given.text("tls.cert"),
        key=given.text("tls.key"),
        verify=given.flag("tls.verify", default=True),
    )
