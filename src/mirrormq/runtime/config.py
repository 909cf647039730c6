"""Files, environment and command line become one checked `Settings`, or a sentence that says what is wrong.

Later sources win: defaults, files in the order given, MIRRORMQ_* variables, command line. An unknown key
stops the node and names the nearest known one; a key in `names.IGNORED` gives one warning.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mirrormq.base import limits
from mirrormq.meta.policy import problems
from mirrormq.meta.records import Policy
from mirrormq.node import partition
from mirrormq.runtime import policies
from mirrormq.runtime.faults import ConfigError
from mirrormq.runtime.names import IGNORED, MAY_BE_EMPTY, NAMES, OUTSIDE, REFUSED, SERVICE_LINKS, Name, Shape
from mirrormq.runtime.settings import EtcdSettings, LinkSettings, LinkTlsSettings, Settings
from mirrormq.runtime.values import PeerName, Value

PREFIX = "MIRRORMQ_"


class Given(NamedTuple):
    """One setting as it was written: its key, its value and where it stands."""

    key: str
    value: Value | list[Any]
    where: str


Source = list[Given]


class Loaded(NamedTuple):
    """The settings, and what the reader should be told about them."""

    settings: Settings
    warnings: tuple[str, ...]


def load(files: Iterable[str], environment: Mapping[str, str], command_line: Source, hostname: str) -> Loaded:
    """Read all sources. Raises ConfigError with one sentence if any of them is wrong."""
    named = list(files) or ([environment["MIRRORMQ_CONFIG"]] if environment.get("MIRRORMQ_CONFIG") else [])
    sources = [*(read_file(Path(name)) for name in named), read_environment(environment), command_line]
    fields: dict[str, object] = {}
    warnings: list[str] = []
    for source in sources:
        _apply(source, fields, warnings)
    fields.setdefault("node_name", f"mirrormq@{hostname}")
    settings = _with_peers(_build(Settings(), fields))
    settings = dataclasses.replace(
        settings,
        config_files=tuple(named),
        data_dir=settings.data_dir or str(Path("data") / settings.node_name),
        cluster_name=settings.cluster_name or settings.node_name,
        links=_advertised(settings),
        mirroring_policies=tuple(
            msgspec.structs.replace(policy, vhost=policy.vhost or settings.default_user.vhost)
            for policy in settings.mirroring_policies
        ),
    )
    _check(settings)
    _check_cluster(settings)
    _check_etcd(settings)
    if settings.cluster_nodes and _listed(settings) is None:
        warnings.append(f"cluster_nodes does not list this node, {settings.node_name}")
    return Loaded(settings, tuple(warnings))


def read_file(path: Path) -> Source:
    """Read a TOML file or a rabbitmq.conf, told apart by the suffix, else by what the text is."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"Configuration file {path} cannot be read: {reason}.") from None
    if path.suffix == ".toml":
        return parse_toml(text, str(path))
    if path.suffix == ".config" or text.lstrip().startswith("["):
        try:
            return parse_toml(text, str(path))
        except ConfigError:
            raise ConfigError(
                f"{path} looks like RabbitMQ's advanced.config: only rabbitmq.conf and TOML are read."
            ) from None
    if path.suffix == ".conf":
        return parse_conf(text, str(path))
    try:
        return parse_toml(text, str(path))
    except ConfigError:
        return parse_conf(text, str(path))


