"""Runs as a subprocess that is killed: write episodes for ever, say each number once it is durable.

usage: python collect_forever.py FOLDER
"""

import sys

import numpy as np

from worldrl.core.embodiment import Embodiment
from worldrl.core.types import Episode
from worldrl.data.lerobot.writer import LeRobotWriter

EMBODIMENT = Embodiment(0.02, 0.1, (0.2, -0.4, 0.0), (0.8, 0.4, 0.6), 1.0, 20.0)
SIZE = (16, 16)


def episode(number):
    """Return episode ``number``; a pure function, so that a test can make it again."""
    noise = np.random.default_rng(number)
    steps = int(noise.integers(1, 12))
    return Episode(
        frames=noise.integers(0, 256, (steps + 1, 1, *SIZE, 3), dtype=np.uint8),
        state=noise.normal(size=(steps + 1, 8)).astype(np.float32),
        command=noise.normal(size=(steps + 1, 7)).astype(np.float32),
        action=noise.uniform(-1, 1, (steps, 7)).astype(np.float32),
        reward=np.zeros(steps, np.float32),
        contact=np.zeros(steps + 1, bool),
        terminated=False,
        truncated=True,
        instruction=f"tâche {number % 4}",
        task="Push",
        meta={"seed": number},
    )


def open_writer(folder):
    return LeRobotWriter(folder, fps=20, image_size=SIZE, embodiment=EMBODIMENT)


def main(folder):
    with open_writer(folder) as writer:
        while True:
            sys.stdout.write(f"{writer.add_episode(episode(len(writer)))}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
