"""Reads what `flotilla-worker --logits-dump` writes, and tells which prompt each record belongs to.

A record is {u32 slot, u32 position, u32 vocabulary, u32 0, f32 logits[vocabulary]}, little-endian,
in the order of computation. A slot is used by one request after the other; a request's positions
rise by one from 0, so position 0 begins a new sequence of its slot. The golden prompts have
different lengths: a sequence's length, less the `extra` generated positions that all requests have,
is its name.
"""

import hashlib
from pathlib import Path

import numpy as np

HEADER = np.dtype([("slot", "<u4"), ("position", "<u4"), ("vocab", "<u4"), ("zero", "<u4")])


class DumpError(Exception):
    """The dump is not what a run over the golden prompts writes."""


class Dump:
    """Memory-mapped records of one file."""

    def __init__(self, path, vocab):
        self.path = Path(path)
        self.record = np.dtype([("header", HEADER), ("logits", "<f4", (vocab,))])
        size = self.path.stat().st_size
        if size == 0 or size % self.record.itemsize != 0:
            raise DumpError(f"{path}: {size} bytes are not whole records of {vocab} logits")
        self.records = np.memmap(self.path, dtype=self.record, mode="r")
        headers = np.array(self.records["header"])
        if not (headers["vocab"] == vocab).all() or headers["zero"].any():
            bad = int(np.argmax((headers["vocab"] != vocab) | (headers["zero"] != 0)))
            raise DumpError(f"{path}: record {bad} has the header {headers[bad]}")
        self.headers = headers

    def sequences(self):
        """Lists of record numbers, one for each request; its positions are 0, 1, 2, …

        A position that is written twice in a row (as a prompt's and as a sampled one) counts once;
        both must have the same bits.
        """
        running, done = {}, []
        for i, (slot, position) in enumerate(zip(self.headers["slot"].tolist(),
                                                 self.headers["position"].tolist())):
            sequence = running.get(slot)
            if position == 0 and (sequence is None or len(sequence) > 1):
                if sequence is not None:
                    done.append(sequence)
                running[slot] = [i]
            elif sequence is not None and position == len(sequence):
                sequence.append(i)
            elif sequence is not None and position == len(sequence) - 1:
                if self.logits(i).tobytes() != self.logits(sequence[-1]).tobytes():
                    raise DumpError(f"{self.path}: slot {slot} position {position} has two results")
            else:
                raise DumpError(f"{self.path}: record {i}, slot {slot}: position {position} does "
                                f"not follow {len(sequence) - 1 if sequence else 'nothing'}")
        return done + list(running.values())

    def logits(self, record):
        return self.records["logits"][record]

    def match(self, lengths, extra=0):
        """Record numbers for each prompt and what it generated, in the order of `lengths`."""
        found = {}
        for sequence in self.sequences():
            if len(sequence) in found:
                raise DumpError(f"{self.path}: two sequences of {len(sequence)} positions")
            found[len(sequence)] = sequence
        wanted = [n + extra for n in lengths]
        if set(found) != set(wanted):
            raise DumpError(f"{self.path}: has sequences of {sorted(found)} positions, the prompts "
                            f"ask for {sorted(wanted)}")
        return [found[n] for n in wanted]

    def digests(self, lengths, extra=0):
        """SHA-256 of each prompt's logits, generated ones too, in the order of `lengths`."""
        return [self._digest(sequence) for sequence in self.match(lengths, extra)]

    def _digest(self, sequence):
        digest = hashlib.sha256()
        for record in sequence:
            digest.update(self.logits(record).tobytes())
        return digest.hexdigest()


def write_record(file, slot, position, logits):
    """What the worker writes; for tests."""
    header = np.array((slot, position, len(logits), 0), dtype=HEADER)
    file.write(header.tobytes() + np.asarray(logits, dtype="<f4").tobytes())
