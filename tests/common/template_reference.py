"""Python's jinja2 with transformers' settings, and where templates of models are found."""

import ast
import copy
import datetime
import hashlib
import json
import mmap
import os
import pathlib
import struct
import subprocess
import sys
import zipfile

import jinja2
import jinja2.ext
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "flotilla"
UNSLOTH = "unsloth==2025.4.7"
UNSLOTH_WHEEL = "unsloth-2025.4.7-py3-none-any.whl"
UNSLOTH_SHA256 = "d601113b6ab4de7c420a3163ce99ab9b149d01281693dfaa1c5e7036b59bb262"
_GGUF_STRING = 8  # its number among the types of metadata
NOW = datetime.datetime(2025, 6, 7, 8, 9, 10)


class AssistantTracker(jinja2.ext.Extension):
    """transformers' {% generation %}, without its record of positions."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_generation_support")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _generation_support(self, context, caller):
        return caller()


def _raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def _tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def _strftime_now(format):
    return NOW.strftime(format)


def environment():
    """As transformers.utils.chat_template_utils makes it, with a clock that stands still."""
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[AssistantTracker, jinja2.ext.loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


class Reference:
    """Renders cases as template_tool does: {"text": …} or {"error": …}.

    jinja2's optimizer computes constant expressions when it compiles, and then takes None[1:] for
    undefined rather than an error. Without it (optimized=False) all are computed alike.
    """

    def __init__(self, optimized=True):
        self._env = environment()
        self._env.optimized = optimized
        self._compiled = {}

    def _compile(self, source):
        if source not in self._compiled:
            try:
                self._compiled[source] = self._env.from_string(source)
            except Exception as error:  # whatever Python's compiler raises, too
                self._compiled[source] = error
        return self._compiled[source]

    def render(self, case):
        compiled = self._compile(case["template"])
        if isinstance(compiled, Exception):
            return {"error": f"{type(compiled).__name__}: {compiled}"}
        # A copy: `indent` changes the list that it fails on.
        case = copy.deepcopy(case)
        variables = {name: case.get(name) for name in ("messages", "tools", "documents")}
        variables["add_generation_prompt"] = case.get("add_generation_prompt", False)
        variables |= {name: case[name] for name in ("bos_token", "eos_token") if name in case}
        try:
            return {"text": compiled.render(variables | case.get("extra", {}))}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


def _template_of_gguf(path):
    """Found by its key: gguf's reader would first build all of the vocabulary."""
    key = b"tokenizer.chat_template"
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(struct.pack("<Q", len(key)) + key + struct.pack("<I", _GGUF_STRING))
        if start < 0:
            return None
        start += 8 + len(key) + 4
        (length,) = struct.unpack_from("<Q", data, start)
        return data[start + 8:start + 8 + length].decode("utf-8")


def _templates_of_unsloth():
    """Those that a wheel on PyPI has as Python's strings, Gemma 3's among them. It is read, never run."""
    wheel = CACHE / UNSLOTH_WHEEL
    if not wheel.exists():
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                        "--disable-pip-version-check", "--dest", CACHE, UNSLOTH], check=True)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == UNSLOTH_SHA256, f"{wheel} is another file"
    with zipfile.ZipFile(wheel) as archive:
        module = ast.parse(archive.read("unsloth/chat_templates.py"))
    return {f"unsloth-{node.targets[0].id}": node.value.value for node in module.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant) and "{%" in str(node.value.value)}


def model_templates(model):
    """name → source: of `model` (a GGUF), of everything in llama.cpp's archive and of unsloth's."""
    source = subprocess.run([ROOT / "tests/bench/build_llama.sh", "--source"], check=True,
                            stdout=subprocess.PIPE, text=True).stdout.strip()
    models = pathlib.Path(source) / "models"
    templates = {pathlib.Path(model).stem: _template_of_gguf(model)}
    for path in sorted(models.glob("templates/*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    for path in sorted(models.glob("*.gguf")):
        templates[path.stem] = _template_of_gguf(path)
    templates = {name: text for name, text in templates.items() if text is not None}
    return templates | _templates_of_unsloth()
