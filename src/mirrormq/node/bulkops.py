"""The operations of the bulk protocol: one table, from names to whoever serves them (`bulkcall` says how)."""

from msgspec import Struct

from mirrormq import __version__
from mirrormq.base import limits
from mirrormq.base.errors import AmqpError, access_refused
from mirrormq.broker import handshake
from mirrormq.node import bulkcursors, bulkdefinitions, bulkdigest, bulkqueues, bulkread, sinkops
from mirrormq.node.bulkcall import Call, Handler, from_amqp
from mirrormq.wire import sasl
from mirrormq.wire.bulk import Fields

LOGIN = "login"


class Login(Struct, frozen=True):
    """Who the client is. Without a password the name in its certificate counts."""

    vhost: str
    user: str = ""
    password: str | None = None
    product: str = ""
    query: str = ""


def log_in(call: Call) -> None:
    """Prove who it is, and enter a vhost."""
    session, host = call.session, call.node
    asked = call.take(Login)
    if session.state != handshake.STARTING:
        raise access_refused("the client has logged in already")
    mechanism = "PLAIN" if asked.password is not None else "EXTERNAL"
    session.auth_mechanism = mechanism
    query = asked.query[: limits.bulk_query_bytes_max]
    session.client_properties = {"product": asked.product[: limits.bulk_query_bytes_max], "query": query}
    session.user_provided_name = query or None
    user = asked.user if asked.password is not None else session.peer.cert_name
    allowed = host.settings.auth_mechanisms or sasl.MECHANISMS
    if mechanism not in allowed or user is None or (mechanism == "EXTERNAL" and not session.peer.tls):
        _refuse(call, f"the client may not log in by {mechanism}")
        return
    session.state = handshake.SECURING
    session.park(LOGIN)
    name = user

    def checked(refusal: str | None) -> None:
        if session.state != handshake.SECURING:
            return  # the client left, or took too long, while its password was being checked
        if refusal is not None:
            _refuse(call, refusal)
            return
        session.user = name
        try:
            vhost = handshake.admit(session, asked.vhost)
        except AmqpError as error:
            call.fail(from_amqp(error))
            session.drop(str(error))
            return
        session.opened(vhost)
        call.answer(_welcome(call))
        session.unpark(LOGIN)

    host.authenticate(name, asked.password, session.peer, checked)


def _welcome(call: Call) -> Fields:
    node = call.node
    assert call.session.vhost is not None
    return {
        "cluster": node.membership.identity.cluster.hex(),
        "cluster_name": node.cluster_name,
        "node": node.node_name,
        "version": __version__,
        "vhost": call.session.vhost.name,
    }


def _refuse(call: Call, reason: str) -> None:
    """The details stay in the log: they would tell an attacker whether the user exists."""
    mechanism = call.session.auth_mechanism
    text = f"Login was refused using authentication mechanism {mechanism}."
    call.fail(from_amqp(access_refused(f"{text} For details see the broker logfile.")))
    call.session.drop(f"{mechanism} login refused: {reason}")


OPS: dict[str, Handler] = {
    LOGIN: log_in,
    "queues": bulkqueues.queues,
    "copies": bulkqueues.copies,
    "read": bulkread.read,
    "digest": bulkdigest.digest,
    **bulkcursors.HANDLERS,
    **bulkdefinitions.HANDLERS,
    **sinkops.OPS,
}
