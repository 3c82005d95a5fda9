"""Read a data set for every line of input, answer with CPU seconds; without ``bench``, for earlier versions too."""

import importlib
import sys
import time
from pathlib import Path


def reader(data: str):
    """What reads a whole data set: episodes of a LeRobotDataset, or the rows of an offline one."""
    if not (Path(data) / "meta" / "info.json").is_file():
        return lambda: importlib.import_module("worldrl.data.offline.loading").open_trajectories(data)
    try:
        module = importlib.import_module("worldrl.data.lerobot.dataset")
    except ModuleNotFoundError:  # before version 0.2
        module = importlib.import_module("worldrl.data.dataset")

    def read() -> None:
        found = module.EpisodeDataset.open(data)
        for number in range(len(found)):
            _ = found[number].frames

    return read


if __name__ == "__main__":
    read = reader(sys.argv[1])
    for _ in sys.stdin:
        began = time.process_time()
        read()
        print("seconds", time.process_time() - began, flush=True)
