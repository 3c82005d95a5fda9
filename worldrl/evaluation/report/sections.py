"""The page's sections, each a pure function of the data; a missing part becomes a sentence that says so."""

from __future__ import annotations

from collections.abc import Sequence

from worldrl.evaluation.report.charts import is_thinned, label, line_chart
from worldrl.evaluation.report.checks import Rate, is_number
from worldrl.evaluation.report.dots import dot_chart
from worldrl.evaluation.report.markup import Child, Html, breakable, element, join
from worldrl.evaluation.report.model import Curve, Gate, ImaginedReal, Number, ReportData, SuccessRow, Table
from worldrl.evaluation.report.rates import bars_axis, before_after_bars, imagined_real_scatter
from worldrl.evaluation.report.tables import settings_table, small, table, value_with_unit
from worldrl.evaluation.report.words import (
    BADGES,
    count,
    duration,
    gain_interval,
    gain_kind,
    interval,
    number,
    p_value,
    percent,
    points,
    statement,
    true_minus,
)

IMAGINED = element("span", "imagined", class_="tag")
MARKS = {"gain": "▲", "loss": "▼", "none": "–", "unmeasured": "?", "measured": "•"}


def missing(what: str, kind: str = "measured") -> Html:
    """Say honestly that a part was not measured, or not recorded."""
    return element("p", f"Not {kind}: {what}.", class_="missing")


def header(data: ReportData, contents: Sequence[tuple[str, str]]) -> Html:
    """The first screen: verdict, the two rates and the gain, failed gates, headline numbers."""
    found = statement(data)
    badge = element("span", f"{MARKS[found.kind]} {BADGES[found.kind]}", class_=f"badge {found.kind}")
    seeds = f"seed{'s' if len(data.seeds) != 1 else ''} {', '.join(map(str, data.seeds))}" if data.seeds else None
    return element(
        "header",
        element("p", badge, element("span", data.title), element("span", seeds) if seeds else None, class_="eyebrow"),
        element("h1", found.sentence),
        _failed_gates(data.gates),
        element("div", _overall(data.overall), _tiles(data.headline), class_="card")
        if data.overall or data.headline
        else None,
        element("nav", *(element("a", title, href=f"#{key}") for key, title in contents), aria_label="Contents"),
    )


def _failed_gates(gates: Sequence[Gate]) -> Html:
    failed = [gate.name for gate in gates if gate.passed is False]
    if not failed:
        return Html("")
    text = f"{len(failed)} of {count(len(gates), 'validation gate')} failed: {', '.join(failed)}. "
    return element(
        "p",
        element("b", text),
        "Read imagined numbers with that in mind; advice is under Validation gates.",
        class_="alert",
        role="note",
    )


def _overall(overall: SuccessRow | None) -> Html:
    if overall is None:
        return Html("")
    entries = [_big("Before", overall.before, "before"), _big("After", overall.after, "after")]
    if overall.paired:
        gain = f"95\u00a0% interval {gain_interval(overall.paired)}, exact McNemar {p_value(overall.paired['p'])}"
        entries.append(_definition("Gain, points", points(overall.paired["diff"]), gain, "gain"))
    return join(
        [
            element("dl", *entries, class_="big"),
            element("div", before_after_bars(overall, 56), bars_axis(), class_="hero"),
        ]
    )


def _big(name: str, rate: Rate | None, class_: str) -> Html:
    if rate is None:
        return _definition(f"{name}, real", "not measured", "", class_)
    return _definition(
        f"{name}, real",
        percent(rate["rate"]),
        f"{rate['k']} of {rate['n']}, 95\u00a0% interval {interval(rate)}",
        class_,
    )


def _definition(name: Child, value: str, detail: str, class_: str | None = None) -> Html:
    return element(
        "div",
        element("dt", name),
        element("dd", element("b", value), element("small", detail) if detail else None),
        class_=class_,
    )


def _tiles(headline: Sequence[Number]) -> Html:
    if not headline:
        return Html("")
    tiles = [
        _definition(
            join([n.name, " ", IMAGINED]) if n.imagined else n.name,
            value_with_unit(n.value, n.unit),
            true_minus(n.note),
        )
        for n in headline
    ]
    return element("dl", *tiles, class_="tiles")


