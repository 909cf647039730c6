"""Configuration: one table of names for TOML, rabbitmq.conf, the environment and the command line."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mirrormq.meta.records import Policy
from mirrormq.runtime import config, names
from mirrormq.runtime.faults import ConfigError
from mirrormq.runtime.names import NAMES, Shape
from mirrormq.runtime.settings import Settings
from mirrormq.runtime.values import Address, Share

CONF = """
# a RabbitMQ configuration
listeners.tcp.default = 5673
listeners.tcp.other   = 127.0.0.1:5674   # inline comment
listeners.ssl.1 = 5671
ssl_options.certfile = /etc/cert.pem
ssl_options.keyfile = /etc/key.pem
ssl_options.versions.1 = tlsv1.3
heartbeat = 30
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 2GB
default_user_tags.monitoring = true
loopback_users.guest = false
loopback_users.local = true
consumer_timeout = 900000
log.file = node.log
log.file.rotation.size = 1MiB
num_acceptors.tcp = 10
"""

TOML = """
heartbeat = 30
vm_memory_high_watermark = 0.6
disk_free_limit = "2GB"
loopback_users = ["local"]
default_user_tags = ["monitoring"]
consumer_timeout = 900000
listeners.tcp = [5673, "127.0.0.1:5674"]

[listeners.ssl]
1 = 5671

[ssl_options]
certfile = "/etc/cert.pem"
keyfile = "/etc/key.pem"
versions = ["tlsv1.3"]

