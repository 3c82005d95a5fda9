"""Units under test: raw measures of true runs and their summary, with simulators that are right, blind or eager."""

import warnings
from dataclasses import fields

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError, SettingError
from worldrl.core.observation import IMAGE
from worldrl.core.rng import numpy_stream
from worldrl.core.statistics.intervals import wilson
from worldrl.evaluation.world_model.battery import (
    check_horizons,
    drifts,
    median_of_points,
    psnr_of_worst,
    ratio_of_sums,
    summarise,
)
from worldrl.evaluation.world_model.measures import (
    IMAGES,
    Instruments,
    Measures,
    image_frames,
    measure,
    outcome_window,
    spaced,
)
from worldrl.evaluation.world_model.rollout_error import action_swap_ratio, closed_loop_psnr, replay, static_psnr
from worldrl.rewards.success import SuccessRule

HORIZONS = (8, 16, 40)


class HalfLpips:
    """Stands in for the perceptual distance: half where images differ, by their mean grey."""

    def distance(self, a, b):
        return 0.5 * (a != b).any(axis=(1, 2, 3))


class HalfClips:
    """Stands in for the description of clips: the mean colours of the left side, in a film's halves as two clips."""

    def features(self, frames):
        return np.stack([half[:, :, :8].mean(axis=(0, 1, 2)) for half in np.array_split(frames, 2)]).astype(np.float32)


@pytest.fixture
def instruments(square_reader):
    return Instruments(SuccessRule(0.5, 1), {IMAGE: square_reader}, HalfLpips(), HalfClips(), seed=0)


def swapped(runs):
    return np.roll(np.stack([run.episode.action[:32] for run in runs]), 1, axis=0)


def battery(measures, names=()):
    drift = drifts(measures, frame_stride=2, seed=0)
    return summarise(measures, drift, HORIZONS, names=names, seed=0)


def test_the_true_simulator_scores_the_limit(push_simulator, push_runs, instruments, square_reader):
    metrics = battery(measure(push_simulator(), push_runs, swapped(push_runs), instruments), square_reader.names)
    for horizon in HORIZONS:
        assert metrics[f"closed_loop.psnr@{horizon}"]["value"] == 100
        ssim = metrics[f"closed_loop.ssim@{horizon}"]
        assert (ssim["lo"], ssim["value"], ssim["hi"]) == pytest.approx((1, 1, 1), abs=1e-12)
        assert metrics[f"closed_loop.lpips@{horizon}"]["value"] == 0
        assert metrics["fvd"]["value"] == pytest.approx(0, abs=1e-6)
        for name in ("probe_error_cm", "probe_error_cm_real", "probe_across_cm", "probe_across_cm_real"):
            assert metrics[f"{name}@{horizon}"]["value"] == pytest.approx(0, abs=1e-4)
    assert metrics["action_swap_ratio"]["value"] == np.inf
    assert metrics["static_psnr"]["value"] == 100
    assert metrics["outcome_alignment"] == wilson(8, 8)
    assert metrics["precision"]["rate"] == metrics["recall"]["rate"] == 1
    assert metrics["false_success_rate"]["k"] == 0
    assert 0 < metrics["precision"]["n"] < 8
    assert metrics["repeated"] == wilson(7, 8)
    assert metrics["recorded"] == {"8": 8, "16": 8, "40": 0}
    assert metrics["probe_error_cm@real"]["value"] == pytest.approx(0, abs=1e-4)
    assert metrics["probe_error_cm_by_point"]["red_cube"].keys() == {
        "imagined",
        "imagined_across",
        "real",
        "real_across",
    }


