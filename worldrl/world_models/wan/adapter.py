"""What of a Wan world model is trained: all of the transformer, or low-rank additions to it (LoRA, through peft).

In both cases what is not published is trained in full: action channels, view embedding and all heads.
"""

from typing import Any

from worldrl.core.extras import require
from worldrl.world_models.wan.config import WanDynamicsConfig
from worldrl.world_models.wan.folder import EXTRA

LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
"""Every linear layer of a block: both attentions' q, k, v and o, and the feed-forward layer."""

_NEW = (".lora_A.", ".lora_B.", ".condition_embedder.action_", ".view_embedding")
_HEADS = ("success.", "outcome.", "state_head.")


def add_adapter(transformer: Any, config: WanDynamicsConfig) -> None:
    """Put the low-rank additions in, if any; nothing changes yet. MissingExtraError: peft is not installed."""
    if config.adapter == "full":
        return
    peft = require("peft", extra=EXTRA)
    lora = peft.LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=list(LORA_TARGETS))
    peft.inject_adapter_in_model(lora, transformer)
    for name, parameter in transformer.named_parameters():
        if _is_new(name):
            parameter.data = parameter.data.float()  # also beside weights kept in bfloat16


def is_trained(name: str, config: WanDynamicsConfig) -> bool:
    """Whether a tensor of the world model's state is learned here, rather than read from the published folder."""
    if name.startswith("codec."):
        return False
    return config.adapter == "full" or name.startswith(_HEADS) or _is_new(f".{name}")


def is_published(name: str) -> bool:
    """Whether a trained tensor began as a published one; such ones learn at the smaller rate."""
    return name.startswith("dynamics.") and not _is_new(f".{name}")


def _is_new(name: str) -> bool:
    return any(mark in f".{name}" for mark in _NEW)
