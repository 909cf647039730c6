"""Medians, spread and ratios of measured runs, as a table in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from bench.generator import Result


def median(runs: list[Result], *path: str) -> float | None:
    values = []
    for run in runs:
        value: object = run
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int | float):
            values.append(float(value))
    return statistics.median(values) if values else None


def _figure(runs: list[Result], key: str) -> str:
    values = [float(run[key]) for run in runs]
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})" if values else "–"


def _latency(runs: list[Result], key: str) -> str:
    p50, p99 = median(runs, key, "p50"), median(runs, key, "p99")
    return f"{p50:.2f} / {p99:.2f}" if p50 is not None and p99 is not None else "–"


def ratios(runs: list[Result]) -> dict[str, float]:
    """MirrorMQ / RabbitMQ, by the medians."""
    ours = [run for run in runs if run["broker"] == "mirrormq"]
    theirs = [run for run in runs if run["broker"] == "rabbitmq"]
    paths = {
        "cpu": ("msgs_per_broker_cpu_s",),
        "wall": ("consumed_per_s",),
        "e2e_p99": ("e2e_ms", "p99"),
        "confirm_p99": ("confirm_ms", "p99"),
    }
    found = {name: (median(ours, *path), median(theirs, *path)) for name, path in paths.items()}
    return {name: us / them for name, (us, them) in found.items() if us is not None and them}


def table(runs: list[Result], titles: Mapping[str, str]) -> str:
    """Medians and spread of all rows as Markdown."""
    lines = [
        (
            "| load | broker | runs | msgs per broker CPU second | msgs/s | confirm ms p50 / p99 "
            "| end-to-end ms p50 / p99 | broker / generator cores |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(run["row"] for run in runs):
        mine = [run for run in runs if run["row"] == name]
        for kind in dict.fromkeys(run["broker"] for run in mine):
            of_kind = [run for run in mine if run["broker"] == kind]
            broker_cores = median(of_kind, "broker_cpu_share") or 0
            generator_cores = median(of_kind, "client_cpu_share") or 0
            lines.append(
                f"| {titles[name]} | {kind} | {len(of_kind)} "
                f"| {_figure(of_kind, 'msgs_per_broker_cpu_s')} | {_figure(of_kind, 'consumed_per_s')} "
                f"| {_latency(of_kind, 'confirm_ms')} | {_latency(of_kind, 'e2e_ms')} "
                f"| {broker_cores:.2f} / {generator_cores:.2f} |"
            )
        compared = ratios(mine)
        if compared:
            lines.append(
                f"| | **ratio** | | **{compared['cpu']:.1f}×** | **{compared['wall']:.1f}×** "
                f"| p99 {compared.get('confirm_p99', 0):.2f}× | p99 {compared.get('e2e_p99', 0):.2f}× | |"
            )
    return "\n".join(lines)
