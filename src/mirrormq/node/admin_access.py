"""Requests about who may do what: users, passwords, tags, permissions, limits."""

import base64
from typing import Any, Protocol

import msgspec

from mirrormq.base import limits
from mirrormq.base.types import Peer
from mirrormq.broker.arguments import term
from mirrormq.meta import commands, passwords, records
from mirrormq.meta.patterns import complaint
from mirrormq.meta.state import MetaState, Outcome
from mirrormq.node import requests
from mirrormq.node.steps import Authenticate, Hash, Operation, Propose, Refusal, Steps

LOCAL = Peer("127.0.0.1", 0, "127.0.0.1", 0)
VHOST_LIMITS = ("max-connections", "max-queues")
USER_LIMITS = ("max-connections", "max-channels")


class Host(Protocol):
    """The node, as these requests read it."""

    @property
    def state(self) -> MetaState:
        """The metadata."""
        ...


# --- users ---


def add_user(host: Host, request: requests.AddUser) -> Steps:
    """Create a user, or replace one if that was asked for."""
    if not request.name:
        raise Refusal("bad_request", "a user needs a name")
    existing = host.state.users.get(request.name)
    if existing is not None and not request.replace:
        raise Refusal("user_exists", f'User "{request.name}" already exists')
    if request.password is not None and request.password_hash is not None:
        raise Refusal("bad_request", "both_password_and_password_hash_are_provided")
    checked = _checked_limits(request.limits, USER_LIMITS, "user-limits", "{}")
    rights = [records.Permission(request.name, *found) for found in request.permissions]
    for found in rights:
        need_vhost(host.state, found.vhost)
        _need_patterns(found.configure, found.write, found.read)
    if request.password_hash is not None:
        hashed, algorithm = _given_hash(request)
    elif request.password:
        hashed, algorithm = yield Hash(request.password)
    else:
        hashed, algorithm = "", ""
    user = records.User(request.name, hashed, algorithm, tags=request.tags)
    wanted: list[commands.Command] = [commands.PutUser(user, only_new=not request.replace)]
    if checked:
        wanted.append(commands.SetUserLimits(request.name, checked))
    # Looked at again: the user may have been made while the hash was computed.
    if request.name not in host.state.users:
        wanted += map(commands.SetPermission, rights)
    outcome = yield Propose(wanted[0] if len(wanted) == 1 else commands.Transaction((), tuple(wanted)))
    if outcome.error == "exists":
        raise Refusal("user_exists", f'User "{request.name}" already exists')
    expect(outcome)
    return {"created": existing is None}


def delete_user(host: Host, request: requests.DeleteUser) -> Steps:
    """Remove a user with all permissions."""
    need_user(host.state, request.name)
    outcome = yield Propose(commands.DeleteUser(request.name))
    expect(outcome)
    return {}


def delete_users(host: Host, request: requests.DeleteUsers) -> Steps:
    """Remove several users, all or none."""
    for name in request.names:
        need_user(host.state, name)
    removals = tuple(commands.DeleteUser(name) for name in dict.fromkeys(request.names))
    outcome = yield Propose(commands.Transaction((), removals))
    expect(outcome)
    return {}


def change_password(host: Host, request: requests.ChangePassword) -> Steps:
    """Give a user another password."""
    need_user(host.state, request.name)
    hashed, algorithm = ("", "") if not request.password else (yield Hash(request.password))
    # The user may have been changed or deleted while the hash was computed: take what is there now.
    user = need_user(host.state, request.name)
    changed = msgspec.structs.replace(user, password_hash=hashed, hashing_algorithm=algorithm)
    outcome = yield Propose(commands.PutUser(changed))
    expect(outcome)
    return {}


def clear_password(host: Host, request: requests.ClearPassword) -> Steps:
    """Let no password open the account."""
    user = need_user(host.state, request.name)
    changed = msgspec.structs.replace(user, password_hash="", hashing_algorithm="")
    outcome = yield Propose(commands.PutUser(changed))
    expect(outcome)
    return {}


def set_user_tags(host: Host, request: requests.SetUserTags) -> Steps:
    """Replace a user's tags."""
    user = need_user(host.state, request.name)
    outcome = yield Propose(commands.PutUser(msgspec.structs.replace(user, tags=request.tags)))
    expect(outcome)
    return {}


def authenticate_user(_host: Host, request: requests.AuthenticateUser) -> Steps:
    """Check a password."""
    error = yield Authenticate(request.name, request.password, request.peer or LOCAL)
    if error is not None:
        raise Refusal("authentication_failed", str(error))
    return {}


def _given_hash(request: requests.AddUser) -> tuple[str, str]:
    """A hash made elsewhere, in base64; argon2id strings are put into base64 too when they are shown."""
    given = request.password_hash or ""
    if not given:
        return "", ""
    algorithm = request.hashing_algorithm or passwords.SHA256
    if algorithm not in passwords.ALGORITHMS:
        raise Refusal("bad_request", f"hashing algorithm {algorithm} is not known")
    try:
        raw = base64.b64decode(given, validate=True)
    except ValueError:
        # Without the value: most likely it is a password in the wrong field, and reasons are logged.
        raise Refusal("bad_request", "password_hash is not valid base64") from None
    if algorithm != passwords.ARGON2ID:
        return given, algorithm
    if not raw.isascii() or not raw.startswith(b"$argon2id$"):
        raise Refusal("bad_request", "password_hash is not an argon2id string in base64")
    return raw.decode("ascii"), algorithm


# --- permissions ---


