"""Tables and notes of ``eva``: measurements of every arm, comparisons, ranking by rewards, and costs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldrl.core.statistics.intervals import auroc_within, paired, wilson
from worldrl.evaluation.report.model import Table
from worldrl.evaluation.report.words import with_rate
from worldrl.reproductions.eva.arms import FORESEEN, MEASURES, equal_compute
from worldrl.reproductions.eva.climb import times_less
from worldrl.reproductions.eva.settings import ALIGNED, ARMS, GIVEN, TERM, TRAINED, EvaSettings, task_names_of
from worldrl.reproductions.findings import Results, column

REWARDS = {"reward": TERM, FORESEEN: "execution, foreseen"}  # What the rewards of single plans are called
BASELINES = {"branch-grpo": "flow-grpo", "sol-rl": "full-pool"}  # Baseline of each cheaper method


# --- reading what the stages left -----------------------------------------------------------------------------------


def arms_in(results: Results, among: Sequence[str] = ARMS) -> list[str]:
    """Arms of ``among`` that were run, in their order."""
    return [method for method in among if method in results]


def climbs(results: Results, method: str) -> list[dict[str, Any]]:
    """The climb of one aligned arm, by seed."""
    return [found["climb"] for found in results[method]]


def hits(results: Results, method: str) -> NDArray[np.bool_]:
    """Success of each test of one arm, seed after seed, bool ``[n]``."""
    return np.concatenate([np.array(found["hits"], dtype=bool) for found in results[method]])


def sooner(results: Results, method: str, by: str) -> list[float | None]:
    """Cost of a method's baseline over its own up to the same reward, by seed; None where undecided."""
    pairs = zip(climbs(results, BASELINES[method]), climbs(results, method), strict=True)
    return [times_less(*pair, by) for pair in pairs]


# --- tables ---------------------------------------------------------------------------------------------------------


def measures_table(results: Results) -> Table:
    """Every arm's means over seeds."""
    foreseen = FORESEEN in results["none"][0]
    shown = (*MEASURES, FORESEEN) if foreseen else MEASURES
    rows = []
    for method in arms_in(results):
        known = [name for name in shown if name in results[method][0]]
        means = {name: f"{column(results, method, name).mean():.3g}" for name in known}
        rows.append((method, *(means.get(name, "") for name in shown), str(results[method][0]["episodes"])))
    heads = ("Arm", "Success", "Limits broken", "Jerk spikes", "Motion", f"Reward ({TERM})")
    heads = (*heads, *(("Foreseen success",) if foreseen else ()), "Episodes per seed")
    return Table("Executed plans, means over seeds", heads, rows)


def paired_table(results: Results, base: str, arms: Sequence[str]) -> Table:
    """Compare some arms with one, test by test."""
    before, rows = hits(results, base), []
    for method in arms:
        after = hits(results, method)
        found = paired(before, after)
        points = " to ".join(f"{100 * found[end]:+.1f}" for end in ("lo", "hi"))
        rate = with_rate(wilson(int(after.sum()), len(after)))
        won, lost = found["only_b"], found["only_a"]
        rows.append((method, rate, f"{100 * found['diff']:+.1f}", points, f"{won} / {lost}", f"{found['p']:.3g}"))
    heads = ("Arm", "Success", f"Against {base}, points", "95 % interval", "Won / lost", "p (McNemar)")
    note = (
        "The same test states, all seeds pooled: intervals hold for these models and new states; the claims' of seeds hold for new "
        "seeds."
    )
    return Table(f"Success against {base}", heads, rows, note)


def knowledge_table(settings: EvaSettings, results: Results) -> Table:
    """How the rewards rank plans by success; without such a ranking alignment raises success only by chance."""
    rows = []
    for method in arms_in(results, ARMS[len(GIVEN) :]):
        hit = hits(results, method)
        for name in results[method][0]["per_plan"]:
            value = [each for found in results[method] for each in found["per_plan"][name]]
            within = auroc_within(value, hit, strata_of(settings, results[method]))
            area = "unknown: one outcome only" if within["value"] is None else f"{within['value']:.2f}"
            counted = (f"{within['strata']} of {within['of']}", str(int(hit.sum())), str(int((~hit).sum())))
            rows.append((method, REWARDS[name], area, *counted))
    heads = ("Arm", "Reward", "Area under the ROC curve", "Means of", "Successes", "Failures")
    note = (
        "Does the reward rank plans that succeed above plans that fail? Areas within each seed and task, averaged with the number "
        "of pairs of a success and a failure as weight. Seeds and tasks are separate, since each seed has its own critic, and the "
        "instruction alone identifies the task. 0.5 is chance. EVA's reward measures smoothness only."
    )
    return Table("How the rewards rank success", heads, rows, note)