def parse_toml(text: str, where: str) -> Source:
    """Flatten a TOML document: tables become dots."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}.") from None
    source: Source = []

    def walk(prefix: str, table: dict[str, Any]) -> None:
        for name, value in table.items():
            key = f"{prefix}{name}"
            if isinstance(value, dict):
                walk(f"{key}.", value)
            elif isinstance(value, str | int | float | bool | list):
                source.append(Given(key, value, where))
            else:
                raise ConfigError(f"{where}: {key} holds a {type(value).__name__}, which no setting is.")

    walk("", document)
    return source


def parse_conf(text: str, where: str) -> Source:
    """Read `key = value` lines as RabbitMQ does: a '#' begins a comment wherever it stands."""
    source: Source = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        key, equals, value = (part.strip() for part in content.partition("="))
        is_missing = not value and key not in MAY_BE_EMPTY
        if not equals or is_missing or not re.fullmatch(r"[A-Za-z0-9_.$@:/-]+", key):
            raise ConfigError(f"{where} line {number}: expected 'key = value', found '{content}'.")
        source.append(Given(key, value, f"{where} line {number}"))
    return source


def read_environment(environment: Mapping[str, str]) -> Source:
    """Translate MIRRORMQ_* variables to keys; several values are separated by commas."""
    known = {variable(key): name for name in NAMES for key in (name.key, *name.also)}
    source: Source = []
    for entry, value in sorted(environment.items()):
        if not entry.startswith(PREFIX) or re.fullmatch(SERVICE_LINKS, entry):
            continue
        if any(fnmatchcase(entry, pattern) for pattern in OUTSIDE):
            continue
        if entry not in known:
            raise ConfigError(f"Unknown environment variable {entry}{_nearest(entry, known)}")
        source.append(Given(known[entry].key, value, f"environment variable {entry}"))
    return source


def variable(key: str) -> str:
    """Return the environment variable of a key."""
    return PREFIX + key.replace(".", "_").upper()


def _apply(source: Source, fields: dict[str, object], warnings: list[str]) -> None:
    """Lay one source over what earlier ones said. A list given here replaces an earlier list as a whole."""
    lists: dict[str, list[object]] = {}
    tables: dict[str, policies.Written] = {}
    wheres: dict[str, str] = {}
    for given in source:
        name, word = _find(given)
        if name is None:
            _pass_over(given, warnings)
        elif name.shape is Shape.ONE:
            fields[name.field] = _read(name, given.value, given)
            if name.field == "partition_handling" and (warning := partition.warning_about(given.value)):
                warnings.append(f"{given.where}: {warning}")
        elif name.shape is Shape.TABLES:
            _gather(tables, word, given)
            wheres[name.field] = given.where
        elif word is None:
            lists[name.field] = [_read(name, item, given) for item in _items(given.value)]
        elif name.shape is Shape.LIST:
            lists.setdefault(name.field, []).append(_read(name, given.value, given))
        else:
            words = lists.setdefault(name.field, _words_so_far(name, fields))
            _switch(words, word, given)
    fields.update({field: tuple(items) for field, items in lists.items()})
    fields.update({field: _read_policies(tables, where) for field, where in wheres.items()})
    fields.pop("", None)


def _find(given: Given) -> tuple[Name | None, str | None]:
    """Find the name of a key, and the last word of a key that stands for one of several values."""
    for name in NAMES:
        if given.key == name.key or given.key in name.also:
            return name, None
    stem, _, word = given.key.rpartition(".")
    for name in NAMES:
        if name.shape is Shape.TABLES and given.key.startswith(f"{name.key}."):
            return name, given.key.removeprefix(f"{name.key}.")
        if name.shape is not Shape.ONE and stem in {name.key, *name.also}:
            return name, word
    return None, None


def _pass_over(given: Given, warnings: list[str]) -> None:
    for pattern, reason in REFUSED:
        if fnmatchcase(given.key, pattern):
            raise ConfigError(f"{given.where}: {given.key} cannot be honoured: {reason}.")
    for pattern, reason in IGNORED:
        if fnmatchcase(given.key, pattern):
            warnings.append(f"{given.where}: {given.key} is ignored: {reason}")
            return
    known = [key for name in NAMES for key in (name.key, *name.also)]
    raise ConfigError(f"{given.where}: unknown setting {given.key}{_nearest(given.key, known)}")


def _nearest(wrong: str, known: Iterable[str]) -> str:
    # Only on the way to an error: difflib costs milliseconds that a good start need not pay.
    from difflib import get_close_matches

    found = get_close_matches(wrong, list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else "."


def _read(name: Name, value: Any, given: Given) -> object:
    if name.key == "log.file" and value in {"false", False}:
        return ""
    if not isinstance(value, str | int | float | bool):
        raise ConfigError(f"{given.where}: {given.key} takes {name.shape.value}.")
    try:
        return name.read(value)
    except ValueError as error:
        reason = "its value is not valid" if name.secret else str(error)
        raise ConfigError(f"{given.where}: {given.key}: {reason}.") from None


def _gather(tables: dict[str, policies.Written], path: str | None, given: Given) -> None:
    """Take in a line of a table, or all tables at once."""
    try:
        if path is None:
            tables.clear()
            tables.update(policies.tables(given.value))
        else:
            policies.gather(tables, path, given.value)
    except ValueError as error:
        raise ConfigError(f"{given.where}: {given.key}: {error}.") from None


def _read_policies(tables: dict[str, policies.Written], where: str) -> tuple[Policy, ...]:
    try:
        return tuple(policies.read(name, written) for name, written in tables.items())
    except ValueError as error:
        raise ConfigError(f"{where}: mirroring_policy: {error}.") from None


def _items(value: Any) -> list[Any]:
    """Split a list written as one value."""
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        return [] if value.strip() == "none" else [item.strip() for item in value.split(",") if item.strip()]
    return [value]


def _words_so_far(name: Name, fields: dict[str, object]) -> list[object]:
    """Tags given one by one replace the default tags; loopback users add to the default."""
    if name.key == "loopback_users":
        present = fields.get(name.field, Settings().loopback_users)
        assert isinstance(present, tuple), name.field
        return list(present)
    return []


def _switch(words: list[object], word: str, given: Given) -> None:
    if given.value not in {"true", "false", True, False}:
        raise ConfigError(f"{given.where}: {given.key} is true or false, not {given.value!r}.")
    if word in words:
        words.remove(word)
    if given.value in {"true", True}:
        words.append(word)


def _build(settings: Any, fields: Mapping[str, object]) -> Any:
    """Set the given fields in nested frozen dataclasses."""
    changes: dict[str, object] = {key: value for key, value in fields.items() if "." not in key}
    for group in sorted({key.split(".", 1)[0] for key in fields if "." in key}):
        inner = {key.split(".", 1)[1]: value for key, value in fields.items() if key.startswith(f"{group}.")}
        changes[group] = _build(getattr(settings, group), inner)
    return dataclasses.replace(settings, **changes)


def _check(settings: Settings) -> None:
    """Refuse settings that are wrong only together."""
    if settings.listen_tls and not (settings.tls.certfile and settings.tls.keyfile):
        raise ConfigError("listeners.ssl needs ssl_options.certfile and ssl_options.keyfile.")
    if settings.tls.verify == "verify_peer" and not settings.tls.cacertfile:
        raise ConfigError("ssl_options.verify = verify_peer needs ssl_options.cacertfile.")
    if settings.tls.fail_if_no_peer_cert and settings.tls.verify != "verify_peer":
        raise ConfigError("ssl_options.fail_if_no_peer_cert needs ssl_options.verify = verify_peer.")
    _check_admin_tls(settings)
    links = settings.links.tls
    if links != LinkTlsSettings() and not (links.certfile and links.keyfile and links.cacertfile):
        raise ConfigError(
            "TLS between nodes needs cluster_tls.certfile, cluster_tls.keyfile and cluster_tls.cacertfile."
        )
    if settings.links.advertise is not None and not settings.links.advertise.host:
        raise ConfigError("cluster_advertise needs a host, as in broker-1.example:25672.")
    if settings.links.secret and len(settings.links.secret) < limits.peer_secret_chars_min:
        raise ConfigError(f"cluster_secret must have at least {limits.peer_secret_chars_min} characters.")
    if settings.proxy_protocol and not settings.proxy_sources:
        raise ConfigError(
            "proxy_protocol needs proxy_protocol_sources, the addresses of your proxies (e.g. 10.0.0.0/8):"
            " whoever may send the header can claim any address."
        )
    implied = policies.implied(settings)
    wrong = problems(implied) if implied is not None else []
    if wrong:
        raise ConfigError(f"cluster_nodes.disc_copies: {'; '.join(wrong)}.")
    for policy in settings.mirroring_policies:
        if policy.vhost != settings.default_user.vhost:
            raise ConfigError(
                f"mirroring_policy: policy '{policy.name}' is for vhost '{policy.vhost}', which a new cluster"
                f" does not have: its only one is '{settings.default_user.vhost}' (default_vhost)."
            )
    if settings.argon2_memory_kib < 8 * settings.argon2_lanes:
        raise ConfigError("password_hashing.argon2.memory must be at least 8 KiB per lane.")
    if not settings.listen and not settings.listen_tls:
        raise ConfigError("No listener is left: give listeners.tcp or listeners.ssl a port.")


def _check_admin_tls(settings: Settings) -> None:
    tls = settings.admin_tls
    is_on = settings.admin_tls_port is not None
    if is_on and not (tls.certfile and tls.keyfile):
        raise ConfigError("management.ssl.port needs management.ssl.certfile and management.ssl.keyfile.")
    if not is_on and tls.certfile:
        raise ConfigError("management.ssl.certfile needs management.ssl.port, as in 15671.")
    if tls.verify == "verify_peer" and not tls.cacertfile:
        raise ConfigError("management.ssl.verify = verify_peer needs management.ssl.cacertfile.")
    if tls.fail_if_no_peer_cert and tls.verify != "verify_peer":
        raise ConfigError("management.ssl.fail_if_no_peer_cert needs management.ssl.verify = verify_peer.")


def _check_cluster(settings: Settings) -> None:
    """Refuse a list of nodes that cannot form one cluster."""
    listed = settings.cluster_nodes
    try:
        partition.check_nodes(settings.partition_handling, settings.partition_nodes)
    except ValueError as error:
        raise ConfigError(f"cluster_partition_handling: {error}.") from None
    if len(listed) > limits.raft_members_max:
        raise ConfigError(f"cluster_nodes lists {len(listed)} nodes; {limits.raft_members_max} is the most.")
    for place, peer in enumerate(listed):
        for other in listed[:place]:
            if other.name == peer.name:
                raise ConfigError(f"cluster_nodes lists {peer.name} twice.")
            if other.address == peer.address:
                raise ConfigError(f"cluster_nodes lists {other.name} and {peer.name} at the same address.")


def _check_etcd(settings: Settings) -> None:
    """Refuse half a description of etcd, and one that nobody uses."""
    etcd = settings.etcd
    if settings.coordinator != "etcd":
        if etcd != EtcdSettings():
            raise ConfigError("etcd.* is used only with coordinator = etcd.")
        return
    if not etcd.endpoints:
        raise ConfigError("coordinator = etcd needs etcd.endpoints, as in http://etcd-1:2379.")
    if settings.partition_handling != "pause_minority":
        raise ConfigError("coordinator = etcd knows cluster_partition_handling = pause_minority only.")
    if etcd.password and not etcd.user:
        raise ConfigError("etcd.password needs etcd.user.")
    if bool(etcd.certfile) != bool(etcd.keyfile):
        raise ConfigError("etcd.certfile and etcd.keyfile need each other.")
    is_plain = not any(endpoint.startswith("https:") for endpoint in etcd.endpoints)
    if is_plain and (etcd.cacertfile or etcd.certfile):
        raise ConfigError("etcd.cacertfile and etcd.certfile need endpoints with https://.")


def _with_peers(settings: Settings) -> Settings:
    """Add the nodes among `disc_copies` to the list of nodes."""
    peers = [item for item in settings.disc_copies or () if isinstance(item, PeerName)]
    added = [peer for peer in peers if peer not in settings.cluster_nodes]
    return dataclasses.replace(settings, cluster_nodes=(*settings.cluster_nodes, *added))


def _listed(settings: Settings) -> PeerName | None:
    """How this node stands in the list of all."""
    return next((peer for peer in settings.cluster_nodes if peer.name == settings.node_name), None)


def _advertised(settings: Settings) -> LinkSettings:
    """Where others reach this node, if it is not told: where the list that all of them have says."""
    listed = _listed(settings)
    if settings.links.advertise is not None or listed is None:
        return settings.links
    return dataclasses.replace(settings.links, advertise=listed.address)
