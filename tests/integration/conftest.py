import pytest
from cluster import Cluster


@pytest.fixture(scope="module")
def pair():
    """Two replicas at TP 2 behind one router (round robin)."""
    with Cluster("--replicas", "2", "--tp", "2", "--kv-cache-memory", "512MiB") as cluster:
        yield cluster