def test_a_blind_simulator_fails_everywhere(push_simulator, push_runs, instruments):
    metrics = battery(measure(push_simulator(blind=True), push_runs, swapped(push_runs), instruments))
    assert metrics["action_swap_ratio"]["value"] == 1
    assert metrics["closed_loop.psnr@16"]["hi"] < 25
    assert metrics["closed_loop.ssim@16"]["hi"] < 0.99
    assert metrics["probe_error_cm@16"]["lo"] > 0.5  # half a pixel
    # Seen from straight above, what moves over the ground moves across the line of sight.
    assert metrics["probe_across_cm@16"]["value"] == pytest.approx(metrics["probe_error_cm@16"]["value"], rel=1e-2)
    assert metrics["probe_error_cm_real@16"]["value"] == pytest.approx(0, abs=1e-4)
    assert metrics["static_psnr"]["value"] == 100  # holding still is all it can
    assert metrics["fvd"]["value"] > 0
    assert metrics["fvd"]["videos"] == 16
    assert metrics["recall"]["k"] == 0
    assert metrics["precision"] is None
    assert metrics["outcome_alignment"]["rate"] < 1


def test_an_eager_simulator_has_false_successes(push_simulator, push_runs, instruments):
    metrics = battery(measure(push_simulator(uncertainty=0.9), push_runs, swapped(push_runs), instruments))
    assert metrics["false_success_rate"]["rate"] == 1
    assert metrics["recall"]["rate"] == 1
    assert metrics["confusion"]["tn"] == metrics["confusion"]["fn"] == 0
    assert sum(part["confusion"]["fp"] for part in metrics["tasks"].values()) == metrics["confusion"]["fp"]
    assert sum(part["episodes"] for part in metrics["tasks"].values()) == 8


def test_the_same_numbers_as_the_gates(push_simulator, push_runs, instruments):
    model, episodes = push_simulator(error=4), [run.episode for run in push_runs]
    metrics = battery(measure(model, push_runs, swapped(push_runs), instruments))
    result = replay(model, episodes, np.stack([e.action for e in episodes]), seed=0)
    for name, value in closed_loop_psnr(result, HORIZONS).items():
        assert metrics[name]["value"] == pytest.approx(value, abs=1e-9)
    assert metrics["static_psnr"]["value"] == pytest.approx(static_psnr(model, episodes, 16, seed=0))
    cut = [  # the gates compare recorded frames only, and so does the battery
        type(e)(
            **{f.name: getattr(e, f.name) for f in fields(e)} | {"frames": e.frames[: n + 1], "action": e.action[:n]}
        )
        for e, n in ((run.episode, run.recorded) for run in push_runs)
    ]
    true = replay(model, cut, np.stack([e.action[:32] for e in episodes]), seed=0)
    expected = replay(model, cut, swapped(push_runs), seed=0)
    error = [
        np.square((r.imagined.astype(float) - r.real) / 255).mean(axis=(2, 3, 4))[true.valid] for r in (expected, true)
    ]
    assert metrics["action_swap_ratio"]["value"] == pytest.approx(error[0].mean() / error[1].mean(), rel=1e-6)
    assert metrics["action_swap_ratio"]["value"] > action_swap_ratio(push_simulator(blind=True), episodes, 16, seed=0)


def in_parts(model, runs, instruments, folder):
    actions, parts = swapped(runs), []
    for first in (0, 3, 6):
        rows = slice(first, first + 3)
        measure(model, runs[rows], actions[rows], instruments, row=first).save(folder / f"{first}.npz")
        parts.append(Measures.load(folder / f"{first}.npz"))
    return Measures.join(parts)


def test_parts_measured_one_by_one_are_the_whole(push_simulator, push_runs, instruments, tmp_path):
    model = push_simulator(error=4)
    whole = measure(model, push_runs, swapped(push_runs), instruments)
    joined = in_parts(model, push_runs, instruments, tmp_path)
    assert len(joined) == len(whole) == 8
    for field in fields(Measures):
        np.testing.assert_array_equal(getattr(joined, field.name), getattr(whole, field.name), err_msg=field.name)
    chosen = whole.select(whole.task == "PickRedCube")
    assert len(chosen) == 4
    np.testing.assert_array_equal(chosen.error, whole.error[::2])


