"""Our tokenizer against the tokenizers library, live, on this machine's files and edge cases: the
default model. tokenizer_vocabularies_test.py has the other vocabularies.

Needs FLOTILLA_TEST_MODEL (a GGUF) and FLOTILLA_TOKENIZE_TOOL (the built tokenize_tool); both are
set by `./flotilla test`.
"""

import os
import random
import struct
import subprocess
import threading

import pytest

import golden_lines
import golden_tokenizer

NUM_LINES = 10_000
NUM_EDGE_LINES = 3_000


def need(variable, how):
    value = os.environ.get(variable, "")
    assert value, f"{variable} is not set; `./flotilla test` does so, or set it to {how}"
    return value


class Tool:
    """A running tokenize_tool; requests are sent in batches."""

    def __init__(self, model):
        tool = need("FLOTILLA_TOKENIZE_TOOL", "build/release/tests/tokenize_tool")
        self.process = subprocess.Popen([tool, model], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=30) == 0

    def ask(self, operation, bodies):
        """Answers in order; an error is a ValueError in its place."""
        frames = b"".join(operation + struct.pack("<I", len(b)) + b for b in bodies)

        def write():
            self.process.stdin.write(frames)
            self.process.stdin.flush()

        writer = threading.Thread(target=write)
        writer.start()
        answers = [self._answer() for _ in bodies]
        writer.join()
        return answers

    def _answer(self):
        read = self.process.stdout.read
        (size,) = struct.unpack("<I", read(4))
        if size == 0xFFFFFFFF:
            (size,) = struct.unpack("<I", read(4))
            return ValueError(read(size).decode())
        return read(size)

    def encode(self, texts, operation=b"e"):
        answers = self.ask(operation, [t.encode() for t in texts])
        for text, answer in zip(texts, answers):
            assert not isinstance(answer, ValueError), (text, answer)
        return [list(struct.unpack(f"<{len(a) // 4}i", a)) for a in answers]

    def timed_encode(self, text):
        """CPU seconds, number of ids and bytes they decode to."""
        (answer,) = self.ask(b"t", [text.encode()])
        assert not isinstance(answer, ValueError), answer
        nanoseconds, ids, size = struct.unpack("<3q", answer)
        return nanoseconds * 1e-9, ids, size

    def decode(self, lists, operation=b"d"):
        return [a.decode() for a in
                self.ask(operation, [struct.pack(f"<{len(ids)}i", *ids) for ids in lists])]


@pytest.fixture(scope="module")
def model():
    return need("FLOTILLA_TEST_MODEL", "the default model's .gguf file")


@pytest.fixture(scope="module")
def reference(model):
    return golden_tokenizer.Reference(model)


@pytest.fixture(scope="module")
def tool(model):
    running = Tool(model)
    yield running
    running.close()


def assert_same_ids(reference, tool, lines):
    for line, ours, theirs in zip(lines, tool.encode(lines), reference.encode_batch(lines)):
        assert ours == theirs, repr(line)


def assert_round_trip(reference, tool, lines):
    """The text comes back, but for bytes that the vocabulary has no token for."""
    for line, text in zip(lines, tool.decode(tool.encode(lines))):
        assert text == reference.normalized(line)


def lines_of_this_machine(reference, count=NUM_LINES, edge_count=NUM_EDGE_LINES):
    added = reference.special_tokens()[:40] + reference.user_defined_tokens()[:40]
    edges = golden_lines.edge_lines(edge_count, added)
    lines = golden_lines.machine_lines(count - len(edges)) + edges
    # A bare machine may lack documentation: the rest is more edge cases, never fewer lines.
    lines += golden_lines.edge_lines(edge_count + count - len(lines), added)[edge_count:]
    assert len(lines) == count
    return lines


def test_lines_of_this_machine_and_edge_cases(reference, tool):
    lines = lines_of_this_machine(reference)
    letters = set("".join(lines))
    for script in "яαא한文のع":
        assert script in letters
    assert_same_ids(reference, tool, lines)
    assert_round_trip(reference, tool, lines)
    print(f"{len(lines)} lines, {sum(map(len, lines))} characters")


def test_every_code_point(reference, tool):
    lines = golden_lines.code_point_lines()
    assert_same_ids(reference, tool, lines)
    assert_round_trip(reference, tool, lines)


def test_control_tokens_stay_text_unless_asked_for(reference, tool):
    for token in reference.special_tokens():
        (plain,) = tool.encode([f"a{token}b"], b"p")
        assert not any(reference.types[i] == golden_tokenizer.CONTROL for i in plain)
        assert tool.decode([plain]) == [f"a{token}b"]


def test_invalid_utf8_is_refused_with_its_offset(tool):
    cases = {b"abc\xff": 3, b"\xc3": 0, b"ok \xed\xa0\x80": 3, b"\xf4\x90\x80\x80": 0,
             b"\xe2\x82": 0, b"caf\xc3\xa9 \xc0\xaf": 6, b"12345678\x80": 8}
    for (text, offset), answer in zip(cases.items(), tool.ask(b"e", list(cases))):
        assert isinstance(answer, ValueError), text
        assert str(answer).endswith(f"at offset {offset}"), (text, answer)


def random_ids(reference, count):
    rng = random.Random(7)
    single = [i for i, b in enumerate(reference.bytes) if len(b) == 1]
    broken = [i for i, b in enumerate(reference.bytes)
              if "\ufffd" in b.decode("utf-8", errors="replace")]
    pools = [single, broken, range(len(reference.bytes)), range(20)]
    return [[rng.choice(rng.choice(pools)) for _ in range(rng.randint(0, 40))]
            for _ in range(count)]


def assert_decodes_as_python(reference, tool, lists):
    for operation, skip in ((b"d", False), (b"i", False), (b"s", True)):
        for ids, text in zip(lists, tool.decode(lists, operation)):
            assert text == reference.decode(ids, skip), ids
    # What follows a prompt: no token's space is taken away.
    for ids, text in zip(lists, tool.decode(lists, b"r")):
        whole = b"".join(reference.bytes[i] for i in ids).decode("utf-8", errors="replace")
        assert text == whole, ids


def test_decoding_is_pythons(reference, tool):
    assert_decodes_as_python(reference, tool, random_ids(reference, 5000))
    assert_decodes_as_python(reference, tool, [[i] for i in range(len(reference.bytes))])


def test_every_sequence_of_bytes_decodes_as_pythons(reference, tool):
    """All leads with the second bytes where the rules change, cut at each length."""
    byte_token = reference.byte_tokens
    edges = [0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC3, 0xE0, 0xF0]
    leads = [b for b in byte_token if b >= 0x80]
    assert_decodes_as_python(reference, tool, [
        [byte_token[b] for b in (lead, second, third, 0x80)[:length]]
        for lead in leads for second in edges for third in edges for length in (1, 2, 3, 4)])
