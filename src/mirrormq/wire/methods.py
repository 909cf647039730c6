"""Each AMQP method as a small class, and the codec between it and a method frame's payload.

`decode` returns a method or raises `AmqpError`, whatever the bytes; `decode(encode(m)) == m`. Short strings
are `str`, long strings are `bytes` (RabbitMQ checks the encoding of the former only), tables are dicts.
Which fields a method has, and how they are packed, is `spec.py`'s business; a class that disagrees with its
row there stops the import.
"""

from typing import Any, ClassVar

from msgspec import Struct, field

from mirrormq.base.errors import AmqpError, command_invalid, frame_error
from mirrormq.wire.fields import ShapeError, erlang_binary, pack_fields, unpack_fields
from mirrormq.wire.spec import METHODS, MethodSpec
from mirrormq.wire.table import Table


class Method(Struct, gc=False):
    """Base of all methods; `name` is the specification's, as in "queue.declare-ok"."""

    # gc=False: a method holds scalars and the tables it was decoded from, so it cannot be part of a cycle.
    name: ClassVar[str]
    class_id_of: ClassVar[int]
    method_id_of: ClassVar[int]
    spec: ClassVar[MethodSpec]


class ConnectionStart(Method):
    """connection.start."""

    version_major: int = 0
    version_minor: int = 9
    server_properties: Table = field(default_factory=dict)
    mechanisms: bytes = b"PLAIN AMQPLAIN"
    locales: bytes = b"en_US"


class ConnectionStartOk(Method):
    """connection.start-ok."""

    client_properties: Table = field(default_factory=dict)
    mechanism: str = "PLAIN"
    response: bytes = b""
    locale: str = "en_US"


class ConnectionSecure(Method):
    """connection.secure."""

    challenge: bytes = b""


class ConnectionSecureOk(Method):
    """connection.secure-ok."""

    response: bytes = b""


class ConnectionTune(Method):
    """connection.tune."""

    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


class ConnectionTuneOk(Method):
    """connection.tune-ok."""

    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


class ConnectionOpen(Method):
    """connection.open."""

    virtual_host: str = "/"
    capabilities: str = ""
    insist: bool = False


class ConnectionOpenOk(Method):
    """connection.open-ok."""

    known_hosts: str = ""


class ConnectionClose(Method):
    """connection.close."""

    reply_code: int = 0
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


class ConnectionCloseOk(Method):
    """connection.close-ok."""


class ConnectionBlocked(Method):
    """connection.blocked."""

    reason: str = ""


class ConnectionUnblocked(Method):
    """connection.unblocked."""


class ConnectionUpdateSecret(Method):
    """connection.update-secret."""

    new_secret: bytes = b""
    reason: str = ""


class ConnectionUpdateSecretOk(Method):
    """connection.update-secret-ok."""


class ChannelOpen(Method):
    """channel.open."""

    out_of_band: str = ""


class ChannelOpenOk(Method):
    """channel.open-ok."""

    channel_id: bytes = b""


class ChannelFlow(Method):
    """channel.flow."""

    active: bool = False


class ChannelFlowOk(Method):
    """channel.flow-ok."""

    active: bool = False


class ChannelClose(Method):
    """channel.close."""

    reply_code: int = 0
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


class ChannelCloseOk(Method):
    """channel.close-ok."""


class AccessRequest(Method):
    """access.request."""

    realm: str = ""
    exclusive: bool = False
    passive: bool = False
    active: bool = False
    write: bool = False
    read: bool = False


class AccessRequestOk(Method):
    """access.request-ok."""

    ticket: int = 0


class ExchangeDeclare(Method):
    """exchange.declare."""

    ticket: int = 0
    exchange: str = ""
    type: str = "direct"
    passive: bool = False
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    nowait: bool = False
    arguments: Table = field(default_factory=dict)


class ExchangeDeclareOk(Method):
    """exchange.declare-ok."""


class ExchangeDelete(Method):
    """exchange.delete."""

    ticket: int = 0
    exchange: str = ""
    if_unused: bool = False
    nowait: bool = False


class ExchangeDeleteOk(Method):
    """exchange.delete-ok."""


class ExchangeBind(Method):
    """exchange.bind."""

    ticket: int = 0
    destination: str = ""
    source: str = ""
    routing_key: str = ""
    nowait: bool = False
    arguments: Table = field(default_factory=dict)


class ExchangeBindOk(Method):
    """exchange.bind-ok."""


class ExchangeUnbind(Method):
    """exchange.unbind."""

    ticket: int = 0
    destination: str = ""
    source: str = ""
    routing_key: str = ""
    nowait: bool = False
    arguments: Table = field(default_factory=dict)


class ExchangeUnbindOk(Method):
    """exchange.unbind-ok."""


class QueueDeclare(Method):
    """queue.declare."""

    ticket: int = 0
    queue: str = ""
    passive: bool = False
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    nowait: bool = False
    arguments: Table = field(default_factory=dict)


class QueueDeclareOk(Method):
    """queue.declare-ok."""

    queue: str = ""
    message_count: int = 0
    consumer_count: int = 0


class QueueBind(Method):
    """queue.bind."""

    ticket: int = 0
    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    nowait: bool = False
    arguments: Table = field(default_factory=dict)


class QueueBindOk(Method):
    """queue.bind-ok."""


class QueuePurge(Method):
    """queue.purge."""

    ticket: int = 0
    queue: str = ""
    nowait: bool = False


