"""Numbers and statements: how a report says what was measured.

The verdict is generated from the paired interval alone, so nobody can word it more kindly than the data. Plain
text; the page escapes it, the terminal prints it as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from worldrl.evaluation.report.checks import Paired, Rate, is_number
from worldrl.evaluation.report.model import Number, ReportData, SuccessRow

NBSP = "\u00a0"
MINUS = "\u2212"
MAX_DECIMALS = 3

VerdictKind = Literal["gain", "loss", "none", "unmeasured", "measured", "imagined"]
BADGES: dict[VerdictKind, str] = {
    "gain": "Gain shown",
    "loss": "Loss shown",
    "none": "No gain shown",
    "unmeasured": "Not measured",
    "measured": "Measured",
    "imagined": "Imagined",
}


@dataclass(frozen=True)
class Verdict:
    """The page's first statement and what kind of statement it is."""

    kind: VerdictKind
    sentence: str


def percent(fraction: float, decimals: int = 1) -> str:
    """Write 0.4533 as ``45.3 %`` (with a no-break space)."""
    return f"{100 * fraction:.{decimals}f}{NBSP}%"


def points(difference: float, decimals: int = 1) -> str:
    """Write a difference of two rates as signed percentage points: 0.18 is ``+18.0``; only 0 has no sign."""
    sign = "+" if difference > 0 else MINUS if difference < 0 else ""
    return f"{sign}{abs(100 * difference):.{decimals}f}"


def number(value: Any) -> str:
    """Write a number with four significant digits and a true minus sign; text passes; None is ``not measured``."""
    if isinstance(value, str):
        return value
    if not is_number(value):
        return "not measured"
    text = (
        f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value + 0.0:.4g}"
    )  # no -0
    return text.replace("-", MINUS)


def true_minus(text: str) -> str:
    """Give the negative numbers within a text the minus sign that :func:`number` writes; names and dates keep theirs."""
    return re.sub(r"(?<![\w.=-])-(?=\.?\d)", MINUS, text)


def duration(seconds: float | None) -> str:
    """Write seconds as ``12 s``, ``3 min 20 s`` or ``1 h 05 min``; None is ``not run``."""
    if not is_number(seconds) or seconds is None:
        return "not run"
    if seconds < 9.95:
        return f"{seconds:.1f}{NBSP}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest}{NBSP}s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours}{NBSP}h{NBSP}{minutes_left:02d}{NBSP}min" if hours else f"{minutes}{NBSP}min{NBSP}{rest:02d}{NBSP}s"


def count(amount: int, noun: str) -> str:
    """Write ``1 episode`` or ``2 episodes``."""
    return f"{amount}{NBSP}{noun}{'' if amount == 1 else 's'}"


def interval(rate: Rate) -> str:
    """Write a rate's interval as ``39.7 to 51.0 %``."""
    return f"{100 * rate['lo']:.1f} to {percent(rate['hi'])}"


def rate_text(rate: Rate) -> str:
    """Write a rate as ``45.3 % (136 of 300), 95 % interval 39.8 to 51.0 %``."""
    return f"{percent(rate['rate'])} ({rate['k']} of {rate['n']}), 95{NBSP}% interval {interval(rate)}"


def gain_interval(paired: Paired) -> str:
    """Write a paired interval as ``+11.0 to +25.1``."""
    return f"{points(paired['lo'])} to {points(paired['hi'])}"


def bounds(found: Mapping[str, Any]) -> str:
    """Write the ends of a bootstrap interval as ``26.4 to 28.1``."""
    known = is_number(found["lo"]) and is_number(found["hi"])
    return f"{found['lo']:.3g} to {found['hi']:.3g}" if known else "unknown: too few for an interval"


def with_interval(found: Mapping[str, Any]) -> str:
    """Write a number with its bootstrap interval as ``27.1 [26.4, 28.1]``."""
    if not is_number(found["value"]):
        return "not measurable"
    known = is_number(found["lo"]) and is_number(found["hi"])
    return f"{found['value']:.3g} [{found['lo']:.3g}, {found['hi']:.3g}]" if known else f"{found['value']:.3g}"