[log.file]
path = "node.log"
rotation.size = "1MiB"
"""


def load(
    tmp_path: Path,
    text: str = "",
    *,
    suffix: str = ".conf",
    environment: dict[str, str] | None = None,
    line: config.Source | None = None,
) -> config.Loaded:
    file = tmp_path / f"config{suffix}"
    file.write_text(text, encoding="utf-8")
    return config.load([str(file)], environment or {}, line or [], "here")


def test_without_any_source_the_defaults_are_rabbitmqs() -> None:
    settings = config.load([], {}, [], "here").settings
    assert settings.node_name == "mirrormq@here"
    assert settings.data_dir == "data/mirrormq@here"
    assert settings.listen == (Address("", 5672),)
    assert (settings.heartbeat_s, settings.frame_max, settings.channel_max) == (60, 131072, 2047)
    assert settings.memory_limit == Share(0.4)
    assert settings.disk_free_limit == 50_000_000
    assert settings.default_user.name == "guest"
    assert settings.loopback_users == ("guest",)


def test_a_rabbitmq_conf_and_a_toml_file_mean_the_same(tmp_path: Path) -> None:
    from_conf = load(tmp_path, CONF)
    from_toml = load(tmp_path, TOML, suffix=".toml")
    assert replace(from_conf.settings, config_files=()) == replace(from_toml.settings, config_files=())
    settings = from_conf.settings
    assert settings.listen == (Address("", 5673), Address("127.0.0.1", 5674))
    assert settings.listen_tls == (Address("", 5671),)
    assert settings.tls.versions == ("tlsv1.3",)
    assert settings.heartbeat_s == 30
    assert settings.memory_limit == Share(0.6)
    assert settings.disk_free_limit == 2_000_000_000
    assert settings.default_user.tags == ("monitoring",)
    assert settings.loopback_users == ("local",)
    assert settings.log.file == "node.log"
    assert settings.log.rotate_bytes == 1024 * 1024


def test_an_ignored_key_gives_one_warning_with_its_reason(tmp_path: Path) -> None:
    warnings = load(tmp_path, CONF).warnings
    assert len(warnings) == 1
    assert "num_acceptors.tcp is ignored: one event loop" in warnings[0]


def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 2: unknown setting heartbeet; did you mean heartbeat\?"):
        load(tmp_path, "\nheartbeet = 3")
    with pytest.raises(ConfigError, match="unknown setting zzzzz"):
        load(tmp_path, "zzzzz = 3")


def test_an_unknown_variable_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"MIRRORMQ_HEARTBEET; did you mean MIRRORMQ_HEARTBEAT\?"):
        config.load([], {"MIRRORMQ_HEARTBEET": "3"}, [], "here")


def test_variables_of_kubernetes_and_of_tools_are_left_alone() -> None:
    foreign = {
        "MIRRORMQ_SERVICE_HOST": "10.0.0.1",
        "MIRRORMQ_SERVICE_PORT_AMQP": "5672",
        "MIRRORMQ_PORT": "tcp://10.0.0.1:5672",
        "MIRRORMQ_PORT_5672_TCP_ADDR": "10.0.0.1",
        "MIRRORMQ_PASSWORD": "secret",
        "MIRRORMQ_TEST_ANYTHING": "1",
    }
    assert config.load([], foreign, [], "here") == config.load([], {}, [], "here")


def test_the_environment_wins_over_files_and_the_command_line_over_both(tmp_path: Path) -> None:
    environment = {
        "MIRRORMQ_HEARTBEAT": "20",
        "MIRRORMQ_FRAME_MAX": "8192",
        "MIRRORMQ_LISTENERS_TCP": "5680, [::1]:5681",
    }
    line = [config.Given("heartbeat", "10", "option --set")]
    settings = load(tmp_path, CONF, environment=environment, line=line).settings
    assert settings.heartbeat_s == 10
    assert settings.frame_max == 8192
    assert settings.listen == (Address("", 5680), Address("::1", 5681))


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text("heartbeat = 7", encoding="utf-8")
    assert config.load([], {"MIRRORMQ_CONFIG": str(file)}, [], "here").settings.heartbeat_s == 7


def test_later_files_win(tmp_path: Path) -> None:
    first, second = tmp_path / "a.conf", tmp_path / "b.conf"
    first.write_text("heartbeat = 7\nchannel_max = 5", encoding="utf-8")
    second.write_text("heartbeat = 8", encoding="utf-8")
    settings = config.load([str(first), str(second)], {}, [], "here").settings
    assert (settings.heartbeat_s, settings.channel_max) == (8, 5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("heartbeat = soon", "heartbeat: expected a whole number"),
        ("heartbeat", "expected 'key = value'"),
        ("listeners.tcp = none", "No listener is left"),
        ("listeners.ssl.1 = 5671", "needs ssl_options.certfile"),
        ("ssl_options.verify = verify_peer", "needs ssl_options.cacertfile"),
        ("proxy_protocol = true", "needs proxy_protocol_sources"),
        ("auth_backends.1 = ldap", "expected internal"),
        ("auth_backends.1.authn = ldap", "cannot be honoured"),
        ("management.ssl.port = 15671", "needs management.ssl.certfile"),
        ("management.ssl.verify = verify_peer", "needs management.ssl.cacertfile"),
        ("management.listener.ssl_opts.certfile = c.pem", "cannot be honoured"),
        ("node.role = mirror", "cannot be honoured"),
        ("default_user_tags.administrator = maybe", "is true or false"),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_it(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_the_value_of_a_secret_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("default_pass = 12345", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        config.load([str(file)], {}, [], "here")
    assert "12345" not in str(caught.value)


def test_the_one_known_backend_is_accepted(tmp_path: Path) -> None:
    assert load(tmp_path, "auth_backends.1 = internal").settings == load(tmp_path, "").settings


def test_sources_of_the_proxy_protocol_are_networks(tmp_path: Path) -> None:
    text = "proxy_protocol = true\nproxy_protocol_sources.1 = 10.0.0.0/8\nproxy_protocol_sources.2 = ::1"
    assert load(tmp_path, text).settings.proxy_sources == (
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_network("::1/128"),
    )


def test_an_unreadable_or_foreign_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        config.load([str(tmp_path / "missing.toml")], {}, [], "here")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(tmp_path, "a = ", suffix=".toml")
    with pytest.raises(ConfigError, match=r"advanced\.config"):
        load(tmp_path, "[{rabbit, [{heartbeat, 5}]}].", suffix=".config")


def test_a_file_without_a_known_suffix_is_recognised_by_its_text(tmp_path: Path) -> None:
    assert load(tmp_path, "listeners.tcp.default = 5000", suffix="").settings.listen[0].port == 5000
    assert load(tmp_path, "listeners.tcp.default = 127.0.0.1:5000", suffix="").settings.listen[0].port == 5000


def test_every_name_fills_a_field_that_exists() -> None:
    for name in NAMES:
        owner: object = Settings()
        for part in filter(None, name.field.split(".")):
            owner = getattr(owner, part)
        is_many = isinstance(owner, tuple) or owner is None
        assert (name.shape is Shape.ONE) or name.field == "" or is_many, name


def test_no_key_and_no_variable_stands_for_two_settings() -> None:
    keys = [key for name in NAMES for key in (name.key, *name.also)]
    variables = [config.variable(key) for key in keys]
    assert len(set(keys)) == len(keys)
    assert len(set(variables)) == len(variables)


def test_no_named_setting_is_also_ignored_for_another_reason() -> None:
    fields = {name.field for name in NAMES}
    assert "tls.password" in fields
    assert all(reason and not reason.endswith(".") for _, reason in (*names.IGNORED, *names.REFUSED))


def test_queue_data_is_flushed_before_a_confirm_unless_told_otherwise() -> None:
    settings = config.load([], {}, [], "here").settings
    assert (settings.fsync, settings.fsync_interval_ms) == ("always", 1000)
    given = [config.Given("fsync", "interval", "test"), config.Given("fsync_interval", "250ms", "test")]
    settings = config.load([], {}, given, "here").settings
    assert (settings.fsync, settings.fsync_interval_ms) == ("interval", 250)
    with pytest.raises(ConfigError, match="expected always or interval or never"):
        config.load([], {}, [config.Given("fsync", "sometimes", "test")], "here")


POLICY_CONF = """
mirroring_policy.ha.two.pattern = ^ha[.]
mirroring_policy.ha.two.definition.ha-mode = exactly
mirroring_policy.ha.two.definition.ha-params = 2
mirroring_policy.ha.two.apply_to = queues
mirroring_policy.ha.two.priority = 7
mirroring_policy.lazy.definition = {"queue-mode": "lazy"}
mirroring_policy.some.definition.ha-mode = nodes
mirroring_policy.some.definition.ha-params = ["rabbit@a", "rabbit@b"]
"""
POLICY_TOML = """
[[mirroring_policy]]
name = "ha.two"
pattern = "^ha[.]"
definition = { ha-mode = "exactly", ha-params = 2 }
apply-to = "queues"
priority = 7

