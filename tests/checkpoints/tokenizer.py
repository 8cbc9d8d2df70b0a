"""A small real tokenizer: byte-level BPE with three special tokens and a chat template.

id 0 <|endoftext|>   1 <|im_start|>   2 <|im_end|>   3..258 the bytes   259.. merges
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, IM_START, IM_END = 0, 1, 2
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MIN_VOCAB_SIZE = len(SPECIAL_TOKENS) + 256
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "The prefill worker computes the prompt and the decode worker continues the answer.",
    "A block holds sixteen tokens of keys and values for all the layers of the model.",
    "user assistant system hello world, what is the capital of the country? It is here.",
    "Größe, naïve café, Привет мир, 你好世界, 🙂🙃",
]


def tiny_tokenizer(vocab_size: int) -> Tokenizer:
    """A byte-level BPE of at most vocab_size tokens, the same on every call."""
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(f"a byte-level vocabulary needs {MIN_VOCAB_SIZE} ids, got {vocab_size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def write_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja, as the hub has them."""
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[END_OF_TEXT],
        "eos_token": SPECIAL_TOKENS[IM_END],
        "pad_token": SPECIAL_TOKENS[END_OF_TEXT],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    known = {name: token for name, token in config.items() if not name.endswith("_token")}
    for name in ("bos_token", "eos_token", "pad_token"):
        if tokenizer.token_to_id(str(config[name])) is not None:
            known[name] = config[name]
    (path / "tokenizer_config.json").write_text(json.dumps(known), encoding="utf-8")
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
