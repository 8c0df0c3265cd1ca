"""The reference tokenizer: Hugging Face's tokenizers library, built from a GGUF's own metadata.

Only the vocabulary and the merges come from the file; the pre-tokenizer is the one that
`tokenizer.ggml.pre` names in the model's own tokenizer.json (transformers' conversion of a GGUF
ignores that key). Used by make_tokenizer_golden.py and tokenizer_live_test.py.
"""

import gguf
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

PRE_TOKENIZERS = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    "smollm": lambda: pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]),
}


class Reference:
    """Ids and text as the tokenizers library has them."""

    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields
        get = lambda key: fields["tokenizer.ggml." + key].contents()
        self.tokens = get("tokens")
        self.types = get("token_type")
        merges = [tuple(merge.split(" ")) for merge in get("merges")]
        vocabulary = {token: i for i, token in enumerate(self.tokens)}
        self.tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
        self.tokenizer.pre_tokenizer = PRE_TOKENIZERS[get("pre")]()
        self.tokenizer.decoder = decoders.ByteLevel()
        self.tokenizer.add_special_tokens([
            tokenizers.AddedToken(token, normalized=False, special=True)
            for token, kind in zip(self.tokens, self.types) if kind == CONTROL
        ])
        assert self.tokenizer.get_vocab_size() == len(self.tokens)
        self.bytes = [self._token_bytes(i) for i in range(len(self.tokens))]

    def _token_bytes(self, i):
        if self.types[i] != NORMAL:
            return self.tokens[i].encode()
        return bytes(BYTE_OF_CHARACTER[c] for c in self.tokens[i])

    def special_tokens(self):
        return [t for t, kind in zip(self.tokens, self.types) if kind == CONTROL]

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts):
        return [e.ids for e in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids, skip_special=False):
        """What Python itself makes of the tokens' bytes."""
        parts = [self.bytes[i] for i in ids if not (skip_special and self.types[i] == CONTROL)]
        return b"".join(parts).decode("utf-8", errors="replace")


def _byte_of_character():
    """GPT-2's byte-level alphabet, inverted."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [b for b in range(256) if b not in itself]
    table = {chr(b): b for b in itself}
    table.update({chr(0x100 + i): b for i, b in enumerate(moved)})
    return table


BYTE_OF_CHARACTER = _byte_of_character()
