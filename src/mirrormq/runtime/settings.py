"""The settings of a node, checked and complete: what the runtime reads, with every default in one place.

How a setting is called in a file, in the environment and by RabbitMQ stands in `names`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mirrormq.base import limits
from mirrormq.http.ports import WebSettings
from mirrormq.log.journal import Fsync
from mirrormq.meta.commands import HaDefaults
from mirrormq.meta.records import Policy
from mirrormq.runtime.values import CLUSTER_PORT, Address, Network, PeerName, Share

MEMORY_LIMIT = Share(0.4)
LINK_LISTEN = Address("", CLUSTER_PORT)


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """Certificates and rules of the TLS listeners."""

    certfile: str = ""
    keyfile: str = ""
    password: str = ""
    cacertfile: str = ""
    verify: str = "verify_none"
    fail_if_no_peer_cert: bool = False
    versions: tuple[str, ...] = ("tlsv1.2", "tlsv1.3")
    ciphers: tuple[str, ...] = ()
    dhfile: str = ""
    honor_cipher_order: bool = True
    handshake_timeout_ms: int = 5000
    login_from: str = "distinguished_name"
    login_san_type: str = "dns"
    login_san_index: int = 0


@dataclass(frozen=True, kw_only=True)
class LinkTlsSettings:
    """Certificates of the links between nodes: both ends have one, or there is no TLS."""

    certfile: str = ""
    keyfile: str = ""
    password: str = field(default="", repr=False)
    cacertfile: str = ""
    versions: tuple[str, ...] = ("tlsv1.3",)
    check_host: bool = True


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """How this node is reached by the others of its cluster."""

    listen: Address = LINK_LISTEN
    advertise: Address | None = None
    secret: str = field(default="", repr=False)
    tls: LinkTlsSettings = LinkTlsSettings()


@dataclass(frozen=True, kw_only=True)
class EtcdSettings:
    """Where etcd is, and where in it the cluster stands."""

    endpoints: tuple[str, ...] = ()
    prefix: str = "/mirrormq"
    user: str = ""
    password: str = field(default="", repr=False)
    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""


@dataclass(frozen=True, kw_only=True)
class SocketSettings:
    """What is set on every client socket."""

    backlog: int = 128
    nodelay: bool = True
    keepalive: bool = False
    send_buffer_bytes: int = 0
    receive_buffer_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """Where log lines go. Without a file they go to standard error."""

    level: str = "info"
    form: str = "text"
    console: bool | None = None
    console_level: str = ""
    console_format: str = ""
    """Empty: the form of all lines."""
    file: str = ""
    folder: str = ""
    file_level: str = ""
    file_format: str = ""
    rotate_bytes: int = 10 * 1024 * 1024
    rotate_count: int = 10


@dataclass(frozen=True, kw_only=True)
class DefaultUser:
    """The user and vhost that a node with an empty data folder begins with."""

    name: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    tags: tuple[str, ...] = ("administrator",)
    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything a node can be told."""

    node_name: str = ""
    data_dir: str = ""
    config_files: tuple[str, ...] = ()
    cluster_name: str = ""
    cluster_nodes: tuple[PeerName, ...] = ()
    """The nodes that form the cluster, this one among them. Without any, a node is a cluster of its own."""
    disc_copies: tuple[PeerName | str, ...] | None = None
    """Nodes, which are added to `cluster_nodes`, and queues that are mirrored; None: it was not given."""
    coordinator: str = "raft"
    """What the nodes agree by: `raft`, which they bring along, or `etcd`."""
    etcd: EtcdSettings = EtcdSettings()
    partition_handling: str = "pause_minority"
    partition_nodes: tuple[str, ...] = ()
    death_certificate: bool = True
    listen: tuple[Address, ...] = (Address("", 5672),)
    listen_tls: tuple[Address, ...] = ()
    admin: bool = True
    admin_host: str | None = None
    """None: every interface, or with TLS this machine only."""
    admin_port: int = 15672
    admin_tls_host: str = ""
    admin_tls_port: int | None = None
    """None: no TLS."""
    admin_tls: TlsSettings = TlsSettings()
    web: WebSettings = field(default_factory=WebSettings)
    prometheus_host: str = ""
    prometheus_port: int = 0
    tls: TlsSettings = TlsSettings()
    links: LinkSettings = LinkSettings()
    sockets: SocketSettings = SocketSettings()
    log: LogSettings = LogSettings()
    default_user: DefaultUser = DefaultUser()
    proxy_protocol: bool = False
    proxy_sources: tuple[Network, ...] = ()
    auth_mechanisms: tuple[str, ...] = ()
    loopback_users: tuple[str, ...] = ("guest",)
    handshake_timeout_ms: int = 10_000
    heartbeat_s: int = 60
    frame_max: int = 131_072
    channel_max: int = 2047
    connection_max: int = 0
    max_message_bytes: int = 134_217_728
    consumer_timeout_ms: int = 1_800_000
    publish_ahead_bytes: int = 4 * 1024 * 1024
    fsync: Fsync = "always"
    fsync_interval_ms: int = 1000
    memory_limit: int | Share = MEMORY_LIMIT
    memory_total_bytes: int = 0
    disk_free_limit: int | Share = 50_000_000
    disk_reserve_bytes: int = limits.disk_reserve_bytes
    argon2_memory_kib: int = 19 * 1024
    argon2_passes: int = 2
    argon2_lanes: int = 1
    load_definitions: str = ""
    queue_master_locator: str = "client-local"
    ha_defaults: HaDefaults = "safe"
    rebalance: str = "on-demand"
    rebalance_interval_ms: int = 60_000
    rebalance_strategy: str = "masters"
    mirroring_policies: tuple[Policy, ...] = ()
    sync_strategy: str = ""
    sync_interval_ms: int = 0
    """Both for the mirror job; empty and 0: it has defaults of its own."""
    events: bool = True
    samples: bool = True
    shutdown_timeout_ms: int = 30_000

    @property
    def admin_address(self) -> Address:
        """Where the admin API listens without TLS: with TLS on this machine only, unless told otherwise."""
        host = self.admin_host
        if host is None:
            host = "" if self.admin_tls_port is None else "127.0.0.1"
        return Address(host, self.admin_port)

    @property
    def admin_tls_address(self) -> Address | None:
        """Where it listens with TLS, if it does."""
        if not self.admin or self.admin_tls_port is None:
            return None
        return Address(self.admin_tls_host, self.admin_tls_port)
