"""What all jobs share: arguments, session, state, progress, result, exit codes.

Guarantees
- A job says how it ended: exit code 0 (done), 1 (failed: one sentence on stderr), 2 (misused), 130 (stopped
  by a signal; run it again to go on). A job that judges may end with a code of its own when it is done. With
  `--json` the result is one JSON object on stdout and nothing else is.
- An address with a password in it is refused before anything of the run is written.
- A stop by Ctrl-C or SIGTERM loses nothing: the batch under way is done again, once, by the next run.
- Nothing that can be large is collected: jobs aggregate first, and say so where they take rows to the driver.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from mirrormq.spark import urls
from mirrormq.spark.jobs import state as states
from mirrormq.spark.jobs.progress import Progress
from mirrormq.spark.jobs.state import RunState, StateRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession

DONE, FAILED, MISUSED, STOPPED = 0, 1, 2, 130
FORMAT = "mirrormq"
PLACES = ("url", "to", "archive")
"""Arguments that can be addresses and are remembered in the folder of the run."""

Result = dict[str, Any]


class JobFailed(Exception):
    """The job cannot do what it was asked; the text is for the user."""


@dataclass(frozen=True)
class Job:
    """One job."""

    name: str
    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Work], Result]
    identity: tuple[str, ...] = ()
    """Arguments that make a run another one: they name its state, and cannot change in it."""
    once: bool = False
    """Is a run that is done not to be done again? A dry run is: it has done nothing."""
    code: Callable[[Result], int] = field(default=lambda _: DONE)
    """The exit code of a run that is done."""
    lines: Callable[[Result], list[str]] = field(
        default=lambda result: [f"{k}: {v}" for k, v in result.items()]
    )
    """The result for people."""


class Work:
    """A run of a job: what it was asked, and what it works with."""

    def __init__(self, job: Job, arguments: argparse.Namespace, state: RunState, progress: Progress) -> None:
        self.job = job
        self.arguments = arguments
        self.state = state
        self.progress = progress
        self._spark: SparkSession | None = None
        self._is_ours = False

    @property
    def spark(self) -> SparkSession:
        """The session, made when it is needed first."""
        if self._spark is None:
            from pyspark.sql import SparkSession

            from mirrormq.spark.session import is_remote, make_session

            self._is_ours = SparkSession.getActiveSession() is None
            self.progress.show("starting Spark")
            given, name = self.arguments, f"mirrormq {self.job.name}"
            settings = dict(pair.split("=", 1) for pair in given.conf)
            self._spark = make_session(name, master=given.master, remote=given.remote, settings=settings)
            if not is_remote(self._spark):
                self._spark.sparkContext.setLogLevel("ERROR")
        return self._spark

    @property
    def vhost(self) -> str:
        """The virtual host the job works with."""
        return urls.parsed(self.arguments.url or urls.DEFAULT_URL).vhost

    @property
    def contact(self) -> dict[str, str]:
        """The options that lead to the broker; a password comes by a file or the environment.

        Without a `url` it is the default one, or what the variable of a Spark Connect server says.
        """
        given = {"url": self.arguments.url, "passwordFile": self.arguments.password_file}
        return {name: value for name, value in given.items() if value}

    def reader(self, **options: str) -> DataFrameReader:
        """A batch read of queues."""
        return self.spark.read.format(FORMAT).options(**{**self.contact, **options})

    def stream(self, **options: str) -> DataFrame:
        """A stream of queues."""
        return self.spark.readStream.format(FORMAT).options(**{**self.contact, **options}).load()

    def stop(self) -> None:
        """End the session, unless it was there before."""
        if self._spark is not None and self._is_ours:
            self._spark.stop()


def parser_of(job: Job, prog: str) -> argparse.ArgumentParser:
    """The arguments of a job, those of all jobs included."""
    made = argparse.ArgumentParser(prog=prog, description=job.summary)
    made.set_defaults(url=None, password_file=None)
    job.arguments(made)
    shared = made.add_argument_group("all jobs")
    option = shared.add_argument
    option("--url", help="amqp[s]://user@host:port,host:port/vhost (default: guest on this machine)")
    option("--password-file", metavar="FILE", help="holds the password; or set MIRRORMQ_PASSWORD")
    where = shared.add_mutually_exclusive_group()
    where.add_argument("--master", help="Spark's master (default: local[*], or what spark-submit says)")
    where.add_argument(
        "--remote", metavar="sc://HOST:PORT", help="a Spark Connect server (default: SPARK_REMOTE)"
    )
    option("--conf", action="append", default=[], metavar="KEY=VALUE", type=_pair, help="a setting of Spark")
    option("--name", help="name of this run, for going on later (default: made of its arguments)")
    option(
        "--state-dir", type=Path, metavar="DIR", help=f"where runs remember (default: {states.DEFAULT_ROOT})"
    )
    option("--json", action="store_true", help="print the result as one JSON object")
    option("--quiet", action="store_true", help="show no progress")
    return made


def _pair(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError("is KEY=VALUE")
    return text


def main_of(job: Job, argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run a job with these words; returns the exit code."""
    arguments = parser_of(job, prog or f"{job.name}.py").parse_args(argv)
    # Settled here, once: whoever asks for the address or its virtual host later gets the same.
    arguments.url = urls.given_url(arguments.url)
    identity = {name: _plain(getattr(arguments, name)) for name in ("url", *job.identity)}
    name = arguments.name or f"{job.name}-{_digest(identity)}"
    folder = (arguments.state_dir or states.default_root()) / name
    signal.signal(signal.SIGTERM, _stop)
    try:
        _check_places(identity)
        with states.opened(folder, job.name, identity) as state:
            return _run(job, arguments, state)
    except (StateRefused, urls.UrlRefused) as error:
        return _fail(job, str(error), MISUSED)
    except OSError as error:
        return _fail(job, f"nothing can be remembered in {folder}: {error.strerror or error}", FAILED)


