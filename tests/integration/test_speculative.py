"""Drafts on the real model: fewer steps for what repeats, the same answers to the bit, also over a kill.

What is drafted depends on what steps cost, so on the machine and its load; what is answered does not."""

import os
import signal

import openai
import pytest
from cluster import Cluster, cpu_seconds, wait_until

TEXT = ("The quick brown fox jumps over the lazy dog while the old clock in the hall strikes seven, and nobody in the "
        "house gets up before the rain has stopped and the postman has come and gone.")
COPY = f"Copy this text again and again.\n\n{TEXT}\n\n{TEXT}\n\n"
REQUESTS = {
    "greedy": {"prompt": COPY, "max_tokens": 150, "temperature": 0},
    "sampled": {"prompt": COPY, "max_tokens": 150, "temperature": 0.5, "seed": 3, "n": 2},
    "logprobs": {"prompt": COPY, "max_tokens": 90, "temperature": 0, "logprobs": 4},
    "stop string": {"prompt": COPY, "max_tokens": 150, "temperature": 0, "stop": ["strikes seven"]},
    "stop token": {"prompt": COPY, "max_tokens": 150, "temperature": 0, "stop_token_ids": [28], "min_tokens": 20},
    "bias": {"prompt": COPY, "max_tokens": 90, "temperature": 0, "logit_bias": {"28": -100}},
    "penalties": {"prompt": COPY, "max_tokens": 60, "temperature": 0, "presence_penalty": 0.5},
    "sampled with penalties": {"prompt": COPY, "max_tokens": 90, "temperature": 0.3, "seed": 5,
                               "repetition_penalty": 1.05, "frequency_penalty": 0.1},
    "regex": {"prompt": COPY, "max_tokens": 60, "temperature": 0,
              "structured_outputs": {"regex": "(The quick brown fox ){4}"}},
    "story": {"prompt": "Once upon a time", "max_tokens": 90, "temperature": 0.9, "seed": 1},
}


def drafts(cluster):
    return [cluster.metric("flotilla_scheduler_spec_decode_draft_tokens_total"),
            cluster.metric("flotilla_scheduler_spec_decode_accepted_tokens_total")]


def warm_up(cluster):
    """Until the scheduler knows what steps cost."""
    cluster.complete(prompt="One, two, three", max_tokens=40, temperature=0)


def answers(cluster):
    warm_up(cluster)
    return {name: cluster.complete(return_token_ids=True, **body)["choices"] for name, body in REQUESTS.items()}


@pytest.fixture(scope="module")
def expected():
    with Cluster("--speculative-num-draft-tokens", "0") as cluster:
        found = answers(cluster)
        assert drafts(cluster) == [0, 0]
    assert len(found["greedy"][0]["token_ids"]) == 150
    assert found["stop string"][0]["finish_reason"] == "stop"
    return found


@pytest.mark.parametrize("flags", [[], ["--tp", "2", "--speculative-num-draft-tokens", "16"],
                                   ["--page-size", "1", "--disable-overlap"]], ids=["default", "tp", "small_pages"])
def test_answers_are_those_without_drafts(expected, flags):
    with Cluster(*flags) as cluster:
        assert answers(cluster) == expected
        drafted, accepted = drafts(cluster)
        assert drafted > accepted > 200
        assert cluster.metric("flotilla_scheduler_kv_pages_unaccounted") == 0


def test_what_repeats_takes_fewer_steps(expected):
    with Cluster() as cluster:
        warm_up(cluster)
        before = sum(cluster.steps().values())
        cluster.complete(**REQUESTS["greedy"])
        assert sum(cluster.steps().values()) - before < 110


@pytest.mark.parametrize("victim", ["worker", "scheduler"])
def test_streams_outlive_a_kill_among_drafts(expected, victim):
    with Cluster("--replicas", "2", disturbed=True) as cluster:
        client = openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=300)
        for _ in range(2):  # one for each replica
            warm_up(cluster)
        for round_number in range(3):
            pids, text, killed = cluster.pids(victim), "", False
            for event in client.completions.create(model=cluster.model_id, stream=True, **REQUESTS["greedy"]):
                text += event.choices[0].text
                if len(text) > 200 and not killed:  # two of three words are behind it
                    busy = max(pids, key=cpu_seconds)
                    os.kill(busy, signal.SIGKILL)
                    killed = True
            assert killed and text == expected["greedy"][0]["text"], f"round {round_number}"
            wait_until(lambda: len(cluster.pids(victim)) == 2 and busy not in cluster.pids(victim), 60,
                       f"the {victim} is back")
        assert cluster.metric("flotilla_scheduler_kv_pages_unaccounted") == 0
