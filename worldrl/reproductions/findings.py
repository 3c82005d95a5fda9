"""Claims of a reproduction, with one number per seed, and the verdict that follows from their interval alone.

The paper expects a claim's numbers above zero. The verdict is "reproduced" where the 95 % Student interval of their mean
over seeds is above zero, "contrary" where it is below, and "not reproduced" where it holds zero. It is "open" where one
seed gives no interval or a seed's number is undecided. A claim over episodes has an interval of its own (:class:`Judged`).
A comparison that no paper expects to end one way is "nearer", "farther" or "undecided" (:func:`compared`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.intervals import mean_interval
from worldrl.evaluation.offline.scores import score_over_seeds
from worldrl.evaluation.report.model import Curve, Filmstrip, Point, Table
from worldrl.evaluation.report.words import number

Results = Mapping[str, Sequence[dict[str, Any]]]  # The numbers of every method's stages, by seed
Verdict = Literal["reproduced", "not reproduced", "contrary", "open"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Comparison = Literal["nearer", "farther", "undecided"]
LEVEL = 0.05
"""Share of the 95 % intervals that leave zero out by chance."""


class Judged(NamedTuple):
    """Interval and verdict of a claim that is not over seeds: of paired episodes, for example."""

    lo: float
    hi: float
    verdict: Verdict | Comparison


@dataclass(frozen=True)
class Claim:
    """One statement of the paper, as a number that should be above zero."""

    sentence: str  # the statement
    quantity: str  # meaning and unit of the numbers
    values: Sequence[float] | NDArray[np.float64]  # one per seed
    judged: Judged | None = None  # interval and verdict that are not over seeds; None for those over seeds
    # Seeds whose noise allows no number; with any, the claim is open, since the other seeds are a selection.
    undecided: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", [float(value) for value in self.values])

    @property
    def mean(self) -> float | None:
        """Mean over seeds; None where none has a number."""
        return float(np.mean(self.values)) if len(self.values) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean; None for a single seed."""
        if self.judged is not None:
            return self.judged.lo, self.judged.hi
        if len(self.values) < 2:
            return None
        found = mean_interval(self.values)
        return found["lo"], found["hi"]

    @property
    def verdict(self) -> Verdict | Comparison:
        """Follow from the interval."""
        if self.judged is not None:
            return self.judged.verdict
        if self.interval is None or self.undecided:
            return "open"
        lo, hi = self.interval
        return "reproduced" if lo > 0 else "contrary" if hi < 0 else "not reproduced"

    def metrics(self) -> dict[str, Any]:
        """Return the entry of ``result.json``."""
        lo, hi = self.interval or (None, None)
        head = {"statement": self.sentence, "quantity": self.quantity, "verdict": self.verdict}
        counts = {"n": len(self.values), "undecided": self.undecided}
        return {**head, **counts, "mean": self.mean, "lo": lo, "hi": hi, "values": list(self.values)}


@dataclass(frozen=True)
class Findings:
    """All results of one reproduction: claims, further tables, figures, notes on method and limits, images."""

    claims: Sequence[Claim]
    tables: Sequence[Table] = ()
    curves: Sequence[Curve] = ()
    notes: Sequence[str] = ()
    filmstrips: Sequence[Filmstrip] = ()
    summary: str = ""  # the verdict of claims that are comparisons

    @property
    def verdict(self) -> str:
        """The summary, or the verdict of all claims where it is one; else contrary where any is, or not reproduced."""
        if self.summary:
            return self.summary
        found = {claim.verdict for claim in self.claims}
        if len(found) == 1:
            return found.pop()
        return "contrary" if "contrary" in found else "not reproduced"


def column(results: Results, method: str, name: str) -> NDArray[np.float64]:
    """One number of one method, or a curve of it, by seed."""
    return np.array([found[name] for found in results[method]], dtype=float)


def compared(verdicts: Sequence[str]) -> str:
    """Count the decided comparisons in each direction, beside how many chance alone decides."""
    nearer, farther = verdicts.count("nearer"), verdicts.count("farther")
    return (
        f"{nearer + farther} of {len(verdicts)} comparisons are decided, {nearer} nearer and {farther} farther; "
        f"{LEVEL * len(verdicts):.1f} are expected by chance at {100 * LEVEL:.0f} %"
    )


def claims_table(claims: Sequence[Claim]) -> Table:
    """Write the claims as a table."""
    rows = [(c.sentence, c.quantity, number(c.mean), _range(c), str(len(c.values)), c.verdict) for c in claims]
    return Table("Claims", ("Claim", "Quantity", "Mean", "95 % interval", "Seeds", "Verdict"), rows)


def over_seeds(values: Sequence[float]) -> str:
    """Format scores of several seeds as interquartile mean with its bootstrap interval, and the extremes."""
    found = score_over_seeds(values, generator=numpy_stream(0, "findings", "seeds"))
    interval = "" if len(values) < 2 else f" [{number(found['lo'])}, {number(found['hi'])}]"
    return f"{number(found['value'])}{interval}, {number(min(values))} to {number(max(values))}"


def across_seeds(
    title: str,
    x_label: str,
    y_label: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[Sequence[float]]],
    *,
    percent: bool = False,
) -> Curve:
    """Draw the mean over seeds of each series (one row per seed), with its 95 % band; ``percent`` is for fractions."""
    lines: dict[str, list[Point]] = {}
    bands: dict[str, list[tuple[float, float, float]]] = {}
    for name, rows in series.items():
        columns = [[float(value) for value in column] for column in zip(*rows, strict=True)]
        lines[name] = [(float(at), float(np.mean(column))) for at, column in zip(x, columns, strict=True)]
        ends = [_ends(column) for column in columns]
        bands[name] = [(float(at), *end) for at, end in zip(x, ends, strict=True) if end is not None]
    return Curve(title, x_label, y_label, lines, bands, percent=percent)


def side_by_side(
    title: str,
    y_label: str,
    places: Sequence[str],
    series: Mapping[str, Sequence[Sequence[float]]],
    *,
    percent: bool = False,
) -> Curve:
    """Draw the mean over seeds at each of some named places, with its 95 % interval."""
    drawn = across_seeds(title, "", y_label, range(1, len(places) + 1), series, percent=percent)
    return replace(drawn, places=tuple(places))


def _ends(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    found = mean_interval(values)
    return found["lo"], found["hi"]


def _range(claim: Claim) -> str:
    left = f"not decided in {claim.undecided} of {claim.undecided + len(claim.values)} seeds"
    if claim.interval is None:
        return left if claim.undecided else "one seed: none"
    interval = " to ".join(number(end) for end in claim.interval)
    return f"{interval}; {left}" if claim.undecided else interval
