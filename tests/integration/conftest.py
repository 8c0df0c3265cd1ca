import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from cluster import Cluster  # noqa: E402 - found by the line above


@pytest.fixture(scope="module")
def pair():
    """Two replicas at TP 2 behind one router (round robin)."""
    with Cluster("--replicas", "2", "--tp", "2", "--kv-cache-memory", "512MiB") as cluster:
        yield cluster
