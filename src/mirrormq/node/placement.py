"""Where a new queue has its master.

Guarantees
- Only a live node is chosen: this one, or one whose link is open and whose report was heard. Never a witness,
  unless there is nobody else.
- An exclusive queue has its master on the node of its client: it goes with that connection.
- The argument `x-queue-master-locator` wins over a policy's `queue-master-locator`, which wins over the
  setting `queue_master_locator`. As in RabbitMQ a strategy nobody knows is passed over, not refused.
- A policy with `ha-mode: nodes` keeps the master on the nodes it lists, as long as one of them is live.

Loads are a moment old, and several nodes choose at once: the spread is good, not exact. Ties go round by
turns, so that equals get equally many.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mirrormq.base.rng import Rng
from mirrormq.broker.host import BrokerSettings
from mirrormq.meta import policy, records, system
from mirrormq.meta.policy_keys import LOCATORS
from mirrormq.meta.records import Table
from mirrormq.meta.state import MetaState

if TYPE_CHECKING:
    from mirrormq.node.membership import Membership

CLIENT_LOCAL = "client-local"

_SAME_AS = {"balanced": "min-masters", "least-leaders": "min-masters"}
"""RabbitMQ's words for quorum queues."""


class Candidate(NamedTuple):
    """A node that could take the queue."""

    node: str
    masters: int
    connections: int
    messages: int


_WEIGHTS: dict[str, Callable[[Candidate], tuple[int, ...]]] = {
    "min-masters": lambda it: (it.masters,),
    "least-connections": lambda it: (it.connections, it.masters),
    "least-messages": lambda it: (it.messages, it.masters),
}


class Loads(Protocol):
    """What is known of the live nodes."""

    def loads(self) -> list[tuple[str, int, int]]:
        """(node, connections, messages) of those that take queues, in order of their names."""
        ...


class Host(Protocol):
    """The node, as placement sees it."""

    node_name: str
    rng: Rng
    settings: BrokerSettings
    membership: "Membership"

    @property
    def state(self) -> MetaState:
        """The metadata."""
        ...


class Placement:
    """Chooses for this node; counts turns."""

    def __init__(self, host: Host, loads: Loads) -> None:
        self._host = host
        self._loads = loads
        self._turn: int | None = None

    def place(self, queue: records.Queue) -> str:
        """The node that is to be the master of a queue about to be declared."""
        host = self._host
        if queue.exclusive:
            return host.node_name
        definition = policy.effective(host.state, queue).definition
        strategy = strategy_of(queue.arguments, definition, host.settings.queue_master_locator)
        listed = _listed(definition)
        is_able = self._takes_queues(host.node_name) and (listed is None or host.node_name in listed)
        if strategy == CLIENT_LOCAL and is_able:
            return host.node_name
        candidates = [
            Candidate(node, system.count_on(host.state, node), connections, messages)
            for node, connections, messages in self._loads.loads()
            if self._takes_queues(node)
        ]
        if listed is not None:
            candidates = [one for one in candidates if one.node in listed] or candidates
        if strategy == CLIENT_LOCAL and any(one.node == host.node_name for one in candidates):
            return host.node_name
        return choose(strategy, candidates, self._next_turn(candidates), host.rng) or host.node_name

    def _takes_queues(self, node: str) -> bool:
        """Is it a member that serves clients? One may be linked and only about to join, or be removed from
        the cluster and not forgotten yet: its queues go with it.
        """
        record = self._host.state.nodes.get(node)
        is_member = self._host.membership.raft.config.find(node) is not None
        return record is not None and record.is_live and is_member and record.role != "witness"

    def _next_turn(self, candidates: Sequence[Candidate]) -> int:
        """Turns of different nodes start at different places: each alone may declare only one queue."""
        if self._turn is None:
            self._turn = sum(1 for one in candidates if one.node < self._host.node_name)
        self._turn += 1
        return self._turn - 1


def strategy_of(arguments: Table, definition: Table, default: str) -> str:
    """The strategy for a queue with these arguments and this effective policy."""
    for wanted in (
        arguments.get("x-queue-master-locator"),
        arguments.get("x-queue-leader-locator"),
        definition.get("queue-master-locator"),
        definition.get("queue-leader-locator"),
        default,
    ):
        word = wanted.decode("utf-8", "replace") if isinstance(wanted, bytes) else wanted
        if isinstance(word, str) and word in LOCATORS:
            return _SAME_AS.get(word, word)
    return CLIENT_LOCAL


def choose(strategy: str, candidates: Sequence[Candidate], turn: int, rng: Rng) -> str | None:
    """The node a strategy takes; None if there is none to take."""
    if not candidates:
        return None
    if strategy == "random":
        return candidates[rng.below(len(candidates))].node
    best: Sequence[Candidate] = candidates
    if strategy in _WEIGHTS:
        weigh = _WEIGHTS[strategy]
        least = min(weigh(one) for one in candidates)
        best = [one for one in candidates if weigh(one) == least]
    return best[turn % len(best)].node


def _listed(definition: Table) -> list[Any] | None:
    """The nodes a policy wants, None if it does not say."""
    params = definition.get("ha-params")
    return params if definition.get("ha-mode") == "nodes" and isinstance(params, list) else None
