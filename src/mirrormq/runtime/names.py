"""The one table of setting names: TOML, rabbitmq.conf and MIRRORMQ_* variables are all read through it.

A setting has RabbitMQ's name where RabbitMQ has one. In TOML the dots are tables; in the environment the name
is MIRRORMQ_ and the key in capitals with '_' for '.'. A key of RabbitMQ without a meaning here stands in
IGNORED with its reason (one warning), one whose loss would be dangerous in REFUSED (the node does not start).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from mirrormq.meta.policy_keys import LOCATORS
from mirrormq.runtime import values as v


class Shape(Enum):
    """How many values a setting has, and how they are written."""

    ONE = "one value"
    LIST = "several: key.1 = a, key.2 = b; or a list; or 'a, b'; or none"
    SET = "several words: key.word = true or false; or a list; or 'a, b'; or none"
    TABLES = "several: key.name.field = value; or tables; or JSON"


class Name(NamedTuple):
    """A key, where its value goes in Settings, how it is read and what it is for.

    Without a field the value is only checked: the node behaves as its one legal value says.
    """

    key: str
    field: str
    read: v.Reader
    what: str
    shape: Shape = Shape.ONE
    also: tuple[str, ...] = ()
    secret: bool = False


LEVEL = v.choice("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "none")
HOUR_MS = 3_600_000

NAMES: tuple[Name, ...] = (
    # the node
    Name("node_name", "node_name", v.node_name, "name@host of the node", also=("nodename",)),
    Name("data_dir", "data_dir", v.text, "folder of the node's data; ./data/<node name> if not given"),
    Name("cluster_name", "cluster_name", v.text, "name shown to clients; the node's name if not given"),
    Name(
        "shutdown_timeout",
        "shutdown_timeout_ms",
        v.duration(0, HOUR_MS),
        "how long clients get to finish after SIGTERM",
    ),
    # listeners
    Name("listeners.tcp", "listen", v.address, "where to listen for AMQP: port or host:port", Shape.LIST),
    Name("listeners.ssl", "listen_tls", v.address, "where to listen for AMQP over TLS", Shape.LIST),
    Name(
        "tcp_listen_options.backlog",
        "sockets.backlog",
        v.whole(1, 65535),
        "connections waiting to be accepted",
    ),
    Name("tcp_listen_options.nodelay", "sockets.nodelay", v.flag, "send small segments at once"),
    Name(
        "tcp_listen_options.keepalive", "sockets.keepalive", v.flag, "let the kernel probe idle connections"
    ),
    Name(
        "tcp_listen_options.sndbuf",
        "sockets.send_buffer_bytes",
        v.size,
        "send buffer of the kernel; 0 = its choice",
    ),
    Name(
        "tcp_listen_options.recbuf",
        "sockets.receive_buffer_bytes",
        v.size,
        "receive buffer of the kernel; 0 = its choice",
    ),
    Name("proxy_protocol", "proxy_protocol", v.flag, "expect a PROXY header from the listed sources"),
    Name(
        "proxy_protocol_sources",
        "proxy_sources",
        v.network,
        "addresses or networks of the proxies that send a PROXY header",
        Shape.LIST,
    ),
    # TLS
    Name("ssl_options.certfile", "tls.certfile", v.text, "certificate chain of the node, PEM"),
    Name("ssl_options.keyfile", "tls.keyfile", v.text, "private key of the node, PEM"),
    Name("ssl_options.password", "tls.password", v.text, "password of the private key", secret=True),
    Name(
        "ssl_options.cacertfile", "tls.cacertfile", v.text, "authorities that sign clients' certificates, PEM"
    ),
    Name(
        "ssl_options.verify",
        "tls.verify",
        v.choice("verify_none", "verify_peer"),
        "check clients' certificates",
    ),
    Name(
        "ssl_options.fail_if_no_peer_cert",
        "tls.fail_if_no_peer_cert",
        v.flag,
        "refuse clients without a certificate",
    ),
    Name(
        "ssl_options.versions",
        "tls.versions",
        v.choice("tlsv1.2", "tlsv1.3"),
        "versions of TLS to offer",
        Shape.LIST,
    ),
    Name(
        "ssl_options.ciphers",
        "tls.ciphers",
        v.text,
        "cipher suites up to TLS 1.2, OpenSSL's names",
        Shape.LIST,
    ),
    Name("ssl_options.dhfile", "tls.dhfile", v.text, "Diffie-Hellman parameters, PEM"),
    Name(
        "ssl_options.honor_cipher_order", "tls.honor_cipher_order", v.flag, "the node's order of ciphers wins"
    ),
    Name(
        "ssl_handshake_timeout",
        "tls.handshake_timeout_ms",
        v.duration(100, HOUR_MS),
        "time for the TLS handshake",
    ),
    Name(
        "ssl_cert_login_from",
        "tls.login_from",
        v.choice("distinguished_name", "common_name", "subject_alternative_name"),
        "what in a client's certificate is the user name for EXTERNAL",
    ),
    Name(
        "ssl_cert_login_san_type",
        "tls.login_san_type",
        v.choice("dns", "ip", "email", "uri"),
        "kind of alternative name used as user name",
    ),
    Name(
        "ssl_cert_login_san_index",
        "tls.login_san_index",
        v.whole(0, 63),
        "which of the names of that kind, from 0",
    ),
    # the cluster
    Name(
        "cluster_nodes",
        "cluster_nodes",
        v.peer_name,
        "nodes that form the cluster, this one among them: name@host or name@host:port",
        Shape.LIST,
        also=("cluster_formation.classic_config.nodes",),
    ),
    Name(
        "cluster_nodes.disc_copies",
        "disc_copies",
        v.disc_copy,
        "nodes that form the cluster (with an @), and queues or patterns of queues mirrored on all nodes",
        Shape.LIST,
        also=("disc_copies",),
    ),
    Name(
        "cluster_rebalance",
        "rebalance",
        v.choice("off", "timer", "appoint", "on-demand", "run"),
        "when masters are spread anew: on-demand = by ctl rebalance; timer = by the clock, too; "
        "run = once at every start, too; appoint, off = only when a queue and a node are named",
        also=("cluster_rebalance.trigger",),
    ),
    Name(
        "cluster_rebalance.interval",
        "rebalance_interval_ms",
        v.duration(1000, 24 * HOUR_MS),
        "with cluster_rebalance = timer: time between two looks",
    ),
    Name(
        "cluster_rebalance.strategy",
        "rebalance_strategy",
        v.rebalance_strategy,
        "what is evened out: masters, connections, messages; or masters, dealt random or round-robin",
    ),
    Name(
        "cluster_partition_handling",
        "partition_handling",
        v.partition_handling,
        "what a node does that is cut off from the majority: pause_minority = serve nobody until it is back,"
        " stop_processing = keep clients waiting, ignore = go on where that is safe, pause_if_all_down ="
        " pause if none of some nodes is in reach, autoheal = go on with branches that are merged later",
        also=("cluster_partition_handling.mode",),
    ),
    Name(
        "cluster_partition_handling.pause_if_all_down.nodes",
        "partition_nodes",
        v.node_name,
        "with pause_if_all_down: nodes of which one must be in reach",
        Shape.LIST,
    ),
    Name(
        "cluster_partition_handling.pause_if_all_down.recover",
        "",
        v.partition_recover,
        "what a node does while one is: ignore",
    ),
    Name(
        "death_certificate",
        "death_certificate",
        v.flag,
        "a link that ends tells the others that the node is dead; off where something between may cut links",
    ),
    Name(
        "cluster_formation.peer_discovery_backend",
        "",
        v.discovery_backend,
        "how nodes find each other: by the list in cluster_nodes",
    ),
    Name("coordinator", "coordinator", v.choice("raft", "etcd"), "what the nodes agree by (docs/etcd.md)"),
    Name("etcd.endpoints", "etcd.endpoints", v.endpoint, "members of etcd: http://host:2379", Shape.LIST),
    Name("etcd.prefix", "etcd.prefix", v.prefix, "what the keys of this cluster begin with; /mirrormq"),
    Name("etcd.user", "etcd.user", v.text, "user of etcd, if it asks for one"),
    Name("etcd.password", "etcd.password", v.text, "password of that user", secret=True),
    Name("etcd.cacertfile", "etcd.cacertfile", v.text, "authorities of etcd's certificates, PEM"),
    Name("etcd.certfile", "etcd.certfile", v.text, "certificate shown to etcd, PEM"),
    Name("etcd.keyfile", "etcd.keyfile", v.text, "private key of that certificate, PEM"),
    # links between nodes
    Name("cluster_listen", "links.listen", v.address, "where to listen for other nodes: port or host:port"),
    Name("cluster_advertise", "links.advertise", v.address, "host:port at which other nodes reach this one"),
    Name("cluster_secret", "links.secret", v.text, "what all nodes of the cluster know", secret=True),
    Name("cluster_tls.certfile", "links.tls.certfile", v.text, "certificate for links between nodes, PEM"),
    Name("cluster_tls.keyfile", "links.tls.keyfile", v.text, "private key of that certificate, PEM"),
    Name("cluster_tls.password", "links.tls.password", v.text, "password of that key", secret=True),
    Name("cluster_tls.cacertfile", "links.tls.cacertfile", v.text, "authorities of the nodes, PEM"),
    Name(
        "cluster_tls.versions",
        "links.tls.versions",
        v.choice("tlsv1.2", "tlsv1.3"),
        "versions of TLS between nodes",
        Shape.LIST,
    ),
    Name(
        "cluster_tls.check_host",
        "links.tls.check_host",
        v.flag,
        "a node's certificate must name the host at which it was dialled",
    ),
    # protocol
    Name(
        "auth_mechanisms",
        "auth_mechanisms",
        v.choice("PLAIN", "AMQPLAIN", "EXTERNAL"),
        "mechanisms offered; if not given PLAIN and AMQPLAIN, and EXTERNAL on TLS with verify_peer",
        Shape.LIST,
    ),
    Name(
        "auth_backends",
        "",
        v.choice("internal", "rabbit_auth_backend_internal"),
        "where users live",
        Shape.LIST,
    ),
    Name("handshake_timeout", "handshake_timeout_ms", v.duration(100, HOUR_MS), "time to log in"),
    Name("heartbeat", "heartbeat_s", v.whole(0, 65535), "heartbeat proposed to clients, seconds; 0 = none"),
    Name("frame_max", "frame_max", v.whole(4096, 2**31 - 1), "largest frame offered to clients, bytes"),
    Name("channel_max", "channel_max", v.whole(0, 65535), "channels per connection; 0 = 65535"),
    Name(
        "connection_max",
        "connection_max",
        v.number_or("infinity", 0, 0, 10**9),
        "connections to this node; infinity = as many as files may be open",
    ),
    Name("max_message_size", "max_message_bytes", v.size, "largest message body"),
    Name(
        "consumer_timeout",
        "consumer_timeout_ms",
        v.duration_or_never(1000, 10_000 * HOUR_MS),
        "time a consumer may hold a message unacknowledged; undefined = for ever",
    ),
    Name(
        "publish_ahead_bytes",
        "publish_ahead_bytes",
        v.size,
        "ready bytes a publisher may be ahead of the consumers of a queue before it has to wait",
    ),
    # durability
    Name(
        "fsync",
        "fsync",
        v.choice("always", "interval", "never"),
        "when queue data is flushed: always = before a publish is confirmed; "
        "interval = every fsync_interval; never = when the operating system likes",
    ),
    Name(
        "fsync_interval",
        "fsync_interval_ms",
        v.duration(1, 60_000),
        "with fsync = interval: what a power failure may take, in time",
    ),
    # access
    Name("default_user", "default_user.name", v.text, "user made in an empty data folder"),
    Name("default_pass", "default_user.password", v.text, "password of that user", secret=True),
    Name("default_vhost", "default_user.vhost", v.text, "vhost made in an empty data folder"),
    Name("default_user_tags", "default_user.tags", v.text, "tags of that user", Shape.SET),
    Name(
        "default_permissions.configure", "default_user.configure", v.text, "that user's configure permission"
    ),
    Name("default_permissions.write", "default_user.write", v.text, "that user's write permission"),
    Name("default_permissions.read", "default_user.read", v.text, "that user's read permission"),
    Name(
        "loopback_users", "loopback_users", v.text, "users that may log in from this machine only", Shape.SET
    ),
    Name(
        "password_hashing.argon2.memory",
        "argon2_memory_kib",
        v.whole(8, 4 * 1024 * 1024),
        "memory of one password hash, KiB",
    ),
    Name("password_hashing.argon2.passes", "argon2_passes", v.whole(1, 100), "passes of one password hash"),
    Name("password_hashing.argon2.lanes", "argon2_lanes", v.whole(1, 64), "lanes of one password hash"),
    Name(
        "load_definitions",
        "load_definitions",
        v.text,
        "definitions file read at every start",
        also=("management.load_definitions", "definitions.local.path"),
    ),
    # queues
    Name(
        "queue_master_locator",
        "queue_master_locator",
        v.choice(*LOCATORS),
        "how the node of a new queue's master is chosen, unless an argument or a policy says",
        also=("queue_leader_locator",),
    ),
    Name(
        "ha_defaults",
        "ha_defaults",
        v.choice("safe", "rabbitmq"),
        "what applies to mirrored queues where their policies say nothing: safe, or RabbitMQ's values",
    ),
    Name(
        "mirroring_policy",
        "mirroring_policies",
        v.text,
        "policies that a new cluster begins with",
        Shape.TABLES,
    ),
    Name(
        "sync_strategy",
        "sync_strategy",
        v.choice("full", "incremental", "event"),
        "how `mirrormq pipeline mirror` synchronises, if it is not told",
    ),
    Name(
        "sync_interval",
        "sync_interval_ms",
        v.duration(100, 24 * HOUR_MS),
        "how often `mirrormq pipeline mirror` looks for news, if it is not told",
    ),
    Name("events", "events", v.flag, "keep what happens in the cluster in the queue mirrormq.events"),
    Name("samples", "samples", v.flag, "keep counters of every second in the queue mirrormq.samples"),
    # staying alive
    Name(
        "vm_memory_high_watermark.relative",
        "memory_limit",
        v.memory_share,
        "memory alarm as a part of the memory",
    ),
    Name("vm_memory_high_watermark.absolute", "memory_limit", v.size, "memory alarm as a size"),
    Name("vm_memory_high_watermark", "memory_limit", v.share_or_size, "memory alarm, either way"),
    Name(
        "total_memory_available_override_value",
        "memory_total_bytes",
        v.size,
        "memory to reckon with; 0 = look",
    ),
    Name("disk_free_limit.relative", "disk_free_limit", v.share, "disk alarm as a part of the memory"),
    Name("disk_free_limit.absolute", "disk_free_limit", v.size, "disk alarm as a size"),
    Name("disk_free_limit", "disk_free_limit", v.size, "disk alarm as a size"),
    Name(
        "disk_reserve",
        "disk_reserve_bytes",
        v.size,
        "space kept back in the data folder, so that queues can be drained when the disk is full; 0 = none",
    ),
    # admin API
    Name("management.enabled", "admin", v.flag, "serve the admin API"),
    Name(
        "management.tcp.ip",
        "admin_host",
        v.text,
        "address of the admin API",
        also=("management.listener.ip",),
    ),
    Name(
        "management.tcp.port",
        "admin_port",
        v.whole(0, 65535),
        "port of the admin API",
        also=("management.listener.port",),
    ),
    Name("management.ssl.ip", "admin_tls_host", v.text, "address of the admin API with TLS"),
    Name("management.ssl.port", "admin_tls_port", v.whole(0, 65535), "port of the admin API with TLS"),
    Name(
        "management.cors.allow_origins",
        "web.origins",
        v.text,
        "origins whose pages may use the admin API; * = all",
        Shape.LIST,
    ),
    Name("management.cors.max_age", "web.max_age", v.whole(0, 86_400), "seconds a browser remembers that"),
    Name("management.csp.policy", "web.content_policy", v.text, "Content-Security-Policy of API answers"),
    Name("management.hsts.policy", "web.transport_policy", v.text, "Strict-Transport-Security over TLS"),
    Name(
        "prometheus.tcp.ip",
        "prometheus_host",
        v.text,
        "address of the port for Prometheus; that of the admin API if not given",
    ),
    Name(
        "prometheus.tcp.port",
        "prometheus_port",
        v.whole(0, 65535),
        "port for Prometheus without a log-in, 15692 in RabbitMQ; 0 = none",
    ),
    # logs
    Name("log.default.level", "log.level", LEVEL, "least level of the lines written", also=("log.level",)),
    Name("log.format", "log.form", v.choice("text", "json"), "form of all lines: for people, or programs"),
    Name(
        "log.console",
        "log.console",
        v.flag,
        "write to standard error; the default if there is no file",
        also=("log.console.enabled",),
    ),
    Name("log.console.level", "log.console_level", LEVEL, "least level on standard error"),
    Name("log.console.formatter", "log.console_format", v.choice("plaintext", "json"), "form of those lines"),
    Name("log.file", "log.file", v.text, "file to write to, false for none", also=("log.file.path",)),
    Name("log.dir", "log.folder", v.text, "folder of a log file given without one"),
    Name("log.file.level", "log.file_level", LEVEL, "least level in the file"),
    Name("log.file.formatter", "log.file_format", v.choice("plaintext", "json"), "form of those lines"),
    Name(
        "log.file.rotation.size",
        "log.rotate_bytes",
        v.size,
        "size at which a new file is begun; 0 = never",
        also=("log.default.rotation.size",),
    ),
    Name(
        "log.file.rotation.count",
        "log.rotate_count",
        v.whole(0, 1000),
        "old files kept",
        also=("log.default.rotation.count",),
    ),
)

MAY_BE_EMPTY = ("cluster_nodes.disc_copies", "disc_copies")
"""Keys of `key = value` lines whose value may be left out: nothing is listed then."""

LISTED = "the nodes are listed in cluster_nodes"
FOREVER = "nodes are tried until they answer"
RHYTHM = "nodes watch each other in a rhythm of their own"
BY_POLICY = "policies set it: ha-sync-batch-size, ha-sync-max-throughput"
TLS_LIBRARY = "the TLS library decides this"
ERLANG = "there is no Erlang runtime here"
SOCKET = "the event loop decides this"
LOG = "log lines have one level and one form per destination"
NO_PLUGIN = "this protocol is not part of MirrorMQ"

NAMES += tuple(
    name._replace(key=f"management.ssl.{option}", field=f"admin_tls.{option}", what=f"{name.what}; admin API")
    for name in NAMES
    if (option := name.key.removeprefix("ssl_options.")) != name.key
)

IGNORED: tuple[tuple[str, str], ...] = (
    ("num_acceptors.*", "one event loop accepts all connections"),
    ("initial_frame_max", "frames of the handshake are limited by a constant"),
    ("socket_writer.gc_threshold", ERLANG),
    ("background_gc_*", ERLANG),
    ("erlang.*", ERLANG),
    ("distributed_cookie", ERLANG),
    ("sysmon_handler.*", ERLANG),
    ("hipe_compile", ERLANG),
    ("delegate_count", ERLANG),
    ("default_worker_pool_size", ERLANG),
    ("distribution.*", ERLANG),
    ("net_ticktime", RHYTHM),
    ("cluster_keepalive_interval", RHYTHM),
    ("cluster_formation.discovery_retry_*", FOREVER),
    ("cluster_formation.lock_retry_*", "forming a cluster needs no lock"),
    ("cluster_formation.internal_lock_retries", "forming a cluster needs no lock"),
    ("cluster_formation.randomized_startup_delay_range.*", "nodes may start together"),
    ("cluster_formation.node_type", "every node keeps the definitions on its disk"),
    ("cluster_formation.*", LISTED),
    ("aws.*", LISTED),
    ("mirroring_sync_*", BY_POLICY),
    ("mnesia_table_loading_retry_*", "definitions are read from the node's own log"),
    ("raft.*", "definitions are written to the node's own log"),
    ("quorum_queue.*", "quorum queues are mirrored queues here"),
    ("classic_queue.default_version", "queues have one storage format"),
    ("queue_index_embed_msgs_below", "queues have one storage format"),
    ("message_store_shutdown_timeout", "see shutdown_timeout"),
    ("vhost_restart_strategy", "a vhost is no process that could stop by itself"),
    ("vm_memory_high_watermark_paging_ratio", "messages are not paged out before the alarm"),
    ("vm_memory_calculation_strategy", "memory is what the process occupies (rss)"),
    ("memory_monitor_interval", "memory is looked at every second"),
    ("collect_statistics", "counters are always kept"),
    ("collect_statistics_interval", "counters are always kept"),
    ("reverse_dns_lookups", "connections are shown by address"),
    (
        "password_hashing_module",
        "new passwords are hashed with argon2id; imported hashes keep their algorithm",
    ),
    ("credential_validator.*", "passwords are not checked for their form"),
    ("definitions.import_backend", "definitions are read from a local file"),
    ("definitions.skip_if_unchanged", "definitions are compared one by one"),
    ("definitions.hashing.algorithm", "definitions are compared one by one"),
    ("product.*", "clients choose their behaviour by RabbitMQ's product and version"),
    ("motd_file", "clients are shown no message of the day"),
    ("tcp_listen_options", SOCKET),
    ("tcp_listen_options.*", SOCKET),
    ("ssl_allow_poodle_attack", "the versions of TLS concerned are not offered"),
    ("ssl_options", "TLS is off until listeners.ssl is set"),
    ("ssl_options.bypass_pem_cache", "there is no such cache; SIGHUP reads the files again"),
    ("ssl_options.client_renegotiation", TLS_LIBRARY),
    ("ssl_options.depth", TLS_LIBRARY),
    ("ssl_options.honor_ecc_order", TLS_LIBRARY),
    ("ssl_options.log_alert", TLS_LIBRARY),
    ("ssl_options.log_level", TLS_LIBRARY),
    ("ssl_options.reuse_sessions", TLS_LIBRARY),
    ("ssl_options.secure_renegotiate", TLS_LIBRARY),
    ("log.*.level", LOG),
    ("log.*.file", LOG),
    ("log.*.rotation.*", "files are rotated by size"),
    ("log.console.*", LOG),
    ("log.file.*", LOG),
    ("log.exchange", "log lines are not published"),
    ("log.exchange.*", "log lines are not published"),
    ("log.syslog", "log lines go to standard error or a file"),
    ("log.syslog.*", "log lines go to standard error or a file"),
    ("log.journald", "systemd reads standard error"),
    ("log.journald.*", "systemd reads standard error"),
    ("management_agent.*", "counters are always kept"),
    ("management.listener.ssl", "only false has a meaning here"),
    ("management.*", "the admin API has no such setting"),
    ("prometheus.path", "metrics are at /metrics"),
    ("prometheus.return_per_object_metrics", "they are at /metrics/per-object"),
    ("prometheus.*", "the port for Prometheus has no such setting"),
    ("event_exchange.*", "the event exchange is `amq.rabbitmq.event` in the vhost `/`"),
    ("mqtt.*", NO_PLUGIN),
    ("web_mqtt.*", NO_PLUGIN),
    ("stomp.*", NO_PLUGIN),
    ("web_stomp.*", NO_PLUGIN),
    ("stream.*", NO_PLUGIN),
    ("amqp1_0.*", NO_PLUGIN),
    ("auth_cache.*", "a successful log-in is remembered in memory"),
)
"""Patterns of RabbitMQ's keys without a meaning here, and why. The first that fits counts."""