[[mirroring_policy]]
name = "lazy"
definition.queue-mode = "lazy"

[[mirroring_policy]]
name = "some"
definition = { ha-mode = "nodes", ha-params = ["rabbit@a", "rabbit@b"] }
"""
POLICY_TABLES = """
[mirroring_policy."ha.two"]
pattern = "^ha[.]"
definition = { ha-mode = "exactly", ha-params = 2 }
apply-to = "queues"
priority = 7

[mirroring_policy.lazy.definition]
queue-mode = "lazy"

[mirroring_policy.some]
definition = { ha-mode = "nodes", ha-params = ["rabbit@a", "rabbit@b"] }
"""
POLICIES = (
    Policy("/", "ha.two", "^ha[.]", {"ha-mode": "exactly", "ha-params": 2}, apply_to="queues", priority=7),
    Policy("/", "lazy", ".*", {"queue-mode": "lazy"}),
    Policy("/", "some", ".*", {"ha-mode": "nodes", "ha-params": ["rabbit@a", "rabbit@b"]}),
)


def test_first_policies_can_be_written_in_every_form(tmp_path: Path) -> None:
    assert load(tmp_path, POLICY_CONF).settings.mirroring_policies == POLICIES
    assert load(tmp_path, POLICY_TOML, suffix=".toml").settings.mirroring_policies == POLICIES
    assert load(tmp_path, POLICY_TABLES, suffix=".toml").settings.mirroring_policies == POLICIES
    text = '[{"name": "lazy", "definition": {"queue-mode": "lazy"}, "apply_to": "all"}]'
    settings = load(tmp_path, POLICY_CONF, environment={"MIRRORMQ_MIRRORING_POLICY": text}).settings
    assert settings.mirroring_policies == POLICIES[1:2]


def test_first_policies_belong_to_the_default_vhost(tmp_path: Path) -> None:
    text = "default_vhost = prod\nmirroring_policy.p.definition.ha-mode = all\n"
    (policy,) = load(tmp_path, text).settings.mirroring_policies
    assert policy == Policy("prod", "p", ".*", {"ha-mode": "all"})
    assert load(tmp_path, text + "mirroring_policy.p.vhost = prod").settings.mirroring_policies == (policy,)
    with pytest.raises(ConfigError, match="for vhost 'x', which a new cluster does not have: its only one"):
        load(tmp_path, text + "mirroring_policy.p.vhost = x")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mirroring_policy.p.pattern = ^a", "line 1: mirroring_policy: policy 'p': no policy provided."),
        ("mirroring_policy.p.definition.ha-mode = some", "'p': \"some\" is not a valid ha-mode value"),
        (
            "mirroring_policy.p.definition.max-lenght = 1",
            "policy 'p': {\"max-lenght\": 1} are not recognised",
        ),
        ("mirroring_policy.p.definition = lazy", "mirroring_policy.p.definition: this is not JSON"),
        ("mirroring_policy.p.definition = 5", "is an object such as"),
        ("mirroring_policy.p.definitions = 5", "a policy has the settings pattern, definition"),
        ("mirroring_policy = ha-all", "mirroring_policy: this is not JSON"),
        ("mirroring_policy = 7", "expected a list of policies"),
        ("mirroring_policy = [7]", "every policy of the list is a table with a name"),
        ('mirroring_policy = {"name": "p", "patern": "a"}', "policy 'p' has no setting patern; there are"),
        ('mirroring_policy = {"name": "p", "pattern": "("}', "is not a valid regular expression"),
        ('mirroring_policy = {"name": "p", "priority": "high"}', "priority should be a number, not 'high'"),
        ('mirroring_policy = {"name": "p", "vhost": 1}', "pattern and vhost are texts"),
        ('mirroring_policy = {"name": "p", "apply-to": "cats"}', "apply-to 'cats' unrecognised"),
        ("queue_master_locator = anywhere", "queue_master_locator: expected client-local or min-masters"),
    ],
)
def test_a_wrong_first_policy_or_locator_stops_the_start(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_the_locator_has_rabbitmqs_names(tmp_path: Path) -> None:
    assert load(tmp_path, "").settings.queue_master_locator == "client-local"
    for key in ("queue_master_locator", "queue_leader_locator"):
        assert load(tmp_path, f"{key} = round-robin").settings.queue_master_locator == "round-robin"


def test_every_setting_is_in_the_manual(clone: Path) -> None:
    manual = (clone / "docs" / "configuration.md").read_text(encoding="utf-8")
    missing = [name.key for name in NAMES if f"`{name.key}`" not in manual]
    assert not missing, f"docs/configuration.md does not mention {missing}"


def test_every_key_of_rabbitmq_has_a_meaning_or_a_reason(clone: Path) -> None:
    listed = (clone / "tests/unit/runtime/rabbitmq-3.10.8-keys.txt").read_text(encoding="utf-8").split()
    unknown: list[str] = []
    for pattern in listed:
        key = re.sub(r"\$\w+", "word", pattern)
        for value in (
            "true",
            "1",
            "none",
            "internal",
            "verify_none",
            "tlsv1.2",
            "PLAIN",
            "info",
            "127.0.0.1:1",
            "plaintext",
        ):
            try:
                config.load([], {}, [config.Given(key, value, "test")], "here")
            except ConfigError as error:
                if "unknown setting" in str(error):
                    unknown.append(pattern)
                    break
    assert not unknown
    assert len(listed) > 250
