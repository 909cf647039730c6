"""From the first byte to connection.open-ok: the protocol header, log-in, tuning, and entry into a vhost.

Guarantee: nothing but these methods, in this order, is served before the client has proved who it is; a
client that stops half-way is dropped after the handshake timeout. Mistakes are answered the way RabbitMQ
answers them, and that is mostly not at all: before `opening` the socket is closed after a pause of silence,
without a method.

States: pre_init -> starting -> (log-in under way: securing) -> tuning -> opening -> running.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrormq import __version__
from mirrormq.base.errors import AmqpError, access_refused, channel_error, command_invalid, not_allowed
from mirrormq.broker import told
from mirrormq.wire import bulk, methods, sasl
from mirrormq.wire.spec import FRAME_MIN_SIZE, PROTOCOL_HEADER

if TYPE_CHECKING:
    from mirrormq.broker.connection import Connection
    from mirrormq.broker.vhost import VHost

PRE_INIT = "pre_init"
STARTING = "starting"
SECURING = "securing"
TUNING = "tuning"
OPENING = "opening"

STATES = frozenset({PRE_INIT, STARTING, SECURING, TUNING, OPENING})
ANSWERED = frozenset({OPENING})
"""States in which a mistake is answered with connection.close; before, the client hears nothing."""

HEADERS: dict[bytes, tuple[int, int]] = {
    PROTOCOL_HEADER: (0, 9),
    b"AMQP\x01\x01\x00\x09": (0, 9),
    b"AMQP\x01\x01\x08\x00": (8, 0),
    b"AMQP\x01\x01\x09\x01": (8, 0),
}
"""Protocol headers that are answered, with the version named in connection.start: 0-9-1, and 0-9 and 0-8 as
their clients wrote them, which RabbitMQ still greets.
"""

CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
PRODUCT = "RabbitMQ"
PRODUCT_VERSION = "3.10.8"
"""Clients choose their behaviour by product and version, so these are the ones we are compatible with."""


def server_properties(cluster_name: str) -> dict[str, Any]:
    """Build what connection.start says about this server, in RabbitMQ's (sorted) order."""
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": cluster_name,
        "copyright": "Copyright (c) the MirrorMQ authors",
        "information": "Licensed under the Apache License 2.0",
        "mirrormq_version": __version__,
        "platform": "MirrorMQ",
        "product": PRODUCT,
        "version": PRODUCT_VERSION,
    }


