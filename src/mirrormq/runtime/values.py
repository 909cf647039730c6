"""Readers of configuration values: text or TOML value in, checked value out, or ValueError with a reason.

Every reader takes what a TOML file may hold as well as the text of a `rabbitmq.conf` line or of an
environment variable, so that a setting means the same wherever it was written.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import NamedTuple

from mirrormq.node import partition

Value = str | int | float | bool
Reader = Callable[[Value], object]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Address(NamedTuple):
    """Where to listen. An empty host means every interface, IPv4 and IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


CLUSTER_PORT = 25672
"""Where a node listens for the others of its cluster, as RabbitMQ's do."""


class PeerName(NamedTuple):
    """A node of the cluster as it is listed: its whole name, and where it is reached."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> Address:
        """Where other nodes reach it."""
        return Address(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.name.partition('@')[0]}@{self.address}"


class Share(NamedTuple):
    """A part of the machine's memory."""

    of_memory: float


SIZE_UNITS = {
    "": 1,
    "k": 1024, "kib": 1024, "kb": 1000,
    "m": 1024**2, "mib": 1024**2, "mb": 1000**2,
    "g": 1024**3, "gib": 1024**3, "gb": 1000**3,
    "t": 1024**4, "tib": 1024**4, "tb": 1000**4,
}  # fmt: skip
"""Units of sizes, as RabbitMQ reads them: k, M, G are powers of 1024, kB, MB, GB of 1000."""

TIME_UNITS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
"""Units of durations; a bare number is milliseconds, as in RabbitMQ."""


def text(value: Value) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise ValueError(f"expected text, not {value!r}")
    return value


def flag(value: Value) -> bool:
    """True or false; on, off, yes and no are understood."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in {"true", "on", "yes", "1"}:
        return True
    if word in {"false", "off", "no", "0"}:
        return False
    raise ValueError(f"expected true or false, not {value!r}")


def whole(least: int, most: int) -> Callable[[Value], int]:
    """A whole number within bounds."""

    def read(value: Value) -> int:
        if isinstance(value, bool | float):
            raise ValueError(f"expected a whole number, not {value!r}")
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"expected a whole number, not {value!r}") from None
        if not least <= number <= most:
            raise ValueError(f"{number} is not between {least} and {most}")
        return number

    return read


def number_or(word: str, stands_for: int, least: int, most: int) -> Callable[[Value], int]:
    """A whole number, or a word that stands for one (`infinity`)."""
    read = whole(least, most)

    def read_or(value: Value) -> int:
        return stands_for if value == word else read(value)

    return read_or


def fraction(least: float, most: float) -> Callable[[Value], float]:
    """A number that may have decimals, within bounds."""

    def read(value: Value) -> float:
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"expected a number, not {value!r}") from None
        if isinstance(value, bool) or not least <= number <= most:
            raise ValueError(f"{value!r} is not between {least:g} and {most:g}")
        return number

    return read


def size(value: Value) -> int:
    """Bytes: a number, or a number with a unit such as 2GB or 512MiB."""
    if isinstance(value, bool):
        raise ValueError(f"expected a size such as 512MiB, not {value!r}")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(value).strip())
    if found is None or found[2].lower() not in SIZE_UNITS:
        raise ValueError(f"expected a size such as 512MiB or 2GB, not {value!r}")
    return int(float(found[1]) * SIZE_UNITS[found[2].lower()])


def share_or_size(value: Value) -> int | Share:
    """A part of the memory (0.4) or a size (2GB)."""
    if isinstance(value, str) and not re.fullmatch(r"\d*\.\d*|[01]", value.strip()):
        return size(value)
    if isinstance(value, int) and value > 1:
        return size(value)
    return memory_share(value)


def memory_share(value: Value) -> Share:
    """A part of the memory that the node may use: more than none of it, and not more than there is."""
    found = Share(fraction(0, 1)(value))
    if not found.of_memory:
        raise ValueError("0 of the memory would hold all publishers for ever")
    return found


def share(value: Value) -> Share:
    """A part of the memory; RabbitMQ allows more than all of it for the disk limit."""
    return Share(fraction(0, 1024)(value))


def duration(least_ms: int, most_ms: int) -> Callable[[Value], int]:
    """Milliseconds: a bare number, or a number with ms, s, m or h."""

    def read(value: Value) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip())
        if isinstance(value, bool) or found is None or found[2] not in TIME_UNITS:
            raise ValueError(f"expected milliseconds or a duration such as 30s, not {value!r}")
        milliseconds = int(float(found[1]) * TIME_UNITS[found[2]])
        if not least_ms <= milliseconds <= most_ms:
            raise ValueError(f"{value!r} is not between {least_ms} ms and {most_ms} ms")
        return milliseconds

    return read


def duration_or_never(least_ms: int, most_ms: int) -> Callable[[Value], int]:
    """A duration, or 0 for the words by which RabbitMQ switches a time-out off."""
    read = duration(0, most_ms)

    def read_or_never(value: Value) -> int:
        if value is False or value in {"undefined", "false", "infinity", "none"}:
            return 0
        milliseconds = read(value)
        if 0 < milliseconds < least_ms:
            raise ValueError(f"{value!r} is not between {least_ms} ms and {most_ms} ms")
        return milliseconds

    return read_or_never


def choice(*words: str) -> Callable[[Value], str]:
    """One of a few words."""

    def read(value: Value) -> str:
        if value not in words:
            raise ValueError(f"expected {' or '.join(words)}, not {value!r}")
        return str(value)

    return read


def endpoint(value: Value) -> str:
    """http:// or https://, host and port."""
    written = str(value).strip().rstrip("/")
    found = re.fullmatch(r"https?://(\[[0-9A-Fa-f:.]+\]|[^/:@\s]+):(\d{1,5})", written)
    if found is None or not 0 < int(found[2]) < 65536:
        raise ValueError(f"expected http:// or https:// with host and port, not {value!r}")
    return written


