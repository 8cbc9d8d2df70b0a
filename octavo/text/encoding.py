"""Text to token ids, for raw text and rendered chats alike."""

from tokenizers import Tokenizer as Backend


def token_ids_of(backend: Backend, text: str, add_special_tokens: bool) -> list[int]:
    """Encode fast: without noting where in the text each token stands."""
    [encoding] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    token_ids: list[int] = encoding.ids
    return token_ids
