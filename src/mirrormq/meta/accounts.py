"""Rules for users, permissions, limits, policies and parameters: what a command changes, and when it is
refused.
"""

import msgspec

from mirrormq.meta import commands
from mirrormq.meta.records import GlobalParameter, Parameter, Record, User, VHostLimits
from mirrormq.meta.tables import Refused, Tables


def put_user(tables: Tables, command: commands.PutUser) -> Record:
    """Create or replace a user; limits set earlier survive a change of password or tags."""
    user = command.user
    existing = tables.users.get(user.name)
    if existing is not None:
        if command.only_new:
            raise Refused("exists", f"user '{user.name}' exists", existing)
        if not user.limits:
            user = msgspec.structs.replace(user, limits=existing.limits)
    tables.put(user)
    return user


def delete_user(tables: Tables, command: commands.DeleteUser) -> Record:
    """Remove a user with all permissions."""
    user = _user(tables, command.name)
    for permission in list(tables.permissions_of(user.name)):
        tables.drop(permission)
    for topic in list(tables.topic_permissions_of(user.name)):
        tables.drop(topic)
    tables.drop(user)
    return user


def set_permission(tables: Tables, command: commands.SetPermission) -> Record:
    """Give a user rights in a vhost."""
    _user(tables, command.permission.user)
    _check_vhost(tables, command.permission.vhost)
    tables.put(command.permission)
    return command.permission


def clear_permission(tables: Tables, command: commands.ClearPermission) -> Record:
    """Take a user's rights in a vhost."""
    permission = tables.permissions.get((command.user, command.vhost))
    if permission is None:
        raise Refused("missing", f"user '{command.user}' has no permissions in vhost '{command.vhost}'")
    tables.drop(permission)
    return permission


def set_topic_permission(tables: Tables, command: commands.SetTopicPermission) -> Record:
    """Restrict a user's routing keys on one topic exchange."""
    _user(tables, command.permission.user)
    _check_vhost(tables, command.permission.vhost)
    tables.put(command.permission)
    return command.permission


def clear_topic_permission(tables: Tables, command: commands.ClearTopicPermission) -> Record:
    """Lift the restriction for one exchange or for all of the vhost; returns the last one lifted."""
    found = [
        permission
        for permission in tables.topic_permissions_of(command.user)
        if permission.vhost == command.vhost and command.exchange in (None, permission.exchange)
    ]
    if not found:
        raise Refused("missing", f"user '{command.user}' has no topic permissions in vhost '{command.vhost}'")
    for permission in found:
        tables.drop(permission)
    return found[-1]


def set_policy(tables: Tables, command: commands.SetPolicy) -> Record:
    """Create or replace a policy."""
    _check_vhost(tables, command.policy.vhost)
    tables.put(command.policy)
    return command.policy


def clear_policy(tables: Tables, command: commands.ClearPolicy) -> Record:
    """Remove a policy."""
    policy = tables.policies.get((command.vhost, command.name, command.operator))
    if policy is None:
        raise Refused("missing", f"no policy '{command.name}' in vhost '{command.vhost}'")
    tables.drop(policy)
    return policy


def set_parameter(tables: Tables, command: commands.SetParameter) -> Record:
    """Create or replace a runtime parameter."""
    _check_vhost(tables, command.vhost)
    parameter = Parameter(command.vhost, command.component, command.name, command.value)
    tables.put(parameter)
    return parameter


def clear_parameter(tables: Tables, command: commands.ClearParameter) -> Record:
    """Remove a runtime parameter."""
    parameter = tables.parameters.get((command.vhost, command.component, command.name))
    if parameter is None:
        raise Refused(
            "missing", f"no parameter '{command.component}/{command.name}' in vhost '{command.vhost}'"
        )
    tables.drop(parameter)
    return parameter


def set_global_parameter(tables: Tables, command: commands.SetGlobalParameter) -> Record:
    """Create or replace a runtime parameter of the cluster."""
    parameter = GlobalParameter(command.name, command.value)
    tables.put(parameter)
    return parameter


def clear_global_parameter(tables: Tables, command: commands.ClearGlobalParameter) -> Record:
    """Remove a runtime parameter of the cluster."""
    parameter = tables.global_parameters.get(command.name)
    if parameter is None:
        raise Refused("missing", f"no global parameter '{command.name}'")
    tables.drop(parameter)
    return parameter


def set_vhost_limits(tables: Tables, command: commands.SetVHostLimits) -> Record:
    """Set some limits of a vhost."""
    _check_vhost(tables, command.vhost)
    existing = None if command.replace else tables.vhost_limits.get(command.vhost)
    limits = VHostLimits(command.vhost, {**(existing.limits if existing else {}), **command.limits})
    tables.put(limits)
    return limits


def clear_vhost_limits(tables: Tables, command: commands.ClearVHostLimits) -> Record | None:
    """Remove limits of a vhost; the record goes with the last one."""
    _check_vhost(tables, command.vhost)
    existing = tables.vhost_limits.get(command.vhost)
    if existing is None:
        return None
    kept = _without(existing.limits, command.names)
    if kept:
        limits = VHostLimits(command.vhost, kept)
        tables.put(limits)
        return limits
    tables.drop(existing)
    return existing


def set_user_limits(tables: Tables, command: commands.SetUserLimits) -> Record:
    """Set some limits of a user."""
    user = _user(tables, command.user)
    changed = msgspec.structs.replace(user, limits={**user.limits, **command.limits})
    tables.put(changed)
    return changed


def clear_user_limits(tables: Tables, command: commands.ClearUserLimits) -> Record:
    """Remove limits of a user."""
    user = _user(tables, command.user)
    changed = msgspec.structs.replace(user, limits=_without(user.limits, command.names))
    tables.put(changed)
    return changed


def user_limit(tables: Tables, user: str, name: str) -> int | None:
    """A limit of a user, or None for no limit."""
    record = tables.users.get(user)
    limit = -1 if record is None else record.limits.get(name, -1)
    return None if limit < 0 else limit


def _without(limits: dict[str, int], names: tuple[str, ...] | None) -> dict[str, int]:
    return {} if names is None else {name: limit for name, limit in limits.items() if name not in names}


def _user(tables: Tables, name: str) -> User:
    user = tables.users.get(name)
    if user is None:
        raise Refused("no_user", f"no user '{name}'")
    return user


def _check_vhost(tables: Tables, name: str) -> None:
    if name not in tables.vhosts:
        raise Refused("no_vhost", f"no vhost '{name}'")
