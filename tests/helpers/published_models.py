"""Published models in their default configuration, on the meta device, and what their parameters get in short.

`python tests/helpers/published_models.py` writes the tables in tests/data/routes: read the difference before you commit
it. A row names the output layers, the parameters that are unsure, and counts the rest.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from inexact_muon.optim import routes

TABLES = Path(__file__).parent.parent / "data" / "routes"

TRANSFORMERS = (
    *("AlbertForMaskedLM", "AltCLIPModel", "ASTForAudioClassification", "BartForConditionalGeneration"),
    *("BeitForImageClassification", "BertForMaskedLM", "BertModel", "BlipModel", "BloomForCausalLM", "CLIPModel"),
    *("CanineForSequenceClassification", "ClapModel", "ConvNextV2ForImageClassification", "DbrxForCausalLM"),
    *("DebertaV2ForMaskedLM", "DepthAnythingForDepthEstimation", "DistilBertForMaskedLM"),
    *("ElectraForPreTraining", "FalconForCausalLM", "Gemma3nForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM"),
    *("GroupViTModel", "HubertForCTC", "LlamaForCausalLM", "LwDetrForObjectDetection", "MambaForCausalLM"),
    *("Mask2FormerForUniversalSegmentation", "MimiModel", "ModernBertForMaskedLM", "OwlViTModel", "PatchTSTModel"),
    *("PI0ForConditionalGeneration", "Qwen2VLForConditionalGeneration", "Qwen3ForCausalLM", "RwkvForCausalLM"),
    *("SegformerForSemanticSegmentation", "SiglipModel", "Swinv2ForImageClassification", "T5ForConditionalGeneration"),
    *("TimeSeriesTransformerForPrediction", "VitsModel", "Wav2Vec2ForCTC", "WhisperForConditionalGeneration"),
)
TIMM = (
    *("beit_base_patch16_224", "cait_xxs24_224", "coat_tiny", "coatnet_0_224", "convit_tiny", "convnext_tiny"),
    *("davit_tiny", "deit_tiny_distilled_patch16_224", "densenet121", "dpn68", "edgenext_small", "efficientnet_b0"),
    *("efficientformer_l1", "efficientvit_b0", "eva02_tiny_patch14_224", "fastvit_t8", "focalnet_tiny_srf"),
    *(
        "gcvit_xxtiny",
        "ghostnet_100",
        "hiera_tiny_224",
        "hrnet_w18_small",
        "inception_v4",
        "levit_128",
        "maxvit_nano_rw_256",
    ),
    *("mixer_b16_224", "mobilenetv3_small_050", "mobilevit_s", "mobilevitv2_050", "mvitv2_tiny", "nest_tiny"),
    *("nfnet_f0", "pit_ti_224", "poolformer_s12", "pvt_v2_b0", "regnety_002", "repvit_m1", "resnet18", "rexnet_100"),
    *("swin_tiny_patch4_window7_224", "tnt_s_patch16_224", "twins_svt_small", "vgg11", "vit_tiny_patch16_224"),
    *("vit_base_patch16_siglip_224", "volo_d1_224", "xcit_nano_12_p16_224"),
)
GRAPHS = (
    *("GCNConv", "GATConv", "GATv2Conv", "SAGEConv", "GraphConv", "TransformerConv", "ARMAConv", "GatedGraphConv"),
    *("RGCNConv", "FastRGCNConv", "RGATConv", "FiLMConv"),
)


def published(library: str) -> dict[str, Callable[[], nn.Module]]:
    """Name -> constructor of the models of a library in the tables."""
    return {"diffusers": _diffusers, "transformers": _transformers, "timm": _timm, "torch_geometric": _graphs}[
        library
    ]()


def _diffusers() -> dict[str, Callable[[], nn.Module]]:
    """Every model whose configuration has defaults."""
    import diffusers

    found = {}
    for name in dir(diffusers):
        kind = getattr(diffusers, name, None) if name[0].isupper() else None
        if inspect.isclass(kind) and issubclass(kind, diffusers.ModelMixin) and kind is not diffusers.ModelMixin:
            found[name] = kind
    return found


def _transformers() -> dict[str, Callable[[], nn.Module]]:
    import transformers

    def build(name: str) -> nn.Module:
        kind = getattr(transformers, name)
        made: nn.Module = kind(kind.config_class())
        return made

    return {name: lambda name=name: build(name) for name in TRANSFORMERS}


def _timm() -> dict[str, Callable[[], nn.Module]]:
    from torchvision_stub import import_timm

    return {name: lambda name=name: import_timm().create_model(name) for name in TIMM}


class _Two(nn.Module):
    """Two graph convolutions, as wide as the data: nothing but the forward pass tells which is the output."""

    def __init__(self, kind: Callable[..., nn.Module], *sizes: int, **options: Any) -> None:
        super().__init__()
        self.conv1, self.conv2 = kind(*sizes, **options), kind(*sizes, **options)

    def forward(self, x: torch.Tensor, *edges: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu(self.conv1(x, *edges))
        return nn.functional.log_softmax(self.conv2(x, *edges), dim=-1)


def _graphs() -> dict[str, Callable[[], nn.Module]]:
    import torch_geometric.nn as graphs

    def build(name: str) -> nn.Module:
        kind = getattr(graphs, name)
        relations = {"num_relations": 4} if name.startswith(("RG", "Fast", "FiLM")) else {}
        return _Two(kind, 32, 3) if name == "GatedGraphConv" else _Two(kind, 32, 32, **relations)

    found: dict[str, Callable[[], nn.Module]] = {name: lambda name=name: build(name) for name in GRAPHS}
    for name in ("GCN", "GAT", "GIN", "GraphSAGE"):
        found[name] = lambda name=name: getattr(graphs, name)(16, 32, 3, 32)
    found["RGCNConv with bases"] = lambda: _Two(graphs.RGCNConv, 32, 16, num_relations=4, num_bases=2)
    found["RGCNConv with blocks"] = lambda: _Two(graphs.RGCNConv, 32, 32, num_relations=4, num_blocks=4)
    found["MLP"] = lambda: graphs.MLP([32, 32, 32, 32])
    found["SchNet"] = graphs.SchNet
    found["HeteroLinear"] = lambda: nn.Sequential(graphs.HeteroLinear(16, 32, 3), graphs.HeteroLinear(32, 32, 3))
    found["AttentiveFP"] = lambda: graphs.AttentiveFP(16, 32, 1, 8, 2, 2)
    return found


def built(build: Callable[[], nn.Module]) -> nn.Module | None:
    """The model on the meta device; None if it has no default configuration or no parameters."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            model = build()
    except (TypeError, ValueError, AssertionError, AttributeError, ImportError, RuntimeError):
        return None
    finally:
        logging.disable(logging.NOTSET)
    return model if next(model.parameters(), None) is not None else None


def row(model: nn.Module) -> dict[str, Any]:
    """Output layers and unsure parameters, numbers as *, and how many parameters each kind of route has."""
    made = routes(model)
    kinds = [f"{r.role} {r.algorithm}" for r in made if r.parameter.ndim > 1]
    return {
        "outputs": _names(r.name for r in made if r.role == "head"),
        "unsure": _names(r.name for r in made if not r.sure),
        "counts": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
    }


def _names(names: Any) -> list[str]:
    return list(dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", name) for name in names))


if __name__ == "__main__":
    TABLES.mkdir(parents=True, exist_ok=True)
    for library in sys.argv[1:] or ("diffusers", "transformers", "timm", "torch_geometric"):
        made = {name: built(build) for name, build in published(library).items()}
        lines = [f"  {json.dumps(name)}: {json.dumps(row(model))}" for name, model in made.items() if model is not None]
        (TABLES / f"{library}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
