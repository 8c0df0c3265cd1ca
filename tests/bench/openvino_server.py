"""OpenVINO GenAI's continuous batching behind as much of /v1/completions as the load generator needs.

  openvino_server.py MODEL.gguf PORT [--kv-cache-gib N]

It has no server of its own. This one is kind to it: texts are not made of the tokens, a piece says nothing but
that a token came. Needs openvino-genai and aiohttp (engines.py makes their environment).
"""

import argparse
import asyncio
import json
import threading

import openvino_genai
from aiohttp import web


class Pipeline:
    """Threads: submit() from the event loop; one thread of its own steps."""

    def __init__(self, model, kv_cache_gib):
        config = openvino_genai.SchedulerConfig()
        config.cache_size = kv_cache_gib
        config.enable_prefix_caching = True
        config.max_num_seqs = 256
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, config, "CPU")
        self._loop = asyncio.get_running_loop()
        self._work = threading.Condition()
        self._new, self._next_id = [], 0
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, prompt, tokens):
        """A queue of numbers of new tokens; None ends it."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos = True
        pieces = asyncio.Queue()
        with self._work:
            self._new.append((prompt, config, pieces))
            self._work.notify()
        return pieces

    def _put(self, pieces, value):
        self._loop.call_soon_threadsafe(pieces.put_nowait, value)

    def _run(self):
        live = []
        while True:
            with self._work:
                self._work.wait_for(lambda: self._new or live)
                new, self._new = self._new, []
            for prompt, config, pieces in new:
                live.append((self._pipeline.add_request(self._next_id, prompt, config), pieces))
                self._next_id += 1
            self._pipeline.step()
            running = openvino_genai.GenerationStatus.RUNNING
            still = []
            for handle, pieces in live:
                while handle.can_read():
                    self._put(pieces, sum(len(output.generated_ids) for output in handle.read().values()))
                if handle.get_status() == running:
                    still.append((handle, pieces))
                else:
                    self._put(pieces, None)
            live = still


async def completions(request):
    body = await request.json()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)

    async def send(**event):
        await response.write(f"data: {json.dumps(event)}\n\n".encode())

    pieces = request.app["pipeline"].submit(body["prompt"], body["max_tokens"])
    tokens = 0
    while (count := await pieces.get()) is not None:
        tokens += count
        await send(choices=[{"index": 0, "text": "x"}])
    await send(choices=[], usage={"prompt_tokens": len(body["prompt"].split()), "completion_tokens": tokens})
    await response.write(b"data: [DONE]\n\n")
    return response


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--kv-cache-gib", type=int, default=2)
    args = parser.parse_args()

    async def make_app():
        app = web.Application()
        app["pipeline"] = Pipeline(args.model, args.kv_cache_gib)
        app.router.add_post("/v1/completions", completions)
        app.router.add_get("/health", lambda _: web.json_response({}))
        return app

    web.run_app(make_app(), host="127.0.0.1", port=args.port, print=None)


if __name__ == "__main__":
    main()
