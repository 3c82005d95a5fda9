"""Runs in lerobot's own interpreter, without worldrl: edit a folder with lerobot's tools.

usage: python lerobot_tools.py FOLDER TARGET        writes TARGET/deleted, split/a, split/b, removed, merged
"""

import sys
from pathlib import Path

from lerobot_probe import import_lerobot


def main(folder, target):
    dataset_class, _library = import_lerobot()
    from lerobot.datasets import dataset_tools

    data = dataset_class("local/worldrl", root=folder)
    dataset_tools.delete_episodes(data, [1], output_dir=target / "deleted", repo_id="local/deleted")
    dataset_tools.split_dataset(data, {"a": [0], "b": [1, 2]}, output_dir=target / "split")
    dataset_tools.remove_feature(data, "is_last", output_dir=target / "removed", repo_id="local/removed")
    parts = [dataset_class(f"local/worldrl_{name}", root=target / "split" / name) for name in ("a", "b")]
    dataset_tools.merge_datasets(parts, output_repo_id="local/merged", output_dir=target / "merged")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
