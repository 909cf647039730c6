"""Log-ins: right passwords in, wrong ones out, and neither cheap to guess nor expensive to repeat."""

from collections.abc import Callable
from random import Random

import pytest
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

from mirrormq.base import limits
from mirrormq.base.types import Now, Peer
from mirrormq.meta import commands as c
from mirrormq.meta import passwords
from mirrormq.meta.authenticator import Authenticator, Pending, Verdict, is_loopback
from mirrormq.meta.records import User
from mirrormq.meta.state import MetaState
from tests.support.metakit import must

COST = (8, 1, 1)
HASHER = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HASH = HASHER.hash("secret")
HERE = Peer("127.0.0.1", 1, "127.0.0.1", 5672)
FAR = Peer("192.0.2.7", 1, "192.0.2.1", 5672)
INVALID = "user '{}' - invalid credentials"


class SeededRng:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def token(self, nbytes: int) -> bytes:
        return self._random.randbytes(nbytes)

    def below(self, n: int) -> int:
        return self._random.randrange(n)


class Desk:
    """An authenticator with a worker beside it and a clock in its hand."""

    def __init__(self) -> None:
        self.state = MetaState()
        self.authenticator = Authenticator(self.state, SeededRng(1), argon2_cost=COST)
        self.mono = 1_000_000
        self.hashed = 0

    @property
    def now(self) -> Now:
        return Now(self.mono, 0)

    def user(self, name: str, stored: str = HASH, algorithm: str = "argon2id") -> None:
        must(self.state, c.PutUser(User(name, stored, algorithm)))

    def begin(self, user: str, password: str | bytes | None, peer: Peer = HERE) -> Verdict | Pending:
        return self.authenticator.begin(user, password, peer, self.now)

    def work(self) -> dict[int, Verdict]:
        """Do one job."""
        job = self.authenticator.next_work()
        assert job is not None
        assert job.kind == "argon2_verify"
        self.hashed += 1
        try:
            result = HASHER.verify(*job.args)
        except VerifyMismatchError:
            result = False
        return dict(self.authenticator.finish(job.token, result, self.now))

    def login(self, user: str, password: str, peer: Peer = HERE) -> str | None:
        """Log in and wait for the answer; None is success."""
        answer = self.begin(user, password, peer)
        if isinstance(answer, Pending):
            answer = self.work()[answer.ticket]
        assert answer.user == user
        assert answer.ok == (answer.error is None)
        return answer.error


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.user("ann")
    return desk


def test_the_right_password_opens_and_a_wrong_one_does_not(desk: Desk) -> None:
    assert desk.login("ann", "secret") is None
    assert desk.login("ann", "Secret") == INVALID.format("ann")


def test_a_second_log_in_costs_no_second_hash(desk: Desk) -> None:
    desk.login("ann", "secret")
    assert desk.begin("ann", "secret") == Verdict("ann", None)
    assert desk.begin("ann", b"secret") == Verdict("ann", None)
    assert desk.hashed == 1


def test_a_failure_is_never_remembered_as_an_answer(desk: Desk) -> None:
    desk.login("ann", "wrong")
    assert isinstance(desk.begin("ann", "wrong"), Pending)


def test_a_change_of_the_user_ends_what_was_remembered(desk: Desk) -> None:
    desk.login("ann", "secret")
    desk.user("ann", HASHER.hash("other"))
    assert desk.login("ann", "secret") == INVALID.format("ann")
    must(desk.state, c.DeleteUser("ann"))
    assert desk.login("ann", "other") == INVALID.format("ann")


def test_a_deleted_and_remade_user_with_the_same_hash_is_checked_again(desk: Desk) -> None:
    desk.login("ann", "secret")
    must(desk.state, c.DeleteUser("ann"))
    desk.user("ann")
    assert isinstance(desk.begin("ann", "secret"), Pending)


