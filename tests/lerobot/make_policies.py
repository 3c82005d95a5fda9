"""Runs in lerobot's own interpreter, without worldrl: tiny randomly initialised policies in the published layout.

usage: python make_policies.py FOLDER

Each goes to FOLDER/<kind>, with FOLDER/<kind>.npz: an observation, noise, and what lerobot's own pipeline answers to them.
FOLDER/shifted is FOLDER/smolvla, saved with statistics of other actions. FOLDER/smolvla16 is one that began from its language model's
own weights: lerobot then holds most of it in 16 bits. FOLDER/recalling is a Diffusion policy of two
observations; its answer is what ``select_action`` did in an episode. FOLDER/robotwin is an ACT of RoboTwin's two arms,
FOLDER/libero_act and FOLDER/libero_smolvla take and give what policies published for LIBERO do; FOLDER/two_views is a
SmolVLA of the scene, the wrist and the measured state at this size. FOLDER/pi0 is made where the release's π0 works
with the transformers that is installed: from 0.6.1 on.
"""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import tiny_pi0  # it lies beside this script
import torch

SIZE, CHUNK, EXECUTED, ACTION = 16, 8, 4, 7
SENTENCE = "pick up the red cube"
MEAN, STD = 0.05, 0.2


def import_lerobot():
    """Let torchvision be imported beside a CPU torch, where its C extension does not load."""
    library = None
    try:
        import torchvision  # noqa: F401
    except (RuntimeError, ImportError):
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import lerobot.policies.factory

    return library, lerobot.policies.factory


def statistics(mean=MEAN, std=STD, size=ACTION, cameras=("scene",), state=None):
    def of(size, mean, std):
        ones = torch.ones(size)
        return {"mean": mean * ones, "std": std * ones, "min": (mean - 2 * std) * ones, "max": (mean + 2 * std) * ones}

    pictures = {f"observation.images.{name}": of((3, 1, 1), 0.45, 0.25) for name in cameras}
    return {"action": of(size, mean, std), "observation.state": of(state or size, 0.1, 0.5), **pictures}


def features(size=ACTION, cameras=("scene",), picture=(SIZE, SIZE), state=None):
    from lerobot.configs.types import FeatureType, PolicyFeature

    seen = {f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, *picture)) for name in cameras}
    return {
        "input_features": {**seen, "observation.state": PolicyFeature(FeatureType.STATE, (state or size,))},
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (size,))},
    }


def language_model(folder):
    """A SmolVLM of a few thousand weights, and a tokenizer of the words that the suites say."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, SmolVLMConfig, SmolVLMImageProcessor, SmolVLMProcessor
    from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

    special = ["<pad>", "<unk>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>"]
    words = {
        word: number
        for number, word in enumerate(
            [*special, *["pick", "up", "the", "red", "green", "cube", "cylinder", "put", "on"]]
        )
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {"fake_image_token": special[3], "image_token": special[4], "global_image_token": special[5]}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end_of_utterance>",
        extra_special_tokens=named,
    )
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = SmolVLMConfig(
        vision_config={**vision, "image_size": SIZE, "patch_size": 8},
        text_config={
            **text,
            "model_type": "llama",
            "num_key_value_heads": 1,
            "head_dim": 16,
            "vocab_size": len(words),
            "pad_token_id": 0,
        },
        scale_factor=2,
        image_token_id=4,
        pad_token_id=0,
    )
    config.save_pretrained(folder)
    SmolVLMProcessor(SmolVLMImageProcessor(), fast, SmolVLMVideoProcessor()).save_pretrained(folder)


def language_model_with_weights(folder, small):
    """The same with random weights, in 16 bits."""
    from transformers import AutoConfig, SmolVLMForConditionalGeneration

    shutil.copytree(small, folder)
    torch.manual_seed(4)
    SmolVLMForConditionalGeneration(AutoConfig.from_pretrained(folder)).to(torch.bfloat16).save_pretrained(folder)


def make_config(factory, kind, vlm, given=None, **changes):
    common = {**(given or features()), "device": "cpu", "n_action_steps": EXECUTED}
    if kind == "act":
        layers = {"n_heads": 2, "dim_feedforward": 32, "n_encoder_layers": 1, "n_vae_encoder_layers": 1}
        extra = {"chunk_size": CHUNK, "dim_model": 16, "latent_dim": 4, "pretrained_backbone_weights": None, **layers}
    elif kind == "diffusion":
        extra = {
            "n_obs_steps": 1,
            "horizon": CHUNK,
            "down_dims": (16, 32),
            "diffusion_step_embed_dim": 16,
            "crop_shape": None,
            "pretrained_backbone_weights": None,
            "use_group_norm": True,  # 0.6 has batch norms, which images this small leave without a spread
            "spatial_softmax_num_keypoints": 2,
            "num_inference_steps": 5,
        }
    elif kind == "pi0":
        sizes = {"max_state_dim": 8, "max_action_dim": 8, "image_resolution": (SIZE, SIZE)}
        extra = {"chunk_size": CHUNK, "num_inference_steps": 4, "tokenizer_max_length": 12, **sizes}
    else:
        extra = {
            "chunk_size": CHUNK,
            "max_state_dim": 8,
            "max_action_dim": 8,
            "resize_imgs_with_padding": (SIZE, SIZE),
            "num_steps": 4,
            "num_vlm_layers": 2,
            "vlm_model_name": str(vlm),
            "load_vlm_weights": False,
        }
    return factory.make_policy_config(kind, **common, **{**extra, **changes})


def answer(kind, policy, before, after):
    """An observation, noise, and what lerobot's own pipeline makes of them."""
    draw = torch.Generator().manual_seed(7)
    image = torch.randint(256, (2, SIZE, SIZE, 3), generator=draw, dtype=torch.uint8)
    state = torch.randn(2, 7, generator=draw)
    flow = kind in ("smolvla", "pi0")
    shape = (2, CHUNK, 8 if flow else ACTION)
    noise = torch.randn(shape, generator=draw)
    observation = {
        "observation.images.scene": image.permute(0, 3, 1, 2).float() / 255,
        "observation.state": state,
        "task": [SENTENCE, "put the green cylinder on the red cube"],
    }
    batch = before(observation)
    policy.eval()
    if kind == "diffusion":
        return {}
    chunk = policy.predict_action_chunk(dict(batch), **({"noise": noise} if flow else {}))
    action = after(chunk)
    return {"image": image, "state": state, "noise": noise, "action": action}


