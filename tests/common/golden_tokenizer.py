"""The reference tokenizers: Hugging Face's tokenizers library and SentencePiece, built from a GGUF.

The vocabulary and the merges or scores come from the file. What a GGUF only names (tokenizer.ggml.pre)
or leaves out is what the model's own tokenizer.json has. Used by make_tokenizer_golden.py and the
tokenizer's live tests.
"""

import gguf
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE, _AFTER = r"[^\r\n\p{L}\p{N}]?", r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (f"{_BEFORE}{_UPPER}*{_LOWER}+{CONTRACTIONS}?|{_BEFORE}{_UPPER}+{_LOWER}*{CONTRACTIONS}?"
         r"|\p{N}{1,3}" + _AFTER)
TEKKEN = f"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*" r"|\p{N}" + _AFTER
DEEPSEEK_LETTERS = (
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1F7Dᾀ-ᾴᾶ-ᾼ\u1FBEῂ-ῄῆ-ῌῐ-\u1FD3ῖ-\u1FDBῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ"
    "\u212A-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲"
    "𐳀-𐳲𑢠-𑣟𞤀-𞥃]+")
DEEPSEEK_V3 = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")


def _split(*patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


def _bytes(use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


_DIGIT = pre_tokenizers.Digits(individual_digits=True)
_CHAINS = {
    "gpt-2": lambda: [_bytes(True)],
    "smollm": lambda: [_DIGIT, _bytes(True)],
    "llama-bpe": lambda: [*_split(LLAMA3), _bytes()],
    "qwen2": lambda: [*_split(QWEN2), _bytes()],
    "qwen35": lambda: [*_split(QWEN35), _bytes()],
    "gpt-4o": lambda: [*_split(O200K), _bytes()],
    "tekken": lambda: [*_split(TEKKEN), _bytes()],
    "deepseek-llm": lambda: [
        *_split("[\r\n]", DEEPSEEK_LETTERS, "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$",
                "[一-龥ࠀ-一가-\uD7FF]+"), _DIGIT, _bytes()],
    "deepseek-coder": lambda: [
        *_split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\uD7FF]+"), _DIGIT, _bytes()],
    "deepseek-v3": lambda: [
        *_split(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK_V3), _bytes()],
    "falcon": lambda: [
        pre_tokenizers.Punctuation("contiguous"), _bytes(True),
        pre_tokenizers.Digits(individual_digits=False), *_split("[0-9][0-9][0-9]")],
}
_SAME_CHAIN = {"mpt": "gpt-2", "olmo": "gpt-2", "starcoder": "smollm", "refact": "smollm",
               "command-r": "smollm", "dbrx": "llama-bpe", "glm4": "llama-bpe",
               "llama3": "llama-bpe", "llama-v3": "llama-bpe", "llama4": "gpt-4o",
               "deepseek-r1-qwen": "qwen2"}
NFC = {"qwen2", "qwen35", "deepseek-r1-qwen", "mpt", "olmo", "command-r"}
IGNORE_MERGES = {"llama-bpe", "llama3", "llama-v3", "glm4", "gpt-4o", "llama4", "tekken"}
NAMES = sorted([*_CHAINS, *_SAME_CHAIN])  # all that tokenizer.ggml.pre may be


class Reference:
    """Ids and text as the tokenizers library has them. `pre` overrides the file's."""

    def __init__(self, path, pre=None):
        fields = gguf.GGUFReader(path).fields
        self.fields = {k.removeprefix("tokenizer.ggml."): v for k, v in fields.items()}
        self.model, self.pre = self.get("model"), pre or self.get("pre")
        self.chat_template = fields["tokenizer.chat_template"].contents() if "tokenizer.chat_template" in fields else None
        self.tokens, self.types = self.get("tokens"), self.get("token_type")
        self.byte_level = self.model == "gpt2"
        self.space_prefix = self.model == "llama" and self.get("add_space_prefix", True)
        self.rstrip = "phi3" in (fields["general.name"].contents().lower()
                                 if "general.name" in fields else "")
        self.tokenizer = tokenizers.Tokenizer(self._model())
        self._set_normalizer_and_pre_tokenizer()
        self._add_tokens()
        assert self.tokenizer.get_vocab_size() == len(self.tokens)
        self.bytes = [self._token_bytes(i) for i in range(len(self.tokens))]
        # The ids of single bytes.
        self.byte_tokens = {b[0]: i for i, b in enumerate(self.bytes) if len(b) == 1 and
                            self.types[i] == (NORMAL if self.byte_level else BYTE)}

    def get(self, key, default=None):
        return self.fields[key].contents() if key in self.fields else default

    def _model(self):
        vocabulary = {token: i for i, token in enumerate(self.tokens)}
        if self.byte_level:
            merges = [tuple(m.split(" ")) for m in self.get("merges")]
            return models.BPE(vocabulary, merges, ignore_merges=self.pre in IGNORE_MERGES)
        if self.model == "llama":
            merges = merges_by_score(self.tokens, self.types, self.get("scores"))
        else:
            merges = [tuple(m.split(" ", 1)) for m in self.get("merges")]
        unknown = self.tokens[self.get("unknown_token_id", 0)]  # as llama.cpp, where the file says nothing
        return models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)

    def _set_normalizer_and_pre_tokenizer(self):
        if self.byte_level:
            chain = _CHAINS[_SAME_CHAIN.get(self.pre, self.pre)]()
            self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(chain)
            self.tokenizer.decoder = decoders.ByteLevel()
            if self.pre in NFC:
                self.tokenizer.normalizer = normalizers.NFC()
            return
        steps = [normalizers.Prepend("▁")] if self.space_prefix else []
        self.tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
        strip = [decoders.Strip(" ", 1, 0)] if self.space_prefix else []
        self.tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])

    def _add_tokens(self):
        for i, kind in enumerate(self.types):
            if kind not in (CONTROL, UNKNOWN, USER_DEFINED):
                continue
            text = self.tokens[i]
            special = kind != USER_DEFINED
            rstrip = self.rstrip and text not in ("<unk>", "<s>", "<|endoftext|>")
            token = tokenizers.AddedToken(text, normalized=False, special=special, rstrip=rstrip)
            (self.tokenizer.add_special_tokens if special else self.tokenizer.add_tokens)([token])

    def _token_bytes(self, i):
        if self.types[i] == BYTE:
            return bytes([int(self.tokens[i][3:5], 16)])
        if self.types[i] != NORMAL:
            return self.tokens[i].encode()
        if not self.byte_level:
            return self.tokens[i].replace("▁", " ").encode()
        if not all(c in BYTE_OF_CHARACTER for c in self.tokens[i]):
            return self.tokens[i].encode()  # as the library's decoder
        return bytes(BYTE_OF_CHARACTER[c] for c in self.tokens[i])

    def hidden(self, i):
        """Is this id left out by skip_special? Tags of answers (common/text/vocabulary.cc) are not."""
        tags = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "<|tool_call|>",
                "<|/tool_call|>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
        return self.types[i] in (CONTROL, UNKNOWN) and self.tokens[i] not in tags

    def special_tokens(self):
        return [t for t, kind in zip(self.tokens, self.types) if kind == CONTROL]

    def user_defined_tokens(self):
        return [t for t, kind in zip(self.tokens, self.types) if kind == USER_DEFINED]

    def normalized(self, text):
        """What becomes of a text: normalised, and without what has no token."""
        if self.pre in NFC:
            text = self.tokenizer.normalizer.normalize_str(text)
        if not self.byte_level:
            text = text.replace("▁", " ")
        known = self.byte_tokens if self.byte_level else range(256)
        kept = bytes(b for b in text.encode() if b in known)
        return kept.decode("utf-8", errors="replace")

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts):
        return [e.ids for e in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids, skip_special=False):
        """What Python itself makes of the tokens' bytes."""
        parts = [self.bytes[i] for i in ids if not (skip_special and self.hidden(i))]
        text = b"".join(parts).decode("utf-8", errors="replace")
        return text[1:] if self.space_prefix and text.startswith(" ") else text


