"""Who is right when copies differ: by seq, by majority, and only if there is one.

Guarantees
- A member is named only if more than half of the judged members agree against it. Otherwise a finding has no
  member, and says who has what.
- Kinds: `missing` (others have the record), `extra` (others have not), `altered` (another content),
  `reordered` (altered, and what is there is the body of another record that differs).
- Comparing is done by Spark over all records of the ranges that differ; nothing is collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MISSING, EXTRA, ALTERED, REORDERED = "missing", "extra", "altered", "reordered"
KINDS = (MISSING, EXTRA, ALTERED, REORDERED)
PARTS = ("epoch", "flags", "properties", "body")
"""Of a version (`audittasks.version_of`); its checksum stands for everything but the body."""

FINDINGS = pa.schema(
    [
        pa.field("number", pa.int32()),
        pa.field("seq", pa.int64()),
        pa.field("member", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("body", pa.int64()),
        pa.field("right", pa.int64()),
        pa.field("code", pa.string()),
    ]
)
FINDINGS_SQL = (
    "number INT, seq LONG, member STRING, kind STRING, detail STRING, body LONG, right LONG, code STRING"
)


class Finding(NamedTuple):
    """A record that is not the same everywhere."""

    member: str | None
    kind: str
    detail: str
    body: int | None
    """Of the record as it is; `right`: as it should be."""
    right: int | None


def verdicts(members: Sequence[str], has: Mapping[str, tuple[str, int]]) -> Iterator[Finding]:
    """What is wrong with a record of which some of the judged `members` have a (version, body)."""
    votes = Counter(has[member][0] if member in has else None for member in members)
    right, count = votes.most_common(1)[0]
    if 2 * count <= len(members):
        yield _undecided(members, has)
        return
    bodies = dict(has.values())
    for member in members:
        version, body = has.get(member, (None, None))
        if version == right:
            continue
        if version is None:
            yield Finding(member, MISSING, "the others have it", None, bodies[right])  # type: ignore[index]
        elif right is None:
            yield Finding(member, EXTRA, "the others do not have it", body, None)
        else:
            yield Finding(member, ALTERED, f"differs in {_difference(version, right)}", body, bodies[right])


def _undecided(members: Sequence[str], has: Mapping[str, tuple[str, int]]) -> Finding:
    groups: dict[str, list[str]] = {}
    for member in members:
        if member in has:
            groups.setdefault(has[member][0], []).append(member)
    lacking = [member for member in members if member not in has]
    told = [", ".join(group) for group in groups.values()]
    if len(groups) == 1:
        return Finding(None, MISSING, f"{told[0]} has it, {', '.join(lacking)} does not", None, None)
    bodies = [body for _, body in has.values()] if len(members) == 2 else [None, None]
    text = f"they differ: {' | '.join(told)}" + (f" | {', '.join(lacking)} lacks it" if lacking else "")
    if len(groups) == 2:
        text += f" (in {_difference(*groups)})"
    return Finding(None, ALTERED, text, bodies[0], bodies[1])


def _difference(one: str, other: str) -> str:
    """Which parts of two versions are not the same."""
    pairs = list(zip(PARTS, one.split(":"), other.split(":"), strict=True))
    found = [name for name, mine, yours in pairs if mine != yours]
    # The checksum covers the body, too: alone it says that something else differs.
    return ", ".join(name for name in found if name != "properties" or "body" not in found)


def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Findings of rows `number`, `seq`, `members` and `versions` (member, version, body)."""
    for batch in batches:
        rows = [
            (row["number"], row["seq"], *finding, None)
            for row in batch.to_pylist()
            for finding in verdicts(
                row["members"], {one["member"]: (one["version"], one["body"]) for one in row["versions"]}
            )
        ]
        columns = [pa.array([row[at] for row in rows], kind.type) for at, kind in enumerate(FINDINGS)]
        yield pa.RecordBatch.from_arrays(columns, schema=FINDINGS)


# --- frames ------------------------------------------------------------------------------------------------


def differing(digests: DataFrame, judged: DataFrame) -> DataFrame:
    """Ranges whose digests are not the same on all judged members.

    `judged`: `number` and the names `members`. A range in which a member has nothing has no row of it.
    """
    each = judged.select("number", f.explode("members").alias("member"), f.size("members").alias("count"))
    counted = (
        digests.where("code IS NULL")
        .join(f.broadcast(each), ["number", "member"])
        .groupBy("number", "is_live", "first")
        .agg(
            f.max("last").alias("last"),
            f.max("count").alias("count"),
            f.count(f.lit(1)).alias("rows"),
            f.countDistinct("messages", "digest").alias("kinds"),
        )
    )
    return counted.where("rows != count OR kinds > 1").select("number", "is_live", "first", "last")


def unlike(versions: DataFrame, judged: DataFrame) -> DataFrame:
    """Records that are not the same on all judged members, with what each of them has."""
    one = f.struct("member", "version", "body")
    found = versions.where("code IS NULL").groupBy("number", "seq").agg(f.collect_list(one).alias("versions"))
    joined = found.join(f.broadcast(judged), "number")
    is_same = (f.size("versions") == f.size("members")) & (
        f.size(f.array_distinct(f.col("versions.version"))) == 1
    )
    return joined.where(~is_same).select("number", "seq", "members", "versions")


def with_order(found: DataFrame) -> DataFrame:
    """Findings, in which an altered record with the body of another differing one is reordered."""
    places = (
        found.where(f.col("right").isNotNull())
        .groupBy(
            f.col("number").alias("its_number"),
            f.col("member").alias("its_member"),
            f.col("right").alias("its"),
        )
        .agg(f.min("seq").alias("place"))
    )
    is_there = (
        (f.col("number") == f.col("its_number"))
        & f.col("member").eqNullSafe(f.col("its_member"))
        & (f.col("body") == f.col("its"))
    )
    is_moved = (f.col("kind") == ALTERED) & f.col("place").isNotNull() & (f.col("place") != f.col("seq"))
    joined = found.join(places, is_there, "left")
    text = f.concat(f.lit("the body of "), f.col("place"), f.lit(" is in its place; "), f.col("detail"))
    return joined.select(
        "number",
        "seq",
        "member",
        f.when(is_moved, REORDERED).otherwise(f.col("kind")).alias("kind"),
        f.when(is_moved, text).otherwise(f.col("detail")).alias("detail"),
        f.when(is_moved, f.col("place")).alias("other_seq"),
    )