class QueuePurgeOk(Method):
    """queue.purge-ok."""

    message_count: int = 0


class QueueDelete(Method):
    """queue.delete."""

    ticket: int = 0
    queue: str = ""
    if_unused: bool = False
    if_empty: bool = False
    nowait: bool = False


class QueueDeleteOk(Method):
    """queue.delete-ok."""

    message_count: int = 0


class QueueUnbind(Method):
    """queue.unbind."""

    ticket: int = 0
    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    arguments: Table = field(default_factory=dict)


class QueueUnbindOk(Method):
    """queue.unbind-ok."""


class BasicQos(Method):
    """basic.qos."""

    prefetch_size: int = 0
    prefetch_count: int = 0
    global_: bool = False


class BasicQosOk(Method):
    """basic.qos-ok."""


class BasicConsume(Method):
    """basic.consume."""

    ticket: int = 0
    queue: str = ""
    consumer_tag: str = ""
    no_local: bool = False
    no_ack: bool = False
    exclusive: bool = False
    nowait: bool = False
    arguments: Table = field(default_factory=dict)


class BasicConsumeOk(Method):
    """basic.consume-ok."""

    consumer_tag: str = ""


class BasicCancel(Method):
    """basic.cancel."""

    consumer_tag: str = ""
    nowait: bool = False


class BasicCancelOk(Method):
    """basic.cancel-ok."""

    consumer_tag: str = ""


class BasicPublish(Method):
    """basic.publish."""

    ticket: int = 0
    exchange: str = ""
    routing_key: str = ""
    mandatory: bool = False
    immediate: bool = False


class BasicReturn(Method):
    """basic.return."""

    reply_code: int = 0
    reply_text: str = ""
    exchange: str = ""
    routing_key: str = ""


class BasicDeliver(Method):
    """basic.deliver."""

    consumer_tag: str = ""
    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""


class BasicGet(Method):
    """basic.get."""

    ticket: int = 0
    queue: str = ""
    no_ack: bool = False


class BasicGetOk(Method):
    """basic.get-ok."""

    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""
    message_count: int = 0


class BasicGetEmpty(Method):
    """basic.get-empty."""

    cluster_id: str = ""


class BasicAck(Method):
    """basic.ack."""

    delivery_tag: int = 0
    multiple: bool = False


class BasicReject(Method):
    """basic.reject."""

    delivery_tag: int = 0
    requeue: bool = False


class BasicRecoverAsync(Method):
    """basic.recover-async."""

    requeue: bool = False


class BasicRecover(Method):
    """basic.recover."""

    requeue: bool = False


class BasicRecoverOk(Method):
    """basic.recover-ok."""


class BasicNack(Method):
    """basic.nack."""

    delivery_tag: int = 0
    multiple: bool = False
    requeue: bool = False


class ConfirmSelect(Method):
    """confirm.select."""

    nowait: bool = False


class ConfirmSelectOk(Method):
    """confirm.select-ok."""


class TxSelect(Method):
    """tx.select."""


class TxSelectOk(Method):
    """tx.select-ok."""


class TxCommit(Method):
    """tx.commit."""


class TxCommitOk(Method):
    """tx.commit-ok."""


class TxRollback(Method):
    """tx.rollback."""


class TxRollbackOk(Method):
    """tx.rollback-ok."""


def decode(payload: bytes | memoryview) -> Method:
    """Read a method frame's payload; a client's mistake raises `AmqpError` with RabbitMQ's code and text."""
    data = bytes(payload)
    if len(data) < 4:
        raise frame_error(f"cannot decode {erlang_binary(data)}")
    ids = (data[0] << 8 | data[1], data[2] << 8 | data[3])
    kind = METHOD_TYPES.get(ids)
    if kind is None:
        raise _about(ids, command_invalid(f"unknown method {ids[0]}.{ids[1]}"))
    try:
        return kind(*unpack_fields(kind.spec.fields, data, 4))
    except ShapeError:
        raise _about(ids, frame_error(f"cannot decode {erlang_binary(data[4:])}")) from None
    except AmqpError as error:
        raise _about(ids, error) from None


def encode(method: Method) -> bytes:
    """Write a method frame's payload: class id, method id, arguments."""
    spec = method.spec
    values: list[Any] = [getattr(method, name) for name, _ in spec.fields]
    return pack_fields(spec.fields, values, spec.class_id << 16 | spec.method_id)


def _about(ids: tuple[int, int], error: AmqpError) -> AmqpError:
    error.class_id, error.method_id = ids
    return error


def _class_name(spec: MethodSpec) -> str:
    return "".join(part.capitalize() for part in spec.name.replace(".", "-").split("-"))


def _register() -> dict[tuple[int, int], type[Method]]:
    """Give every class its row of the specification, and insist that each has the other's fields."""
    classes = {cls.__name__: cls for cls in Method.__subclasses__()}
    types: dict[tuple[int, int], type[Method]] = {}
    for ids, spec in METHODS.items():
        cls = classes.pop(_class_name(spec))
        assert cls.__struct_fields__ == tuple(name for name, _ in spec.fields), spec.name
        cls.name = spec.name
        cls.class_id_of, cls.method_id_of = ids
        cls.spec = spec
        types[ids] = cls
    assert not classes, sorted(classes)
    return types


METHOD_TYPES: dict[tuple[int, int], type[Method]] = _register()
