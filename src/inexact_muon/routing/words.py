"""Words in the names of layers and modules that tell what they are."""

from __future__ import annotations

import re

WORDS = {
    *("head", "heads", "classifier", "classifiers", "score", "scores", "logit", "logits", "unembed", "unembedding"),
    *("output", "outputs", "pred", "preds", "prediction", "predictions", "predictor"),
}
"""Words that mark the name of an output layer, or of a module that ends in one."""

WEAK = {"out", "fc", "final", "last", "outc", "generator"}
"""Words that decide only if the widths are inconclusive."""

INSIDE = {"attn", "attention", "mha", "sa", "self", "cross", "multihead", "lora", "router", "expert", "experts"}
"""Words that mark modules whose layers are never outputs."""

INNER = {
    *("qkv", "kv", "wq", "wk", "wv", "wqkv", "q_proj", "k_proj", "v_proj", "qkv_proj", "kv_proj", "to_q", "to_k"),
    *("to_v", "to_qkv", "to_kv", "c_attn", "query_key_value", "in_proj", "gate_proj", "up_proj", "gate_up_proj"),
    *("router", "gate", "gating"),
}
"""Names of layers inside attention, a gated network or a router."""

LETTERS = {"q", "k", "v", "query", "key", "value", "queries", "keys", "values"}
"""Also inner if there are two of them; a single `q` or `value` is the output of a critic."""


ROLES = {
    "query": {"q", "xq", "query", "queries", "qs"},
    "key": {"k", "xk", "key", "keys", "ks"},
    "value": {"v", "xv", "value", "values", "vs"},
    "gate": {"gate", "gates"},
}
"""Words in the names of layers and variables for what attention takes: its three arguments, and gates of its output."""


def role(name: str) -> str:
    """query, key, value or gate if exactly one of them is in a name: "q_proj", "key_states", "wq"; else empty."""
    parts = {part[1:] if part in ("wq", "wk", "wv") else part for part in words(name)}
    kinds = [kind for kind, names in ROLES.items() if names & parts]
    return kinds[0] if len(kinds) == 1 else ""


def words(part: str) -> frozenset[str]:
    """The words of a name: "policy_head1" -> policy, head; "LMHead" -> lm, head."""
    return frozenset(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", part).lower()))