class Handshake:
    """The part of a connection's life before connection.open-ok; dropped afterwards."""

    __slots__ = ("connection",)

    def __init__(self, connection: "Connection") -> None:
        """Begin with nothing received."""
        self.connection = connection

    def on_header(self, header: bytes) -> None:
        """Answer the protocol header."""
        connection = self.connection
        if header[:4] == bulk.MAGIC:
            connection.host.begin_bulk(connection, header)
            return
        version = HEADERS.get(header)
        if version is not None:
            self._start(version)
            return
        # Also for AMQP 1.0 and plain nonsense: name the one protocol spoken here, then hang up.
        connection.out.write(PROTOCOL_HEADER)
        connection.drop(f"bad protocol header {header!r}")

    def on_method(self, method: methods.Method) -> None:
        """Serve the one method the current state waits for; anything else is an error of the connection."""
        state = self.connection.state
        if isinstance(method, methods.ConnectionStartOk) and state == STARTING:
            self._on_start_ok(method)
        elif isinstance(method, methods.ConnectionTuneOk) and state == TUNING:
            self._on_tune_ok(method)
        elif isinstance(method, methods.ConnectionOpen) and state == OPENING:
            self._on_open(method)
        else:
            raise channel_error(f"unexpected method in connection state {state}")

    def _start(self, version: tuple[int, int]) -> None:
        connection = self.connection
        connection.send(
            methods.ConnectionStart(
                version_major=version[0],
                version_minor=version[1],
                server_properties=server_properties(connection.host.cluster_name),
                mechanisms=" ".join(self._mechanisms()).encode(),
                locales=b"en_US",
            )
        )
        connection.state = STARTING

    def _mechanisms(self) -> list[str]:
        """EXTERNAL takes the name from a verified client certificate, so it needs one."""
        peer = self.connection.peer
        if peer.is_inside:
            return ["EXTERNAL"]
        with_certificate = peer.tls and peer.cert_name is not None
        allowed = self.connection.host.settings.auth_mechanisms or sasl.MECHANISMS
        return [name for name in allowed if name != "EXTERNAL" or with_certificate]

    # --- log-in ---------------------------------------------------------------------------------

    def _on_start_ok(self, method: methods.ConnectionStartOk) -> None:
        connection = self.connection
        if method.mechanism not in sasl.MECHANISMS:
            raise sasl.unknown_mechanism(method.mechanism)
        connection.take_client_properties(method.client_properties)
        connection.auth_mechanism = method.mechanism
        if method.mechanism not in self._mechanisms():
            if method.mechanism == "EXTERNAL" and connection.peer.tls:
                # As RabbitMQ, which offers EXTERNAL to everybody on TLS.
                self._refuse_login("the client has no certificate")
                return
            raise command_invalid(f"invalid authentication mechanism '{method.mechanism}'")
        credentials = sasl.parse_response(method.mechanism, method.response)
        user, password = credentials.user, credentials.password
        if method.mechanism == "EXTERNAL":
            assert connection.peer.cert_name is not None
            user = connection.peer.cert_name
        connection.state = SECURING
        connection.park("login")
        connection.host.authenticate(
            user,
            None if method.mechanism == "EXTERNAL" else password,
            connection.peer,
            lambda refusal: self._on_login(user, refusal),
        )

    def _on_login(self, user: str, refusal: str | None) -> None:
        connection = self.connection
        key = f"user.authentication.{'success' if refusal is None else 'failure'}"
        connection.host.census.tell(key, lambda: told.login(connection, user, refusal))
        if connection.state != SECURING:
            return  # the client left, or the handshake timed out, while its password was being checked
        if refusal is None:
            settings = connection.host.settings
            connection.user = user
            connection.state = TUNING
            connection.send(
                methods.ConnectionTune(
                    channel_max=settings.channel_max,
                    frame_max=settings.frame_max,
                    heartbeat=settings.heartbeat,
                )
            )
        else:
            self._refuse_login(refusal)
        connection.unpark("login")

    def _refuse_login(self, refusal: str) -> None:
        connection = self.connection
        mechanism = connection.auth_mechanism
        connection.note("error", f"{mechanism} login refused: {refusal}", event="login.refused")
        if connection.has_capability("authentication_failure_close"):
            # The details stay in the log: they would tell an attacker whether the user exists.
            connection.send_close(
                access_refused(
                    f"Login was refused using authentication mechanism {mechanism}. "
                    "For details see the broker logfile."
                )
            )
        connection.finish_closing()

    # --- tune and open --------------------------------------------------------------------------

    def _on_tune_ok(self, method: methods.ConnectionTuneOk) -> None:
        connection = self.connection
        settings = connection.host.settings
        _check_negotiated("frame_max", FRAME_MIN_SIZE, settings.frame_max, method.frame_max)
        _check_negotiated("channel_max", 1, settings.channel_max, method.channel_max)
        connection.tuned(
            channel_max=method.channel_max, frame_max=method.frame_max, heartbeat=method.heartbeat
        )
        connection.state = OPENING

    def _on_open(self, method: methods.ConnectionOpen) -> None:
        connection = self.connection
        vhost = admit(connection, method.virtual_host)
        connection.send(methods.ConnectionOpenOk())
        connection.opened(vhost)


def admit(connection: "Connection", name: str) -> "VHost":
    """Return the vhost, or raise what RabbitMQ raises; clients can see the order of these checks."""
    host = connection.host
    user = connection.user
    vhost = host.vhosts.get(name)
    if vhost is None:
        raise not_allowed(f"vhost {name} not found")
    limit = _reached(
        host.state.vhost_limit(name, "max-connections"),
        lambda: host.census.connections_in(name),
    )
    if limit is not None:
        raise not_allowed(
            f"access to vhost '{name}' refused for user '{user}': connection limit ({limit}) is reached"
        )
    limit = _reached(
        host.state.user_limit(user, "max-connections"),
        lambda: host.census.connections_of(user),
    )
    if limit is not None:
        raise not_allowed(f"connection refused for user '{user}': user connection limit ({limit}) is reached")
    if not host.access.may_open(user, name):
        raise not_allowed(f"access to vhost '{name}' refused for user '{user}'")
    return vhost


def _reached(limit: int | None, count: Callable[[], int]) -> int | None:
    """Return the limit if no more are allowed; counting is left out where nothing is limited."""
    if limit is None or limit < 0:
        return None
    return limit if limit == 0 or count() >= limit else None


def _check_negotiated(field: str, lowest: int, offered: int, value: int) -> None:
    """A client may lower what was offered, not raise it; 0 means "no limit", which is more than any limit."""
    if value != 0 and value < lowest:
        raise _bad_negotiation(f"{field} = {value} is lower than the minimum allowed value ({lowest})")
    if offered != 0 and (value == 0 or value > offered):
        detail = " (no limit)" if field == "channel_max" and value == 0 else ""
        raise _bad_negotiation(
            f"{field} = {value}{detail} is higher than the maximum allowed value ({offered})"
        )


def _bad_negotiation(text: str) -> AmqpError:
    error = not_allowed(f"negotiated {text}")
    error.class_id, error.method_id = methods.ConnectionTune.class_id_of, methods.ConnectionTune.method_id_of
    return error
