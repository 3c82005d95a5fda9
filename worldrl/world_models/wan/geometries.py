"""Geometries of Wan's transformer and autoencoder: those published, and a tiny one in the same layout that runs anywhere."""

from typing import Any

COMMON = {
    "patch_size": [1, 2, 2],
    "attention_head_dim": 128,
    "text_dim": 4096,
    "freq_dim": 256,
    "num_layers": 30,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "eps": 1e-6,
}
GEOMETRIES: dict[str, dict[str, Any]] = {
    "Wan2.1-T2V-1.3B": {
        "published": 1.42e9,
        "transformer": {**COMMON, "num_attention_heads": 12, "ffn_dim": 8960, "in_channels": 16, "out_channels": 16},
        "vae": {"base_dim": 96, "z_dim": 16},
    },
    "Wan2.2-TI2V-5B": {
        "published": 5.00e9,
        "transformer": {**COMMON, "num_attention_heads": 24, "ffn_dim": 14336, "in_channels": 48, "out_channels": 48},
        "vae": {
            "base_dim": 160,
            "decoder_base_dim": 256,
            "z_dim": 48,
            "is_residual": True,
            "in_channels": 12,
            "out_channels": 12,
            "patch_size": 2,
            "latents_mean": [0.0] * 48,
            "latents_std": [1.0] * 48,
            "scale_factor_spatial": 16,
        },
    },
}
TINY: dict[str, Any] = {
    "transformer": {
        "patch_size": [1, 2, 2],
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "in_channels": 4,
        "out_channels": 4,
        "text_dim": 16,
        "freq_dim": 16,
        "ffn_dim": 32,
        "num_layers": 2,
        "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads",
        "eps": 1e-6,
    },
    "vae": {
        "base_dim": 8,
        "z_dim": 4,
        "dim_mult": [1, 2, 2],  # two halvings instead of three, so that 16 pixels become 4 by 4 latents
        "num_res_blocks": 1,
        "attn_scales": [],
        "temperal_downsample": [True, True],
        "latents_mean": [0.1, -0.2, 0.0, 0.3],
        "latents_std": [0.5, 0.6, 0.4, 0.5],
    },
}
"""Of the benchmark's trial on a CPU, and of the tests."""
