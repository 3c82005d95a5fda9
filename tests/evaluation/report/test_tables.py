"""Tables as text: Markdown, CSV, the terminal; and numbers with their intervals."""

import io

import pytest
from rich.console import Console

from worldrl.core.statistics import intervals as stats
from worldrl.evaluation.report.model import Number, Table
from worldrl.evaluation.report.tables import csv_bytes, markdown, print_table
from worldrl.evaluation.report.words import bounds, rounded, tile, with_interval, with_rate

FOUND = {"value": 27.123, "lo": 26.4, "hi": 28.06}
LONELY = {"value": 27.123, "lo": float("nan"), "hi": float("nan")}
TABLE = Table("found [b]", ("name", "low", "high"), [("[red]one[/red]", "1", "2"), ("two", "3", "4")])


def test_markdown_and_csv_hold_every_cell_in_order():
    assert markdown(TABLE.headers, TABLE.rows[1:]) == "| name | low | high |\n| --- | --- | --- |\n| two | 3 | 4 |"
    assert csv_bytes(("a", "b"), [(1, "x, y"), (2, None)]) == b'a,b\n1,"x, y"\n2,\n'


def test_the_terminal_shows_chosen_columns_and_obeys_no_markup():
    file = io.StringIO()
    print_table(TABLE, Console(file=file, width=80, color_system=None), (0, 2))
    shown = file.getvalue()
    assert "[red]one[/red]" in shown
    assert "found [b]" in shown
    assert "high" in shown
    assert "low" not in shown
    file = io.StringIO()
    print_table(TABLE, Console(file=file, width=80, color_system=None))
    assert "low" in file.getvalue()


def test_a_short_name_stays_on_one_line_beside_wide_cells():
    wide = ("100 % [72, 100] (10/10)",) * 5
    text = io.StringIO()
    table = Table("Outcomes", ("Task", "a", "b", "c", "d", "e"), [("PlaceRedThenBlueInBin", *wide)])
    print_table(table, Console(file=text, width=80))
    assert "PlaceRedThenBlueInBin" in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 80


def test_numbers_are_written_with_their_intervals():
    assert (bounds(FOUND), with_interval(FOUND)) == ("26.4 to 28.1", "27.1 [26.4, 28.1]")
    assert bounds(LONELY).startswith("unknown")
    assert with_interval(LONELY) == "27.1"
    assert with_interval({**FOUND, "value": None}) == "not measurable"
    assert with_rate(stats.wilson(9, 20)).replace("\u00a0", " ") == "45 % [26, 66] (9/20)"
    assert with_rate(None) == "nothing to count"


@pytest.mark.parametrize(
    ("value", "expected"), [(27.1234, 27.1), (-0.00012345, -0.000123), (None, None), (float("nan"), None)]
)
def test_headline_numbers_are_rounded(value, expected):
    assert rounded(value) == expected
    expected_tile = Number("PSNR", expected, "dB", True, "95 % interval 26.4 to 28.1")
    assert tile("PSNR", {**FOUND, "value": value}, "dB", imagined=True) == expected_tile
