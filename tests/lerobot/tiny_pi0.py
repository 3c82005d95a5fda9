"""Runs in lerobot's own interpreter: π0 of a few thousand weights, which its config cannot say.

π0's sizes are those of two Gemmas and of PaliGemma's vision tower, written into its source. Here they are replaced before a network
is made, in the script that publishes a policy and in the worker that serves it; every method stays lerobot's own.
"""

import importlib
from dataclasses import dataclass

WORDS = 32
"""Tokens of the language model: more than the suites say."""


@dataclass(frozen=True)
class Gemma:
    width: int = 32
    depth: int = 2
    mlp_dim: int = 32
    num_heads: int = 8  # written into its attention as well
    num_kv_heads: int = 1
    head_dim: int = 8


def shrink():
    """Let lerobot's π0 be made of tiny parts from here on."""
    modeling = importlib.import_module("lerobot.policies.pi0.modeling_pi0")
    language, expert = modeling.PaliGemmaForConditionalGenerationWithPiGemma, modeling.PiGemmaForCausalLM

    def tiny_language(config):
        vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        for name, value in {**vision, "patch_size": 8, "projection_dim": Gemma.width}.items():
            setattr(config.vision_config, name, value)
        config.text_config.vocab_size = WORDS
        return language(config=config)

    def tiny_expert(config):
        config.vocab_size = WORDS
        return expert(config=config)

    modeling.get_gemma_config = lambda variant: Gemma()
    modeling.PaliGemmaForConditionalGenerationWithPiGemma = tiny_language
    modeling.PiGemmaForCausalLM = tiny_expert


def serve_tiny(**options):
    """What the worker makes in place of ``worldrl.policies.lerobot.service:Lerobot``."""
    from worldrl.policies.lerobot.network import import_lerobot
    from worldrl.policies.lerobot.service import Lerobot

    import_lerobot()
    shrink()
    return Lerobot(**options)
