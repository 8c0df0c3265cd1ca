"""This version and an earlier one serve together, and replace each other under load: what docs/upgrading.md promises.

The earlier one is the last whose routers and engines spoke protocol 1 alone.
"""

import openai
import pytest
from cluster import BIN, Cluster
from previous_build import previous_programs
from router import Router
from test_failover import body_of
from test_rolling import ENGINE, replace_everything

PREVIOUS = "3918e27ecca76459a62775391890d1cd767b0efc"
REQUESTS = 2000


@pytest.fixture(scope="module", name="previous")
def fixture_previous():
    return previous_programs(PREVIOUS)


def stream(client, body):
    """Text, ids and end, by choice."""
    choices = {}
    for event in client.completions.create(stream=True, **body):
        for choice in event.choices:
            text, ids, end = choices.get(choice.index, ("", [], None))
            assert end is None
            choices[choice.index] = (text + choice.text, ids + (getattr(choice, "token_ids", None) or []),
                                     choice.finish_reason)
    assert all(end for _, _, end in choices.values())
    return choices


def answers_of(router):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{router.http}/v1", api_key="none", max_retries=0, timeout=300)
    model = client.models.list().data[0].id
    message = {"role": "user", "content": "What is the capital of France?"}
    chat = client.chat.completions.create(model=model, messages=[message], temperature=0, max_tokens=24)
    return [stream(client, body_of(i) | {"model": model}) for i in range(6)], chat.choices[0].message.content


def test_each_serves_with_the_other(previous):
    answers = {}
    for engine_of in (BIN, previous):
        with Cluster(*ENGINE, command="engine", programs=engine_of) as engine:
            for router_of in (BIN, previous):
                with Router([engine.grpc], programs=router_of) as router:
                    answers[engine_of, router_of] = answers_of(router)
    streams, chat = answers[BIN, BIN]
    assert len(streams) == 6 and len(chat) > 20
    assert all(each == answers[BIN, BIN] for each in answers.values())


def test_everything_is_upgraded_and_taken_back_under_load(previous, tmp_path):
    replace_everything(tmp_path, [previous, BIN, previous], REQUESTS)