def test_each_episode_has_noise_of_its_own_however_the_list_is_cut(world_model, push_runs, tmp_path):
    bare = Instruments(SuccessRule(0.5, 1), {}, None, None, seed=0)
    whole = measure(world_model, push_runs, swapped(push_runs), bare)
    joined = in_parts(world_model, push_runs, bare, tmp_path)
    np.testing.assert_allclose(joined.error, whole.error, rtol=1e-2)  # matrix products of another size round otherwise
    same = measure(world_model, [push_runs[0]] * 2, swapped(push_runs)[[0, 0]], bare)
    assert np.abs(same.error[0] - same.error[1]).max() > 1e-4


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(ArtefactError, match="run again"):
        Measures.load(tmp_path / "x.npz")


def test_what_is_not_computed_has_no_number(push_simulator, push_runs):
    bare = Instruments(SuccessRule(0.5, 1), {}, None, None, seed=0)
    metrics = battery(measure(push_simulator(), push_runs, swapped(push_runs), bare))
    assert not [name for name in metrics if "probe" in name or "lpips" in name or "fvd" in name]
    assert set(metrics["drift"]) == {"psnr", "ssim"}


def test_one_episode_has_no_interval_and_no_others_actions(push_simulator, push_runs, instruments):
    metrics = battery(measure(push_simulator(error=4), push_runs[:1], swapped(push_runs)[:1], instruments))
    assert np.isnan(metrics["closed_loop.psnr@8"]["lo"])
    assert metrics["closed_loop.psnr@8"]["n"] == 1
    assert np.isnan(metrics["action_swap_ratio"]["value"])


def test_the_outcome_is_decided_shortly_after_the_recording(push_simulator, push_runs):
    episodes = [run.episode for run in push_runs]
    result = replay(push_simulator(), episodes, np.stack([e.action for e in episodes]), seed=0)
    window = outcome_window(result, push_runs)
    assert window.sum(axis=1).tolist() == [(24 + n + 8) // 2 for n in range(8)]
    assert window[:, 0].all()


def test_images_are_spread_evenly_and_end_with_the_last():
    assert image_frames(24).tolist() == list(range(1, 24, 2))
    assert image_frames(IMAGES).tolist() == list(range(IMAGES))
    assert image_frames(3)[-1] == 2
    assert spaced(np.arange(30, dtype=np.uint8)[None], np.array([20]))[0, -1] == 19


def test_median_leaves_out_what_does_not_exist():
    draws = numpy_stream(0, "median")
    values = draws.normal(size=(7, 5, 3))
    values[draws.uniform(size=values.shape) < 0.4] = np.nan
    np.testing.assert_allclose(median_of_points(values), np.nanmedian(values, axis=(0, 2)))
    assert median_of_points(values.reshape(7, -1)) == pytest.approx(np.nanmedian(values))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(median_of_points(np.full((2, 3, 1), np.nan))).all()


def test_ratio_without_warnings():
    assert ratio_of_sums(np.array([[3.0, 1.0], [1.0, 1.0]])) == 2
    assert ratio_of_sums(np.array([[1.0, 0.0]])) == np.inf
    assert np.isnan(ratio_of_sums(np.zeros((2, 2))))


def test_horizons_between_two_frames_are_refused():
    check_horizons([2, 8], 2)
    for wrong in (7, 0):
        with pytest.raises(SettingError, match=f"2 control steps per frame, got {wrong}"):
            check_horizons([8, wrong], 2)


def test_several_further_views_count_by_their_worst():
    errors = np.array([[[0.01, 0.1]], [[0.03, 0.1]]])  # two episodes, one frame, two views
    np.testing.assert_allclose(psnr_of_worst(errors), [10.0])
    np.testing.assert_allclose(psnr_of_worst(errors[..., :1]), [-10 * np.log10(0.02)])
