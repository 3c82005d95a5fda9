"""Signs of trust in a dream: larger where it looks more trustworthy. What each is worth, ``evaluation.world_model.confidence`` measures.

Shapes legend: ``E`` dreams, ``N`` imagined frames.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from worldrl.rewards.success import debounced_score
from worldrl.rollout.trust.resampled import ResampledRollouts

CONFIDENCE_SCORES: Mapping[str, str] = {
    "score": "the rollout's own score: its debounced probability of success",
    "mean_resampled": "mean score of the rollout and its resampled rollouts: same actions, other noise",
    "min_resampled": "smallest of those scores",
    "member_agreement": "minus the largest standard deviation between the members of the outcome ensemble",
    "latent_agreement": "minus the largest spread of the latents between resampled rollouts",
    "motion_agreement": "minus the largest normalised error of inverse dynamics: do its frames show the commanded motion?",
    "grasp_agreement": "minus the normalised error of inverse dynamics where the hand closes: does it close at the object?",
}


def confidence_scores(
    own: NDArray[np.float32],
    resampled: ResampledRollouts,
    debounce: int,
    normalised_error: NDArray[np.float32] | None = None,
    grasp: NDArray[np.float32] | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Return every sign ``[E]`` of :data:`CONFIDENCE_SCORES`, the last two only where their inverse dynamics judged the dreams.

    Args:
        own: the dream's probability of success ``[E, N]``.
        resampled: further imaginations of its actions.
        debounce: frames that make a success.
        normalised_error: of inverse dynamics at each frame ``[E, N]`` (``rollout.trust.shown_motion``); None without one.
        grasp: surprise of the inverse dynamics of the grasp ``[E]`` (``rollout.trust.shown_grasp``); None without one.
    """
    score = np.stack([debounced_score(heard, debounce) for heard in (own, *resampled.probability)])
    signs = {
        "score": score[0],
        "mean_resampled": score.mean(axis=0),
        "min_resampled": score.min(axis=0),
        "member_agreement": -resampled.uncertainty.max(axis=1),
        "latent_agreement": -resampled.spread.max(axis=1),
        **({} if normalised_error is None else {"motion_agreement": -normalised_error.max(axis=1)}),
        **({} if grasp is None else {"grasp_agreement": -grasp}),
    }
    return {name: np.asarray(sign, np.float64) for name, sign in signs.items()}