def test_a_password_changed_while_it_is_hashed_does_not_let_the_old_one_in(desk: Desk) -> None:
    answer = desk.begin("ann", "secret")
    assert isinstance(answer, Pending)
    desk.user("ann", HASHER.hash("other"))
    assert not desk.work()[answer.ticket].ok
    assert isinstance(desk.begin("ann", "secret"), Pending)


def test_hashes_are_computed_one_at_a_time(desk: Desk) -> None:
    desk.begin("ann", "one")
    desk.begin("ann", "two")
    job = desk.authenticator.next_work()
    assert job is not None
    assert desk.authenticator.next_work() is None
    desk.authenticator.finish(job.token, False, desk.now)
    assert desk.authenticator.next_work() is not None


def test_equal_log_ins_share_one_hash(desk: Desk) -> None:
    tickets = [desk.begin("ann", "secret") for _ in range(1_000)]
    answers = desk.work()
    assert all(isinstance(ticket, Pending) and answers[ticket.ticket].ok for ticket in tickets)
    assert desk.authenticator.next_work() is None


def test_a_log_in_that_joins_a_hash_under_way_is_answered_with_it(desk: Desk) -> None:
    first = desk.begin("ann", "secret")
    job = desk.authenticator.next_work()
    assert job is not None
    second = desk.begin("ann", "secret")
    answers = dict(desk.authenticator.finish(job.token, True, desk.now))
    assert isinstance(first, Pending)
    assert isinstance(second, Pending)
    assert answers == {first.ticket: Verdict("ann", None), second.ticket: Verdict("ann", None)}


def test_a_foreign_job_decides_nothing(desk: Desk) -> None:
    desk.begin("ann", "secret")
    desk.authenticator.next_work()
    assert desk.authenticator.finish(999, True, desk.now) == []


def test_an_unknown_user_costs_the_same_hash_as_a_known_one(desk: Desk) -> None:
    desk.begin("ann", "wrong")
    known = desk.authenticator.next_work()
    assert known is not None
    desk.authenticator.finish(known.token, False, desk.now)
    desk.begin("nobody", "wrong")
    unknown = desk.authenticator.next_work()
    assert unknown is not None
    parameters = [work.args[0].split("$")[1:4] for work in (known, unknown)]
    assert parameters == [["argon2id", "v=19", "m=8,t=1,p=1"]] * 2
    with pytest.raises(VerifyMismatchError):
        HASHER.verify(*unknown.args)
    assert desk.authenticator.finish(unknown.token, False, desk.now)[0][1].error == INVALID.format("nobody")


def test_a_matching_decoy_lets_nobody_in(desk: Desk) -> None:
    answer = desk.begin("nobody", "x")
    job = desk.authenticator.next_work()
    assert job is not None
    assert isinstance(answer, Pending)
    assert not dict(desk.authenticator.finish(job.token, True, desk.now))[answer.ticket].ok


@pytest.mark.parametrize("algorithm", [passwords.SHA256, passwords.SHA512, passwords.MD5])
def test_imported_hashes_of_rabbitmq_open_at_once_and_fail_as_slowly_as_others(
    desk: Desk, algorithm: str
) -> None:
    desk.user("bob", passwords.salted_hash(b"secret", b"salt", algorithm), algorithm)
    assert desk.begin("bob", "secret") == Verdict("bob", None)
    assert isinstance(desk.begin("bob", "wrong"), Pending)
    assert list(desk.work().values()) == [Verdict("bob", INVALID.format("bob"))]