def set_permissions(host: Host, request: requests.SetPermissions) -> Steps:
    """Set what a user may do in a vhost."""
    need_user(host.state, request.user)
    need_vhost(host.state, request.vhost)
    _need_patterns(request.configure, request.write, request.read)
    created = (request.user, request.vhost) not in host.state.permissions
    outcome = yield Propose(
        commands.SetPermission(
            records.Permission(request.user, request.vhost, request.configure, request.write, request.read)
        )
    )
    expect(outcome)
    return {"created": created}


def clear_permissions(host: Host, request: requests.ClearPermissions) -> Steps:
    """Revoke a user's permissions in a vhost."""
    need_user(host.state, request.user)
    need_vhost(host.state, request.vhost)
    outcome = yield Propose(commands.ClearPermission(request.user, request.vhost))
    expect(outcome, "missing")
    return {}


def set_topic_permissions(host: Host, request: requests.SetTopicPermissions) -> Steps:
    """Restrict a user's routing keys on a topic exchange."""
    need_user(host.state, request.user)
    need_vhost(host.state, request.vhost)
    _need_patterns(request.write, request.read)
    created = not any(found.vhost == request.vhost for found in host.state.topic_permissions_of(request.user))
    outcome = yield Propose(
        commands.SetTopicPermission(
            records.TopicPermission(
                request.user, request.vhost, request.exchange, request.write, request.read
            )
        )
    )
    expect(outcome)
    return {"created": created}


def clear_topic_permissions(host: Host, request: requests.ClearTopicPermissions) -> Steps:
    """Lift the restriction."""
    need_user(host.state, request.user)
    need_vhost(host.state, request.vhost)
    outcome = yield Propose(commands.ClearTopicPermission(request.user, request.vhost, request.exchange))
    expect(outcome, "missing")
    return {}


def _need_patterns(*patterns: str) -> None:
    for pattern in patterns:
        wrong = complaint(pattern)
        if wrong is not None:
            raise Refusal("bad_request", wrong)


# --- limits ---


def set_vhost_limits(host: Host, request: requests.SetVHostLimits) -> Steps:
    """Set limits of a vhost."""
    need_vhost(host.state, request.vhost)
    checked = _checked_limits(request.limits, VHOST_LIMITS, "limits", "Validation failed\n\n{}\n")
    outcome = yield Propose(commands.SetVHostLimits(request.vhost, checked))
    expect(outcome)
    return {}


def clear_vhost_limits(host: Host, request: requests.ClearVHostLimits) -> Steps:
    """Remove limits of a vhost."""
    need_vhost(host.state, request.vhost)
    names = None if request.limit is None else (request.limit,)
    outcome = yield Propose(commands.ClearVHostLimits(request.vhost, names))
    expect(outcome)
    return {}


def set_user_limits(host: Host, request: requests.SetUserLimits) -> Steps:
    """Set limits of a user."""
    need_user(host.state, request.user)
    checked = _checked_limits(request.limits, USER_LIMITS, "user-limits", "{}")
    outcome = yield Propose(commands.SetUserLimits(request.user, checked))
    expect(outcome)
    return {}


def clear_user_limits(host: Host, request: requests.ClearUserLimits) -> Steps:
    """Remove limits of a user."""
    need_user(host.state, request.user)
    names = None if request.limit == "all" else (request.limit,)
    outcome = yield Propose(commands.ClearUserLimits(request.user, names))
    expect(outcome)
    return {}


def _checked_limits(given: dict[str, Any], known: tuple[str, ...], where: str, form: str) -> dict[str, int]:
    strange = {name: value for name, value in given.items() if name not in known}
    if strange:
        pairs = ",".join(f"{{{term(name)},{term(value)}}}" for name, value in strange.items())
        raise Refusal("bad_request", form.format(f"Unrecognised terms [{pairs}] in {where}"))
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refusal(
                "bad_request", form.format(f"{name} should be a number, actually was {term(value)}")
            )
    return given


# --- shared with the other requests ---


def need_vhost(state: MetaState, name: str) -> records.VHost:
    """The vhost, or a refusal."""
    found = state.vhosts.get(name)
    if found is None:
        raise Refusal("no_such_vhost", f"Virtual host '{name}' does not exist")
    return found


def need_user(state: MetaState, name: str) -> records.User:
    """The user, or a refusal."""
    found = state.users.get(name)
    if found is None:
        raise Refusal("no_such_user", f'User "{name}" does not exist')
    return found


def need_short(what: str, text: str) -> str:
    """A name clients can write: AMQP's short strings have at most 255 octets."""
    if len(text.encode("utf-8", "surrogateescape")) > limits.short_string_bytes_max:
        raise Refusal("bad_request", f"{what} is longer than {limits.short_string_bytes_max} octets")
    return text


def expect(outcome: Outcome, *accepted: str) -> Outcome:
    """Go on if the change was made, or refused for an accepted reason."""
    if not outcome.ok and outcome.error not in accepted:
        kind = {"no_vhost": "no_such_vhost", "no_user": "no_such_user"}.get(str(outcome.error), "bad_request")
        raise Refusal(kind, outcome.detail or str(outcome.error))
    return outcome


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.AddUser: add_user,
    requests.DeleteUser: delete_user,
    requests.DeleteUsers: delete_users,
    requests.ChangePassword: change_password,
    requests.ClearPassword: clear_password,
    requests.SetUserTags: set_user_tags,
    requests.AuthenticateUser: authenticate_user,
    requests.SetPermissions: set_permissions,
    requests.ClearPermissions: clear_permissions,
    requests.SetTopicPermissions: set_topic_permissions,
    requests.ClearTopicPermissions: clear_topic_permissions,
    requests.SetVHostLimits: set_vhost_limits,
    requests.ClearVHostLimits: clear_vhost_limits,
    requests.SetUserLimits: set_user_limits,
    requests.ClearUserLimits: clear_user_limits,
}
