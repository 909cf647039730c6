"""Which policy applies, what it comes to, and which policies nobody can set."""

from typing import Any

import pytest

from mirrormq.meta import commands as c
from mirrormq.meta.policy import effective, problems
from mirrormq.meta.policy_keys import size_of
from mirrormq.meta.records import ApplyTo, Exchange, Policy, Queue, VHost
from mirrormq.meta.state import MetaState
from tests.support.metakit import must


@pytest.fixture
def state() -> MetaState:
    state = MetaState()
    must(state, c.PutVHost(VHost("/")))
    must(state, c.PutVHost(VHost("other")))
    return state


QUEUE = Queue("/", "orders.eu")
EXCHANGE = Exchange("/", "orders.eu")


def policy(name: str, pattern: str = ".*", **fields: Any) -> Policy:
    definition = fields.pop("definition", {"max-length": 1})
    return Policy(fields.pop("vhost", "/"), name, pattern, definition, **fields)


def applied(state: MetaState, record: Queue | Exchange = QUEUE) -> str | None:
    found = effective(state, record).policy
    return None if found is None else found.name


def test_without_a_policy_nothing_is_set(state: MetaState) -> None:
    assert effective(state, QUEUE) == (None, None, {})


def test_a_policy_applies_where_its_pattern_is_found(state: MetaState) -> None:
    must(state, c.SetPolicy(policy("p", "^orders\\.")))
    assert applied(state) == "p"
    assert applied(state, Queue("/", "my.orders.x")) is None


def test_a_policy_of_another_vhost_does_not_apply(state: MetaState) -> None:
    must(state, c.SetPolicy(policy("p", vhost="other")))
    assert applied(state) is None


@pytest.mark.parametrize(
    ("apply_to", "queue", "exchange"),
    [("all", True, True), ("queues", True, False), ("exchanges", False, True)],
)
def test_apply_to_tells_queues_from_exchanges(
    state: MetaState, apply_to: ApplyTo, queue: bool, exchange: bool
) -> None:
    must(state, c.SetPolicy(policy("p", apply_to=apply_to)))
    assert (applied(state) == "p") == queue
    assert (applied(state, EXCHANGE) == "p") == exchange


def test_only_the_policy_of_highest_priority_applies(state: MetaState) -> None:
    must(state, c.SetPolicy(policy("low", priority=1, definition={"expires": 5})))
    must(state, c.SetPolicy(policy("high", priority=2)))
    assert effective(state, QUEUE).definition == {"max-length": 1}
    must(state, c.ClearPolicy("/", "high"))
    assert effective(state, QUEUE).definition == {"expires": 5}


def test_among_equals_the_first_by_name_applies_whenever_it_was_set(state: MetaState) -> None:
    must(state, c.SetPolicy(policy("b")))
    assert applied(state) == "b"
    must(state, c.SetPolicy(policy("a")))
    assert applied(state) == "a"


def test_numbers_are_bounded_by_the_operators(state: MetaState) -> None:
    must(
        state, c.SetPolicy(policy("p", definition={"max-length": 10, "expires": 5, "overflow": "drop-head"}))
    )
    bounds = {"max-length": 3, "expires": 50, "message-ttl": 7}
    must(state, c.SetPolicy(policy("op", definition=bounds, operator=True)))
    found = effective(state, QUEUE)
    assert found.policy is not None
    assert found.operator is not None
    assert (found.policy.name, found.operator.name) == ("p", "op")
    assert found.definition == {"max-length": 3, "expires": 5, "overflow": "drop-head", "message-ttl": 7}


def test_an_operator_policy_applies_alone_too(state: MetaState) -> None:
    must(state, c.SetPolicy(policy("op", operator=True)))
    assert effective(state, QUEUE).definition == {"max-length": 1}
    assert applied(state) is None


def test_policy_and_operator_policy_of_one_name_are_two(state: MetaState) -> None:
    must(state, c.SetPolicy(policy("same", definition={"expires": 2})))
    must(state, c.SetPolicy(policy("same", operator=True)))
    must(state, c.ClearPolicy("/", "same", operator=True))
    assert effective(state, QUEUE).definition == {"expires": 2}


