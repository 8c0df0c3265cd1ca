"""check_logits.py on synthetic dumps: what it accepts, and that it notices what is wrong.

Uses the real golden hidden states with a small made-up head, so that it needs no model.
"""

import hashlib
import io
import json

import numpy as np
import pytest

import check_logits
from logits_dump import Dump, DumpError, write_record

VOCAB = 50


@pytest.fixture(scope="module")
def golden():
    return check_logits.Golden.load()


@pytest.fixture(scope="module")
def head(golden):
    return np.random.default_rng(1).normal(0, 0.1, (VOCAB, golden.hidden[0].shape[1]))


@pytest.fixture(scope="module")
def logits(golden, head):
    return [(h.astype(np.float64) @ head.T).astype(np.float32) for h in golden.hidden]


def sequential(logits):
    """(slot, position, logits) as one request after the other in slot 0 gives them."""
    return [(0, p, row) for prompt in logits for p, row in enumerate(prompt)]


def interleaved(logits, slots):
    """As chunks of 16 of `slots` requests at once."""
    waiting, running, out = list(logits), {}, []
    while waiting or running:
        for slot in range(slots):
            if slot not in running and waiting:
                running[slot] = [0, waiting.pop(0)]
        for slot in list(running):
            begin, prompt = running[slot]
            out += [(slot, p, prompt[p]) for p in range(begin, min(begin + 16, len(prompt)))]
            running[slot][0] = begin + 16
            if begin + 16 >= len(prompt):
                out.append((slot, len(prompt) - 1, prompt[-1]))  # and again, as the sampled one
                del running[slot]
    return out


def dump_of(tmp_path, records, name="dump"):
    path = tmp_path / name
    buffer = io.BytesIO()
    for slot, position, row in records:
        write_record(buffer, slot, position, row)
    path.write_bytes(buffer.getvalue())
    return Dump(path, VOCAB)


def test_golden_data_are_those_described(golden):
    about = json.loads(check_logits.GOLDEN.with_suffix(".json").read_text())
    assert hashlib.sha256(check_logits.GOLDEN.read_bytes()).hexdigest() == about["npz_sha256"]
    assert about["tokens"] == dict(zip(golden.names, golden.lengths))
    assert about["positions"] == sum(golden.lengths) >= check_logits.MIN_POSITIONS
    assert len(set(golden.lengths)) == len(golden.lengths)
    assert [len(i) for i in golden.ids] == [len(h) for h in golden.hidden] == golden.lengths


def test_equal_logits_pass_in_any_order(tmp_path, golden, head, logits):
    one = dump_of(tmp_path, sequential(logits), "one")
    eight = dump_of(tmp_path, interleaved(logits, 8), "eight")
    for dump in (one, eight):
        score = check_logits.score_dump(golden, head, dump)
        assert score.problems() == []
        assert score.positions == sum(golden.lengths) >= 2000
        assert 0 <= score.mean_kl < 1e-12
        assert score.wrong == 0 and score.decided > 2000
    assert check_logits.compare_bits(golden, [one, eight]) == []


def test_generated_positions_are_compared_but_not_scored(tmp_path, golden, head, logits):
    longer = [np.concatenate([row, np.full((3, VOCAB), i, np.float32)])
              for i, row in enumerate(logits)]
    one = dump_of(tmp_path, sequential(longer), "one")
    assert check_logits.score_dump(golden, head, one, extra=3).problems() == []
    with pytest.raises(DumpError, match="has sequences of"):
        one.match(golden.lengths, extra=2)
    longer[2][-1, 0] += 1
    other = dump_of(tmp_path, sequential(longer), "other")
    assert one.digests(golden.lengths, 3) != other.digests(golden.lengths, 3)


def test_kl_is_that_of_the_definition(tmp_path, golden, head, logits):
    noisy = [row + np.random.default_rng(2).normal(0, 0.05, row.shape).astype(np.float32)
             for row in logits]
    score = check_logits.score_dump(golden, head, dump_of(tmp_path, sequential(noisy)))
    total = 0.0
    for hidden, prompt in zip(golden.hidden, noisy):
        for a, b in zip(hidden.astype(np.float64) @ head.T, prompt.astype(np.float64)):
            p, q = np.exp(a) / np.exp(a).sum(), np.exp(b) / np.exp(b).sum()
            total += (p * np.log(p / q)).sum()
    assert score.mean_kl == pytest.approx(total / sum(golden.lengths), rel=1e-9)
    assert any("mean KL" in p for p in score.problems())


def test_one_wrong_position_is_noticed(tmp_path, golden, head, logits):
    spoiled = [row.copy() for row in logits]
    spoiled[3][40, spoiled[3][40].argmin()] = spoiled[3][40].max() + 1
    score = check_logits.score_dump(golden, head, dump_of(tmp_path, sequential(spoiled)))
    assert score.wrong == 1
    assert score.max_kl_at == f"{golden.names[3]}:40"
    assert any("top-1 differs at 1" in p for p in score.problems())


def test_one_flipped_bit_is_noticed(tmp_path, golden, logits):
    flipped = [row.copy() for row in logits]
    flipped[5].view(np.uint32)[7, 9] ^= 1
    differences = check_logits.compare_bits(golden, [dump_of(tmp_path, sequential(logits), "a"),
                                                     dump_of(tmp_path, sequential(flipped), "b")])
    assert len(differences) == 1 and golden.names[5] in differences[0]


def test_nan_never_passes(tmp_path, golden, head, logits):
    spoiled = [row.copy() for row in logits]
    spoiled[0][0, 0] = np.nan
    score = check_logits.score_dump(golden, head, dump_of(tmp_path, sequential(spoiled)))
    assert any("mean KL" in p for p in score.problems())


@pytest.mark.parametrize("spoil, message", [
    (lambda r: r[:-1], "has sequences of"),
    (lambda r: r[1:], "does not follow"),
    (lambda r: r[:10] + r[11:], "does not follow"),
    (lambda r: r + [(1, p, x) for s, p, x in r if s == 0], "two sequences of"),
    (lambda r: r[:5] + [(0, 4, r[6][2])] + r[5:], "has two results"),
])
def test_incomplete_dumps_are_refused(tmp_path, golden, logits, spoil, message):
    records = spoil(sequential(logits))
    with pytest.raises(DumpError, match=message):
        dump_of(tmp_path, records).match(golden.lengths)


def test_files_of_another_shape_are_refused(tmp_path, logits):
    path = tmp_path / "dump"
    for content, message in ((b"", "whole records"), (b"x" * 100, "whole records"),
                             (b"\1" * (16 + 4 * VOCAB), "header")):
        path.write_bytes(content)
        with pytest.raises(DumpError, match=message):
            Dump(path, VOCAB)


def test_too_few_positions_are_refused():
    assert any("fewer than 2000" in p for p in check_logits.Score(positions=1999).problems())
