"""Readers of configuration values."""

from __future__ import annotations

import ipaddress

import pytest

from mirrormq.runtime import values as v
from mirrormq.runtime.values import Address, Share


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [
        ("0", 0),
        (4096, 4096),
        ("1k", 1024),
        ("1kB", 1000),
        ("2GB", 2_000_000_000),
        ("512MiB", 512 * 1024 * 1024),
        ("1.5GiB", 3 * 512 * 1024 * 1024),
        ("1 TB", 10**12),
    ],
)
def test_sizes_are_read_as_rabbitmq_reads_them(written: v.Value, bytes_: int) -> None:
    assert v.size(written) == bytes_


@pytest.mark.parametrize("written", ["", "GB", "-1", "1 parsec", True, "1e3", "0x10"])
def test_a_size_that_is_none_is_refused(written: v.Value) -> None:
    with pytest.raises(ValueError, match="size"):
        v.size(written)


def test_a_memory_limit_is_a_part_or_a_size() -> None:
    assert v.share_or_size(0.4) == Share(0.4)
    assert v.share_or_size("0.4") == Share(0.4)
    assert v.share_or_size("1") == Share(1.0)
    assert v.share_or_size("2GB") == 2_000_000_000
    assert v.share_or_size(1_000_000) == 1_000_000


@pytest.mark.parametrize(
    ("written", "address"),
    [
        (5672, Address("", 5672)),
        ("5672", Address("", 5672)),
        ("127.0.0.1:5672", Address("127.0.0.1", 5672)),
        ("[::1]:5672", Address("::1", 5672)),
        ("localhost:0", Address("localhost", 0)),
        (":5672", Address("", 5672)),
    ],
)
def test_addresses_name_a_port_and_maybe_a_host(written: v.Value, address: Address) -> None:
    assert v.address(written) == address


@pytest.mark.parametrize("written", ["", "localhost", "1.2.3.4:", "::1:5672", "70000", "host:port", True])
def test_an_address_without_a_port_is_refused(written: v.Value) -> None:
    with pytest.raises(ValueError, match=r"port|brackets"):
        v.address(written)


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert str(Address("::1", 5672)) == "[::1]:5672"
    assert str(Address("127.0.0.1", 5672)) == "127.0.0.1:5672"


def test_durations_are_milliseconds_unless_they_carry_a_unit() -> None:
    read = v.duration(0, 10**9)
    assert read(1500) == 1500
    assert read("1500") == 1500
    assert read("30s") == 30_000
    assert read("2m") == 120_000
    with pytest.raises(ValueError, match="between"):
        v.duration(0, 10)("1s")
    with pytest.raises(ValueError, match="30s"):
        read("soon")


@pytest.mark.parametrize("word", ["undefined", "false", "infinity", False, 0, "0"])
def test_a_time_out_can_be_switched_off_by_rabbitmqs_words(word: v.Value) -> None:
    assert v.duration_or_never(1000, 10_000)(word) == 0


def test_flags_understand_the_usual_words() -> None:
    assert [v.flag(word) for word in (True, "true", "on", "yes")] == [True] * 4
    assert [v.flag(word) for word in (False, "false", "off", "no")] == [False] * 4
    with pytest.raises(ValueError, match="true or false"):
        v.flag("maybe")


def test_whole_numbers_have_bounds() -> None:
    read = v.whole(1, 10)
    assert read("7") == 7
    for wrong in ("0", "11", "x", 1.5, True):
        with pytest.raises(ValueError, match=r"between|whole"):
            read(wrong)
    assert v.number_or("infinity", 0, 0, 5)("infinity") == 0


def test_networks_may_be_single_addresses() -> None:
    assert v.network("10.1.2.3/8") == ipaddress.ip_network("10.0.0.0/8")
    assert v.network("::1") == ipaddress.ip_network("::1/128")
    with pytest.raises(ValueError, match="network"):
        v.network("example.org")


@pytest.mark.parametrize(
    ("written", "peer", "shown"),
    [
        ("rabbit@a", v.PeerName("rabbit@a", "a", 25672), "rabbit@a:25672"),
        (" m-1@b.example:4000 ", v.PeerName("m-1@b.example", "b.example", 4000), "m-1@b.example:4000"),
        ("m@127.0.0.1:1", v.PeerName("m@127.0.0.1", "127.0.0.1", 1), "m@127.0.0.1:1"),
        ("m@[::1]", v.PeerName("m@::1", "::1", 25672), "m@[::1]:25672"),
        ("m@[fe80::2]:7", v.PeerName("m@fe80::2", "fe80::2", 7), "m@[fe80::2]:7"),
    ],
)
def test_a_listed_node_has_a_name_and_an_address(written: str, peer: v.PeerName, shown: str) -> None:
    assert v.peer_name(written) == peer
    assert str(peer) == shown
    assert v.peer_name(shown) == peer
    assert peer.address == v.Address(peer.host, peer.port)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("a", "name@host"), ("@b", "name@host"), ("a@", "name@host"), ("../a@b", "name@host"),
        ("a@b:", "name@host"), ("a@b:x", "name@host"), ("a@b:70000", "port"), ("a@b:0", "port"),
        ("a@::1", "brackets"), ("a@b/c", "name@host"), (7, "text"),
    ],
)  # fmt: skip
def test_a_listed_node_without_a_name_or_with_an_unclear_address_is_refused(
    wrong: v.Value, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        v.peer_name(wrong)


def test_a_node_name_cannot_leave_the_data_folder() -> None:
    assert v.node_name("rabbit@a") == "rabbit@a"
    for wrong in ("a", "../x@y", "a@b/c", "@b", "a@"):
        with pytest.raises(ValueError, match="name@host"):
            v.node_name(wrong)
