"""Every metric is there, moves when it should, is documented, and Prometheus takes all of it."""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import urllib.parse
import urllib.request

import openai
import pytest
from cluster import Cluster, free_port, wait_until

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
REPLICAS = ("r0", "r1")


def total(samples, name, **labels):
    """Sum of the samples of that name with those labels."""
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    found = [value for key, value in samples.items()
             if key.split("{")[0] == name and wanted <= set(re.findall(r'\w+="[^"]*"', key))]
    assert found, f"/metrics has no {name}{labels or ''}"
    return sum(found)


class Traffic:
    """What happened to the cluster, and its metrics before and after."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.client = openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=300)
        self.before = cluster.metrics()
        self.streams()
        self.bad_requests()
        self.quiet = cluster.metrics()  # nothing has died yet
        self.client_that_leaves()
        self.killed_worker()
        wait_until(lambda: cluster.metric("flotilla_scheduler_requests_running") == 0, 60, "all have ended")
        wait_until(lambda: cluster.metric("flotilla_router_requests_in_flight") == 0, 60, "all are answered")
        self.after = cluster.metrics()

    def stream(self, tokens):
        return self.client.completions.create(
            model=self.cluster.model_id, prompt="Count with me: one, two, three, four, five, six, seven,",
            max_tokens=tokens, stream=True, extra_body={"ignore_eos": True})

    def streams(self):
        for _ in range(6):  # three a replica; all but the first find their prefix in its cache
            assert list(self.stream(8))[-1].choices[0].finish_reason == "length"

    def bad_requests(self):
        for body in ({"prompt": "Hi", "temperature": -1}, {"prompt": "Hi", "max_tokens": 0}):
            with pytest.raises(openai.BadRequestError):
                self.client.post("/completions", body={"model": self.cluster.model_id, **body}, cast_to=object)
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.cluster.http).netloc, timeout=60)
        connection.request("GET", "/v1/no-such-thing/with/a/secret")
        assert connection.getresponse().status == 404
        connection.close()

    def client_that_leaves(self):
        stream = self.stream(1000)
        next(iter(stream))
        stream.close()
        wait_until(lambda: self.cluster.metric("flotilla_router_client_disconnects_total") >= 1, 60,
                   "the router knows that the client left")
        wait_until(lambda: self.cluster.metric("flotilla_scheduler_requests_running") == 0, 60, "it was aborted")

    def killed_worker(self):
        stream = iter(self.stream(60))
        next(stream)
        os.kill(self.cluster.pids("worker")[0], signal.SIGKILL)
        other = iter(self.stream(60))  # round robin: one of the two runs on the replica that lost it
        assert len(list(stream)) > 0 and len(list(other)) > 0
        wait_until(lambda: self.cluster.metric("flotilla_worker_restarts_total") == 1, 60, "it was started again")
        wait_until(lambda: self.cluster.metric("flotilla_scheduler_serving") == 2, 60, "both serve")

    def grew(self, name, **labels):
        return total(self.after, name, **labels) - total(self.before, name, **labels)

    def grew_quietly(self, name, **labels):
        """Until the first death; series that came into being meanwhile began at 0."""
        return total(self.quiet, name, **labels) - sum(
            value for key, value in self.before.items()
            if key.split("{")[0] == name and all(f'{k}="{v}"' in key for k, v in labels.items()))


@pytest.fixture(scope="module")
def traffic():
    flags = ["--replicas", "2", "--tp", "2", "--kv-cache-memory", "512MiB"]
    with Cluster(*flags, disturbed=True) as cluster:
        yield Traffic(cluster)


def test_the_routers_metrics_move(traffic):
    t = traffic
    assert t.grew_quietly("flotilla_router_requests_total", route="/v1/completions", code="200") == 6
    assert t.grew_quietly("flotilla_router_requests_total", route="/v1/completions", code="400") == 2
    assert t.grew_quietly("flotilla_router_requests_total", route="other", code="404") == 1
    assert t.grew("flotilla_router_request_duration_seconds_count") >= 11
    assert t.grew("flotilla_router_request_duration_seconds_sum") > 0
    assert t.grew("flotilla_router_ttft_seconds_count") == 9
    assert t.grew("flotilla_router_client_disconnects_total") == 1
    assert total(t.after, "flotilla_router_requests_in_flight") == 0
    assert total(t.after, "flotilla_router_stream_buffer_bytes") == 0
    for replica in REPLICAS:
        assert total(t.after, "flotilla_router_backend_healthy", replica=replica) == 1
        assert total(t.after, "flotilla_router_backend_requests_active", replica=replica) == 0
    assert "secret" not in t.cluster.metrics_page()


def test_the_schedulers_metrics_move(traffic):
    t = traffic
    for replica in REPLICAS:
        for name, count in (("generation_tokens_total", 24), ("prefix_cache_queries_total", 1),
                            ("prefix_cache_hits_total", 1), ("cached_tokens_total", 1),
                            ("prompt_tokens_total", 30), ("step_gap_seconds_count", 1)):
            assert t.grew_quietly(f"flotilla_scheduler_{name}", replica=replica) >= count, name
        for name, count in (("time_to_first_token_seconds", 3), ("inter_token_latency_seconds", 21),
                            ("e2e_request_latency_seconds", 3), ("request_queue_time_seconds", 3),
                            ("request_prefill_time_seconds", 3), ("request_decode_time_seconds", 3),
                            ("request_prompt_tokens", 3), ("request_generation_tokens", 3)):
            assert t.grew_quietly(f"flotilla_scheduler_{name}_count", replica=replica) == count, name
        assert t.grew_quietly("flotilla_scheduler_request_generation_tokens_sum", replica=replica) == 24
        assert t.grew_quietly("flotilla_scheduler_request_wait_time_seconds_count", replica=replica) == 3  # of all reasons
        assert 0 <= total(t.after, "flotilla_scheduler_heartbeat_age_seconds", replica=replica) < 60
        assert t.grew_quietly("flotilla_scheduler_request_success_total", replica=replica,
                              finished_reason="length") == 3
        for mode, count in (("prefill", 3), ("decode", 21)):
            assert t.grew_quietly("flotilla_scheduler_step_seconds_count", replica=replica, mode=mode) == count
        assert t.grew_quietly("flotilla_scheduler_batch_tokens_count", replica=replica) == 24
        assert total(t.after, "flotilla_scheduler_kv_pages_unaccounted", replica=replica) == 0
        assert total(t.after, "flotilla_scheduler_kv_cache_usage_ratio", replica=replica) == 0
        assert total(t.after, "flotilla_scheduler_cache_config_info", replica=replica) == 1
        for ring in ("step", "result"):
            assert 0 <= total(t.after, "flotilla_shm_ring_fill_ratio", replica=replica, ring=ring) < 0.1
            assert total(t.after, "flotilla_shm_rejected_frames_total", replica=replica, ring=ring) == 0
    assert t.grew("flotilla_scheduler_request_success_total", finished_reason="abort") == 1


def test_the_stages_of_a_request_add_up(traffic):
    stages = sum(total(traffic.after, f"flotilla_scheduler_request_{stage}_time_seconds_sum")
                 for stage in ("queue", "prefill", "decode"))
    whole = total(traffic.after, "flotilla_scheduler_e2e_request_latency_seconds_sum")
    count = total(traffic.after, "flotilla_scheduler_e2e_request_latency_seconds_count")
    assert abs(whole - stages) <= 0.001 * count


def test_the_workers_metrics_move(traffic):
    t = traffic
    for replica in REPLICAS:
        for rank in "01":
            at = {"replica": replica, "rank": rank}
            assert t.grew_quietly("flotilla_worker_step_seconds_count", **at) >= 24
            assert t.grew_quietly("flotilla_worker_step_seconds_sum", **at) > 0
            assert t.grew_quietly("flotilla_worker_tokens_total", **at) > 24
            assert t.grew_quietly("flotilla_worker_collective_seconds_count", kind="all_gather", **at) > 24
            for kind in ("weights", "activations", "kv_cache"):
                assert total(t.after, "flotilla_worker_memory_bytes", kind=kind, **at) > 0
            assert 0 <= total(t.after, "flotilla_worker_heartbeat_age_seconds", **at) < 60
            assert total(t.before, "flotilla_worker_restarts_total", **at) == 0
    assert t.grew("flotilla_worker_restarts_total") == 1


def test_the_detokenizers_metrics_move(traffic):
    t = traffic
    for replica in REPLICAS:
        assert t.grew("flotilla_detokenizer_tokens_total", replica=replica) >= 24
        assert t.grew("flotilla_detokenizer_batch_seconds_count", replica=replica) > 0
        assert total(t.after, "flotilla_detokenizer_queue_depth", replica=replica) == 0
        assert total(t.after, "flotilla_detokenizer_restarts_total", replica=replica) == 0
        assert total(t.after, "flotilla_detokenizer_hellos_total", replica=replica) >= 1
        assert 0 <= total(t.after, "flotilla_detokenizer_heartbeat_age_seconds", replica=replica) < 60


def test_every_process_tells_what_it_is(traffic):
    processes = {"router": 1, "launcher": 1, "scheduler": 2, "worker-0": 2, "worker-1": 2, "detokenizer": 2}
    for process, count in processes.items():
        assert total(traffic.after, "flotilla_build_info", process=process) == count
        for name in ("resident_memory_bytes", "open_fds", "start_time_seconds"):
            assert total(traffic.after, f"process_{name}", process=process) > 0
        if process != "launcher":
            assert total(traffic.after, "flotilla_launcher_process_up", process=process) == count
    assert traffic.grew("process_cpu_seconds_total", process="router") > 0


def test_all_programs_are_of_one_commit(traffic):
    told = {tuple(re.findall(r'\b(?:revision|version)="([^"]*)"', key)) for key in traffic.after
            if key.startswith("flotilla_build_info{")}
    [(revision, version)] = told
    assert re.fullmatch(r"[0-9a-f]{12}|unknown", revision) and re.fullmatch(r"\d+\.\d+\.\d+", version)
    git = subprocess.run(["git", "-C", DOCS.parents[1], "rev-parse", "--verify", "HEAD"], capture_output=True, text=True)
    assert (revision == "unknown") == (git.returncode != 0)


def test_documented_and_there_are_the_same(traffic):
    """The documents' tables come from the code; here both are held against what is scraped."""
    there = set(re.findall(r"^# TYPE (\S+) ", traffic.cluster.metrics_page(), re.M))
    tables = DOCS.read_text(encoding="utf-8").split("<!-- metrics vllm -->")[0]
    documented = set(re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) \|", tables, re.M))
    elsewhere = {name for name in documented if "_certificate_expiry_" in name or name.startswith(
        ("flotilla_worker_plan_link_", "flotilla_router_cache_index_", "flotilla_router_tenant_"))}
    assert len(elsewhere) == 11  # with ranks on several hosts, --policy prefix_aware, TLS, keys
    assert there == documented - elsewhere
    assert len(there) > 50


