"""Runs in lerobot's own interpreter, without worldrl: write datasets with the real package from arrays in a file.

usage: python make_dataset.py ARRAYS.npz FOLDER

``FOLDER/image`` keeps images in the rows, ``FOLDER/video`` in AV1 films, as lerobot encodes them by itself; both have data
and video files so small that episodes are spread over several.
"""

import sys
from pathlib import Path

import numpy as np
from make_policies import import_lerobot  # it lies beside this script

FEATURES = {"observation.state": (8,), "action": (7,)}
CAMERAS = ("observation.images.image", "observation.images.image2")


def write(folder, arrays, dtype):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    shape = arrays[f"0/{CAMERAS[0]}"].shape[1:]
    features = {name: {"dtype": "float32", "shape": size, "names": None} for name, size in FEATURES.items()}
    features |= {name: {"dtype": dtype, "shape": shape, "names": ["height", "width", "channel"]} for name in CAMERAS}
    dataset = LeRobotDataset.create("local/libero", fps=10, features=features, root=folder, use_videos=dtype == "video")
    dataset.meta.update_chunk_settings(data_files_size_in_mb=1, video_files_size_in_mb=1)
    for number in range(int(arrays["episodes"])):
        for row in range(len(arrays[f"{number}/action"])):
            frame = {name: arrays[f"{number}/{name}"][row] for name in (*FEATURES, *CAMERAS)}
            dataset.add_frame({**frame, "task": str(arrays[f"{number}/sentence"])})
        dataset.save_episode()
    dataset.finalize()


def main(arrays, folder):
    _library = import_lerobot()
    with np.load(arrays) as content:
        arrays = dict(content)
    for dtype in ("image", "video"):
        write(Path(folder) / dtype, arrays, dtype)


if __name__ == "__main__":
    main(*sys.argv[1:])
