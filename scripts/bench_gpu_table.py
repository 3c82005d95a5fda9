"""The Markdown table of ``bench_gpu.py``."""

from __future__ import annotations

from typing import Any

from bench_gpu_measure import MEASURED

HEAD = (
    "| model | work | batch | frames/s | s per chunk or step | TFLOP | anchor, TFLOP/s | share | peak memory, GB |",
    "|---|---|---|---|---|---|---|---|---|",
)


def line(found: dict[str, Any]) -> str:
    """One line of the Markdown table."""
    head = f"| {found['model']} | {found['work']} | {found['batch']} |"
    if found["status"] != MEASURED:
        return f"{head} {found['status']} | | | | | |"
    return (
        f"{head} {found['frames_per_s']:.3g} | {found['seconds']:.3g} | {found['gflop'] / 1e3:.3g} "
        f"| {found['anchor']['gflops'] / 1e3:.3g} | {found['share_of_anchor']:.0%} | {found['peak_memory_mb'] / 1e3:.3g} |"
    )