def check_with_promtool(page):
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True,
                             timeout=60)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_promtool_has_nothing_to_say(traffic):
    check_with_promtool(traffic.cluster.metrics_page())


def test_promtool_has_nothing_to_say_of_an_engine():
    with Cluster("--tp", "1", "--kv-cache-memory", "384MiB", command="engine") as engine:
        page = engine.metrics_page()
    assert "flotilla_scheduler_serving" in page and "flotilla_router" not in page
    check_with_promtool(page)


def test_vllms_names_have_the_same_values(traffic):
    ours = traffic.cluster.metrics()
    rows = re.findall(r"^\| `(vllm:\w+)` \| `(\w+)` \|", DOCS.read_text(encoding="utf-8"), re.M)
    assert len(rows) > 15
    theirs = traffic.cluster.metrics("/vllm")
    assert theirs == traffic.cluster.metrics("?names=vllm")
    renamed = {}
    for vllm, name in rows:
        for key, value in ours.items():
            if re.fullmatch(rf"{name}(_bucket|_sum|_count)?", key.split("{")[0]):
                for old, new in (("model=", "model_name="), ("replica=", "engine="),
                                 ("num_pages=", "num_gpu_blocks="), ("page_size=", "block_size=")):
                    key = re.sub(rf"(?<=[{{,]){old}", new, key)
                renamed[key.replace(name, vllm, 1)] = value
    assert theirs == renamed
    assert f'vllm:num_requests_running{{model_name="{traffic.cluster.model_id}",engine="r0"}}' in theirs


