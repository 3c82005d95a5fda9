"""Success rates and paired comparisons as the results contract writes them, refused where they contradict themselves.

A rate is ``{"k", "n", "rate", "lo", "hi", "method"}``; a paired comparison is ``{"n", "both", "only_a", "only_b",
"diff", "lo", "hi", "p"}`` where ``a`` is before, ``b`` is after and ``diff = (only_b - only_a) / n``: what
:mod:`worldrl.core.statistics.intervals` returns, here also read back from files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from worldrl.core.errors import ArtefactError

RATE_KEYS = ("k", "n", "rate", "lo", "hi", "method")
PAIRED_KEYS = ("n", "both", "only_a", "only_b", "diff", "lo", "hi", "p")
TOLERANCE = 1e-6

Rate = Mapping[str, Any]
Paired = Mapping[str, Any]


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number; None, NaN and infinity mean "not measured" on the page."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_rate(owner: str, rate: Rate | None) -> None:
    """Refuse a success rate of ``owner`` that lacks a key or contradicts itself; None was not measured.

    Raises ArtefactError (naming the rule and the received value).
    """
    if rate is None:
        return
    _check_keys(owner, rate, RATE_KEYS)
    if not (0 <= rate["k"] <= rate["n"] and rate["n"] > 0 and abs(rate["rate"] - rate["k"] / rate["n"]) < TOLERANCE):
        raise ArtefactError(f"{owner}: rate must be k / n with 0 <= k <= n and n > 0, got {dict(rate)}")
    _check_interval(owner, rate["rate"], rate, low=0.0)


def check_paired(owner: str, paired: Paired, before: Rate | None, after: Rate | None) -> None:
    """Refuse a paired comparison of ``owner`` that contradicts itself or the rates it compares, where measured.

    Raises ArtefactError: naming the rule and the received values; a swapped ``a`` and ``b`` is caught here.
    """
    _check_keys(owner, paired, PAIRED_KEYS)
    n, gain = paired["n"], paired["only_b"] - paired["only_a"]
    if n <= 0 or abs(paired["diff"] - gain / n) > TOLERANCE:
        raise ArtefactError(
            f"{owner}: diff must be (only_b - only_a) / n with a = before and b = after, got {dict(paired)}"
        )
    _check_interval(owner, paired["diff"], paired, low=-1.0)
    for name, rate, only in (("before", before, "only_a"), ("after", after, "only_b")):
        if rate is not None and (rate["n"], rate["k"]) != (n, paired["both"] + paired[only]):
            raise ArtefactError(
                f"{owner}: {name} must count the paired episodes, k = both + {only} = {paired['both'] + paired[only]} "
                f"of n = {n}, got k = {rate['k']} of n = {rate['n']}"
            )


def _check_keys(owner: str, given: Mapping[str, Any], keys: Sequence[str]) -> None:
    missing = [key for key in keys if key not in given]
    broken = [key for key in keys if key in given and key != "method" and not is_number(given[key])]
    if missing or broken:
        raise ArtefactError(
            f"{owner}: needs finite numbers for {', '.join(keys)}; missing {missing}, not finite {broken}; "
            "give None for what was not measured"
        )


def _check_interval(owner: str, value: float, given: Mapping[str, Any], low: float) -> None:
    lo, hi = given["lo"], given["hi"]
    if not (low - TOLERANCE <= lo <= value + TOLERANCE and value - TOLERANCE <= hi <= 1 + TOLERANCE):
        raise ArtefactError(f"{owner}: the interval must hold the value {value}, got lo = {lo}, hi = {hi}")
