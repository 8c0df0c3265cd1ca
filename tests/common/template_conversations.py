"""Random conversations, the same ones each time: turns of all roles, of any text in any shape."""

import random

import template_cases as known

TEXTS = ["", " ", "\n", "Hi", "  spaces \n", "a\n\nb", "Grüezi, 中文", "👩‍👩‍👧 🙂", "<think>\nx\n</think>\n\ny",
         "</think>", "<|im_end|>", "[INST] x [/INST]", "{{ x }}{% y %}", '{"a": [1, null]}', "0", "\u2028\u00a0"]


class Conversations:
    def __init__(self, rng):
        self._rng = rng

    def _content(self):
        rng = self._rng
        kind = rng.random()
        if kind < 0.8:
            return "".join(rng.choice(TEXTS) for _ in range(rng.choice([1, 1, 1, 2, 3])))
        if kind < 0.95:
            return [rng.choice([{"type": "text", "text": rng.choice(TEXTS)}, {"type": "image"}])
                    for _ in range(rng.randrange(4))]
        return None

    def _calls(self):
        rng = self._rng
        arguments = [{}, {"city": rng.choice(TEXTS)}, known.ARGUMENTS, '{"x": 1}', ""]
        return [known.call(rng.choice(["get_weather", "now"]), rng.choice(arguments),
                           rng.choice(["call00001", "abcdefghi", "1"]))
                for _ in range(rng.choice([1, 1, 2]))]

    def _assistant(self):
        rng = self._rng
        message = known.assistant(self._content())
        if rng.random() < 0.3:
            message["tool_calls"] = self._calls()
        if rng.random() < 0.3:
            message["reasoning_content"] = rng.choice(TEXTS)
        return message

    def messages(self):
        """Mostly as the models' rules want it: a system message, then user and assistant in turns."""
        rng = self._rng
        messages = [known.system(self._content())] if rng.random() < 0.4 else []
        for turn in range(rng.randrange(1, 7)):
            if rng.random() < 0.1:
                messages.append({"role": rng.choice(["system", "tool", "user", "developer"]),
                                 "content": self._content()})
                continue
            messages.append(self._assistant() if turn % 2 else known.user(self._content()))
            if "tool_calls" in messages[-1]:
                messages += [known.result(rng.choice(TEXTS), each["id"], each["function"]["name"])
                             for each in messages[-1]["tool_calls"]]
        return messages


def conversations(count):
    """What a case has besides its template."""
    rng = random.Random(14)
    make = Conversations(rng)
    return [{"messages": make.messages(), "tools": rng.choice(list(known.TOOLS.values())),
             "add_generation_prompt": rng.random() < 0.7, "bos_token": "<s>", "eos_token": "</s>",
             "extra": rng.choice([{}, *known.EXTRAS])} for _ in range(count)]