def merges_by_score(tokens, types, scores):
    """As transformers makes merges of a SentencePiece vocabulary (SentencePieceExtractor)."""
    ids = {t: i for i, (t, kind) in enumerate(zip(tokens, types)) if kind == NORMAL}
    merges = []
    for token, i in ids.items():
        pairs = [(token[:k], token[k:]) for k in range(1, len(token))
                 if token[:k] in ids and token[k:] in ids]
        pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(*pair, scores[i]) for pair in pairs]
    merges.sort(key=lambda merge: (merge[2], len(merge[0]), len(merge[1])), reverse=True)
    return [merge[:2] for merge in merges]


def sentencepiece_processor(reference):
    """SentencePiece itself, over the vocabulary of a reference of the model "llama"."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as proto

    model = proto.ModelProto()
    unknown, scores = reference.get("unknown_token_id", 0), reference.get("scores")
    for i, token in enumerate(reference.tokens):
        piece = model.pieces.add()
        kind = reference.types[i]
        piece.piece = token.replace(" ", "▁") if kind == USER_DEFINED else token
        piece.score = scores[i]
        piece.type = UNUSED if kind == UNKNOWN and i != unknown else kind
    spec = model.trainer_spec
    spec.model_type, spec.byte_fallback, spec.unk_id = spec.BPE, True, unknown
    spec.bos_id, spec.eos_id, spec.pad_id = reference.get("bos_token_id", -1), -1, -1
    spec.vocab_size = len(reference.tokens)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = reference.space_prefix
    model.normalizer_spec.remove_extra_whitespaces = False
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model.SerializeToString())
    return processor


def write_vocabulary(source, path, pre=None):
    """A GGUF with the tokenizer of `source` alone; `pre` overrides its pre-tokenizer."""
    writer = gguf.GGUFWriter(path, "vocabulary")
    for key, field in gguf.GGUFReader(source).fields.items():
        if key.startswith("tokenizer.ggml."):
            value = pre if pre and key.endswith(".pre") else field.contents()
            sub_type = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, value, field.types[0], sub_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _byte_of_character():
    """GPT-2's byte-level alphabet, inverted."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [b for b in range(256) if b not in itself]
    table = {chr(b): b for b in itself}
    table.update({chr(0x100 + i): b for i, b in enumerate(moved)})
    return table


BYTE_OF_CHARACTER = _byte_of_character()
