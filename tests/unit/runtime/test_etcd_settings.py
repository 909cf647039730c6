"""Settings of nodes that agree by etcd: what is understood, what is refused, and what is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrormq.runtime import config
from mirrormq.runtime.etcdclient import make_context
from mirrormq.runtime.facts import shown_settings
from mirrormq.runtime.faults import ConfigError, StartError
from mirrormq.runtime.settings import EtcdSettings, Settings

USED = {"coordinator": "etcd", "etcd.endpoints": "http://a:2379, https://[::1]:2379/"}


def given(pairs: dict[str, str]) -> Settings:
    return config.load([], {}, [config.Given(key, pairs[key], "here") for key in pairs], "here").settings


def test_raft_is_what_nodes_agree_by_unless_told_otherwise() -> None:
    assert given({}).coordinator == "raft"


def test_endpoints_prefix_and_user_are_understood() -> None:
    more = {"etcd.prefix": "/brokers/one/", "etcd.user": "mq", "etcd.password": "sesame"}
    found = given({**USED, **more})
    assert found.coordinator == "etcd"
    assert found.etcd.endpoints == ("http://a:2379", "https://[::1]:2379")
    assert (found.etcd.prefix, found.etcd.user, found.etcd.password) == ("/brokers/one", "mq", "sesame")


def test_the_password_is_never_shown() -> None:
    found = given({**USED, "etcd.user": "mq", "etcd.password": "sesame"})
    assert "sesame" not in repr(found)
    assert "sesame" not in str(shown_settings(found))


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ({"coordinator": "zookeeper"}, "expected raft or etcd"),
        ({"coordinator": "etcd"}, "needs etcd.endpoints"),
        ({"etcd.endpoints": "http://a:2379"}, "only with coordinator = etcd"),
        ({**USED, "etcd.endpoints": "a:2379"}, "expected http:// or https://"),
        ({**USED, "etcd.endpoints": "http://a:99999"}, "expected http:// or https://"),
        ({**USED, "etcd.endpoints": "http://me:word@a:2379"}, "expected http:// or https://"),
        ({**USED, "etcd.prefix": "no path"}, "expected a path"),
        ({**USED, "etcd.prefix": "/"}, "expected a path"),
        ({**USED, "etcd.password": "sesame"}, "needs etcd.user"),
        ({**USED, "etcd.certfile": "a.pem"}, "need each other"),
        ({**USED, "etcd.endpoints": "http://a:1", "etcd.cacertfile": "ca.pem"}, "need endpoints with https"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(pairs: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        given(pairs)


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    settings = EtcdSettings(endpoints=("https://a:2379",), cacertfile=missing)
    with pytest.raises(StartError, match=r"etcd\.cacertfile"):
        make_context(settings)


def test_plain_endpoints_need_no_certificates() -> None:
    assert make_context(EtcdSettings(endpoints=("http://a:2379",))) is None