def play(policy, before, after):
    """An episode of two rows as lerobot plays it: observations of every step, noise of every chunk, actions."""
    draw = torch.Generator().manual_seed(9)
    steps, chunks = 2 * EXECUTED + 2, 3
    image = torch.randint(256, (steps, 2, SIZE, SIZE, 3), generator=draw, dtype=torch.uint8)
    state = torch.randn(steps, 2, ACTION, generator=draw)
    noise = torch.randn(chunks, 2, CHUNK, ACTION, generator=draw)
    policy.eval()
    policy.reset()
    actions = []
    for step in range(steps):
        picture = image[step].permute(0, 3, 1, 2).float() / 255
        seen = before({"observation.images.scene": picture, "observation.state": state[step], "task": [SENTENCE] * 2})
        actions.append(after(policy.select_action(seen, noise=noise[step // EXECUTED])))
    return {"image": image, "state": state, "noise": noise, "action": torch.stack(actions)}


def save(folder, factory, kind, config, stats, inputs):
    """Make a policy and write it in the published layout."""
    torch.manual_seed(3)
    policy = factory.get_policy_class(kind)(config)
    before, after = factory.make_pre_post_processors(config, dataset_stats=stats)
    for part in (policy, before, after):
        part.save_pretrained(folder)
    if name := getattr(config, "vlm_model_name", None):
        shutil.copytree(name, folder / "vlm")  # worldrl takes no path, but the folder's own
    if inputs:
        (folder / "worldrl.json").write_text(json.dumps({"inputs": inputs}))
    return policy, before, after


def main(folder):
    _, factory = import_lerobot()
    language_model(folder / "vlm")
    for kind in ("act", "diffusion", "smolvla"):
        config, told = make_config(factory, kind, folder / "vlm"), {"observation.state": "command"}
        names = {"smolvla": statistics(), "shifted": statistics(mean=MEAN + 1, std=STD)}
        for name in ["smolvla", "shifted"] if kind == "smolvla" else [kind]:
            parts = save(folder / name, factory, kind, config, names.get(name, statistics()), told)
            record(folder / f"{name}.npz", answer(kind, *parts))
    language_model_with_weights(folder / "vlm16", folder / "vlm")
    config = make_config(factory, "smolvla", folder / "vlm16", load_vlm_weights=True)
    parts = save(folder / "smolvla16", factory, "smolvla", config, statistics(), told)
    record(folder / "smolvla16.npz", answer("smolvla", *parts))
    # DDIM draws nothing on the way, and unclipped its steps are those of any deterministic sampler.
    recalls = {"n_obs_steps": 2, "noise_scheduler_type": "DDIM", "clip_sample": False}
    config = make_config(factory, "diffusion", None, **recalls)
    parts = save(folder / "recalling", factory, "diffusion", config, statistics(), told)
    record(folder / "recalling.npz", play(*parts))
    arms = {"size": 14, "cameras": ("cam_high", "cam_left_wrist", "cam_right_wrist")}
    config = make_config(factory, "act", None, features(**arms, picture=(240, 320)))
    # Its grippers stay half open, so that the double's task is not fulfilled.
    save(folder / "robotwin", factory, "act", config, statistics(mean=0.5, std=0.01, **arms), None)
    views = {"cameras": ("scene", "wrist"), "state": 8}  # what the embedded suite shows with its measured state
    config = make_config(factory, "smolvla", folder / "vlm", features(**views))
    save(folder / "two_views", factory, "smolvla", config, statistics(**views), None)
    robot = {"cameras": ("image", "image2"), "state": 8}  # the names of HuggingFaceVLA/libero
    for kind in ("act", "smolvla"):
        config = make_config(factory, kind, folder / "vlm", features(**robot, picture=(64, 64)))
        save(folder / f"libero_{kind}", factory, kind, config, statistics(**robot), None)
    if importlib.util.find_spec("lerobot.policies.pi_gemma"):
        publish_pi0(folder / "pi0", factory, folder / "vlm", told)


def publish_pi0(folder, factory, vlm, told):
    """A tiny π0, with its tokenizer beside it, since its processor names one of the hub."""
    tiny_pi0.shrink()
    processors = importlib.import_module("lerobot.policies.pi0.processor_pi0")
    step = processors.TokenizerProcessorStep
    processors.TokenizerProcessorStep = lambda **given: step(**{**given, "tokenizer_name": str(vlm)})
    parts = save(folder, factory, "pi0", make_config(factory, "pi0", None), statistics(), told)
    shutil.copytree(vlm, folder / "vlm")
    record(folder.with_suffix(".npz"), answer("pi0", *parts))


def record(path, found):
    np.savez(path, **{key: value.detach().numpy() for key, value in found.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