def success(data: ReportData) -> Html:
    """Real success per task with interval bars, the total last; per seed where several are given."""
    if not data.tasks and not data.overall:
        return missing("real success was not evaluated")
    totals = [data.overall] if data.overall else []
    note = (
        "Hollow grey is before, filled blue is after; bars are 95\u00a0% Wilson intervals. Gain is after minus before on "
        "the same episodes. Intervals of single tasks are not corrected for testing several: the verdict rests "
        "on the last row alone."
    )
    parts = [
        element("p", note, class_="note"),
        element("div", success_table([*data.tasks, *totals], len(totals)), class_="card"),
    ]
    if data.per_seed:
        parts += [element("h3", "Per seed"), element("div", success_table(data.per_seed, 0), class_="card")]
    return join(parts)


def success_table(rows: Sequence[SuccessRow], totals: int) -> Html:
    """Tabulate rows; the last ``totals`` of them are ruled off."""
    headers: list[Child] = [
        "Task",
        join(["Before and after", bars_axis((0.0, 0.5, 1.0))]),
        "Before",
        "After",
        "Gain, points",
        "Episodes",
    ]
    return table(
        headers,
        [_success_cells(row) for row in rows],
        class_="success cards",
        cell_classes=(None, "bars-cell", None, None, None, None),
        row_classes=[None] * (len(rows) - totals) + ["total"] * totals,
    )


def _success_cells(row: SuccessRow) -> list[Child]:
    paired = row.paired
    gain = (
        small(f"{MARKS[gain_kind(paired)]} {points(paired['diff'])}", gain_interval(paired))
        if paired
        else "not measured"
    )
    episodes = small(str(paired["n"]), f"won {paired['only_b']}, lost {paired['only_a']}") if paired else _episodes(row)
    name = small(breakable(row.task), row.kind) if row.kind else row.task
    bars = join([before_after_bars(row), element("div", bars_axis(), class_="narrow")])
    return [name, bars, _rate_cell(row.before), _rate_cell(row.after), gain, episodes]


def _rate_cell(rate: Rate | None) -> Child:
    return small(percent(rate["rate"]), interval(rate)) if rate else "not measured"


def _episodes(row: SuccessRow) -> str:
    known = [str(rate["n"]) for rate in (row.before, row.after) if rate]
    return " and ".join(known) + ", not paired" if known else "none"


def measurements(data: ReportData) -> Html:
    """Every table in a card."""
    if not data.tables:
        return missing("nothing was tabulated")
    return join(_table_card(given) for given in data.tables)


def _table_card(given: Table) -> Html:
    note = element("p", given.note, class_="note") if given.note else None
    rows = [[true_minus(cell) for cell in row] for row in given.rows]
    return element("div", element("h3", given.title), note, table(given.headers, rows), class_="card")


def curves(data: ReportData) -> Html:
    """Every chart in a card."""
    if not data.curves:
        return missing("the curves of training", "recorded")
    return element("div", *(_curve_card(curve) for curve in data.curves), class_="charts")


def _curve_card(curve: Curve) -> Html:
    tag = join([" ", IMAGINED]) if curve.imagined and set(curve.imagined) == set(curve.series) else None
    only = [label(name, curve) for name in curve.series] if len(curve.series) == 1 else []
    averaged = ["neighbouring points averaged"] if is_thinned(curve) else []
    caption = "; ".join(dict.fromkeys([curve.y_label, *only, *averaged]))
    chart = dot_chart(curve) if curve.places else line_chart(curve)
    return element("figure", element("figcaption", element("h3", curve.title, tag), caption), chart, class_="card")


def gates(data: ReportData) -> Html:
    """Each gate's number, threshold, outcome and meaning; advice where it failed."""
    if not data.gates:
        return missing("no validation gates were run, so the quality of the world model is unknown")
    headers = ("Gate", "Outcome", "Measured", "Needs", "What it says")
    rows = [_gate_cells(gate) for gate in data.gates]
    rule = "A share fails where all of its 95 % interval misses what is needed: few episodes do not separate a good model from a fair one."
    note = element("p", rule, class_="note") if any(gate.lo is not None for gate in data.gates) else None
    return element(
        "div", note, table(headers, rows, cell_classes=(None, "nowrap", "nowrap", "nowrap", "wide")), class_="card"
    )


