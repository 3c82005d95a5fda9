"""Which task a name stands for: whole ids of Gymnasium, D4RL and Minari, never a word within another id.

``dm_control/hopper-hop-v0``, ``anything/ant-v0`` and ``mo-hopper-v5`` are other tasks than Gymnasium's ``Hopper-v5``,
with other observations, rewards and ends.
"""

import re

import gymnasium

GYMNASIUM = re.compile(
    r"(Ant|HalfCheetah|Hopper|Humanoid|Swimmer|Walker2d)-v[2-5]"
    r"|(HumanoidStandup|InvertedPendulum|Pusher|Reacher)-v[245]"
    r"|(Pendulum)-v[01]"
)
"""Ids that Gymnasium registers, or registered."""
D4RL = re.compile(
    r"(ant|halfcheetah|hopper|walker2d)"
    r"(?:-(?:random|medium|expert|medium-replay|medium-expert|full-replay)-v[012]"
    r"|_(?:random|medium|expert|mixed|medium_replay|medium_expert|full_replay)(?:-v[12])?)"
)
"""D4RL's datasets of locomotion, by their ids and by the names of their files."""
MINARI = re.compile(
    r"mujoco/(ant|halfcheetah|hopper|humanoid|humanoidstandup|invertedpendulum|pusher|reacher|swimmer|walker2d)"
    r"/(?:simple|medium|expert)-v\d+"
)
"""Minari's published datasets of Gymnasium's MuJoCo environments."""
OWN = "gymnasium.envs."  # Where the classes of Gymnasium's own environments lie


def task_of(name: str | None) -> str | None:
    """Return the task (``hopper``) of a whole id (``module:Hopper-v5``, ``mujoco/hopper/medium-v0``), else None."""
    text = name or ""
    env_id = text.rpartition(":")[2]
    if found := GYMNASIUM.fullmatch(env_id):
        return str(found[found.lastindex or 0]).lower() if _is_gymnasiums(env_id) else None
    for ids in (D4RL, MINARI):
        if found := ids.fullmatch(text):
            return found[1]
    return None


def _is_gymnasiums(env_id: str) -> bool:
    """Whether the id, where it is registered here, is Gymnasium's own class: a module may register another under it."""
    spec = gymnasium.registry.get(env_id)
    if spec is None:
        return True
    entry = spec.entry_point
    return (entry if isinstance(entry, str) else f"{getattr(entry, '__module__', '')}.").startswith(OWN)
