"""The models Octavo computes itself, from safetensors to logits."""

from octavo.engine.models.decoder import DecoderModel
from octavo.engine.models.loader import load_model

__all__ = ["DecoderModel", "load_model"]
