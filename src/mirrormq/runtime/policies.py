"""Policies written in the configuration: what a new cluster begins with (`mirroring_policy`).

The same policy can be written as `mirroring_policy.NAME.pattern = ...` and so on, as a TOML table of that
name, as a TOML list of tables, or as JSON. A wrong one stops the node before it has changed anything, and is
named with everything that is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mirrormq.meta.policy import problems
from mirrormq.meta.records import Policy

if TYPE_CHECKING:
    from mirrormq.runtime.settings import Settings

Written = dict[str, Any]
"""The fields of a policy as they were written."""

_FIELD = re.compile(
    r"(?P<name>.+?)\.(?P<field>pattern|priority|apply[-_]to|vhost|definition(\.(?P<key>.+))?)"
)
_FIELDS = "pattern, definition, priority, apply-to and vhost"


def gather(found: dict[str, Written], path: str, value: Any) -> None:
    """Take in one line, `path` being what follows `mirroring_policy.`; ValueError if it is none of ours."""
    match = _FIELD.fullmatch(path)
    if match is None:
        raise ValueError(f"a policy has the settings {_FIELDS}")
    fields = found.setdefault(match["name"], {})
    if match["key"] is not None:
        fields.setdefault("definition", {})[match["key"]] = _plain(value)
    elif match["field"] == "definition":
        fields["definition"] = {**fields.get("definition", {}), **_object(value)}
    else:
        fields[match["field"].replace("_", "-")] = value


def tables(value: Any) -> Iterator[tuple[str, Written]]:
    """The policies of a list of tables, or of the JSON text of one."""
    listed = _json(value) if isinstance(value, str) else value
    listed = [listed] if isinstance(listed, dict) else listed
    if not isinstance(listed, list):
        raise ValueError("expected a list of policies")
    for fields in listed:
        if not isinstance(fields, dict) or not isinstance(fields.get("name"), str):
            raise ValueError("every policy of the list is a table with a name")
        yield fields["name"], {key.replace("_", "-"): item for key, item in fields.items() if key != "name"}


def read(name: str, written: Mapping[str, Any]) -> Policy:
    """One policy, checked; its vhost is empty if none was given. ValueError says what is wrong."""
    strange = sorted(set(written) - {"pattern", "definition", "priority", "apply-to", "vhost"})
    if strange:
        raise ValueError(f"policy '{name}' has no setting {strange[0]}; there are {_FIELDS}")
    priority = _plain(written.get("priority", 0))
    pattern, vhost = written.get("pattern", ".*"), written.get("vhost", "")
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ValueError(f"policy '{name}': priority should be a number, not {priority!r}")
    if not isinstance(pattern, str) or not isinstance(vhost, str):
        raise ValueError(f"policy '{name}': pattern and vhost are texts")
    definition = _object(written.get("definition", {}))
    policy = Policy(
        vhost, name, pattern, definition, apply_to=written.get("apply-to", "all"), priority=priority
    )
    wrong = problems(policy)
    if wrong:
        raise ValueError(f"policy '{name}': {'; '.join(wrong)}")
    return policy


DISC_COPIES = "disc-copies"
"""The name of the policy that stands for `cluster_nodes.disc_copies`."""
_LOWEST = -1
"""Its priority: a policy that somebody sets by hand and gives none has a higher one."""


def implied(settings: Settings) -> Policy | None:
    """The policy that mirrors the queues among `disc_copies` on all nodes; None if there are none.

    What has no character that means something in a pattern but dots is the name of a queue.
    """
    queues = [item for item in settings.disc_copies or () if isinstance(item, str)]
    if not queues:
        return None
    patterns = [item if re.search(r"[\\^$*+?()\[\]{}|]", item) else re.escape(item) for item in queues]
    definition = {"ha-mode": "all"}
    vhost = settings.default_user.vhost
    pattern = f"^(?:{'|'.join(patterns)})$"
    return Policy(vhost, DISC_COPIES, pattern, definition, apply_to="queues", priority=_LOWEST)


def _object(value: Any) -> dict[str, Any]:
    found = _json(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise ValueError('the definition of a policy is an object such as {"ha-mode": "all"}')
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is not JSON: {error}") from None


def _plain(value: Any) -> Any:
    """A value of a `key = value` line: a number, a list in JSON, or text."""
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"-?\d+", value):
        return int(value)
    return _json(value) if value.startswith("[") else value
