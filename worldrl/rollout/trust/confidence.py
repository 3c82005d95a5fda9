"""Confidence scores of imagined rollouts: larger where a rollout is more trustworthy.

``evaluation.world_model.confidence`` measures what each is worth. Shapes legend: ``E`` rollouts, ``N`` imagined frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from worldrl.rewards.success import debounced_score

if TYPE_CHECKING:
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
    """Return every score ``[E]`` of :data:`CONFIDENCE_SCORES`, the last two only where their inputs are given.

    ``own`` is the rollout's probability of success ``[E, N]``; ``debounce`` frames make a success. ``normalised_error``
    is of inverse dynamics at each frame ``[E, N]`` (``rollout.trust.shown_motion``), ``grasp`` that of the grasp
    ``[E]`` (``rollout.trust.shown_grasp``).
    """
    score = np.stack([debounced_score(one, debounce) for one in (own, *resampled.probability)])
    scores = {
        "score": score[0],
        "mean_resampled": score.mean(axis=0),
        "min_resampled": score.min(axis=0),
        "member_agreement": -resampled.uncertainty.max(axis=1),
        "latent_agreement": -resampled.spread.max(axis=1),
        **({} if normalised_error is None else {"motion_agreement": -normalised_error.max(axis=1)}),
        **({} if grasp is None else {"grasp_agreement": -grasp}),
    }
    return {name: np.asarray(value, np.float64) for name, value in scores.items()}
