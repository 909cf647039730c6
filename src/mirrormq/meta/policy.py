"""Policies: which one applies to a queue or exchange, and what it comes to together with an operator policy.

At most one policy and one operator policy apply: the matching ones of highest priority (by name among equals;
RabbitMQ leaves that open). A policy with a setting that queues of a type do not have does not apply to them.
Numbers set by both are bounded by the operator's; anything else it sets wins.
"""

from typing import Any, NamedTuple

from mirrormq.meta import hidden, policy_keys, system
from mirrormq.meta.patterns import complaint, try_pattern
from mirrormq.meta.records import Exchange, Policy, Queue, Table
from mirrormq.meta.tables import Tables


class Effective(NamedTuple):
    """What applies to one queue or exchange."""

    policy: Policy | None
    operator: Policy | None
    definition: Table


def effective(tables: Tables, record: Queue | Exchange) -> Effective:
    """Find the policies of a queue or exchange and merge their definitions."""
    if isinstance(record, Queue) and hidden.is_staging(record.name):
        return Effective(None, None, hidden.STAGING_DEFINITION)
    if isinstance(record, Queue) and system.is_system(record.vhost, record.name):
        return Effective(None, None, system.DEFINITION)
    policy = _first_match(tables.ranked_policies(record.vhost, operator=False), record)
    operator = _first_match(tables.ranked_policies(record.vhost, operator=True), record)
    return Effective(policy, operator, merge(policy, operator))


def merge(policy: Policy | None, operator: Policy | None) -> Table:
    """The settings that follow from a policy and an operator policy."""
    if policy is None or operator is None:
        only = policy or operator
        return {} if only is None else only.definition
    merged = dict(policy.definition)
    for key, bound in operator.definition.items():
        value = merged.get(key)
        merged[key] = min(value, bound) if _is_number(value) and _is_number(bound) else bound
    return merged


def matches(policy: Policy, record: Queue | Exchange) -> bool:
    """Whether a policy applies to a queue or exchange, leaving priorities aside."""
    kind = "queues" if isinstance(record, Queue) else "exchanges"
    if policy.vhost != record.vhost or policy.apply_to not in ("all", kind):
        return False
    if isinstance(record, Queue):
        is_quorum = record.arguments.get("x-queue-type") == "quorum"
        if not policy_keys.is_applicable(policy.definition, "quorum" if is_quorum else "classic"):
            return False
    pattern = try_pattern(policy.pattern)
    return pattern is not None and pattern.matches(record.name)


def problems(policy: Policy, *, is_stored: bool = False) -> list[str]:
    """Everything that is wrong with a policy somebody wants to set, or import, one sentence each."""
    found = []
    wrong = complaint(policy.pattern, is_stored=is_stored)
    if wrong is not None:
        found.append(f"pattern {wrong}")
    if policy.apply_to not in ("all", "queues", "exchanges"):
        found.append(f"apply-to '{policy.apply_to}' unrecognised; should be 'queues', 'exchanges' or 'all'")
    if not policy.definition:
        found.append("no policy provided")
    return found + policy_keys.problems(policy.definition, operator=policy.operator)


def _first_match(policies: tuple[Policy, ...], record: Queue | Exchange) -> Policy | None:
    return next((policy for policy in policies if matches(policy, record)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
