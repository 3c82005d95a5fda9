"""Units under test: ``scripts/bench.py``: how its parts take turns, and what its benchmarks make of their measurements."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from worldrl.core.errors import WorkerEnvironmentError
from worldrl.recipes.gpu import kernels


@pytest.fixture
def parts():
    return kernels


@pytest.fixture
def turns(script):
    return script("bench.turns")


# -- one command line ------------------------------------------------------------------------------------------------


def test_every_benchmark_has_its_module_and_every_module_its_benchmark(script):
    names = script("bench").__path__
    shared = {"__init__", "turns", "peers", "read_once", "noop_suite"}
    modules = {path.stem for path in Path(names[0]).glob("*.py")} - shared
    assert modules == set(cli().NAMES)


def cli():
    """``scripts/bench.py`` itself, beside which the package of its name is found first."""
    path = Path(__file__).parents[1] / "scripts" / "bench.py"
    spec = importlib.util.spec_from_file_location("bench_command", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def missing(_):
    raise WorkerEnvironmentError("libero: build it")


def test_options_reach_the_benchmark_that_is_named(script, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(script("bench.turns"), "main", lambda words: asked.append(words) or 3, raising=False)
    command = cli()
    monkeypatch.setitem(command.NAMES, "turns", "a test")
    assert command.main(["turns", "--steps", "3", "--help"]) == 3
    assert asked == [["--steps", "3", "--help"]]
    monkeypatch.setattr(script("bench.turns"), "main", missing)
    assert command.main(["turns"]) == 2
    assert capsys.readouterr().err == "bench.py turns: libero: build it\n"
    with pytest.raises(SystemExit) as ended:
        command.main(["fly"])
    assert ended.value.code == 2
    assert "invalid choice: 'fly'" in capsys.readouterr().err


# -- turns -----------------------------------------------------------------------------------------------------------


def test_parts_take_turns_and_long_ones_repeat_less(turns):
    called, clock = [], iter(range(1000))

    def part(name):
        return turns.Part(what=name, call=lambda: called.append(name), clock=lambda: next(clock))

    first, second = part("a"), part("b")
    turns.take_turns([first, second], 3, warm_up=2)
    assert "".join(called) == "abab" + "ababab"
    assert first.seconds == second.seconds == [2, 2, 2]  # the clock ticks at every look: begin, until, end
    short = part("c")
    turns.take_turns([short], 9, budget=1)
    assert len(short.seconds) == 2


def test_a_repetition_lasts_at_least_as_long_as_asked(turns):
    ticks = iter(range(1000))
    part = turns.Part(what="a", call=lambda: None, clock=lambda: next(ticks))
    part.measure(least=4)
    assert part.seconds == [5 / 4]  # four calls until the fourth look, and one more test at the end


def test_a_ratio_is_of_the_same_rounds_and_has_an_interval(turns):
    ours, noise = [1.0, 3.0, 2.0, 5.0, 4.0], [1.0, 1.0, 1.0, 1.0, 1.0]
    found = turns.ratio([2 * value for value in ours], ours)
    assert (found["least"], found["median"], found["lo"], found["hi"]) == (2, 2, 2, 2)
    wide = turns.ratio(ours, noise)
    assert wide["lo"] < wide["median"] == 3 < wide["hi"]
    assert turns.ratio([3.0], [2.0]) == {"least": 1.5, "median": 1.5, "lo": None, "hi": None}


def test_results_are_held_against_our_part_of_the_same_task(turns):
    def part(what, who, seconds):
        return turns.Part(
            what=what, who=who, call=lambda: None, units=6, unit="rows", seconds=[seconds] * 3, wall=[seconds] * 3
        )

    found = turns.results([part("roll", "us", 2.0), part("roll", "them", 3.0), part("fit", "us", 4.0)], "us")
    assert [row["times_us"]["median"] for row in found] == [1, 1.5, 1]
    assert [row["units_per_s"] for row in found] == [3, 2, 1.5]
    assert found[1]["ms_per_call"] == {"least": 3000, "median": 3000}


def test_numbers_go_to_the_file_or_to_the_output_with_machine_and_note(turns, tmp_path, capsys):
    parser = turns.options("envs", "words", rounds=2)
    assert parser.parse_args([]).rounds == 2
    turns.tell(parser.parse_args(["--note", "shared"]), {"results": [1]})
    shown = json.loads(capsys.readouterr().out)
    assert (shown["note"], shown["results"]) == ("shared", [1])
    assert shown["machine"]["torch"] == torch.__version__
    turns.tell(parser.parse_args(["--json", str(tmp_path / "a" / "found.json")]), {"results": [2]})
    assert json.loads((tmp_path / "a" / "found.json").read_text())["results"] == [2]
    assert capsys.readouterr().out == ""


# -- work ----------------------------------------------------------------------------------------------------------


def test_attention_is_counted_on_the_cpu_too(parts):
    q = torch.randn(2, 3, 16, 8)
    assert parts.count_gflop(lambda: F.scaled_dot_product_attention(q, q, q)) == 2 * 2 * (2 * 3 * 16 * 16 * 8) / 1e9


def test_the_largest_products_and_convolutions_of_a_call_are_found(parts):
    small, large = torch.randn(4, 8), torch.randn(8, 32)
    picture, weight, bias = torch.randn(1, 2, 6, 6), torch.randn(5, 2, 3, 3), torch.randn(32)

    def call():
        F.conv2d(picture, weight, padding=1)
        torch.addmm(bias, small, large)
        torch.bmm(torch.randn(3, 2, 2), torch.randn(3, 2, 2))

    found = parts.kernels_of(call, 2)
    assert [str(kernel) for kernel in found] == ["convolution 1x2x6x6 by 5x2x3x3", "product 4x8 by 8x32"]
    assert [round(1e9 * kernel.gflop) for kernel in found] == [2 * 5 * 36 * 2 * 9, 2 * 4 * 8 * 32]
    wide = [kernel.widened(7) for kernel in parts.kernels_of(call, 3)]
    assert [kernel.left for kernel in wide] == [(7, 2, 6, 6), (28, 8), (21, 2, 2)]
    assert [kernel.right for kernel in wide] == [(5, 2, 3, 3), (8, 32), (21, 2, 2)]
    for kernel in wide:
        call, work = kernel.call(torch.float32, torch.device("cpu")), kernel.gflop
        assert parts.count_gflop(call) == work > 0
        assert call().isfinite().all()


# -- rates ---------------------------------------------------------------------------------------------------------


def test_a_share_is_of_the_fastest_anchor_of_the_same_round(parts):
    assert parts.shares([10, 30, 20], [[20, 20, 20], [10, 40, 80]]) == [0.5, 0.75, 0.25]
    assert parts.shares([10, 30], [[20, 20, 20], [10, 40]]) == [0.5, 0.75]  # later rounds had not everything


def test_a_model_faster_than_square_products_is_measured_by_its_own_convolutions(script, parts):
    """Winograd's method needs fewer multiplications than are counted: 150 GFLOP/s beside the products' 100."""
    bench = script("bench.rollout")
    own = parts.Kernel("convolution", (1, 2, 6, 6), (5, 2, 3, 3), ((1, 1), (1, 1), (1, 1), False, (0, 0), 1))

    def line(what, **over):
        spent = {"seconds": [0.5, 0.5], "wall": [1, 1]}
        return bench.Row(what=what, dtype="float32", batch=1, units=4, gflop=75.0, call=lambda: None, **spent, **over)

    row = line("unet", own=(own,))
    anchors = bench.anchor_rows([row])
    assert len(anchors) == 2 * len(bench.SIDES) + 1
    for (name, _), anchor in anchors.items():
        anchor.gflop, anchor.seconds = 1.0, [0.01, 0.01] if "by 256x256" in name else [0.02, 0.02]
    anchors[str(own), "float32"].seconds = [0.005, 0.004]
    found = row.to_json(1, bench.anchors_of(row, anchors, 1))
    assert found["share_of_anchor"] == pytest.approx((150 / 200 + 150 / 250) / 2)
    assert (found["anchor"]["name"], found["anchor"]["gflops"]) == (str(own), pytest.approx(225))
    assert found["frames_per_s"]["median"] == 8
    other = line("flow")
    assert other.to_json(1, bench.anchors_of(other, anchors, 1))["share_of_anchor"] == pytest.approx(1.5)


# -- staleness -------------------------------------------------------------------------------------------------------


def test_lags_are_compared_behind_the_first_batches(script, monkeypatch):
    bench = script("bench.staleness")
    watch = bench.Watch(SimpleNamespace(arrival=None))
    watch.came, watch.waited, watch.frames = [1.0, 3.0, 4.0, 7.0], [9.0, 9.0, 0.5, 1.5], [9, 9, 6, 2]
    rounds = [watch.numbers(1)]
    assert rounds == [{"seconds": 4.0, "frames": 8, "waited": 0.5}]
    half = bench.row_of(0, [{"seconds": 8.0, "frames": 8, "waited": 1.0}], rounds)
    assert (half["frames_per_s"], half["waited_share"], half["times_first"]["median"]) == ([1.0], [1.0], 0.5)
    monkeypatch.setattr(bench, "run", lambda *_: pytest.fail("too few iterations"))
    with pytest.raises(SystemExit):
        bench.main(["--lags", "0", "2", "--iterations", "5"])
