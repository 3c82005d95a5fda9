"""Several cameras in one world model: their tokens form one sequence, so that all views are denoised together.

As in Ctrl-World (Guo et al. 2025), the tokens of all views attend to each other, and a learned embedding tells the
views apart. Layers and places within a view are shared, pose maps are not. Latents of several views are sheets
(``core.observation``): ``[c, V h, w]``. The cost of all layers but attention is that of one view times ``V``.

Shapes legend: ``B`` rows, ``V`` views, ``h w`` latent of one view, ``n = h w`` tokens of one view, ``d`` width.
"""

import torch
from torch import Tensor, nn

from worldrl.core.actions import ActionSpec
from worldrl.world_models.video.pose_map import PoseMap, make_pose_map


class FurtherViews(nn.Module):
    """What several views need besides the one view's parts: an embedding of each, and pose maps of those after the first."""

    def __init__(
        self, views: int, width: int, latent: tuple[int, int], frames: int, actions: ActionSpec, *, pose_map: bool
    ):
        super().__init__()
        self.embedding = nn.Parameter(0.02 * torch.randn(views, width))
        maps = [make_pose_map(*latent, frames, actions) for _ in range(views - 1)] if pose_map else []
        self.pose_maps = nn.ModuleList(maps)
        with torch.no_grad():
            self.embedding[0] = 0  # weights of one view, to which others are added, see no change in it
            for further in maps:
                if isinstance(further, PoseMap):  # a camera may be anywhere, on the hand too: the gripper in the middle
                    further.project.weight.zero_()

    def positions(self, position: Tensor) -> Tensor:
        """Return the places ``[V n, d]`` of all tokens, from those within a view ``[n, d]``."""
        return (position + self.embedding[:, None]).flatten(0, 1)

    def draw(self, first: Tensor, command: Tensor) -> Tensor:
        """Return the pose maps of all views, ``[B, V n, channels]``, of ``first`` and of commands ``[B, F, A]``."""
        return torch.cat([first, *(further(command) for further in self.pose_maps)], dim=1)
