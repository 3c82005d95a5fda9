"""Runs in lerobot's own interpreter, without worldrl: open a folder with the real package and print what it gives.

usage: python lerobot_probe.py FOLDER INDEX...
"""

import hashlib
import json
import sys

import torch


def declare_torchvision_operators():
    """Let torchvision be imported beside a CPU torch, where its C extension does not load."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def import_lerobot():
    try:
        import torchvision  # noqa: F401

        library = None
    except (RuntimeError, ImportError):
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = declare_torchvision_operators()
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset, library


def image_hash(image):
    """Hash a float [3, Y, X] image in [0, 1] as uint8 [Y, X, 3]."""
    pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    return hashlib.sha256(pixels.numpy().tobytes()).hexdigest()


def describe(item, cameras):
    plain = ("action", "observation.state", "observation.command", "contact", "next.reward", "is_last")
    numbers = ("next.success", "timestamp", "frame_index", "episode_index", "index", "task_index")
    values = {key: item[key].tolist() for key in (*plain, *numbers)}
    return values | {"task": item["task"], "images": {key: image_hash(item[key]) for key in cameras}}


def act_loss(dataset_class, folder):
    """Take one training step of lerobot's ACT on the dataset, normalised by its statistics; return the loss."""
    from lerobot.configs.types import FeatureType
    from lerobot.datasets.utils import dataset_to_policy_features
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    meta = dataset_class("local/worldrl", root=folder).meta
    features = dataset_to_policy_features(meta.features)
    outputs = {key: feature for key, feature in features.items() if feature.type is FeatureType.ACTION}
    inputs = {key: feature for key, feature in features.items() if key not in outputs}
    layers = {"n_heads": 2, "dim_feedforward": 64, "n_encoder_layers": 1, "n_vae_encoder_layers": 1}
    config = ACTConfig(
        input_features=inputs,
        output_features=outputs,
        chunk_size=8,
        n_action_steps=8,
        dim_model=32,
        pretrained_backbone_weights=None,
        device="cpu",
        **layers,
    )
    chunks = dataset_class("local/worldrl", root=folder, delta_timestamps={"action": [k / meta.fps for k in range(8)]})
    preprocess, _ = make_pre_post_processors(config, dataset_stats=meta.stats)
    batch = preprocess(next(iter(torch.utils.data.DataLoader(chunks, batch_size=4))))
    loss, _ = ACTPolicy(config).forward(batch)
    loss.backward()
    return {"loss": loss.item(), "inputs": sorted(inputs), "outputs": sorted(outputs)}


def main(folder, indices):
    dataset_class, _library = import_lerobot()
    import lerobot

    dataset = dataset_class("local/worldrl", root=folder)
    cameras = dataset.meta.image_keys
    fps = dataset.fps
    deltas = {cameras[0]: [-1 / fps, 0.0], "action": [step / fps for step in range(4)]}
    windows = dataset_class("local/worldrl", root=folder, delta_timestamps=deltas)
    loader = torch.utils.data.DataLoader(windows, batch_size=3, shuffle=False, num_workers=0)
    batch = next(iter(loader))
    second = dataset_class("local/worldrl", root=folder, episodes=[dataset.num_episodes - 1])
    answer = {
        "version": lerobot.__version__,
        "frames": len(dataset),
        "episodes": dataset.num_episodes,
        "fps": fps,
        "cameras": cameras,
        "tasks": list(dataset.meta.tasks.index),
        "lengths": [int(n) for n in dataset.meta.episodes["length"]],
        "stats": {
            key: {name: value.tolist() for name, value in part.items()} for key, part in dataset.meta.stats.items()
        },
        "items": {str(i): describe(dataset[i], cameras) for i in indices},
        "windows": {
            str(i): {
                "action": windows[i]["action"].tolist(),
                "action_is_pad": windows[i]["action_is_pad"].tolist(),
                "images": [image_hash(image) for image in windows[i][cameras[0]]],
            }
            for i in indices
        },
        "batch": {key: list(value.shape) for key, value in batch.items() if isinstance(value, torch.Tensor)},
        "last_episode_frames": len(second),
        "act": act_loss(dataset_class, folder),
    }
    sys.stdout.write("ANSWER " + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], [int(text) for text in sys.argv[2:]])