def strata_of(settings: EvaSettings, found: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Seed and task of every test of all seeds, in the order of :func:`hits`."""
    tasks = len(task_names_of(settings))
    return [
        (seed, row * tasks // len(one["hits"])) for seed, one in enumerate(found) for row in range(len(one["hits"]))
    ]


# --- costs ----------------------------------------------------------------------------------------------------------


def cost_table(settings: EvaSettings, results: Results) -> Table:
    """Cost of the collection and every planned arm, in episodes, rows of the network and seconds, and against its baseline."""
    practice = [collection_row(results)] if settings.executed_plans else []
    arms = arms_in(results, ARMS[len(GIVEN) :])
    rows = [*practice, *(arm_row(results, method) for method in arms)]
    heads = ("What", "Episodes executed", "Rows imagined", "Rows trained on", "Cost")
    less = (
        "Processor seconds",
        "of these imagining",
        "Seconds on the wall",
        "Gain in reward",
        "Times less seconds",
        "imagining",
        "rows",
        "Rows of the tests",
    )
    note = (
        f"Cost in rows of the network, a trained one counts {TRAINED} times. Gain on kept starts. Times less: processor seconds and "
        "rows than plain GRPO, and Sol-RL than its whole pool in full, to the highest reward that both pass beyond the noise of their "
        "measurements; not decided where a climb lies within it."
    )
    return Table("Costs, means over seeds", (*heads, *less), rows, note)


def collection_row(results: Results) -> list[str]:
    """Cost of collection and critic, before any alignment; all arms that use the critic's reward depend on it."""
    worth = [found["critic"] for found in results["none"]]
    counted = ("executed", "imagined_rows", "cpu_seconds", "seconds")
    mean = {name: f"{np.mean([one[name] for one in worth]):.0f}" for name in counted}
    rows = (mean["executed"], mean["imagined_rows"], "0", mean["imagined_rows"])
    return ["executed plans and critic", *rows, mean["cpu_seconds"], "", mean["seconds"], "", "", "", "", ""]


def arm_row(results: Results, method: str) -> list[str]:
    """Cost of one arm before its tests, and of planning these."""
    trained = "cost" in results[method][0]
    names = ("imagined_rows", "trained_rows", "cost")
    counted = [f"{column(results, method, name).mean():.0f}" if trained else "0" for name in names]
    spent = time_cells(results, method) if method in ALIGNED else [""] * 4
    less = [""] * 3
    if BASELINES.get(method) in results:
        less = [factor_cell(sooner(results, method, by)) for by in ("cpu_seconds", "cpu_rollout_seconds", "rows")]
    return [method, "0", *counted, *spent, *less, f"{column(results, method, 'test_rows').mean():.0f}"]


def factor_cell(factors: Sequence[float | None]) -> str:
    """Mean over the seeds with a decided factor, and their number."""
    known = [factor for factor in factors if factor is not None]
    if not known:
        return "not decided"
    text = f"{np.mean(known):.2f}"
    return text if len(known) == len(factors) else f"{text} ({len(known)} of {len(factors)} seeds)"


def time_cells(results: Results, method: str) -> list[str]:
    """Processor seconds, those of imagining, seconds on the wall, and the gain in reward of an alignment."""
    ways = climbs(results, method)
    spent = [
        f"{np.mean([way[name][-1] for way in ways]):.0f}" for name in ("cpu_seconds", "cpu_rollout_seconds", "seconds")
    ]
    return [*spent, f"{np.mean([way['reward'][-1] - way['reward'][0] for way in ways]):.3g}"]


# --- notes ----------------------------------------------------------------------------------------------------------


def notes(settings: EvaSettings, results: Results) -> list[str]:
    """Notes on the method, and limits."""
    return [
        f"{settings.tasks}, {settings.domain} domain: {settings.demonstrations} demonstrations per task and seed, {settings.tests} "
        "test states per task.",
        f"Best-of-N draws {equal_compute(settings)} videos per test, what alignment costs shared among the tests: with more tests N "
        "is smaller.",
        "Plans are executed open loop; the inverse dynamics reads the command, gripper included, so that a grasp is held.",
        "Limits are measured on the demonstrations' own motion, not a data sheet's.",
        *regime_notes(settings, results),
        *critic_notes(settings, results),
    ]


def regime_notes(settings: EvaSettings, results: Results) -> list[str]:
    """State that the planner's training was chosen, and the effect of more of it where that was measured."""
    lines = [
        f"The planner is trained for {settings.world_steps} steps; this number is chosen, since a fully trained planner leaves "
        "alignment nothing to gain."
    ]
    for method, what in (("longer", "of the same training"), ("imitate", "on its executed plans that succeeded, too")):
        if method in results:
            steps = results[method][0]["further_steps"]
            before, after = (column(results, arm, "success").mean() for arm in ("none", method))
            lines.append(f"{steps} steps more {what}, without alignment: success {before:.2f} becomes {after:.2f}.")
    return lines


def limits_note(settings: EvaSettings) -> str:
    """Note on the penalty on limits; empty without one."""
    if not settings.limits_weight:
        return ""
    begins = f", from a share of {settings.limits_margin:g} inside each bound on," if settings.limits_margin else ""
    return f" A smooth penalty on broken limits{begins} weighs {settings.limits_weight:g} (GDPO)."


def critic_notes(settings: EvaSettings, results: Results) -> list[str]:
    """Note on the critic: its weight, its cost, and its accuracy on held-out plans."""
    limits = limits_note(settings)
    if not settings.executed_plans:
        return [f"The reward is EVA's: it measures smoothness only, so smooth failures have nothing to gain.{limits}"]
    worth = [found["critic"] for found in results["none"]]
    areas, pooled = (
        ", ".join("unknown" if one[name] is None else f"{one[name]:.2f}" for one in worth)
        for name in ("auroc", "auroc_pooled")
    )
    seen = sum(one["successes"] for one in worth), sum(one["failures"] for one in worth)
    return [
        f"A critic of executed plans weighs {settings.critic_weight:g} beside the executability's 1 (GDPO). It learned from "
        f"{worth[0]['learned']} of {worth[0]['executed']} plans per seed, executed in the simulator before any alignment; arms that "
        "climb or choose by it rest on them, and the table of costs has them as a row. Its area under the ROC curve within tasks, seed by seed: "
        f"{areas} (all tasks together {pooled}), over {seen[0]} kept successes and {seen[1]} failures.{limits}"
    ]
