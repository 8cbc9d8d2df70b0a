"""Small tokenizers of each kind, saved as checkpoint folders.

byte_level  Llama 3, Qwen, SmolLM2: characters split over tokens
metaspace   Llama 2, Mistral: "\N{LOWER ONE EIGHTH BLOCK}" for spaces, byte fallback, BOS
unigram     T5, XLM-R: SentencePiece's other model, spaces by a Metaspace decoder
word_piece  BERT: "##" for continuations
suffixes    GPT, XLM: "</w>" ends words
"""

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "[INST] {{ message.content | trim }} [/INST]{% endfor %}"
)
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
TEXT = (
    "The capital is Paris. This is a test of the tokens, and the tokens are   many\n\tas ünïcödé."
)


def byte_level(folder: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT, "\N{PARTY POPPER} \N{GRINNING FACE}"] * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return save(
        folder,
        tokenizer,
        {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|im_end|>", "chat_template": CHATML},
    )


def metaspace(folder: Path, tokenizer_class: str = "PreTrainedTokenizerFast") -> Path:
    words = ["This", "is", "a", "test", "Hello", "world", "x"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [SPACE, *sorted(set("".join(words))), "é", ""]
    merges: list[tuple[str, str]] = [(SPACE * n, SPACE * n) for n in (1, 2, 4)]
    for word in words:
        for end in range(2, len(word) + 1):
            merges.append((word[: end - 1], word[end - 1]))
        merges.append((SPACE, word))
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            list(dict.fromkeys(merges)),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return save(
        folder,
        tokenizer,
        {
            "tokenizer_class": tokenizer_class,
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "chat_template": LLAMA_CHAT,
        },
    )


def word_piece(folder: Path) -> Path:
    pieces = ["[UNK]", "[CLS]", "[SEP]", "play", "##ing", "##ed", "the", "game", ",", ".", "n't"]
    tokenizer = Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    return save(folder, tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast"})


def unigram(folder: Path) -> Path:
    words = ["This", "is", "a", "test", "Hello", "world", "x"]
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), (SPACE, -3.0)]
    pieces += [(SPACE + word, -4.0) for word in words] + [(word, -5.0) for word in words]
    pieces += [(letter, -8.0) for letter in "éö日\N{PARTY POPPER},."]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return save(folder, tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast"})


def suffixes(folder: Path) -> Path:
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        "the</w>",
        "game</w>",
        "play",
        "ing</w>",
        ",</w>",
        "a",
        "é</w>",
    ]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [],
            unk_token="<unk>",
            end_of_word_suffix="</w>",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return save(folder, tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast"})


def save(folder: Path, tokenizer: Tokenizer, config: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    return folder
