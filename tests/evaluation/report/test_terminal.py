import dataclasses
import io

import pytest
from rich.console import Console

from worldrl.evaluation.report.model import ReportData
from worldrl.evaluation.report.terminal import show
from worldrl.evaluation.report.words import verdict


def printed(data, width=120):
    file = io.StringIO()
    show(data, Console(file=file, width=width, color_system=None))
    return file.getvalue().replace("\u00a0", " ").replace("\u2212", "-")


def test_the_table_holds_the_numbers_and_ends_with_the_verdict(data):
    text = printed(data)
    for row in (*data.tasks, data.overall):
        line = next(line for line in text.splitlines() if row.task[:20] in line)
        for rate in (row.before, row.after):
            assert f"{100 * rate['rate']:.1f} ({100 * rate['lo']:.1f} to {100 * rate['hi']:.1f})" in line
        assert f"{100 * row.paired['diff']:+.1f}" in line
        assert f"{row.paired['n']}" in line
    assert "".join(text.splitlines()[-1:]).strip() == verdict(data.overall).sentence.replace("\u00a0", " ")
    assert "1 of 4 gates failed: precision" in text


def test_imagined_numbers_stand_in_a_column_of_that_name(data):
    text = printed(data)
    before, after = text.split("Imagined beside real")
    imagined = f"{100 * data.imagined_real[2].imagined['rate']:.1f}"
    assert imagined == "78.1"
    assert imagined not in before
    assert imagined in after
    assert "Imagined" in after


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_number_is_cut_at_any_width(data, width):
    text = printed(data, width)
    assert "…" not in text
    for row in data.tasks:
        assert f"({100 * row.paired['lo']:+.1f} to {100 * row.paired['hi']:+.1f})" in text


def test_markup_in_names_is_shown_not_obeyed(data):
    row = dataclasses.replace(data.tasks[0], task="[red]x[/red]")
    assert "[red]x[/red]" in printed(ReportData("t", tasks=[row]))


def test_what_was_not_measured_is_named(data):
    half = dataclasses.replace(data.tasks[0], after=None, paired=None)
    assert printed(ReportData("t", tasks=[half])).count("not measured") == 2
    assert printed(ReportData("t")).startswith("Not measured")
