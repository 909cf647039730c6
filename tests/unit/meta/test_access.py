"""What users may do, as RabbitMQ decides it."""

import pytest

from mirrormq.base import limits
from mirrormq.meta import commands as c
from mirrormq.meta.access import Access
from mirrormq.meta.records import Permission, TopicPermission, User, VHost
from mirrormq.meta.state import MetaState
from tests.support.metakit import must


@pytest.fixture
def state() -> MetaState:
    state = MetaState()
    must(state, c.PutVHost(VHost("/")))
    must(state, c.PutUser(User("ann", tags=("monitoring",))))
    return state


@pytest.fixture
def access(state: MetaState) -> Access:
    return Access(state)


def permit(state: MetaState, configure: str = "", write: str = "", read: str = "") -> None:
    must(state, c.SetPermission(Permission("ann", "/", configure, write, read)))


def test_without_a_permission_record_nothing_is_allowed(access: Access) -> None:
    assert not access.may_open("ann", "/")
    assert not any(access.may("ann", "/", right, "q") for right in ("configure", "write", "read"))


def test_any_permission_record_opens_the_vhost(state: MetaState, access: Access) -> None:
    permit(state)
    assert access.may_open("ann", "/")
    assert not access.may_open("ann", "other")
    assert not access.may("ann", "/", "read", "q")


def test_each_right_has_a_pattern_of_its_own(state: MetaState, access: Access) -> None:
    permit(state, configure="^c", write="^w", read="^r")
    assert access.may("ann", "/", "configure", "c1")
    assert access.may("ann", "/", "write", "w1")
    assert access.may("ann", "/", "read", "r1")
    assert not access.may("ann", "/", "configure", "w1")
    assert not access.may("bob", "/", "configure", "c1")


def test_a_pattern_is_not_anchored(state: MetaState, access: Access) -> None:
    permit(state, read="order")
    assert access.may("ann", "/", "read", "my-orders")


def test_the_default_exchange_is_checked_as_amq_default(state: MetaState, access: Access) -> None:
    permit(state, write="^amq\\.default$", read="^$")
    assert access.may("ann", "/", "write", "")
    assert access.may("ann", "/", "write", "amq.default")
    assert not access.may("ann", "/", "read", "")


def test_a_change_of_permissions_counts_at_once(state: MetaState, access: Access) -> None:
    permit(state, read="q")
    assert access.may("ann", "/", "read", "q")
    permit(state, read="other")
    assert not access.may("ann", "/", "read", "q")
    must(state, c.ClearPermission("ann", "/"))
    assert not access.may("ann", "/", "read", "other")
    assert not access.may_open("ann", "/")


def test_a_user_who_is_deleted_and_made_again_has_no_old_rights(state: MetaState, access: Access) -> None:
    permit(state, read="q")
    assert access.may("ann", "/", "read", "q")
    must(state, c.DeleteUser("ann"))
    must(state, c.PutUser(User("ann")))
    assert not access.may("ann", "/", "read", "q")


def test_a_pattern_nobody_understands_allows_nothing(state: MetaState, access: Access) -> None:
    permit(state, read="(")
    assert not access.may("ann", "/", "read", "(")


def test_names_sent_by_clients_cannot_fill_the_memory(state: MetaState, access: Access) -> None:
    permit(state, read="q")
    for at in range(limits.access_cache_max + 10):
        assert access.may("ann", "/", "read", f"q{at}")
    assert len(access._grants["ann", "/"]._decided) <= limits.access_cache_max


def test_without_a_topic_permission_every_routing_key_is_allowed(access: Access) -> None:
    assert access.may_topic("ann", "/", "write", "amq.topic", "any.key")


def test_a_topic_permission_restricts_one_exchange(state: MetaState, access: Access) -> None:
    must(state, c.SetTopicPermission(TopicPermission("ann", "/", "amq.topic", "^a\\.", "^b\\.")))
    assert access.may_topic("ann", "/", "write", "amq.topic", "a.x")
    assert not access.may_topic("ann", "/", "write", "amq.topic", b"b.x")
    assert access.may_topic("ann", "/", "read", "amq.topic", b"b.x")
    assert access.may_topic("ann", "/", "write", "other", "b.x")
    must(state, c.ClearTopicPermission("ann", "/"))
    assert access.may_topic("ann", "/", "write", "amq.topic", "b.x")


def test_an_empty_topic_permission_allows_the_empty_key_only(state: MetaState, access: Access) -> None:
    must(state, c.SetTopicPermission(TopicPermission("ann", "/", "x", "", "")))
    assert access.may_topic("ann", "/", "write", "x", "")
    assert not access.may_topic("ann", "/", "write", "x", "k")


def test_variables_in_a_topic_permission_stand_for_user_vhost_and_client(
    state: MetaState, access: Access
) -> None:
    pattern = "^{username}\\.{vhost}\\.{client_id}$"
    must(state, c.SetTopicPermission(TopicPermission("ann", "/", "x", pattern, "")))
    assert access.may_topic("ann", "/", "write", "x", "ann./.c1", client_id="c1")
    assert not access.may_topic("ann", "/", "write", "x", "bob./.c1", client_id="c1")
    assert not access.may_topic("ann", "/", "write", "x", "ann./.c1", client_id="c2")
    assert not access.may_topic("ann", "/", "write", "x", "ann./.c1")


def test_a_user_name_is_never_read_as_a_pattern(state: MetaState, access: Access) -> None:
    must(state, c.PutUser(User(".*")))
    must(state, c.SetTopicPermission(TopicPermission(".*", "/", "x", "^{username}$", "")))
    assert access.may_topic(".*", "/", "write", "x", ".*")
    assert not access.may_topic(".*", "/", "write", "x", "ann")


def test_tags_are_those_of_the_user(access: Access) -> None:
    assert access.tags("ann") == ("monitoring",)
    assert access.tags("nobody") == ()
