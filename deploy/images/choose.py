"""choose.py URL: asks a router for one of two words, which needs a grammar, and prints what came."""

import json
import sys
import urllib.request


def call(url, body=None):
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


model = call(sys.argv[1] + "/v1/models")["data"][0]["id"]
answer = call(sys.argv[1] + "/v1/completions", {
    "model": model, "prompt": "A colour:", "max_tokens": 8, "structured_outputs": {"choice": ["red", "blue"]}})
print(answer["choices"][0]["text"])
