"""docs/openapi.yaml, case by case, against a real cluster: whatever a client makes of it, no server error.

FLOTILLA_OPENAPI_CASES: cases of each route, 10 if not said. FLOTILLA_OPENAPI_LEAST: of all routes together.
"""

import os

import hypothesis
import pytest
import requests
import schemathesis

from cluster import Cluster

CASES = int(os.environ.get("FLOTILLA_OPENAPI_CASES", "10"))
LEAST = int(os.environ.get("FLOTILLA_OPENAPI_LEAST", "1000"))
MOST_TOKENS = 4  # of an answer: what is tested is what a request may look like
schema = schemathesis.openapi.from_path("docs/openapi.yaml")


@pytest.fixture(scope="module")
def cluster():
    # An answer without a limit of its own ends with the context.
    with Cluster("--kv-cache-memory", "512MiB", "--context-length", "256") as c:
        c.model = requests.get(c.http + "/v1/models", timeout=60).json()["data"][0]["id"]
        c.statuses = {}
        yield c
        told = ", ".join(f"{status}: {count}" for status, count in sorted(c.statuses.items()))
        print(f"answers by status: {told}")
        assert c.statuses.get(200, 0) > 0 and c.statuses.get(400, 0) > 0, "the cases reach both"
        assert sum(c.statuses.values()) >= LEAST


def make_it_short(body, model):
    """Nearly all cases are for the model there is, and none may take minutes."""
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("model"), str) and len(body["model"]) % 8:
        body["model"] = model
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(body.get(name), int) and body[name] > MOST_TOKENS:
            body[name] = MOST_TOKENS
    if "prompt" in body or "messages" in body:
        body.setdefault("max_tokens", MOST_TOKENS)
    if "input" in body:
        body.setdefault("max_output_tokens", MOST_TOKENS)
    return body


@schema.parametrize()
@hypothesis.settings(max_examples=CASES, deadline=None, derandomize=True, database=None,
                     suppress_health_check=list(hypothesis.HealthCheck))
def test_no_server_error(case, cluster):
    case.body = make_it_short(case.body, cluster.model)
    answer = case.call(base_url=cluster.http, timeout=300)
    cluster.statuses[answer.status_code] = cluster.statuses.get(answer.status_code, 0) + 1
    late = answer.status_code == 504 and "X-Request-Timeout-Ms" in (case.headers or {})
    assert answer.status_code < 500 or late, (answer.status_code, answer.text)
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["message"], "a refusal says why"
