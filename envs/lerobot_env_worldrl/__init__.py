"""worldrl's environments for lerobot: importing this registers ``--env.type=worldrl`` and ``worldrl_imagined``.

lerobot imports it at the start of its commands. Where there is no lerobot, nothing is registered, and
``lerobot_env_worldrl.environments`` can be used without it.
"""

from importlib.util import find_spec

if find_spec("lerobot"):
    from lerobot_env_worldrl import config as config
