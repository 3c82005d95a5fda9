"""Numbers of generated beside real films, against values that can be worked out by hand."""

import numpy as np
import pytest

from worldrl.core.errors import ArtefactError
from worldrl.evaluation.world_model.film_pairs import (
    FilmMeasures,
    drifts_of,
    measure_pair,
    read_film_outcomes,
    reported,
    summarise,
)
from worldrl.evaluation.world_model.measures import IMAGES


def moving(seed=0, frames=9, side=24):
    """A white square that moves by two pixels a frame before still noise."""
    ground = np.random.default_rng(seed).integers(60, 120, (side, side, 3))
    film = np.repeat(ground[None], frames, 0).astype(np.uint8)
    for frame in range(frames):
        film[frame, 8:14, 2 * frame : 2 * frame + 4] = 255
    return film


def summary(pairs, given=1, outcomes=None):
    films = [measure_pair(f"film {n}", *pair, given, None, None) for n, pair in enumerate(pairs)]
    measures = FilmMeasures.join(films)
    return summarise(measures, drifts_of(measures, seed=0), outcomes, seed=0)


def test_a_perfect_model_reaches_the_ends_of_all_scales():
    found = summary([(moving(n), moving(n)) for n in range(3)])
    assert (found["pairs"], found["frames"]) == (3, 8)
    assert found["psnr"]["value"] == found["psnr@8"]["value"] == found["static_psnr"]["value"] == 100
    assert found["ssim@1"]["value"] == pytest.approx(1)
    assert found["motion_ratio"]["value"] == found["detail_ratio"]["value"] == 1
    assert found["psnr_over_still"]["lo"] > 50
    assert "precision" not in found
    assert "fvd" not in found


def test_a_model_that_repeats_its_last_given_frame_gains_nothing_over_that():
    real = [moving(n) for n in range(3)]
    found = summary([(film, np.repeat(film[2:3], len(film), 0)) for film in real], given=3)
    assert [found["psnr_over_still"][end] for end in ("lo", "value", "hi")] == [0, 0, 0]
    assert found["motion_ratio"]["value"] == 0
    assert found["frames"] == 6
    np.testing.assert_allclose(found["drift"]["psnr"]["value"], found["drift"]["still"]["value"])


def test_errors_are_those_of_the_frames_after_the_given_ones():
    real = moving()
    generated = real.copy()
    generated[:3] = 0  # given: not measured
    generated[4] = np.minimum(real[4].astype(int) + 51, 255)
    found = summary([(real, generated)], given=3)["drift"]["psnr"]["value"]
    error = np.square((generated[4].astype(float) - real[4]) / 255).mean()
    assert found[1] == pytest.approx(-10 * np.log10(error))
    assert [found[frame] for frame in (0, 2, 3)] == [100, 100, 100]


def test_blur_loses_detail_and_flicker_adds_motion():
    real = moving()
    blurred = real.copy()
    for axis in (1, 2):
        blurred = ((blurred.astype(int) + np.roll(blurred, 1, axis) + np.roll(blurred, -1, axis)) // 3).astype(np.uint8)
    flicker = real.copy()
    flicker[1::2] += 20  # the square overflows to dark: motion, too
    assert summary([(real, blurred)])["detail_ratio"]["value"] < 0.6
    assert summary([(real, flicker)])["motion_ratio"]["value"] > 2
    assert summary([(real, flicker)])["detail_ratio"]["value"] == pytest.approx(1, abs=0.5)


def test_the_static_test_takes_pixels_that_stand_still_in_reality():
    real = moving()
    wrong = real.copy()
    wrong[:, 8:14] = 0  # the rows that the square crosses; most of their pixels change
    ground = real.copy()
    ground[1:, 20:] += 51
    still = (np.abs(real.astype(int) - real[0]).max(axis=(0, 3)) <= 8).sum()
    found = summary([(real, ground)])["static_psnr"]["value"]
    assert found == pytest.approx(-10 * np.log10(0.2**2 * 4 * 24 / still), abs=1e-3)
    assert summary([(real, wrong)])["psnr"]["value"] < 20
    noise = np.random.default_rng(0).integers(0, 256, (9, 24, 24, 3), dtype=np.uint8)
    assert "static_psnr" not in summary([(noise, noise)])


def test_intervals_are_over_pairs():
    pairs = [(moving(n), moving(n) + np.uint8(n)) for n in range(1, 6)]
    found = summary(pairs)["psnr"]
    assert (found["n"], found["method"]) == (5, "bootstrap")
    assert found["lo"] < found["value"] < found["hi"]
    assert np.isnan(summary(pairs[:1])["psnr"]["lo"])


def test_few_frames_are_shown_once_and_many_evenly():
    few, many = (measure_pair("a", moving(frames=n), moving(frames=n), 1, None, None) for n in (5, 40))
    assert few.real.shape[1] == 4
    assert many.real.shape[1] == many.generated.shape[1] == IMAGES
    np.testing.assert_array_equal(many.real[0, -1], moving(frames=40)[-1])
    assert (reported(1), reported(9), reported(16)) == ([1], [1, 2, 4, 8, 9], [1, 2, 4, 8, 16])


def test_outcomes_count_false_successes(tmp_path):
    file = tmp_path / "o.csv"
    file.write_text("film,real,generated\nfilm 1,0,1\nfilm 0,1,1\nfilm 2,0,0\n")
    outcomes = read_film_outcomes(file, ["film 0", "film 1", "film 2"])
    assert outcomes.tolist() == [[True, True], [False, True], [False, False]]
    found = summary([(moving(n), moving(n)) for n in range(3)], outcomes=outcomes)
    assert [(found[name]["k"], found[name]["n"]) for name in ("false_success_rate", "precision", "recall")] == [
        (1, 2),
        (1, 2),
        (1, 1),
    ]
    assert found["confusion"] == {"tp": 1, "fp": 1, "fn": 0, "tn": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("film,real\na,1\n", "line 1: must be film,real,generated"),
        ("film,real,generated\nc,1,1\n", "line 2: film 'c' is not measured here"),
        ("film,real,generated\na,1,2\n", "line 2: generated must be 0 or 1, got '2'"),
        ("film,real,generated\na,1,1\na,1,1\n", "line 3: film 'a' stands in an earlier line"),
        ("film,real,generated\na,1,1\n", "has no line for film 'b'"),
    ],
)
def test_wrong_outcomes_are_refused(tmp_path, text, said):
    (tmp_path / "o.csv").write_text(text)
    with pytest.raises(ArtefactError, match=said):
        read_film_outcomes(tmp_path / "o.csv", ["a", "b"])
