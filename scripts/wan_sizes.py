"""Sizes of the Wan backbone, without its weights: parameters, FLOPs per chunk and memory, on torch's meta device.

    python scripts/wan_sizes.py            the published 1.3B and 5B geometries in WoVR's layout, as a table
    python scripts/wan_sizes.py --json     the same as JSON

FLOPs count a multiplication and an addition as two, and are those of one row. It fails when the published parameter
counts do not come out.
"""

import argparse
import json
import sys
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from worldrl.world_models.wan.adapter import add_adapter, is_trained
from worldrl.world_models.wan.config import GROUP, WanDynamicsConfig
from worldrl.world_models.wan.dynamics import WanDynamics
from worldrl.world_models.wan.folder import blank_transformer, blank_vae, latent_shape
from worldrl.world_models.wan.geometries import GEOMETRIES

IMAGE_SIZE = 256
TRAINED_BYTES = 16  # Of a trained parameter: float32 weight, gradient and AdamW's two moments


def count(module: torch.nn.Module) -> int:
    """Count parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def flops(work: Any) -> int:
    """Count the floating-point operations of a call on the meta device."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        work()
    return counter.get_total_flops()


def measure(geometry: dict[str, Any], config: WanDynamicsConfig) -> dict[str, float]:
    """Measure one geometry with one configuration of the clip."""
    with torch.device("meta"):
        transformer, vae = blank_transformer(geometry["transformer"]), blank_vae(geometry["vae"])
        published = count(transformer)
        shape = latent_shape(vae.config, IMAGE_SIZE)
        model = WanDynamics(transformer, config, shape)
        whole = count(model)
        latents, frames = config.context_latents + config.future_latents, 1 + config.memory_frames + config.chunk_frames
        clip, action = torch.empty(1, latents, *shape), torch.empty(1, config.clip_actions, 7)
        video = torch.empty(1, 3, frames, IMAGE_SIZE, IMAGE_SIZE)
        forward = flops(lambda: model(clip, torch.empty(1), action))
        encode = flops(lambda: vae.encode(video[:, :, : 1 + config.memory_frames]))
        encode_clip = flops(lambda: vae.encode(video))
        decode = flops(lambda: vae.decode(clip.transpose(1, 2)))
        add_adapter(model.transformer, config)
    trained = sum(p.numel() for name, p in model.named_parameters() if is_trained(f"dynamics.{name}", config))
    return {
        "published_parameters": published,
        "parameters": whole,
        "vae_parameters": count(vae),
        "tokens": latents * model.tokens,
        "frames": frames,
        "forward_tflop": forward / 1e12,
        "chunk_tflop": config.sampling_steps * forward / 1e12,
        "encode_tflop": encode / 1e12,
        "decode_tflop": decode / 1e12,
        "training_tflop": (encode_clip + 4 * forward) / 1e12,
        "frames_per_chunk": GROUP * config.future_latents,
        "weights_gb_bfloat16": 2 * whole / 1e9,
        "weights_gb_float32": 4 * whole / 1e9,
        "lora_parameters": trained,
        "lora_state_gb": (4 * whole + TRAINED_BYTES * trained) / 1e9,
        "full_state_gb": TRAINED_BYTES * whole / 1e9,
    }


ROWS = {
    "published_parameters": ("transformer as published (parameters)", 1e9, "B"),
    "parameters": ("with action channels, without text layers", 1e9, "B"),
    "vae_parameters": ("autoencoder", 1e6, "M"),
    "lora_parameters": ("trained with adapter=lora, rank 32, and action channels", 1e6, "M"),
    "tokens": ("tokens per clip", 1, ""),
    "forward_tflop": ("one evaluation of the transformer", 1, "TFLOP"),
    "chunk_tflop": ("a chunk's 5 evaluations", 1, "TFLOP"),
    "encode_tflop": ("a chunk's encoding of 1 + 4 frames", 1, "TFLOP"),
    "decode_tflop": ("a chunk's decoding of 13 frames, 8 of them new", 1, "TFLOP"),
    "training_tflop": ("a training clip: encoding, forward, again forward, backward", 1, "TFLOP"),
    "weights_gb_bfloat16": ("transformer in bfloat16", 1, "GB"),
    "weights_gb_float32": ("transformer in float32", 1, "GB"),
    "lora_state_gb": ("training state, adapter=lora (base in float32)", 1, "GB"),
    "full_state_gb": ("training state, adapter=full", 1, "GB"),
}


def show(results: dict[str, dict[str, float]]) -> None:
    """Print one column per geometry."""
    print(f"{'256 pixels, 1 + 4 + 8 frames':<58}" + "".join(f"{name:>20}" for name in results))
    for key, (label, unit, suffix) in ROWS.items():
        values = "".join(f"{f'{result[key] / unit:.4g} {suffix}'.strip():>20}" for result in results.values())
        print(f"{label:<58}{values}")


def main() -> int:
    """Measure both geometries."""
    parser = argparse.ArgumentParser(description="Sizes of the Wan backbone on the meta device.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    wants_json = parser.parse_args().json
    results = {name: measure(geometry, WanDynamicsConfig()) for name, geometry in GEOMETRIES.items()}
    if wants_json:
        print(json.dumps(results, indent=2))
    else:
        show(results)
    off = [n for n, g in GEOMETRIES.items() if abs(results[n]["published_parameters"] / g["published"] - 1) > 0.005]
    for name in off:
        print(f"{name}: {results[name]['published_parameters']:,} is not the published count", file=sys.stderr)
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