def _check_places(identity: Mapping[str, Any]) -> None:
    """Raise if an address is none, or has a password in it: that would be written into the run's folder."""
    if identity["url"] is not None:
        urls.parsed(identity["url"])
    for name in PLACES:
        text = identity.get(name)
        if isinstance(text, str) and "://" in text and ":" in urlsplit(text).netloc.rpartition("@")[0]:
            raise urls.UrlRefused(
                f"a password in the address of the {name} would be written into the folder of the run: "
                "leave it to the environment, or to the configuration of the file system"
            )


def _run(job: Job, arguments: argparse.Namespace, state: RunState) -> int:
    progress = Progress(job.name, lambda facts: state.update(progress=facts), is_quiet=arguments.quiet)
    is_dry = getattr(arguments, "dry_run", False)
    if job.once and not is_dry and state.former.get("state") == states.DONE:
        result = {**(state.former.get("result") or {}), "already": True}
        state.update(state=states.DONE, result=result)
        progress.say(f"this run is done; give another --name to do it again ({state.folder})")
        _show(job, arguments, result)
        return job.code(result)
    work = Work(job, arguments, state, progress)
    try:
        result = job.run(work)
    except KeyboardInterrupt:
        state.update(state=states.STOPPED)
        return _fail(job, f"stopped; run it again to go on ({state.folder})", STOPPED, progress)
    except JobFailed as error:
        state.update(state=states.FAILED, error=str(error))
        return _fail(job, str(error), FAILED, progress)
    except Exception as error:  # noqa: BLE001  (Spark's failures have no common base)
        text = sentence_of(error)
        state.update(state=states.FAILED, error=text)
        return _fail(job, f"{text}; run it again to go on ({state.folder})", FAILED, progress)
    finally:
        work.stop()
    progress.end()
    state.update(state=states.DONE, result=result)
    _show(job, arguments, result)
    return job.code(result)


def _show(job: Job, arguments: argparse.Namespace, result: Mapping[str, Any]) -> None:
    if arguments.json:
        sys.stdout.write(json.dumps(result, ensure_ascii=False, default=str) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in job.lines(dict(result))))


def told(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows that were collected, with their times in UTC: Spark gives them by the clock of this machine."""
    return [{name: _in_utc(value) for name, value in row.asDict().items()} for row in rows]


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def sentence_of(error: Exception) -> str:
    """What is wrong, without pages of Java: the last cause that our own code gave, or the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("mirrormq.") and ": " in line]
    text = ours[-1].split(": ", 1)[1] if ours else (lines[0] if lines else type(error).__name__)
    return text[:500]


def _fail(job: Job, text: str, code: int, progress: Progress | None = None) -> int:
    if progress is not None:
        progress.end()
    sys.stderr.write(f"{job.name}: {text}\n")
    return code


def _stop(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str | list) else str(value)


def _digest(identity: Mapping[str, Any]) -> str:
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