def test_a_real_prometheus_scrapes_it(traffic, tmp_path):
    target = urllib.parse.urlsplit(traffic.cluster.metrics_url).netloc
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [
        {"job_name": "flotilla", "static_configs": [{"targets": [target]}]},
        {"job_name": "vllm", "params": {"names": ["vllm"]}, "static_configs": [{"targets": [target]}]}]}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"

    def query(expression):
        url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                result = json.load(response)["data"]["result"]
        except OSError:
            return None  # not up yet
        return float(result[0]["value"][1]) if result else None

    with open(tmp_path / "log", "wb") as log:
        prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
             f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            wait_until(lambda: query("count(up == 1)") == 2, 60, "Prometheus has scraped both")
            wait_until(lambda: query("min(count_over_time(up[1m]))") > 2, 60, "a few times")
            tokens = traffic.cluster.metric("flotilla_scheduler_generation_tokens_total")
            # A scrape that came too late leaves a gap.
            wait_until(lambda: query("sum(flotilla_scheduler_generation_tokens_total)") == tokens, 60, "all tokens")
            wait_until(lambda: query("sum(vllm:generation_tokens_total)") == tokens, 60, "all tokens, by vLLM's name")
            assert query('sum(rate(flotilla_router_rejections_total{reason="no_replica"}[1m]))') == 0
            assert query("max(scrape_samples_scraped - scrape_samples_post_metric_relabeling)") == 0
            assert 0 < query("histogram_quantile(0.5, sum by (le) "
                             "(flotilla_scheduler_time_to_first_token_seconds_bucket))") <= 2560
        finally:
            prometheus.terminate()
            prometheus.wait(30)