def with_rate(rate: Rate | None) -> str:
    """Write a rate with its Wilson interval and counts as ``45 % [40, 51] (136/300)``."""
    if rate is None:
        return "nothing to count"
    return f"{percent(rate['rate'], 0)} [{100 * rate['lo']:.0f}, {100 * rate['hi']:.0f}] ({rate['k']}/{rate['n']})"


def rounded(value: Any) -> float | None:
    """Keep three significant digits; None where ``value`` is no finite number."""
    return float(f"{value:.3g}") if is_number(value) else None


def tile(name: str, found: Mapping[str, Any], unit: str = "", *, imagined: bool = False) -> Number:
    """Make a headline number of a value with its bootstrap interval."""
    return Number(name, rounded(found["value"]), unit, imagined, f"95 % interval {bounds(found)}")


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Turn nested mappings into ``("a.b", text)`` pairs, in the order given; an empty mapping stays a value."""
    pairs: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        pairs += flatten(value, f"{name}.") if isinstance(value, Mapping) and value else [(name, _setting(value))]
    return pairs


def _setting(value: Any) -> str:
    """Write a value of a configuration as YAML would, on one line; floats keep every digit."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_setting, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def p_value(p: float) -> str:
    """Write a p-value; tiny ones as a bound."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def gain_kind(paired: Paired) -> VerdictKind:
    """Decide from the interval: a gain needs its lower end above 0, a loss its upper end below 0."""
    if paired["lo"] > 0:
        return "gain"
    return "loss" if paired["hi"] < 0 else "none"


def statement(data: ReportData) -> Verdict:
    """Return the page's first statement: the verdict on two policies, or what a run without policies has measured."""
    if not data.sentence:
        return verdict(data.overall)
    return Verdict("imagined" if data.imagined else "measured", data.sentence)


def verdict(overall: SuccessRow | None) -> Verdict:
    """Generate the statement from real, paired numbers.

    ``overall``: real success over all tasks; None or incomplete means not measured. Returns the verdict; imagined
    numbers never reach it.
    """
    if overall is None or overall.before is None or overall.after is None or overall.paired is None:
        return Verdict("unmeasured", _unmeasured(overall))
    paired = overall.paired
    kind = gain_kind(paired)
    d = _decimals(overall.before["rate"], overall.after["rate"], paired)
    before, after = percent(overall.before["rate"], d), percent(overall.after["rate"], d)
    evidence = (
        f"({points(paired['diff'], d)} points, 95{NBSP}% interval {points(paired['lo'], d)} to "
        f"{points(paired['hi'], d)}, {count(paired['n'], 'paired episode')})"
    )
    if kind == "none":
        return Verdict(kind, f"No gain shown: real success was {before} before and {after} after {evidence}.")
    verb = "rose" if kind == "gain" else "fell"
    return Verdict(kind, f"Real success {verb} from {before} to {after} {evidence}.")


def _unmeasured(overall: SuccessRow | None) -> str:
    """Say which half of the comparison is missing."""
    known = [] if overall is None else [("before", overall.before), ("after", overall.after)]
    found = [f"{name} it was {percent(rate['rate'])} of {count(rate['n'], 'episode')}" for name, rate in known if rate]
    text = "Not measured: real success before and after training was not compared on the same episodes."
    return f"{text} Real success {', '.join(found)}." if found else text


def _decimals(before: float, after: float, paired: Paired) -> int:
    """Fewest decimals at which no sign is lost and, where that is possible, the statement's subtraction comes out."""

    def keeps_signs(d: int) -> bool:
        return all(round(100 * paired[key], d) != 0 or paired[key] == 0 for key in ("diff", "lo", "hi"))

    def adds_up(d: int) -> bool:
        shown = round(100 * after, d) - round(100 * before, d)
        return abs(shown - round(100 * paired["diff"], d)) < 10**-d / 2

    signed = [d for d in range(MAX_DECIMALS + 1) if keeps_signs(d)] or [MAX_DECIMALS]
    return next((d for d in signed if adds_up(d)), signed[0])
