"""Writes tests/common/tokenizer_golden.json: ids and text as the tokenizers library has them.

    python tests/common/make_tokenizer_golden.py MODEL.gguf

Needs the pinned packages of tests/requirements.txt. The lines are ours (generated edge cases and the
sentences below), so that the file is the same on every machine.
"""

import json
import pathlib
import random
import sys

import tokenizers

import golden_lines
import golden_tokenizer

PROSE = [
    "The scheduler never blocks on text, sockets or a client; a worker never parses a request.",
    "She said: \"It's 7:45 already, we'll miss the 8:15 train!\"  He didn't answer.\n",
    "Le garçon naïf mangea une crème brûlée à l'hôtel « Île-de-France » pour 12,50 €.",
    "El niño preguntó: ¿dónde está el pingüino? ¡Aquí mismo, señor!",
    "Die Straßenbahn fährt um 6 Uhr über die Brücke nach Köln-Mülheim.",
    "Рабочий процесс читает план, считает и отвечает.",
    "Η ταχεία καφέ αλεπού πηδά πάνω από το σκυλί.",
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "我们在2024年3月15日发布了新版本。", "빠른 갈색 여우가 게으른 개를 뛰어넘는다.",
    "השועל החום המהיר קופץ מעל הכלב העצלן.", "الثعلب البني السريع يقفز فوق الكلب الكسول.",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है।", "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ",
    "def fib(n: int) -> int:\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n",
    "template <typename T>\nconstexpr auto kMax = std::numeric_limits<T>::max();  // 2^63 - 1\n",
    "<|im_start|>user\nWhat is 17 + 25?<|im_end|>\n<|im_start|>assistant\n",
    "{\"temperature\": 0.7, \"stop\": [\"\\n\\n\", \"###\"], \"n\": 1}",
]
NUM_EDGE_LINES = 280
NUM_DECODE = 160


def decode_cases(reference):
    rng = random.Random(golden_lines.SEED + 2)
    broken = [i for i, b in enumerate(reference.bytes)
              if "\ufffd" in b.decode("utf-8", errors="replace")]
    for _ in range(NUM_DECODE):
        yield [rng.choice(broken) if rng.random() < 0.6 else rng.randrange(len(reference.tokens))
               for _ in range(rng.randint(1, 12))]


def main():
    reference = golden_tokenizer.Reference(sys.argv[1])
    lines = PROSE + golden_lines.edge_lines(NUM_EDGE_LINES, reference.special_tokens())
    lines += golden_lines.code_point_lines()[::997]
    golden = {
        "made_by": f"make_tokenizer_golden.py, tokenizers {tokenizers.__version__}",
        "encode": [{"text": t, "ids": reference.encode(t)} for t in lines],
        "decode": [{"ids": ids, "text": reference.decode(ids)}
                   for ids in decode_cases(reference)],
    }
    rows = [json.dumps(golden["made_by"])]
    for key in ("encode", "decode"):
        rows.append(",\n".join(json.dumps(row, separators=(",", ":")) for row in golden[key]))
    path = pathlib.Path(__file__).with_name("tokenizer_golden.json")
    path.write_text('{"made_by":%s,\n"encode":[\n%s\n],\n"decode":[\n%s\n]}\n' % tuple(rows))


if __name__ == "__main__":
    main()
