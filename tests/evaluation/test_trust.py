"""Signs of trust, and what they are worth."""

import numpy as np
import pytest

from worldrl.core.rng import numpy_stream
from worldrl.evaluation.world_model.confidence import area_under_roc, worth
from worldrl.rollout.trust.confidence import CONFIDENCE_SCORES, confidence_scores
from worldrl.rollout.trust.resampled import ResampledRollouts


def test_signs_of_a_hand_made_imagined_rollout():
    own = np.array([[0.1, 0.9, 0.8, 0.2], [0.5, 0.5, 0.1, 0.1]], np.float32)
    resampled = ResampledRollouts(
        probability=np.array(
            [[[0.6, 0.6, 0.0, 0.0], [0.2, 0.2, 0.2, 0.2]], [[0.1, 0.1, 0.1, 0.1], [0.0, 0.9, 0.7, 0.0]]], np.float32
        ),
        uncertainty=np.array([[0.0, 0.3, 0.1, 0.0], [0.2, 0.1, 0.0, 0.0]], np.float32),
        spread=np.array([[0.5, 0.1, 0.1, 0.1], [0.2, 0.9, 0.1, 0.1]], np.float32),
    )
    normalised_error = np.array([[1.0, 3.0, 0.5, 0.5], [0.2, 0.1, 0.1, 0.4]], np.float32)
    signs = confidence_scores(own, resampled, 2, normalised_error, np.array([5.0, 0.5], np.float32))
    assert signs.keys() == CONFIDENCE_SCORES.keys()
    assert signs["grasp_agreement"] == pytest.approx([-5.0, -0.5])
    alone = confidence_scores(own, resampled, 2, grasp=np.array([5.0, 0.5], np.float32))
    assert alone.keys() == CONFIDENCE_SCORES.keys() - {"motion_agreement"}
    assert signs["motion_agreement"] == pytest.approx([-3.0, -0.4])
    assert confidence_scores(own, resampled, 2).keys() == CONFIDENCE_SCORES.keys() - {
        "motion_agreement",
        "grasp_agreement",
    }
    assert signs["score"] == pytest.approx([0.8, 0.5])
    assert signs["mean_resampled"] == pytest.approx([(0.8 + 0.6 + 0.1) / 3, (0.5 + 0.2 + 0.7) / 3])
    assert signs["min_resampled"] == pytest.approx([0.1, 0.2])
    assert signs["member_agreement"] == pytest.approx([-0.3, -0.2])
    assert signs["latent_agreement"] == pytest.approx([-0.5, -0.9])


def test_the_area_counts_pairs_ranked_right_and_ties_half():
    sign, true = [0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1]
    assert area_under_roc(np.array([sign, true]).T) == pytest.approx((1 + 0.5 + 1 + 1) / 4)
    assert area_under_roc(np.array([[-s for s in sign], true]).T) == pytest.approx(0.5 / 4)
    assert area_under_roc(np.array([sign, [1, 1, 1, 1]]).T) == 0.5


def test_worth_is_one_half_of_noise_and_more_of_a_shifted_one():
    draw = numpy_stream(0, "trust")
    true = draw.random(400) < 0.7
    noise = worth(draw.normal(size=400), true, seed=0, name="noise")
    assert noise["lo"] < 0.5 < noise["hi"]
    shifted = worth(draw.normal(size=400) + true, true, seed=0, name="shifted")
    assert shifted["lo"] < 0.76 < shifted["hi"]  # Φ(1/√2)
    assert shifted["lo"] > 0.6
