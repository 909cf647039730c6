"""What the commands of `mirrormqctl` show and refuse, as a table for test_ctl_commands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A command: a good line with what it shows, and a bad one with its code and reason."""

    line: str
    """`{n}` is another word each time it is run, and `{port}` the port of AMQP."""
    shows: str
    """Pattern of the lines."""
    bad: str
    code: int
    says: str
    """Pattern of the reason."""
    has: str = '"result": "ok"'
    """Part of the JSON."""

    @property
    def name(self) -> str:
        return self.line.split()[0]


NO_VHOST = "Virtual host 'nowhere' does not exist"
CASES = [
    # --- virtual hosts ---
    Case("add_vhost new{n}", r'Adding vhost "new', "add_vhost", 64, "not enough arguments"),
    Case("delete_vhost old{n}", r'Deleting vhost "old', "delete_vhost nowhere", 65, "does not exist"),
    Case("list_vhosts name tags", r"shop\t\[a\]", "list_vhosts size", 64, "size", has='"name": "shop"'),
    Case("set_vhost_tags tagged b c", r"\[b, c\]", "set_vhost_tags nowhere b", 65, NO_VHOST),
    Case(
        'set_vhost_limits -p shop {{"max-queues":9}}',
        "Setting vhost limits",
        "set_vhost_limits {{",
        65,
        "JSON",
    ),
    Case(
        "list_vhost_limits -p limited",
        r"\{\"max-queues\":5\}",
        "list_vhost_limits -p nowhere",
        65,
        NO_VHOST,
        has="5",
    ),
    Case("clear_vhost_limits -p tagged", "Clearing vhost", "clear_vhost_limits -p nowhere", 65, NO_VHOST),
    # --- users ---
    Case("add_user new{n} pw", 'Adding user "new', "add_user ann pw", 70, "already exists"),
    Case("delete_user old{n}", 'Deleting user "old', "delete_user nobody", 67, "does not exist"),
    Case("change_password ann pw", "Changing password", "change_password nobody pw", 67, "does not exist"),
    Case("clear_password bob", "Clearing password", "clear_password nobody", 67, "does not exist"),
    Case("authenticate_user ann pw", "Success", "authenticate_user ann wrong", 65, "failed|invalid"),
    Case("set_user_tags bob monitoring", "Setting tags", "set_user_tags nobody a", 67, "does not exist"),
    Case("list_users", r"ann\t\[\]", "list_users x", 64, "too many", has='"user": "ann"'),
    Case(
        'set_user_limits bob {{"max-channels":3}}', "Setting user limits", "set_user_limits bob x", 65, "JSON"
    ),
    Case(
        "list_user_limits --user eve",
        r"\{\"max-channels\":7\}",
        "list_user_limits --user nobody",
        67,
        "exist",
        has="7",
    ),
    Case("clear_user_limits bob all", "Clearing", "clear_user_limits nobody all", 67, "does not exist"),
    # --- permissions ---
    Case(
        "set_permissions -p shop bob .* .* .*",
        "Setting permissions",
        "set_permissions bob ( . .",
        65,
        "regex|pattern",
    ),
    Case(
        "list_permissions -p shop",
        r"ann\t\.\*",
        "list_permissions -p nowhere",
        65,
        NO_VHOST,
        has='"user": "ann"',
    ),
    Case(
        "list_user_permissions ann",
        r"shop\t\.\*",
        "list_user_permissions nobody",
        67,
        "exist",
        has='"vhost": "shop"',
    ),
    Case(
        "clear_permissions -p shop bob",
        "Clearing permissions",
        "clear_permissions nobody",
        67,
        "does not exist",
    ),
    Case(
        "set_topic_permissions -p shop bob amq.topic a b",
        "Setting topic",
        "set_topic_permissions nobody x a b",
        67,
        "exist",
    ),
    Case(
        "list_topic_permissions -p shop",
        "ann\tamq.topic",
        "list_topic_permissions -p nowhere",
        65,
        NO_VHOST,
        has="amq.topic",
    ),
    Case(
        "list_user_topic_permissions ann",
        "shop\tamq.topic",
        "list_user_topic_permissions nobody",
        67,
        "exist",
        has="amq.topic",
    ),
    Case(
        "clear_topic_permissions -p shop bob",
        "Clearing topic",
        "clear_topic_permissions nobody",
        67,
        "does not exist",
    ),
    # --- policies and parameters ---
    Case('set_policy -p shop p{n} ^p {{"max-length":5}}', "Setting policy", "set_policy p ^p {{", 65, "JSON"),
    Case(
        "list_policies -p shop", "shop\tkept", "list_policies -p nowhere", 65, NO_VHOST, has='"name": "kept"'
    ),
    Case(
        "clear_policy -p shop gone{n}",
        "Clearing policy",
        "clear_policy never",
        69,
        "[Nn]ot found|does not exist",
    ),
    Case(
        'set_operator_policy o{n} ^p {{"max-length":5}}',
        "Setting operator",
        'set_operator_policy p ^p {{"x":1}}',
        65,
        "x",
    ),
    Case(
        "list_operator_policies -p shop",
        "shop\tbound",
        "list_operator_policies -p nowhere",
        65,
        NO_VHOST,
        has='"name": "bound"',
    ),
    Case(
        "clear_operator_policy -p shop ogone{n}",
        "Clearing operator",
        "clear_operator_policy never",
        69,
        "found|exist",
    ),
    Case("set_global_parameter g{n} 1", "Setting global", "set_global_parameter g {{", 65, "JSON"),
    Case(
        "list_global_parameters", "kept\t", "list_global_parameters x", 64, "too many", has='"name": "kept"'
    ),
    Case(
        "clear_global_parameter gone{n}", "Clearing global", "clear_global_parameter never", 69, "found|exist"
    ),
    Case(
        'set_parameter -p shop vhost-limits limits {{"max-queues":9}}',
        "Setting runtime",
        "set_parameter x y {{",
        65,
        "JSON",
    ),
    Case(
        "list_parameters -p limited",
        "vhost-limits\tlimits",
        "list_parameters -p nowhere",
        65,
        NO_VHOST,
        has="vhost-limits",
    ),
    Case(
        "clear_parameter -p cleared{n} vhost-limits limits",
        "Clearing runtime",
        "clear_parameter x y",
        69,
        "found|exist|no",
    ),
    Case("set_cluster_name us", "Setting cluster name", "set_cluster_name", 64, "not enough"),
    # --- lists ---
    Case(
        "list_queues -p shop name messages",
        "orders\t2",
        "list_queues -p nowhere",
        65,
        NO_VHOST,
        has='"messages": 2',
    ),
    Case(
        "list_exchanges -p shop",
        "amq.topic\ttopic",
        "list_exchanges -p nowhere",
        65,
        NO_VHOST,
        has='"type": "topic"',
    ),
    Case(
        "list_bindings -p shop",
        "amq.topic\texchange\torders",
        "list_bindings -p nowhere",
        65,
        NO_VHOST,
        has='"routing_key": "k"',
    ),
    Case(
        "list_connections user vhost",
        "guest\tshop",
        "list_connections colour",
        64,
        "colour",
        has='"vhost": "shop"',
    ),
    Case(
        "list_channels user vhost", "guest\tshop", "list_channels colour", 64, "colour", has='"vhost": "shop"'
    ),
    Case(
        "list_consumers -p shop",
        "idle\t",
        "list_consumers -p nowhere",
        65,
        NO_VHOST,
        has='"queue_name": "idle"',
    ),
    Case(
        "list_unresponsive_queues -p shop",
        "Listing unresponsive",
        "list_unresponsive_queues -p nowhere",
        65,
        NO_VHOST,
        has="[]",
    ),
    Case(
        "list_feature_flags",
        "quorum_queue\tenabled",
        "list_feature_flags colour",
        64,
        "colour",
        has='"state": "enabled"',
    ),
    Case("enable_feature_flag all", "Enabling all", "enable_feature_flag no_such_flag", 64, "not supported"),
    # --- the node ---
    Case("status", "Node name: ", "status x", 64, "too many", has='"alarms": []'),
    Case("cluster_status", "Disk Nodes", "cluster_status x", 64, "too many", has='"running_nodes"'),
    Case("environment", "heartbeat = 60", "environment x", 64, "too many", has='"heartbeat": 60'),
    Case("ping", "Ping succeeded", "ping x", 64, "too many"),
    Case("version", r"^\d+\.\d+", "version x", 64, "too many", has='"version"'),
    Case("server_version", r"\d+\.\d+", "server_version x", 64, "too many"),
    Case("await_startup", "", "await_startup x", 64, "too many"),
    Case("await_online_nodes 1", "Will wait", "await_online_nodes 9 -t 0.1", 70, "Not enough nodes"),
    Case("report", "Queues of virtual host shop", "report x", 64, "too many", has='"list_users"'),
    Case("autocomplete list_q", "list_queues", "autocomplete a b", 64, "too many", has='"list_queues"'),
    Case("listeners", "port: {port}, protocol: amqp", "listeners x", 64, "too many", has='"port": {port}'),
    Case("alarms", "reported no alarms", "alarms x", 64, "too many", has='"local": []'),
    Case("is_running", "fully booted", "is_running x", 64, "too many", has='"running": true'),
    Case("is_booting", "not booting", "is_booting x", 64, "too many", has='"booting": false'),
    Case("log_location", "node.log", "log_location x", 64, "too many", has="node.log"),
    Case(
        "log_tail -N 1",
        "memory alarm|accepting|info",
        "log_tail -N 0",
        64,
        "--number",
        has='"lines"',
    ),
    Case(
        "memory_breakdown --unit mb",
        r"other: [\d.]+ mb \([\d.]+%\)",
        "memory_breakdown --unit ell",
        64,
        "ell",
        has='"total"',
    ),
    Case(
        "command_line_arguments",
        "mirrormq.testing",
        "command_line_arguments x",
        64,
        "too many",
        has="mirrormq.testing",
    ),
    Case("os_env", r"RABBITMQ_TEST_PASSWORD=\[hidden\]", "os_env x", 64, "too many", has='"[hidden]"'),
    Case(
        "list_network_interfaces",
        "lo\t.*127.0.0.1",
        "list_network_interfaces x",
        64,
        "too many",
        has='"127.0.0.1"',
    ),
    Case(
        "resolve_hostname localhost",
        r"127\.0\.0\.1|::1",
        "resolve_hostname no.such.host.invalid",
        69,
        "no address",
    ),
    Case("discover_peers", "No peers", "discover_peers x", 64, "too many", has='"nodes": []'),
    Case("tls_versions", "tlsv1.3\ntlsv1.2", "tls_versions x", 64, "too many", has='"tlsv1.3"'),
    Case(
        "cipher_suites",
        "TLS_AES_256_GCM_SHA384",
        "cipher_suites --format erlang",
        64,
        "OpenSSL",
        has='"openssl"',
    ),
    Case(
        "certificates",
        "CN=localhost\tCN=interop test authority",
        "certificates x",
        64,
        "too many",
        has="CN=localhost",
    ),
    Case(
        "check_certificate_expiration --within 0",
        "No certificate",
        "check_certificate_expiration",
        69,
        "valid until",
    ),
    Case("check_running", "fully booted and running", "check_running x", 64, "too many"),
    Case("check_alarms", "no alarms", "check_alarms x", 64, "too many"),
    Case("check_local_alarms", "no local alarms", "check_local_alarms x", 64, "too many"),
    Case("check_virtual_hosts", "all vhosts as running", "check_virtual_hosts x", 64, "too many"),
    Case("check_port_connectivity", "Successfully connected", "check_port_connectivity x", 64, "too many"),
    Case("check_port_listener {port}", "is running", "check_port_listener 1", 69, "No listener for port 1"),
    Case(
        "check_protocol_listener amqp",
        "is running",
        "check_protocol_listener mqtt",
        69,
        "No listener for protocol",
    ),
    Case(
        "check_if_node_is_mirror_sync_critical",
        "alone",
        "check_if_node_is_mirror_sync_critical x",
        64,
        "too many",
    ),
    Case("check_if_node_is_quorum_critical", "alone", "check_if_node_is_quorum_critical x", 64, "too many"),
    Case("await_online_quorum_plus_one", "can stop", "await_online_quorum_plus_one x", 64, "too many"),
    Case(
        "await_online_synchronized_mirror", "can stop", "await_online_synchronized_mirror x", 64, "too many"
    ),
    Case(
        "list_node_auth_attempt_stats --by-source",
        "guest\tamqp091",
        "list_node_auth_attempt_stats x",
        64,
        "too many",
        has='"attempts": [',
    ),
    Case(
        "reset_node_auth_attempt_metrics", "Resetting", "reset_node_auth_attempt_metrics x", 64, "too many"
    ),
    Case(
        "disable_auth_attempt_source_tracking",
        "Disabling",
        "disable_auth_attempt_source_tracking x",
        64,
        "too many",
    ),
    Case(
        "enable_auth_attempt_source_tracking",
        "Enabling",
        "enable_auth_attempt_source_tracking x",
        64,
        "too many",
    ),
    Case("node_health_check", "passed", "node_health_check x", 64, "too many"),
    Case("rotate_logs", "Reopening the log", "rotate_logs x", 64, "too many"),
    Case("suspend_listeners", "Will suspend", "suspend_listeners x", 64, "too many"),
    Case("resume_listeners", "Will resume", "resume_listeners x", 64, "too many"),
    Case("set_log_level info", "Setting log level", "set_log_level loud", 64, "loud"),
    Case(
        "set_vm_memory_high_watermark 0.7", "above", "set_vm_memory_high_watermark 7", 64, "between 0 and 1"
    ),
    Case(
        "partition_handling pause",
        "pause_minority; this node is on the side of the majority",
        "partition_handling sometimes",
        65,
        "and not 'sometimes'",
        has='"handling": "pause_minority"',
    ),
    Case(
        "set_disk_free_limit 1MB",
        "below 1000000 bytes",
        "set_disk_free_limit much",
        65,
        "much",
        has="1000000",
    ),
    # --- acting ---
    Case("purge_queue -p shop purged", "Purging queue", "purge_queue never", 69, "never"),
    Case("delete_queue -p shop gone{n}", "deleted with 0", "delete_queue never", 64, "not found"),
    Case("close_connection {pid} bye", "Closing connection", "close_connection never bye", 69, "never|[Nn]o"),
    Case("close_all_connections -p tagged bye", "Closed 0", "close_all_connections", 64, "not enough"),
    Case(
        "close_all_user_connections eve bye", "Closed 0", "close_all_user_connections eve", 64, "not enough"
    ),
    Case(
        "export_definitions -",
        '"vhosts"',
        "export_definitions /no/such/folder/x",
        65,
        "does not exist",
        has='"vhosts"',
    ),
    Case(
        "import_definitions {file}", "Successfully", "import_definitions /no/such/file", 65, "does not exist"
    ),
]
IDS = [case.name for case in CASES]
