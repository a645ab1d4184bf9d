"""Parts that compilers, data parallelism, checkpointing or adapters insert into the names of parameters."""

from __future__ import annotations

WRAPPERS = (
    *("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer", "modules_to_save"),
    *("original_module", "default"),
)
"""Attributes that hold a wrapped module."""


def bare_name(name: str) -> str:
    """A parameter name without the parts that wrappers insert."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
