"""This version and an earlier one serve together, and replace each other under load: what docs/upgrading.md promises.

The earlier one is the last whose routers and engines spoke protocol 1 alone.
"""

import pytest
from cluster import BIN, Cluster
from previous_build import previous_programs
from router import Router
from test_failover import Client, body_of
from test_rolling import ENGINE, replace_everything

PREVIOUS = "3918e27ecca76459a62775391890d1cd767b0efc"
REQUESTS = 2000


@pytest.fixture(scope="module", name="previous")
def fixture_previous():
    return previous_programs(PREVIOUS)


def answers_of(router):
    client = Client(f"http://127.0.0.1:{router.http}")
    message = {"role": "user", "content": "What is the capital of France?"}
    chat = client.openai.chat.completions.create(model=client.model, messages=[message], temperature=0, max_tokens=24)
    return [client.stream(body_of(i)) for i in range(6)], chat.choices[0].message.content


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