@pytest.mark.parametrize(
    "definition",
    [
        {"ha-mode": "all"},
        {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic", "ha-sync-batch-size": 4096},
        {"ha-mode": "nodes", "ha-params": ["rabbit@a", "rabbit@b"], "ha-promote-on-failure": "when-synced"},
        {"ha-mode": "all", "ha-sync-max-throughput": "100MiB", "ha-replace-delay": 0, "ha-min-in-sync": 2},
        {"ha-mode": "all", "ha-sync-max-throughput": 0, "ha-mirror-timeout": 1},
        {"ha-min-in-sync": 2, "ha-mirror-timeout": 5000, "ha-replace-delay": 1},
        {"queue-master-locator": "round-robin"},
        {"queue-master-locator": "least-connections", "queue-leader-locator": "least-messages"},
        {"message-ttl": 0, "expires": 1, "max-length": 0, "max-length-bytes": 0, "delivery-limit": 0},
        {"dead-letter-exchange": "", "dead-letter-routing-key": "k", "dead-letter-strategy": "at-least-once"},
        {"overflow": "reject-publish-dlx", "queue-mode": "lazy", "queue-version": 2},
        {"alternate-exchange": "ae"},
        {"queue-master-locator": "min-masters"},
        {"federation-upstream-set": "all"},
    ],
)
def test_policies_of_rabbitmq_are_accepted(definition: dict[str, Any]) -> None:
    assert problems(policy("p", definition=definition)) == []


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ({}, "no policy provided"),
        ({"max-lenght": 5}, '{"max-lenght": 5} are not recognised policy settings'),
        ({"message-ttl": -1}, "-1 is not a valid message TTL"),
        ({"message-ttl": "1"}, '"1" is not a valid message TTL'),
        ({"message-ttl": True}, "true is not a valid message TTL"),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"overflow": "no"}, '"no" is not a valid overflow value'),
        ({"queue-version": 3}, "3 is not a valid queue-version value"),
        ({"ha-mode": "some"}, '"some" is not a valid ha-mode value'),
        ({"ha-mode": "all", "ha-params": 1}, 'ha-mode="all" does not take parameters'),
        ({"ha-mode": "exactly"}, 'ha-mode="exactly" takes an integer, null given'),
        (
            {"ha-mode": "nodes", "ha-params": []},
            'ha-mode="nodes" takes a non-empty list of strings, [] given',
        ),
        (
            {"ha-sync-mode": "manual"},
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown",
        ),
        (
            {"ha-params": 2},
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown",
        ),
        ({"queue-master-locator": "anywhere"}, '"anywhere" invalid queue-master-locator value'),
        ({"queue-leader-locator": 1}, "1 is not a valid queue leader locator value"),
        (
            {"ha-min-in-sync": 2, "ha-sync-batch-size": 5},
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown",
        ),
        (
            {"ha-mode": "all", "ha-min-in-sync": 0},
            "ha-min-in-sync takes an integer greater than 0, 0 given",
        ),
        (
            {"ha-mode": "all", "ha-mirror-timeout": 0},
            "ha-mirror-timeout takes milliseconds greater than 0, 0 given",
        ),
        ({"ha-mode": "all", "ha-replace-delay": -1}, "ha-replace-delay takes milliseconds, -1 given"),
        (
            {"ha-mode": "all", "ha-sync-max-throughput": "fast"},
            'ha-sync-max-throughput takes bytes per second such as 1048576 or 100MiB, "fast" given',
        ),
        (
            {"ha-mode": "all", "ha-promote-on-failure": "no"},
            'ha-promote-on-failure must be "always" or "when-synced", got "no"',
        ),
        (
            {"ha-mode": "all", "ha-promote-on-shutdown": 1},
            'ha-promote-on-shutdown must be "always" or "when-synced", got 1',
        ),
        (
            {"ha-mode": "all", "ha-sync-batch-size": 0},
            "ha-sync-batch-size takes an integer greater than 0, 0 given",
        ),
        ({"ha-mode": "all", "ha-sync-mode": "x"}, 'ha-sync-mode must be "manual" or "automatic", got "x"'),
    ],
)
def test_a_wrong_setting_is_named(definition: dict[str, Any], problem: str) -> None:
    assert problem in problems(policy("p", definition=definition))


QUORUM = Queue("/", "orders.eu", durable=True, arguments={"x-queue-type": "quorum"})


@pytest.mark.parametrize(
    ("definition", "classic", "quorum"),
    [
        ({"max-length": 1}, True, True),
        ({"max-length": 1, "ha-mode": "all"}, True, False),
        ({"max-length": 1, "ha-min-in-sync": 2}, False, True),
        ({"ha-mode": "all", "ha-min-in-sync": 2}, True, False),
        ({"queue-mode": "lazy"}, True, False),
        ({"queue-master-locator": "min-masters"}, True, False),
        ({"queue-leader-locator": "balanced"}, True, True),
        ({"delivery-limit": 3}, True, True),
        ({"dead-letter-exchange": "x", "dead-letter-strategy": "at-least-once"}, False, True),
        ({"max-length": 1, "max-age": "1h"}, False, False),
    ],
)
def test_a_policy_keeps_away_from_queues_that_lack_one_of_its_settings(
    state: MetaState, definition: dict[str, Any], classic: bool, quorum: bool
) -> None:
    must(state, c.SetPolicy(policy("p", definition=definition, priority=1)))
    must(state, c.SetPolicy(policy("below")))
    assert (applied(state), applied(state, QUORUM)) == (
        "p" if classic else "below",
        "p" if quorum else "below",
    )


def test_every_number_that_an_operator_may_bound_is_the_smaller_one(state: MetaState) -> None:
    keys = ("expires", "message-ttl", "max-length", "max-length-bytes", "delivery-limit")
    must(state, c.SetPolicy(policy("p", definition=dict.fromkeys(keys, 10))))
    must(state, c.SetPolicy(policy("op", definition=dict.fromkeys(keys, 20), operator=True)))
    assert effective(state, QUEUE).definition == dict.fromkeys(keys, 10)
    must(state, c.SetPolicy(policy("op", definition=dict.fromkeys(keys, 5), operator=True)))
    assert effective(state, QUEUE).definition == dict.fromkeys(keys, 5)


def test_a_wrong_pattern_or_scope_is_named() -> None:
    assert "is not a valid regular expression" in problems(policy("p", "("))[0]
    wrong: Any = "topics"
    assert problems(policy("p", apply_to=wrong)) == [
        "apply-to 'topics' unrecognised; should be 'queues', 'exchanges' or 'all'"
    ]


def test_an_operator_policy_may_only_bound() -> None:
    assert problems(policy("p", definition={"max-length": 1}, operator=True)) == []
    (problem,) = problems(policy("p", definition={"dead-letter-exchange": "x"}, operator=True))
    assert problem.endswith("are not recognised policy settings")


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (0, 0),
        (5, 5),
        ("5", 5),
        ("100MiB", 100 * 1024**2),
        ("100MB", 100_000_000),
        ("1k", 1024),
        ("2 gb", 2_000_000_000),
        ("1.5MiB", None),
        ("1PB", None),
        ("-1", None),
        (-1, None),
        (True, None),
        (None, None),
    ],
)
def test_a_size_is_a_number_of_bytes_or_has_a_unit(value: Any, size: int | None) -> None:
    assert size_of(value) == size
