"""``methods``: a yardstick for parts of RL in imagination that needs no real success.

Every registered advantage, selector, budget and loss meets the same recorded imagined groups of the same start policy.
The gradient of GRPO's own loss under each is compared with a large-batch gradient of plain REINFORCE. Small batches are
disjoint and paired, so the intervals are over batches, of all seeds and start policies.

- Advantages and selectors are measured at the acting weights, each with GRPO's own other parts.
- Budgets share out half of each batch's rollouts, by what the other batches tell of the starts. A start has no more
  rollouts than its recorded group; what a budget asks beyond is left out.
- Losses are measured after one pass of GRPO over all batches: at the acting weights the ratio is 1, and most are one.

Left out are start samplers and update controllers, which change no gradient of a given group. So are losses of video
models, and parts that need a tree of rollouts, demonstrations or an average of weights.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.statistics.intervals import mean_interval
from worldrl.evaluation.report.model import Curve, Table
from worldrl.evaluation.report.words import number
from worldrl.policies.token.policy import TokenPolicy
from worldrl.recipes.world_model.start import BUNDLED
from worldrl.reproductions.catalogue import Cell
from worldrl.reproductions.findings import Claim, Comparison, Findings, Judged, Results, compared, side_by_side
from worldrl.reproductions.stage_sharing import shared
from worldrl.reproductions.yardstick.gradients import OWN, compared_parts, measure
from worldrl.reproductions.yardstick.recorded import Batch, batch_file, record, sources
from worldrl.reproductions.yardstick.settings import YardstickSettings

METHODS = (BUNDLED,)  # the start policies, which the settings name
SETTINGS: Mapping[str, YardstickSettings] = {
    "paper": YardstickSettings(seeds=5, groups=512, batch_groups=16, starts=128),
    "full": YardstickSettings(seeds=3, groups=256, batch_groups=16, starts=64),
    "quick": YardstickSettings(),
    "tiny": YardstickSettings(seeds=2, groups=4, group_size=4, batch_groups=2, starts=2),
}
HEAD = ("Part", "Informative groups", "Dispersion", "Cosine", "Less GRPO's own part", "Frames per group")


def run(settings: YardstickSettings, cell: Cell, folder: Path) -> dict[str, Any]:
    """Record a start policy's groups, unless that was finished, and measure every part on them."""
    policy = TokenPolicy.load(settings.folders[cell.method]).eval()
    place = shared(folder, f"groups-{cell.method}-seed-{cell.seed}", lambda at: record(settings, policy, cell.seed, at))
    batches = [Batch.load(batch_file(place, k)) for k in range(settings.batches)]
    success = np.concatenate([batch.rollouts.success.numpy() for batch in batches])
    measured = measure(sources(batches, policy, settings, cell.seed), policy, compared_parts())
    return {"imagined_success": float(success.mean()), "rollouts": len(success), "parts": measured}


# --- what was found -------------------------------------------------------------------------------------------------


def conclude(settings: YardstickSettings, results: Results) -> Findings:
    """Compare each part's cosine with that of GRPO's own part, batch by batch."""
    parts = list(next(iter(results.values()))[0]["parts"])
    claims = [claim(results, part) for part in parts if own_part(part) not in (None, part)]
    tables = [table(name, stages, parts) for name, stages in results.items()]
    figures = [figure(results, kind, parts) for kind in OWN]
    summary = compared([one.verdict for one in claims])
    return Findings(claims, tables, figures, notes(settings, results), summary=summary)


def own_part(part: str) -> str | None:
    """GRPO's own part of the same kind; None of the reference, which is not a choice of GRPO."""
    kind = part.partition(".")[0]
    return f"{kind}.{OWN[kind]}" if kind in OWN else None


def cosines(stages: Sequence[Mapping[str, Any]], part: str) -> NDArray[np.float64]:
    """Cosines of all batches, ``[seeds, batches]``."""
    return np.array([stage["parts"][part]["cosines"] for stage in stages])


def gain(stages: Sequence[Mapping[str, Any]], part: str) -> NDArray[np.float64]:
    """Cosine less that of GRPO's own part on the same batch, ``[seeds, batches]``."""
    return cosines(stages, part) - cosines(stages, own_part(part) or part)


def claim(results: Results, part: str) -> Claim:
    """Say that a part points nearer to the reference than GRPO's own; the interval is over all batches."""
    gains = np.stack([gain(stages, part) for stages in results.values()])  # [policies, seeds, batches]
    found = mean_interval(gains.ravel())
    lo, hi = found["lo"], found["hi"]
    verdict: Comparison = "nearer" if lo > 0 else "farther" if hi < 0 else "undecided"
    kind, _, name = part.partition(".")
    statement = f"{kind}={name} is nearer than {OWN[kind]}"
    return Claim(statement, "cosine, difference", gains.mean(axis=(0, 2)), Judged(lo, hi, verdict))


def table(name: str, stages: Sequence[Mapping[str, Any]], parts: Sequence[str]) -> Table:
    """Every part's numbers for one start policy."""
    rate = np.mean([stage["imagined_success"] for stage in stages])
    rows = [row(stages, part) for part in parts]
    return Table(f"{name}: {rate:.0%} imagined success", HEAD, rows)


def row(stages: Sequence[Mapping[str, Any]], part: str) -> tuple[str, ...]:
    """One part's numbers: means over seeds, and intervals over batches."""
    found = [stage["parts"][part] for stage in stages]
    known = [one["dispersion"] for one in found if one["dispersion"] is not None]
    own = own_part(part)
    return (
        part.replace(".", "="),
        f"{np.mean([one['informative'] for one in found]):.0%}",
        number(float(np.mean(known))) if known else "no gradient",
        interval(cosines(stages, part)),
        "–" if own in (None, part) else interval(gain(stages, part)),
        f"{np.mean([one['frames'] for one in found]):.0f}",
    )


def interval(values: NDArray[np.float64]) -> str:
    """Write a mean and its 95 % interval."""
    found = mean_interval(values.ravel())
    return f"{found['mean']:.3f} [{found['lo']:.3f}, {found['hi']:.3f}]"


def figure(results: Results, kind: str, parts: Sequence[str]) -> Curve:
    """Draw the cosines of one kind's parts."""
    shown = [part for part in parts if part.partition(".")[0] == kind]
    series = {
        name: np.stack([cosines(s, part).ravel() for part in shown], axis=1).tolist() for name, s in results.items()
    }
    names = [part.partition(".")[2] for part in shown]
    return side_by_side(f"Cosine to the reference, by {kind}", "cosine", names, series)


def notes(settings: YardstickSettings, results: Results) -> list[str]:
    """Notes on the method."""
    noise = settings.batches
    policies = "; ".join(f"{name} is {settings.folders[name]}" for name in results)
    return [
        f"Groups of {settings.group_size} rollouts of {settings.task}, in {noise} disjoint batches of "
        f"{settings.batch_groups} groups. {policies}.",
        "The reference is plain group-mean REINFORCE on all other batches of the same policy and seed.",
        "Dispersion is the trace of the covariance over batches, divided by the squared norm of the mean: "
        f"{noise} is noise alone.",
        "Nearer to this reference is not a higher real success, which is measured by training.",
    ]
