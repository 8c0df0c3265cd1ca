"""What vLLM's published dashboard for Grafana asks of Prometheus: names, labels and functions, written down from
github.com/vllm-project/vllm, examples/online_serving/prometheus_grafana/grafana.json, at commit 004f771f. Newer versions
ask for `inter_token_latency_seconds` and `kv_cache_usage_perc` instead of what they say here second; both are asked for.
"""

QUANTILES = ("0.99", "0.95", "0.9", "0.5")
# Panel → histograms, of each of which it has the quantiles and the mean.
LATENCIES = {
    "E2E Request Latency": ("e2e_request_latency_seconds",),
    "Time Per Output Token Latency": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "Time To First Token Latency": ("time_to_first_token_seconds",),
}
GAUGES = {
    "Scheduler State": ("num_requests_running", "num_requests_waiting"),
    "Cache Utilization": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
}
RATES = {
    "Token Throughput": ("prompt_tokens_total", "generation_tokens_total"),
    "Queue Time": ("request_queue_time_seconds_sum",),
    "Requests Prefill and Decode Time": ("request_prefill_time_seconds_sum", "request_decode_time_seconds_sum"),
    "Max Generation Token in Sequence Group": ("request_max_num_generation_tokens_sum",),
}
HEATMAPS = {
    "Request Prompt Length": "request_prompt_tokens",
    "Request Generation Length": "request_generation_tokens",
}
INTERVAL = "1m"  # Grafana's $__rate_interval at some zoom


def _ranged(metric, model):
    return f'vllm:{metric}{{model_name="{model}"}}[{INTERVAL}]'


def finished(model):
    """Of the panel "Finish Reason"."""
    return f"sum by(finished_reason) (increase({_ranged('request_success_total', model)}))"


def queries(model):
    """(panel, query) of all panels, with the dashboard's variable model_name filled in."""
    for panel, metrics in LATENCIES.items():
        for metric in metrics:
            for quantile in QUANTILES:
                yield panel, f"histogram_quantile({quantile}, sum by(le) (rate({_ranged(metric + '_bucket', model)})))"
            yield panel, f"rate({_ranged(metric + '_sum', model)})\n/\nrate({_ranged(metric + '_count', model)})"
    for panel, metrics in GAUGES.items():
        yield from ((panel, f'vllm:{metric}{{model_name="{model}"}}') for metric in metrics)
    for panel, metrics in RATES.items():
        yield from ((panel, f"rate({_ranged(metric, model)})") for metric in metrics)
    for panel, metric in HEATMAPS.items():
        yield panel, f"sum by(le) (increase({_ranged(metric + '_bucket', model)}))"
    yield "Finish Reason", finished(model)
