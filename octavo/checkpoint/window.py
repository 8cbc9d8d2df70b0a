"""Which layers see only the newest tokens: the sliding window fields, read per family."""

from octavo.checkpoint.errors import CheckpointError, UnsupportedModel
from octavo.checkpoint.family import Family, WindowRule
from octavo.checkpoint.fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"
# What `transformers` assumes where config.json does not mention the field.
ABSENT_SLIDING_WINDOW = 4096
ABSENT_MAX_WINDOW_LAYERS = 28


def sliding_windows(fields: Fields, family: Family, num_layers: int) -> tuple[int, ...]:
    """How many newest tokens each layer sees, 0 for all.

    Raises:
        UnsupportedModel: layer_types names a type that Octavo does not know, or one that the
            architecture would not follow.
        CheckpointError: a layer slides but there is no window, or the lists' lengths differ.
    """
    layer_types = fields.strings("layer_types")
    for layer_type in layer_types or []:
        if layer_type not in (FULL, SLIDING):
            raise UnsupportedModel(
                f"{fields.where}: layer type {layer_type!r} in layer_types is not supported"
            )
    if layer_types is not None and len(layer_types) != num_layers:
        raise CheckpointError(
            f"{fields.where}: layer_types has {len(layer_types)} entries for {num_layers} layers"
        )
    match family.window_rule:
        case WindowRule.NONE:
            return _uniform(fields, layer_types, 0, num_layers)
        case WindowRule.ALL_LAYERS:
            return _uniform(fields, layer_types, _window(fields), num_layers)
        case WindowRule.LAYER_TYPES:
            return _per_layer(fields, layer_types, num_layers)


def _uniform(
    fields: Fields, layer_types: list[str] | None, window: int, num_layers: int
) -> tuple[int, ...]:
    expected = SLIDING if window else FULL
    if any(layer_type != expected for layer_type in layer_types or []):
        raise UnsupportedModel(
            f"{fields.where}: layer_types must be {expected} throughout for this architecture"
        )
    return (window,) * num_layers


def _per_layer(fields: Fields, layer_types: list[str] | None, num_layers: int) -> tuple[int, ...]:
    window = _window(fields) if fields.boolean("use_sliding_window", False) else 0
    if layer_types is None:
        first = fields.integer("max_window_layers", ABSENT_MAX_WINDOW_LAYERS)
        return tuple(window if layer >= first else 0 for layer in range(num_layers))
    if window == 0 and SLIDING in layer_types:
        raise CheckpointError(
            f"{fields.where}: layer_types has {SLIDING}, but sliding_window is not in use"
        )
    return tuple(window if layer_type == SLIDING else 0 for layer_type in layer_types)


def _window(fields: Fields) -> int:
    """The field's value; 0 where it is null."""
    if fields.has("sliding_window") and fields.values["sliding_window"] is None:
        return 0
    window = fields.integer("sliding_window", ABSENT_SLIDING_WINDOW)
    if window < 1:
        raise CheckpointError(f"{fields.where}: sliding_window must be positive, got {window}")
    return window