def prefix(value: Value) -> str:
    """What keys begin with: a path."""
    written = str(value).strip().rstrip("/")
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", written):
        raise ValueError(f"expected a path of letters, digits, '.', '_' and '-', as /mirrormq, not {value!r}")
    return written


def address(value: Value) -> Address:
    """A port, or host:port with an IPv6 host in brackets."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Address("", _port(str(value), value))
    written = str(value).strip()
    host, colon, port = written.rpartition(":")
    if not colon:
        return Address("", _port(written, value))
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 host stands in brackets, as in [::1]:5672, not {value!r}")
    return Address(host, _port(port, value))


def peer_name(value: Value) -> PeerName:
    """`name@host` of a node, with the port of its cluster listener if it is not the usual one."""
    form = "expected name@host or name@host:port"
    written = text(value).strip()
    name, at, where = written.partition("@")
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::(\d+))?", where)
    if found is None and where.count(":") > 1:
        raise ValueError(f"an IPv6 host stands in brackets, as in a@[::1]:{CLUSTER_PORT}, not {value!r}")
    if not at or found is None:
        raise ValueError(f"{form}, not {value!r}")
    host = found[1] or found[2]
    port = _port(found[3] or str(CLUSTER_PORT), value)
    if port == 0:
        raise ValueError(f"{form} with the port on which that node listens, not {value!r}")
    return PeerName(node_name(f"{name}@{host}"), host, port)


def disc_copy(value: Value) -> PeerName | str:
    """A node if it has an @, else the name of a queue, or a pattern of names."""
    written = text(value).strip()
    if "@" in written:
        return peer_name(written)
    if not written:
        raise ValueError("expected name@host of a node, or a queue")
    return written


_STRATEGIES = {
    "min-masters": "masters",
    "least-masters": "masters",
    "least-connections": "connections",
    "least-messages": "messages",
    "round_robin": "round-robin",
}
"""Other words for the strategies of rebalancing."""


def rebalance_strategy(value: Value) -> str:
    """What rebalancing evens out."""
    known = ("masters", "connections", "messages", "random", "round-robin")
    return choice(*known)(_STRATEGIES.get(str(value), value))


def partition_handling(value: Value) -> str:
    """What a node does that is cut off from the majority."""
    return partition.chosen(value)


def partition_recover(value: Value) -> str:
    """What pause_if_all_down does while a node it names is in reach: the same as ignore."""
    if value != partition.IGNORE:
        raise ValueError(f"{value!r} is not known: write ignore, or leave this key out")
    return str(value)


def discovery_backend(value: Value) -> str:
    """How nodes find each other: by the list in the configuration."""
    if value not in {"classic_config", "rabbit_peer_discovery_classic_config"}:
        raise ValueError(
            f"nodes are not looked up by {value!r}: list them in cluster_nodes, and leave this key out or"
            " write classic_config"
        )
    return "classic_config"


def _port(written: str, value: Value) -> int:
    if not written.isdigit() or int(written) > 65535:
        raise ValueError(f"expected a port or host:port, not {value!r}")
    return int(written)


def network(value: Value) -> Network:
    """An address or a network such as 10.0.0.0/8."""
    try:
        return ipaddress.ip_network(str(value).strip(), strict=False)
    except ValueError:
        raise ValueError(f"expected an address or a network such as 10.0.0.0/8, not {value!r}") from None


def node_name(value: Value) -> str:
    """`name@host` of a node; the name becomes a folder name, so it holds no slash."""
    written = text(value)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+@[A-Za-z0-9_.:-]+", written):
        raise ValueError(f"expected name@host of letters, digits, '_', '.' and '-', not {value!r}")
    return written
