"""The job `mirror`: a vhost of another cluster follows queues of a source, with definitions and removals.

Guarantees
- What was confirmed at the source and not removed there before a run is in the mirror after it, once, in
  order, with all properties; with `--removals follow` what was removed there is not in it, and never comes
  back.
- Exactly once over crashes of anything: copies are taken in the order of the source's records and each once,
  removals name records. The source keeps what the next run needs (a cursor on each queue).
- A queue of which the source has lost something that was not read yet, or that was declared anew, is
  synchronised as a whole, and the job says so.
- After `promote_mirror` the job is refused; clients of the target can only read until then.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as f

from mirrormq.spark.jobs import mirrorrows
from mirrormq.spark.jobs.cursors import last_offset
from mirrormq.spark.jobs.frame import FORMAT, Job, JobFailed, Result, Work, main_of, sentence_of
from mirrormq.spark.jobs.mirrordefinitions import Choice, plan
from mirrormq.spark.jobs.mirrormemory import Memory
from mirrormq.spark.jobs.mirrorplaces import (
    FIRST_S,
    Promoted,
    Source,
    Target,
    Unreachable,
    first_source,
    has_diverged,
    positions_of,
    split_urls,
)
from mirrormq.spark.offsets import VERSION, Facts, key_of
from mirrormq.spark.options import Given, OptionRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FULL, INCREMENTAL, EVENT = "full", "incremental", "event"
FOLLOW, KEEP = "follow", "keep"
METRICS = "mirror"
INTERVAL_S = 10.0
TRIGGER = "100 milliseconds"
"""Of `event`: how long nothing is asked after a batch began."""
BATCH_RECORDS = 1_000_000
AGAIN_MAX = 3
"""How often a run begins again because queues changed under it."""
LOST = ("data loss", mirrorrows.ANEW, "declared again", "declare it anew", "was deleted")
"""What is said when a queue is not what it was when the run began."""


def arguments(made: argparse.ArgumentParser) -> None:
    """What the job can be asked."""
    made.add_argument(
        "--source",
        required=True,
        metavar="URL[,URL...]",
        help="what is followed: amqp[s]://user@host,host/vhost; if it does not answer, the next one is asked",
    )
    made.add_argument("--source-password-file", metavar="FILE", help="holds the password at the source")
    made.add_argument(
        "--strategy",
        default=INCREMENTAL,
        choices=(FULL, INCREMENTAL, EVENT),
        help="full: all there is; incremental: what has happened since; event: as it happens, until stopped",
    )
    made.add_argument(
        "--sync-interval",
        type=seconds,
        metavar="10s",
        help="go on for ever, with a run at this interval; event: look for new definitions so often",
    )
    made.add_argument("--include", action="append", default=[], metavar="REGEX", help="queues (whole names)")
    made.add_argument("--exclude", action="append", default=[], metavar="REGEX", help="but not these")
    made.add_argument(
        "--removals",
        default=FOLLOW,
        choices=(FOLLOW, KEEP),
        help="follow: what leaves a queue there leaves it here; keep: nothing is ever removed here",
    )
    made.add_argument(
        "--max-records", type=int, default=BATCH_RECORDS, metavar="N", help="records in a batch"
    )


def seconds(text: str) -> float:
    """A duration of the command line."""
    try:
        return Given({"sync-interval": text}, ("sync-interval",), "mirroring").seconds("sync-interval", 0.0)
    except OptionRefused as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class Mirror:
    """One run of the job."""

    def __init__(self, work: Work) -> None:
        given = work.arguments
        self._work = work
        self._say = work.progress.say
        self._memory = Memory(work.state.folder)
        self._follows = given.removals == FOLLOW
        self._choice = Choice(tuple(given.include), tuple(given.exclude))
        more = {"passwordFile": given.source_password_file} if given.source_password_file else {}
        try:
            self._sources = [Source({"url": url, **more}, FIRST_S) for url in split_urls(given.source)]
            self._target = Target(work.contact)
        except OptionRefused as error:
            raise JobFailed(str(error)) from None
        self._cursor = f"mirror-{work.state.folder.name}-{work.state.id[:8]}"
        self._goes_on = given.strategy == EVENT or given.sync_interval is not None
        self._interval = given.sync_interval or INTERVAL_S
        self._source = self._sources[0]
        self.copied = self.removals = self.rounds = 0
        self.full: set[str] = set()
        self._starts: dict[str, int] = {}
        """Where the cursors stand."""

    def run(self) -> Result:
        """Synchronise once, or for ever."""
        try:
            while True:
                began = time.monotonic()
                is_due = self._attempt()
                if not self._goes_on:
                    return self._result()
                if not is_due:
                    threading.Event().wait(max(0.0, began + self._interval - time.monotonic()))
        except Promoted:
            self._let_go()
            raise
        finally:
            for place in (*self._sources, self._target):
                place.close()

    def _attempt(self) -> bool:
        """One run, from whichever source answers; is another one due at once?"""
        problem = ""
        for _ in range(1 if self._goes_on else AGAIN_MAX):
            try:
                return self._round()
            except Unreachable as error:
                problem = str(error)
        if not self._goes_on:
            raise JobFailed(f"{problem}; run it again to go on")
        self._work.progress.show(f"waiting: {problem}")
        return False

    def _round(self) -> bool:
        for is_last in [False] * (AGAIN_MAX - 1) + [True]:
            try:
                return self._synchronise()
            except (JobFailed, Unreachable):
                raise
            except Exception as error:  # noqa: BLE001  (Spark's failures have no common base)
                self._judge(error, is_last=is_last)
        raise AssertionError

    def _judge(self, error: Exception, *, is_last: bool) -> None:
        """Raise what a failure means, unless it is one that a new beginning cures."""
        text = sentence_of(error)
        self._target.close()
        self._target.check()
        self._source.close()
        self._source.connect()
        if not is_last and any(word in str(error) for word in LOST):
            self._say(f"{text}; looking at the queues again")
        elif self._goes_on:
            self._say(f"{text}; trying again in {self._interval:g} s")
            raise Unreachable(text)
        else:
            raise error

    def _synchronise(self) -> bool:
        source = self._source = first_source(self._sources, self._say)
        if self._target.begin(source, was_mirror=self._memory.is_mirror):
            self._say(f"vhost '{self._target.vhost}' was made, a mirror of {self._target.mirror_of}")
        self._memory.mirrors()
        queues, stale = self._prepare(source)
        self._work.progress.show(f"{len(queues)} queues", queues=len(queues))
        if stale:
            self._copy(source, {name: queues[name] for name in stale})
        is_due = False
        if self._work.arguments.strategy != FULL and queues:
            is_due = self._stream(source, queues, stale)
        elif self._work.arguments.strategy == EVENT:
            self._watch(source)
        self._settle()
        self.rounds += 1
        return is_due

    # --- definitions and cursors ---

    def _prepare(self, source: Source) -> tuple[dict[str, Facts], list[str]]:
        """Have the queues and all around them at the target: (the queues, those to copy as a whole)."""
        known, memory, target = source.queues(), self._memory, self._target
        there = source.definitions()
        wanted = plan(
            there,
            target.definitions(),
            known,
            self._choice,
            removes=self._follows,
            diverged=[name for name in known if self._is_diverged(name, known[name])],
        )
        if wanted.anew and not self._follows:
            raise JobFailed(
                f"queue '{wanted.anew[0]}' was declared anew at the source; with --removals keep what is in "
                f"its mirror is not thrown away: take it out of the way (mirrormq ctl -p {target.vhost} "
                f"delete_queue {wanted.anew[0]}) or name another vhost"
            )
        for name in wanted.anew:
            self._say(f"queue '{name}' is another one at the source now: it is synchronised as a whole")
        if wanted.left_out:
            self._say(f"not mirrored, because they do not outlive a restart: {', '.join(wanted.left_out)}")
        if any(wanted.remove.values()) or any(wanted.add.values()):
            self._settle()
        target.undefine(wanted.remove)
        target.define(wanted.add)
        names = {row["name"] for row in there["queues"] if self._choice.takes(row["name"])}
        queues = {name: facts for name, facts in known.items() if name in names}
        self._forget(source, queues, known)
        here = target.queues()
        stale = [name for name in queues if not memory.has(name, queues[name].id, here[name].id)]
        memory.expect({name: here[name].id for name in queues})
        if self._work.arguments.strategy == FULL:
            return queues, list(queues)
        return queues, stale + self._claimed(source, queues, set(stale))

    def _is_diverged(self, name: str, facts: Facts) -> bool:
        entry = self._memory.position(name, facts.id)
        return entry is not None and has_diverged(*entry, facts)

    def _forget(self, source: Source, queues: Mapping[str, Facts], known: Mapping[str, Facts]) -> None:
        for name in self._memory.others(queues):
            if name in known:
                source.release(name, self._cursor)
            self._memory.forget(name)

    def _claimed(self, source: Source, queues: Mapping[str, Facts], stale: set[str]) -> list[str]:
        """Have a cursor on every queue: the queues of which something was not held meanwhile."""
        found = []
        for name, facts in queues.items():
            at = source.held_from(name, self._cursor)
            if at is None:
                if name not in stale:
                    # Forgotten first: after a crash the new cursor must not be taken for the old one.
                    self._memory.forget(name)
                    found.append(name)
                    self._say(f"the cursor on queue '{name}' is lost: it is synchronised as a whole")
                at = source.hold(facts, self._cursor)
            self._starts[name] = at
        return found

    # --- messages ---

    def _copy(self, source: Source, queues: Mapping[str, Facts]) -> None:
        """Have the target hold what these queues hold now."""
        self._settle()
        now = source.queues()
        for name, facts in queues.items():
            if name not in now or now[name].id != facts.id:
                raise RuntimeError(f"queue '{name}' {mirrorrows.ANEW}")
        queues = {name: now[name] for name in queues}
        sink, batch = f"{self._work.state.id}-full", self._memory.next_batch()
        self._memory.uses(sink)
        ends = mirrorrows.ends_of(source.cluster, queues.values())

        def read(schema: StructType) -> DataFrame:
            reader = self._work.spark.read.format(FORMAT).schema(schema)
            return reader.options(**{**source.options, **named(queues), "endingOffsets": ends}).load()

        counted = Observation(METRICS)
        rows = _observed(mirrorrows.snapshot(read, queues, follows=self._follows), counted)
        with self._work.progress.watching(self._work.spark, f"copying {len(queues)} queues"):
            writer = rows.write.format(FORMAT).options(**self._writing(queues), sinkId=sink)
            writer.option("batchId", str(batch)).mode("append").save()
        self._count(counted.get)
        self._settle()
        self.full |= queues.keys()
        self._memory.synchronised(
            {name: (one.id, one.next, one.epoch_at(one.next - 1)) for name, one in queues.items()}
        )

    def _stream(self, source: Source, queues: Mapping[str, Facts], stale: list[str]) -> bool:
        """Follow the changes; is another run due, because definitions have changed?"""
        given, state = self._work.arguments, self._work.state
        if self._is_outdated(source, queues, stale):
            self._settle()
            left = state.checkpoint
            state.update(round=state.round + 1)
            shutil.rmtree(left, ignore_errors=True)
        sink = f"{state.id}-{state.round}"
        self._memory.uses(sink)
        options = {**source.options, **named(queues), "mode": "changes", "cursor": self._cursor}
        options |= {
            "maxRecordsPerTrigger": str(given.max_records),
            "startingOffsets": self._begins(source, queues),
        }
        changes = self._work.spark.readStream.format(FORMAT).options(**options).schema(mirrorrows.READ).load()
        sources = {name: facts.id for name, facts in queues.items()}
        rows = changes.mapInArrow(mirrorrows.changed(sources, follows=self._follows), mirrorrows.SENT)
        writer = (
            _observed(rows, METRICS).writeStream.format(FORMAT).options(**self._writing(queues), sinkId=sink)
        )
        writer = writer.option("checkpointLocation", state.checkpoint)
        is_event = given.strategy == EVENT
        trigger: dict[str, Any] = {"processingTime": TRIGGER} if is_event else {"availableNow": True}
        watch = Watch(self, source) if is_event else None
        query = writer.trigger(**trigger).start()
        try:
            self._work.progress.follow(query, "mirroring", self._told, watch or (lambda: False))
        finally:
            query.stop()
            self._note(queues)
        return watch is not None and watch.has_changed

    def _is_outdated(self, source: Source, queues: Mapping[str, Facts], stale: list[str]) -> bool:
        """Does what the stream remembers not fit the queues any more?"""
        offset = last_offset(self._work.state.checkpoint)
        if offset is None:
            return False
        known = positions_of(offset)
        fits = offset["c"] == source.cluster and all(
            name in queues and queues[name].id == at.id for name, at in known.items()
        )
        return not fits or any(name in known for name in stale)

    def _begins(self, source: Source, queues: Mapping[str, Facts]) -> str:
        rows = {
            key_of((facts.vhost, name)): {"id": facts.id, "e": 0, "s": self._starts[name]}
            for name, facts in queues.items()
        }
        return json.dumps({"v": VERSION, "c": source.cluster, "q": rows})

    def _writing(self, queues: Mapping[str, Facts]) -> dict[str, str]:
        sources = json.dumps({name: facts.id for name, facts in queues.items()})
        return {**self._work.contact, "mirrorOf": self._target.mirror_of, "mirrorSources": sources}

    def _note(self, queues: Mapping[str, Facts]) -> None:
        """Remember where the stream stands."""
        known = positions_of(last_offset(self._work.state.checkpoint))
        self._memory.synchronised(
            {name: (at.id, at.seq, at.epoch) for name, at in known.items() if name in queues}
        )

    def _told(self, progress: dict[str, Any]) -> None:
        self._count((progress.get("observedMetrics") or {}).get(METRICS))

    def _count(self, found: Any) -> None:
        if found is not None:
            self.copied += found["copied"]
            self.removals += found["removals"]

    def _settle(self) -> None:
        def told(waiting: int) -> None:
            self._work.progress.show(f"{waiting} messages on their way", waiting=waiting)

        self._target.settle(self._memory.sinks, told)
        self._memory.settled(f"{self._work.state.id}-{self._work.state.round}")

    # --- the end ---

    def _watch(self, source: Source) -> None:
        """Nothing is there to be followed: wait until something is."""
        watch = Watch(self, source)
        while not watch():
            threading.Event().wait(self._interval)

    def is_changed(self, source: Source, before: object) -> bool:
        """Has something changed at the source that the stream does not tell?"""
        self._target.check()
        return self.fingerprint(source) != before

    def fingerprint(self, source: Source) -> object:
        """Tells definitions and incarnations of queues apart."""
        queues = source.queues()
        ids = {name: facts.id for name, facts in queues.items() if self._choice.takes(name)}
        return ids, source.definitions()

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return self._interval

    def _let_go(self) -> None:
        """The mirror is an ordinary vhost: the source need not keep anything for it."""
        try:
            for name in self._source.queues().keys() & self._memory.names():
                self._source.release(name, self._cursor)
        except Exception as error:  # noqa: BLE001  (the source is often the reason for the promotion)
            self._work.progress.say(f"cursors stay at the source until they age: {sentence_of(error)}")

    def _result(self) -> Result:
        return {
            "strategy": self._work.arguments.strategy,
            "source": self._source.text,
            "vhost": self._target.vhost,
            "mirror_of": self._target.mirror_of,
            "queues": len(self._memory.names()),
            "full": sorted(self.full),
            "copied": self.copied,
            "removals": self.removals,
            "messages": self._target.messages(self._memory.names()),
        }


class Watch:
    """Looks at the source from time to time."""

    def __init__(self, mirror: Mirror, source: Source) -> None:
        self._mirror = mirror
        self._source = source
        self._before = mirror.fingerprint(source)
        self._due = time.monotonic() + mirror.interval
        self.has_changed = False

    def __call__(self) -> bool:
        """Is it time to begin again?"""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._mirror.interval
            self.has_changed = self._mirror.is_changed(self._source, self._before)
        return self.has_changed


def _observed(rows: DataFrame, name: str | Observation) -> DataFrame:
    is_copy = f.col("op") == "publish"
    return rows.observe(name, f.count_if(is_copy).alias("copied"), f.count_if(~is_copy).alias("removals"))


def named(queues: Mapping[str, Facts]) -> dict[str, str]:
    """Queues as options of the connector: a name may have commas and blanks in it."""
    names = sorted(queues)
    if any("," in name or name != name.strip() for name in names):
        return {"queuePattern": "|".join(map(re.escape, names))}
    return {"queue": names[0]} if len(names) == 1 else {"queues": ",".join(names)}


def run(work: Work) -> Result:
    """Synchronise."""
    return Mirror(work).run()


def lines(result: Result) -> list[str]:
    """The result for people."""
    whole = f", {len(result['full'])} of them as a whole" if result["full"] else ""
    place = f"vhost '{result['vhost']}' mirrors {result['source']}"
    numbers = f"{result['copied']} messages sent, {result['messages']} there now"
    return [f"{place}: {result['queues']} queues{whole}, {numbers}"]


JOB = Job(
    "mirror",
    "Have a vhost follow queues of another cluster, with definitions and removals; run it again to go on.",
    arguments,
    run,
    identity=("removals",),
    lines=lines,
)

if __name__ == "__main__":
    sys.exit(main_of(JOB))
