"""What can be wrong with a model before it runs."""


class CheckpointError(Exception):
    """A file, field or tensor of the model is missing or wrong; the message names it."""


class ModelNotFound(CheckpointError):
    """The name is no folder, no GGUF file and no model of the hub."""


class UnsupportedModel(CheckpointError):
    """The model is sound, but asks for something that Octavo does not compute."""


class UnsupportedAdapter(CheckpointError):
    """A LoRA adapter is sound, but does not fit the model, the limits or what Octavo computes."""
