"""Pose maps, and several cameras: every token gets its offset from the grippers of each future frame.

A learned pinhole camera projects commanded tool poses (:class:`PoseMap`). For joint targets a small network per arm maps
joints to the same homogeneous image coordinates (:class:`JointPoseMap`). Drawing the arm is then the same local problem
for every token.

As in Ctrl-World (Guo et al. 2025), the tokens of all views form one sequence and attend to each other, and a learned
embedding tells the views apart. Layers and places within a view are shared, pose maps are not. Latents of several views
are sheets (``core.observation``): ``[c, V h, w]``. The cost of all layers but attention is that of one view times ``V``.

Shapes legend: ``B`` rows, ``V`` views, ``F`` frames per chunk, ``H`` hands, ``A`` numbers of a command, ``h w`` latent and
``n = h w`` tokens of one view, ``d`` width.
"""

import torch
from torch import Tensor, nn

from worldrl.core.actions import ActionSpec
from worldrl.nn.blocks import Mlp

OCTAVES = 4  # frequencies; the finest wave is a quarter of the image, two tokens of eight

NEAREST = 0.2  # least depth of the learned camera, in units of its distance, against division by zero

TOOL_POSE = 7  # numbers of a commanded tool pose: position, rotation, gripper

JOINT_WIDTH = 64  # width of the networks that learn an arm's geometry


def token_grid(height: int, width: int) -> Tensor:
    """Centres of the tokens in image coordinates, ``[n, 2]`` as (right, down) in [-1, 1]."""
    down, right = torch.meshgrid(
        (2 * torch.arange(height) + 1) / height - 1, (2 * torch.arange(width) + 1) / width - 1, indexing="ij"
    )
    return torch.stack([right, down], dim=-1).flatten(0, 1)


def offset_features(offset: Tensor, octaves: int) -> Tensor:
    """Embed offsets ``[..., 2]`` as themselves and sines and cosines of ``octaves`` doubling frequencies."""
    angle = offset[..., None] * (0.5 * torch.pi * 2.0 ** torch.arange(octaves, device=offset.device))
    return torch.cat([offset, angle.sin().flatten(-2), angle.cos().flatten(-2)], dim=-1)


def in_image(homogeneous: Tensor) -> Tensor:
    """Divide homogeneous coordinates ``[..., 3]`` by their depth: image coordinates ``[..., 2]`` (right, down)."""
    return homogeneous[..., :2] / homogeneous[..., 2:].clamp_min(NEAREST)


class PoseMap(nn.Module):
    """Gives each of ``height × width`` tokens its offset from the gripper of each future frame."""

    grid: Tensor

    def __init__(self, height: int, width: int, frames: int):
        super().__init__()
        self.register_buffer("grid", token_grid(height, width), persistent=False)
        self.project = nn.Linear(3, 3)
        self.channels = frames * (2 + 4 * OCTAVES + TOOL_POSE - 2)
        with torch.no_grad():
            # Initial camera: faces the robot from above; training corrects it.
            self.project.weight.copy_(torch.tensor([[0.0, 0.9, 0.0], [0.8, 0.0, -0.6], [0.0, 0.0, 0.0]]))
            self.project.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))

    def forward(self, command: Tensor) -> Tensor:
        """Map scaled commanded poses ``[B, F, 7]`` to ``[B, n, channels]``."""
        place = self.place(command[..., :3])  # [B, F, 2]
        offset = self.grid[:, None] - place[:, None]  # [B, n, F, 2]
        shared = command[:, None, :, 2:].expand(-1, len(self.grid), -1, -1)  # height, rotation, gripper
        return torch.cat([offset_features(offset, OCTAVES), shared.to(offset.dtype)], dim=-1).flatten(2)

    def place(self, position: Tensor) -> Tensor:
        """Project scaled positions ``[..., 3]`` to image coordinates ``[..., 2]`` (right, down) in about [-1, 1]."""
        # In float32 also under autocast: a bfloat16 image coordinate is off by a quarter of a pixel in 64.
        with torch.autocast(position.device.type, enabled=False):
            return in_image(self.project(position.float()))


class JointPoseMap(nn.Module):
    """Gives each token its offset from the hands of each future frame, for arms with joint targets."""

    grid: Tensor

    def __init__(self, height: int, width: int, frames: int, actions: ActionSpec):
        super().__init__()
        self.register_buffer("grid", token_grid(height, width), persistent=False)
        self.arms = actions.arms
        self.hands = nn.ModuleList(_hand(arm.stop - arm.start) for arm in self.arms)
        self.channels = frames * (len(self.arms) * (2 + 4 * OCTAVES) + actions.size)

    def forward(self, command: Tensor) -> Tensor:
        """Map scaled commanded joints ``[B, F, A]`` to ``[B, n, channels]``."""
        offset = self.grid[:, None, None] - self.place(command)[:, None]  # [B, n, F, H, 2]
        features = offset_features(offset, OCTAVES).flatten(3)
        shared = command[:, None].expand(-1, len(self.grid), -1, -1).to(features.dtype)
        return torch.cat([features, shared], dim=-1).flatten(2)

    def place(self, command: Tensor) -> Tensor:
        """Place each hand: image coordinates ``[..., H, 2]`` of scaled commanded joints ``[..., A]``."""
        with torch.autocast(command.device.type, enabled=False):  # as in PoseMap
            arms = [hand(command[..., arm].float()) for hand, arm in zip(self.hands, self.arms, strict=True)]
            return in_image(torch.stack(arms, dim=-2))


def _hand(joints: int) -> Mlp:
    """Make one arm's network; its initial output is the middle of the image, at unit depth."""
    hand = Mlp(joints, JOINT_WIDTH, 3)
    last = hand[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.mul_(0.1)
        last.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
    return hand


def make_pose_map(height: int, width: int, frames: int, actions: ActionSpec) -> PoseMap | JointPoseMap:
    """Make the pose map of a robot's commands."""
    if actions.absolute:
        return JointPoseMap(height, width, frames, actions)
    return PoseMap(height, width, frames)


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
