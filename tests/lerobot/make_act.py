"""Runs in lerobot's own interpreter: a tiny randomly initialised ACT, saved by lerobot as `lerobot-train` saves one.

usage: python make_act.py FOLDER IMAGE_SIZE STATE_SIZE

It takes ``observation.images.scene`` and ``observation.state``; it gives seven actions, most of them beyond [-1, 1].
"""

import sys

from make_policies import import_lerobot, statistics  # it lies beside this script


def main(folder, side, state):
    library, factory = import_lerobot()
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    image, vector = (3, int(side), int(side)), (int(state),)
    sizes = {"dim_model": 32, "n_heads": 2, "dim_feedforward": 32, "n_encoder_layers": 1, "n_vae_encoder_layers": 1}
    config = ACTConfig(
        input_features={
            "observation.images.scene": PolicyFeature(FeatureType.VISUAL, image),
            "observation.state": PolicyFeature(FeatureType.STATE, vector),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (7,))},
        chunk_size=8,
        n_action_steps=4,
        pretrained_backbone_weights=None,
        device="cpu",
        **sizes,
    )
    stats = statistics(std=5.0, state=int(state))
    ACTPolicy(config).save_pretrained(folder)
    for processor in factory.make_pre_post_processors(config, dataset_stats=stats):
        processor.save_pretrained(folder)
    del library  # kept until here: it declares what torchvision lacks


if __name__ == "__main__":
    main(*sys.argv[1:])
