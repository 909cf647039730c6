"""URIs as they are printed, but for where the broker of the test listens."""

from __future__ import annotations

import pika
import pika.exceptions
import pytest

from tests.cluster import kit
from tests.cluster.kit import Cluster
from tests.seeds.lines import URIS, text, tried

LINES = sorted(tried(URIS))


@pytest.fixture(scope="module", autouse=True)
def _accounts(three: Cluster) -> None:
    """What the texts take for granted: a vhost, and a user with a password."""
    node = three[0]
    node.ctl("add_vhost", name="myvhost")
    node.ctl("add_user", name="username", password="password")
    for user in ("guest", "username"):
        node.ctl("set_permissions", vhost="myvhost", user=user, configure=".*", write=".*", read=".*")


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_a_client_connects_with_the_printed_uri_to_every_node(three: Cluster, line: str) -> None:
    for node in three:
        uri = text(line).replace("localhost:5672", f"{node.host}:{kit.AMQP}")
        parameters = pika.URLParameters(uri)
        assert (parameters.connection_attempts, parameters.heartbeat) == (3, 60)
        connection = pika.BlockingConnection(parameters)
        connection.channel().queue_declare("", exclusive=True)
        connection.close()


@pytest.mark.slow
def test_a_wrong_password_in_the_uri_is_refused(three: Cluster) -> None:
    uri = text("000-uri-login").replace("localhost:5672", f"{three[0].host}:{kit.AMQP}")
    uri = uri.replace(":password@", ":other@").replace("attempts=3", "attempts=1")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(pika.URLParameters(uri))


@pytest.mark.parametrize("line", LINES)
def test_the_pipeline_says_where_passwords_and_parameters_belong(line: str) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: ./test spark does")
    from mirrormq.spark.options import Given, OptionRefused, _contact

    known = ("url", "password", "timeout")
    with pytest.raises(OptionRefused, match="a password in the option 'url' would be seen in plans"):
        _contact(Given({"url": text(line)}, known, "reading"))
    user = text(line).split("//")[1].split(":")[0]
    bare = text(line).replace(":guest@", "@").replace(":password@", "@")
    with pytest.raises(OptionRefused, match="everything else is an option of its own"):
        _contact(Given({"url": bare, "password": "x"}, known, "reading"))
    found = _contact(Given({"url": bare.split("?")[0], "password": "x"}, known, "reading"))
    assert (found.user, found.vhost) == (user, "/" if "%2F" in line or line.endswith("master") else "myvhost")