def _gate_cells(gate: Gate) -> list[Child]:
    outcome = {True: ("✓ passed", "pass"), False: ("✗ failed", "fail"), None: ("not measured", "missing")}[gate.passed]
    needs = f"{'at least' if gate.direction == 'at_least' else 'at most'} {number(gate.threshold)}"
    advice = small(gate.meaning, f"What to do: {gate.advice}") if gate.passed is False and gate.advice else gate.meaning
    return [gate.name, element("b", outcome[0], class_=outcome[1]), _gate_value(gate), needs, advice]


def _gate_value(gate: Gate) -> str:
    if gate.lo is None or gate.hi is None:
        return number(gate.value)
    return f"{number(gate.value)} [{gate.lo:.2f}, {gate.hi:.2f}]"


def imagined_real(data: ReportData) -> Html:
    """Imagined beside real success, in order of training, as a table and against each other."""
    if not data.imagined_real:
        return missing("imagined success was not put beside real success")
    note = (
        "What the policy achieves inside the world model, beside what the same policy achieves in the simulator. "
        "Above the dotted line, imagined success is higher than real success."
    )
    headers: list[Child] = ["Policy", "Imagined", "Real", "Imagined minus real, points"]
    rows = [_imagined_cells(index, row) for index, row in enumerate(data.imagined_real, 1)]
    parts = element(
        "div",
        imagined_real_scatter(data.imagined_real),
        element("div", table(headers, rows)),
        class_="card charts pair",
    )
    return join([element("p", note, class_="note"), parts])


def _imagined_cells(index: int, row: ImaginedReal) -> list[Child]:
    gap = points(row.imagined["rate"] - row.real["rate"]) if row.imagined and row.real else "not measured"
    return [f"{index}. {row.label}", _counted(row.imagined), _counted(row.real), gap]


def _counted(rate: Rate | None) -> Child:
    return (
        small(small(percent(rate["rate"]), interval(rate)), f"{rate['k']} of {rate['n']}") if rate else "not measured"
    )


def cost(data: ReportData) -> Html:
    """How many real episodes were used for what, and where the time went."""
    budget = missing("how many real episodes were used for what", "recorded")
    if data.data_budget:
        rows = [(use.what, f"{use.episodes:,}", use.use) for use in data.data_budget]
        budget = table(("Real episodes", "Count", "Used for"), rows, cell_classes=(None, None, "wide"))
    stages = missing("the wall time of each stage", "recorded")
    if data.stages:
        total = sum(stage.wall_s for stage in data.stages if stage.wall_s is not None and is_number(stage.wall_s))
        rows = [(small(s.name, s.note) if s.note else s.name, duration(s.wall_s)) for s in data.stages]
        stages = table(
            ("Stage", "Wall time"), [*rows, ("All stages", duration(total))], row_classes=[None] * len(rows) + ["total"]
        )
    return element("div", element("div", budget, class_="card"), element("div", stages, class_="card"), class_="charts")


def notes(data: ReportData) -> Html:
    """Limits and remarks."""
    if not data.notes:
        return missing("limits and notes of this run", "recorded")
    return element("ul", *(element("li", note) for note in data.notes))


def configuration(data: ReportData) -> Html:
    """Provenance in sight; configuration and versions folded."""
    provenance = dict(data.provenance) | ({"seeds": ", ".join(map(str, data.seeds))} if data.seeds else {})
    shown = [
        settings_table(provenance, "Where these numbers come from")
        if provenance
        else missing("command, hashes, commit and device", "recorded")
    ]
    for values, name in ((data.versions, "Versions"), (data.configuration, "Configuration")):
        folded = element("details", element("summary", name), settings_table(values, name)) if values else None
        shown.append(folded or missing(name.lower(), "recorded"))
    return element("div", *shown, class_="card")