def test_a_hash_made_by_rabbitmq_is_accepted(desk: Desk) -> None:
    """The example of RabbitMQ's guide to passwords."""
    desk.user("bob", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", passwords.SHA256)
    assert desk.begin("bob", "test12") == Verdict("bob", None)


@pytest.mark.parametrize("stored", ["", "!!", "c2FsdA==", "AAAA"])
def test_an_account_without_a_usable_hash_opens_to_no_password(desk: Desk, stored: str) -> None:
    desk.user("bob", stored, passwords.SHA256 if stored else "")
    assert desk.login("bob", "x") == INVALID.format("bob")


def test_a_blank_password_is_refused_with_rabbitmqs_words(desk: Desk) -> None:
    for blank in ("", b""):
        answer = desk.begin("ann", blank)
        assert isinstance(answer, Verdict)
        assert answer.error is not None
        assert answer.error.startswith(
            "user 'ann' attempted to log in with a blank password, which is prohibited"
        )


def test_a_certificate_needs_no_password_but_a_user(desk: Desk) -> None:
    assert desk.begin("ann", None) == Verdict("ann", None)
    assert desk.begin("nobody", None) == Verdict("nobody", INVALID.format("nobody"))


def test_guest_may_only_come_from_this_machine(desk: Desk) -> None:
    desk.user("guest")
    assert desk.login("guest", "secret", HERE) is None
    assert desk.login("guest", "secret", FAR) == "user 'guest' can only connect via localhost"
    assert desk.begin("guest", None, FAR) == Verdict("guest", "user 'guest' can only connect via localhost")
    assert desk.login("ann", "secret", FAR) is None


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:192.0.2.1", False),
        ("192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_loopback_is_known_in_every_spelling(host: str, local: bool) -> None:
    assert is_loopback(host) == local


def fail(desk: Desk, count: int, name: Callable[[int], str], peer: Peer) -> None:
    for at in range(count):
        assert desk.login(name(at), f"wrong{at}", peer) == INVALID.format(name(at))


def test_failures_of_one_user_are_limited_and_come_back_with_time(desk: Desk) -> None:
    fail(desk, limits.login_failures_per_user_max, lambda _: "ann", FAR)
    refused = desk.begin("ann", "secret", HERE)
    assert refused == Verdict("ann", "user 'ann' - too many failed log-ins, try again later")
    desk.mono += limits.login_failures_window_us // limits.login_failures_per_user_max + 1
    assert desk.login("ann", "secret", HERE) is None


def test_failures_from_one_address_are_limited_whatever_the_user(desk: Desk) -> None:
    fail(desk, limits.login_failures_per_address_max, lambda at: f"u{at}", FAR)
    assert "too many failed log-ins" in (desk.login("ann", "secret", FAR) or "")
    assert desk.login("ann", "secret", HERE) is None


def test_a_user_who_has_logged_in_is_not_locked_out_by_the_failures_of_others(desk: Desk) -> None:
    assert desk.login("ann", "secret", HERE) is None
    fail(desk, limits.login_failures_per_user_max, lambda _: "ann", FAR)
    assert desk.begin("ann", "secret", HERE) == Verdict("ann", None)


def test_remembered_failures_are_bounded(desk: Desk) -> None:
    failures = desk.authenticator._user_failures
    for at in range(limits.login_failures_tracked_max + 10):
        failures.add(f"u{at}", desk.now)
    assert len(failures._spent) == limits.login_failures_tracked_max


def test_waiting_log_ins_are_bounded(desk: Desk) -> None:
    def begin(at: int) -> Verdict | Pending:
        return desk.begin(f"u{at}", "x", FAR._replace(host=f"192.0.2.{at % 250}"))

    assert all(isinstance(begin(at), Pending) for at in range(limits.logins_waiting_max))
    assert begin(999) == Verdict("u999", "user 'u999' - too many log-ins are waiting to be checked")


def test_one_address_cannot_fill_the_queue_of_checks(desk: Desk) -> None:
    answers = [desk.begin(f"u{at}", "x", FAR) for at in range(limits.logins_waiting_max)]
    waiting = sum(isinstance(answer, Pending) for answer in answers)
    assert waiting == limits.login_failures_per_address_max
    assert isinstance(desk.begin("ann", "secret", HERE), Pending)
    for _ in range(waiting):
        desk.work()
    assert not desk.authenticator._address_failures._held or desk.authenticator.next_work()


def test_no_password_is_kept_after_its_answer(desk: Desk) -> None:
    desk.login("ann", "secret")
    desk.login("ann", "wrong")
    assert not desk.authenticator._checks
    assert not desk.authenticator._queue
    assert b"secret" not in repr(vars(desk.authenticator)).encode()