REFUSED: tuple[tuple[str, str], ...] = (
    ("auth_backends.*", "users live in the node; only auth_backends.1 = internal is known"),
    ("auth_ldap.*", "LDAP is not supported; users live in the node"),
    ("auth_http.*", "log-in by HTTP is not supported; users live in the node"),
    ("auth_oauth2.*", "OAuth 2 is not supported; users live in the node"),
    ("trust_store.*", "trusted certificates are those signed by ssl_options.cacertfile"),
    ("ssl_options.crl_check", "revocation lists are not read; remove the user or the authority instead"),
    ("ssl_options.cacerts.*", "give the file instead: ssl_options.cacertfile"),
    ("ssl_options.cert", "give the file instead: ssl_options.certfile"),
    ("ssl_options.key.*", "give the file instead: ssl_options.keyfile"),
    ("ssl_options.dh", "give the file instead: ssl_options.dhfile"),
    ("ssl_options.psk_identity", "pre-shared keys are not supported"),
    ("management.listener.ssl_opts.*", "give the same as management.ssl.*"),
    ("definitions.https.*", "definitions are read from a local file: load_definitions = FILE"),
    ("definitions.tls.*", "definitions are read from a local file: load_definitions = FILE"),
    ("node.role", "a cluster follows another one by mirrormq pipeline mirror"),
)
"""Patterns of keys that may not be passed over in silence, and why."""

OUTSIDE: tuple[str, ...] = (
    "MIRRORMQ_CONFIG",
    "MIRRORMQ_PASSWORD",
    "MIRRORMQ_URL",
    "MIRRORMQ_USER",
    "MIRRORMQ_SANITIZE",
    "MIRRORMQ_CYTHON_TRACE",
    "MIRRORMQ_TEST_*",
    "MIRRORMQ_BENCH_*",
)
"""Variables that are no settings: the configuration file itself, and those of ctl, builds and tests."""

SERVICE_LINKS = (
    r"MIRRORMQ_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that Kubernetes and Docker make for a service named mirrormq; they are not meant for us."""
