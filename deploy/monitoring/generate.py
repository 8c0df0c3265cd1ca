"""Makes what is written twice otherwise: Grafana's dashboards, and the operator's PrometheusRule from rules/.

    generate.py --write   brings dashboards/*.json and prometheusrule.yaml up to date
    generate.py --check   fails if they are not
    generate.py --output FOLDER --runbook-base URL
        writes rules/*.yaml and prometheusrule.yaml there, whose alerts have runbook_url too: URL/docs/runbook.md#ALERT

A dashboard is a table of panels below; a panel is a title, a unit, and its expressions with their legends. In
expressions $instance is the dashboard's choice of hosts or pods, and $__rate_interval is Grafana's.
"""

import argparse
import json
import pathlib
import sys

import yaml

HERE = pathlib.Path(__file__).parent
WIDTH, HEIGHT = 8, 8  # of a panel, in Grafana's grid of 24 columns

HEADER = "# Made from rules/*.yaml by generate.py; change those.\n"


# Requests that clients make, as rules/*.yaml have it: without probes, what browsers of /ui ask, and what no route takes.
NO_CLIENTS = 'other|/health.*|/ping|/version|/ui/.*'


def rate(metric, matchers="", by=""):
    by = f" by ({by})" if by else ""
    return f'sum{by} (rate({metric}{{instance=~"$instance"{matchers}}}[$__rate_interval]))'


def quantile(q, metric, by=""):
    by = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', by=by)})"


def quantiles(metric):
    return [(quantile(q, metric), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)]


def ratio(part, whole):
    return f"{part} / {whole}"


def mean(metric, by=""):
    return ratio(rate(f"{metric}_sum", by=by), rate(f"{metric}_count", by=by))


def gauge(metric, by="", fold="sum"):
    by = f" by ({by})" if by else ""
    return f'{fold}{by} ({metric}{{instance=~"$instance"}})'


SCHEDULER, ROUTER, WORKER = "flotilla_scheduler", "flotilla_router", "flotilla_worker"
REPLICA = "instance, replica"
RANK = "instance, replica, rank"
PROCESS = "instance, replica, process"
CPU = "process_cpu_seconds_total"

# File → title and panels: title, unit, what it shows, [(expression, legend)].
DASHBOARDS = {
    "fleet": ("Flotilla: fleet", [
        ("Requests", "reqps", "Clients', by route and status code.",
         [(rate(f"{ROUTER}_requests_total", f', route!~"{NO_CLIENTS}"', "route, code"), "{{route}} {{code}}")]),
        ("In flight", "short", "Requests that wait for their answer or its end.",
         [(gauge(f"{ROUTER}_requests_in_flight", "instance"), "{{instance}}")]),
        ("Refused", "reqps", "Why requests were turned away; docs/limits.md says by which limit.",
         [(rate(f"{ROUTER}_rejections_total", by="reason"), "{{reason}}")]),
        ("Time to first token", "s", "At the router.", quantiles(f"{ROUTER}_ttft_seconds")),
        ("Time between tokens", "s", "At the scheduler.",
         quantiles(f"{SCHEDULER}_inter_token_latency_seconds")),
        ("Share of late first tokens", "percentunit", "Later than 2.5 s; the budget is 1 %.",
         [("flotilla:slo_ttft:bad_ratio_rate5m", "5 min"), ("flotilla:slo_ttft:bad_ratio_rate1h", "1 h"),
          ("flotilla:slo_ttft:bad_ratio_rate6h", "6 h")]),
        ("Tokens generated", "short", "A second, by model.",
         [(rate(f"{SCHEDULER}_generation_tokens_total", by="model"), "{{model}}")]),
        ("Waiting", "short", "Requests in each replica's queue; autoscaling aims at 5.",
         [(gauge(f"{SCHEDULER}_requests_waiting", REPLICA), "{{instance}} {{replica}}")]),
        ("Replicas that take requests", "short", "As each router sees it.",
         [(gauge(f"{ROUTER}_backend_healthy", "instance"), "{{instance}}")]),
        ("Failovers and retries", "reqps", "Streams that another replica went on with; requests given to another.",
         [(rate(f"{ROUTER}_failovers_total", by="reason"), "failover {{reason}}"),
          (rate(f"{ROUTER}_retries_total", by="reason"), "retry {{reason}}")]),
        ("Pause of a failover", "s", "From the loss of a replica to the stream's next token.",
         quantiles(f"{ROUTER}_failover_pause_seconds")),
        ("Slow clients", "bytes", "Bytes of answers that clients have not taken, and bodies that are held.",
         [(gauge(f"{ROUTER}_stream_buffer_bytes", "instance"), "unsent {{instance}}"),
          (gauge(f"{ROUTER}_http_buffered_body_bytes", "instance"), "bodies {{instance}}")]),
        ("Clients that left", "reqps", "Before their answer's end.",
         [(rate(f"{ROUTER}_client_disconnects_total", by="instance"), "{{instance}}")]),
        ("Requests of each replica", "short", "As the routers have given them out.",
         [(gauge(f"{ROUTER}_backend_requests_active", "replica"), "{{replica}}")]),
        ("Probes and the like", "reqps", "Requests that are no client's: of kubelets, of the page /ui, at unknown paths.",
         [(rate(f"{ROUTER}_requests_total", f', route=~"{NO_CLIENTS}"', "route, code"), "{{route}} {{code}}")]),
        ("Versions", "short", "Processes by version and commit.",
         [(gauge("flotilla_build_info", "version, revision", "count"), "{{version}} {{revision}}")]),
    ]),
    "replica": ("Flotilla: replica", [
        ("Running and waiting", "short", "Requests.",
         [(gauge(f"{SCHEDULER}_requests_running", REPLICA), "running {{instance}} {{replica}}"),
          (gauge(f"{SCHEDULER}_requests_waiting", REPLICA), "waiting {{instance}} {{replica}}")]),
        ("KV cache", "percentunit", "Pages that running requests hold.",
         [(gauge(f"{SCHEDULER}_kv_cache_usage_ratio", REPLICA), "{{instance}} {{replica}}")]),
        ("Retractions", "reqps", "Requests put back for lack of KV pages.",
         [(rate(f"{SCHEDULER}_retractions_total", by=REPLICA), "{{instance}} {{replica}}")]),
        ("Prefix cache", "percentunit", "Share of looked-up prompt tokens that were there.",
         [(ratio(rate(f"{SCHEDULER}_prefix_cache_hits_total", by=REPLICA),
                 rate(f"{SCHEDULER}_prefix_cache_queries_total", by=REPLICA)), "{{instance}} {{replica}}")]),
        ("Prompt tokens", "short", "A second: of admitted requests, and read from the cache instead of computed.",
         [(rate(f"{SCHEDULER}_prompt_tokens_total", by=REPLICA), "{{instance}} {{replica}}"),
          (rate(f"{SCHEDULER}_cached_tokens_total", by=REPLICA), "cached {{instance}} {{replica}}")]),
        ("Tokens generated", "short", "A second.",
         [(rate(f"{SCHEDULER}_generation_tokens_total", by=REPLICA), "{{instance}} {{replica}}")]),
        ("Drafts", "short", "Tokens a second that were guessed, and those of them that were right.",
         [(rate(f"{SCHEDULER}_spec_decode_draft_tokens_total", by=REPLICA), "{{instance}} {{replica}}"),
          (rate(f"{SCHEDULER}_spec_decode_accepted_tokens_total", by=REPLICA), "right {{instance}} {{replica}}")]),
        ("Step", "s", "Mean, by what the rows were.", [(mean(f"{SCHEDULER}_step_seconds", "mode"), "{{mode}}")]),
        ("Gap between steps", "s", "Workers wait for the scheduler so long.",
         quantiles(f"{SCHEDULER}_step_gap_seconds")),
        ("Tokens a step", "short", "", quantiles(f"{SCHEDULER}_batch_tokens")),
        ("How requests end", "reqps", "",
         [(rate(f"{SCHEDULER}_request_success_total", by="finished_reason"), "{{finished_reason}}")]),
        ("Refused", "reqps", "By the scheduler.",
         [(rate(f"{SCHEDULER}_rejections_total", by="reason"), "{{reason}}")]),
        ("Serving", "short", "1 while every rank of the epoch is ready.",
         [(gauge(f"{SCHEDULER}_serving", REPLICA), "{{instance}} {{replica}}")]),
        ("Grammars", "reqps", "Compiled, by what came of it, and found in the cache.",
         [(rate(f"{SCHEDULER}_grammar_compilations_total", by="result"), "{{result}}"),
          (rate(f"{SCHEDULER}_grammar_cache_hits_total"), "cached")]),
        ("Compiling a grammar", "s", "", quantiles(f"{SCHEDULER}_grammar_compile_seconds")),
        ("Pages unaccounted", "short", "Always 0.",
         [(gauge(f"{SCHEDULER}_kv_pages_unaccounted", REPLICA), "{{instance}} {{replica}}")]),
    ]),
    "latency": ("Flotilla: where a request's time goes", [
        ("Stages, mean", "s", "They add up to the end-to-end latency.",
         [(mean(f"{SCHEDULER}_request_{stage}_time_seconds"), stage) for stage in ("queue", "prefill", "decode")]),
        ("End to end", "s", "Arrival to last token, at the scheduler.",
         quantiles(f"{SCHEDULER}_e2e_request_latency_seconds")),
        ("Whole request", "s", "At the router, of HTTP's POST and gRPC.", quantiles(f"{ROUTER}_request_duration_seconds")),
        ("Queue", "s", "Arrival to first scheduled.", quantiles(f"{SCHEDULER}_request_queue_time_seconds")),
        ("Prefill", "s", "First scheduled to first token.", quantiles(f"{SCHEDULER}_request_prefill_time_seconds")),
        ("Decode", "s", "First token to last.", quantiles(f"{SCHEDULER}_request_decode_time_seconds")),
        ("Time to first token", "s", "At the scheduler.", quantiles(f"{SCHEDULER}_time_to_first_token_seconds")),
        ("First token, router and scheduler", "s", "Medians; what lies between is text, network and the way back.",
         [(quantile(0.5, f"{ROUTER}_ttft_seconds"), "router"),
          (quantile(0.5, f"{SCHEDULER}_time_to_first_token_seconds"), "scheduler")]),
        ("Why requests wait", "s", "Mean time in the queue, by what kept them there the longest.",
         [(mean(f"{SCHEDULER}_request_wait_time_seconds", "reason"), "{{reason}}")]),
        ("Time between tokens", "s", "", quantiles(f"{SCHEDULER}_inter_token_latency_seconds")),
        ("Prompts", "short", "Tokens.", quantiles(f"{SCHEDULER}_request_prompt_tokens")),
        ("Outputs", "short", "Tokens.", quantiles(f"{SCHEDULER}_request_generation_tokens")),
    ]),
    "worker": ("Flotilla: workers and shared memory", [
        ("Step", "s", "p99 of each rank.",
         [(quantile(0.99, f"{WORKER}_step_seconds", RANK), "{{instance}} {{replica}} rank {{rank}}")]),
        ("Step by mode", "s", "Mean.", [(mean(f"{WORKER}_step_seconds", "mode"), "{{mode}}")]),
        ("Collectives", "s", "Mean, waiting for the other ranks included.",
         [(mean(f"{WORKER}_collective_seconds", "kind"), "{{kind}}")]),
        ("Share of time in steps", "percentunit", "",
         [(rate(f"{WORKER}_step_seconds_sum", by=RANK), "{{instance}} {{replica}} rank {{rank}}")]),
        ("Input tokens", "short", "A second, through the model.",
         [(rate(f"{WORKER}_tokens_total", by=RANK), "{{instance}} {{replica}} rank {{rank}}")]),
        ("Memory", "bytes", "By what it is for.",
         [(gauge(f"{WORKER}_memory_bytes", f"{RANK}, kind"), "{{kind}} {{instance}} {{replica}} rank {{rank}}")]),
        ("Heartbeats", "s", "Age of the oldest; the watchdog acts at 60 s.",
         [(gauge(f"{WORKER}_heartbeat_age_seconds", REPLICA, "max"), "worker {{instance}} {{replica}}"),
          (gauge(f"{SCHEDULER}_heartbeat_age_seconds", REPLICA, "max"), "scheduler {{instance}} {{replica}}"),
          (gauge("flotilla_detokenizer_heartbeat_age_seconds", REPLICA, "max"),
           "detokenizer {{instance}} {{replica}}")]),
        ("Restarts", "short", "Since the launcher's start.",
         [(gauge(f"{WORKER}_restarts_total", RANK), "worker {{instance}} {{replica}} rank {{rank}}"),
          (gauge(f"{SCHEDULER}_restarts_total", REPLICA), "scheduler {{instance}} {{replica}}"),
          (gauge("flotilla_detokenizer_restarts_total", REPLICA), "detokenizer {{instance}} {{replica}}")]),
        ("Plan misses", "short", "Steps a second whose plan was not prepared before.",
         [(rate(f"{WORKER}_plan_misses_total", by=RANK), "{{instance}} {{replica}} rank {{rank}}")]),
        ("Rings", "percentunit", "Share that the slowest reader had not released.",
         [(gauge("flotilla_shm_ring_fill_ratio", f"{REPLICA}, ring", "max"), "{{ring}} {{instance}} {{replica}}")]),
        ("Frames refused", "short", "A second; always 0.",
         [(rate("flotilla_shm_rejected_frames_total", by=f"{REPLICA}, ring"), "{{ring}} {{instance}} {{replica}}"),
          (rate("flotilla_detokenizer_rejected_frames_total", by=REPLICA), "detokenizer {{instance}} {{replica}}")]),
        ("Detokenizer", "short", "Frames that wait for it, and open streams.",
         [(gauge("flotilla_detokenizer_queue_depth", REPLICA), "waiting {{instance}} {{replica}}"),
          (gauge("flotilla_detokenizer_streams", REPLICA), "streams {{instance}} {{replica}}")]),
        ("Detokenizing a frame", "s", "", quantiles("flotilla_detokenizer_batch_seconds")),
    ]),
    "cost": ("Flotilla: cost", [
        ("Tokens a core-second", "short", "Generated tokens for each second of a core, all processes together.",
         [(ratio(rate(f"{SCHEDULER}_generation_tokens_total"), rate(CPU)), "generated"),
          (ratio(rate(f"{WORKER}_tokens_total", ', rank="0"'), rate(CPU)), "through the model")]),
        ("Cores in use", "short", "By process.", [(rate(CPU, by="process"), "{{process}}")]),
        ("Cores beside the workers", "percentunit", "Share of processor time that no worker took.",
         [("1 - " + ratio(rate(CPU, ', process=~"worker-.*"'), rate(CPU)), "share")]),
        ("Memory", "bytes", "Resident, by process.",
         [(gauge("process_resident_memory_bytes", "process"), "{{process}}")]),
        ("Open files", "short", "", [(gauge("process_open_fds", PROCESS), "{{instance}} {{replica}} {{process}}")]),
        ("Prompts from the cache", "percentunit", "Prompt tokens that need not be computed.",
         [(ratio(rate(f"{SCHEDULER}_cached_tokens_total"), rate(f"{SCHEDULER}_prompt_tokens_total")), "share")]),
    ]),
}


def target(expression, legend, ref):
    return {"datasource": {"type": "prometheus", "uid": "${datasource}"}, "editorMode": "code",
            "expr": expression, "legendFormat": legend, "range": True, "refId": ref}


def panel(index, title, unit, description, targets):
    return {
        "id": index + 1, "type": "timeseries", "title": title, "description": description,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": index % 3 * WIDTH, "y": index // 3 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10, "lineWidth": 1}},
                        "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [target(expression, legend, chr(ord("A") + n))
                    for n, (expression, legend) in enumerate(targets)],
    }


def variables():
    datasource = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    instance = {"name": "instance", "type": "query", "label": "Host or pod", "multi": True, "includeAll": True,
                # Without an allValue, which would be the hosts of others too: all that are found here.
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "query": "label_values(flotilla_build_info, instance)", "refresh": 2,
                "current": {"text": "All", "value": "$__all"}}
    return [datasource, instance]


def dashboard(name):
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"flotilla-{name}", "title": title, "tags": ["flotilla"], "schemaVersion": 38, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables()},
        "links": [{"type": "dashboards", "tags": ["flotilla"], "title": "Flotilla", "asDropdown": True,
                   "keepTime": True, "includeVars": True}],
        "panels": [panel(index, *fields) for index, fields in enumerate(panels)],
    }


def rule_files(runbook_base=""):
    """Name → what a file of rules/ says; with a base each alert's page is an address as well."""
    files = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("rules/*.yaml"))}
    for alert in [rule for file in files.values() for group in file["groups"] for rule in group["rules"] if "alert" in rule]:
        if runbook_base:
            alert["annotations"]["runbook_url"] = f'{runbook_base.rstrip("/")}/{alert["annotations"]["runbook"]}'
    return files


def prometheus_rule(files):
    groups = [group for file in files.values() for group in file["groups"]]
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
            "metadata": {"name": "flotilla", "namespace": "flotilla",
                         "labels": {"app.kubernetes.io/part-of": "flotilla"}},
            "spec": {"groups": groups}}


def dump(header, value):
    return header + yaml.safe_dump(value, sort_keys=False, width=120)


def linked(folder, runbook_base):
    """Path → text of rules for Prometheus and for its operator, with links."""
    files = rule_files(runbook_base)
    header = f"# Made by generate.py --runbook-base {runbook_base}.\n"
    texts = {folder / "rules" / name: dump(header, file) for name, file in files.items()}
    return texts | {folder / "prometheusrule.yaml": dump(header, prometheus_rule(files))}


def made():
    """Path → text of everything that is generated."""
    files = {HERE / "dashboards" / f"{name}.json": json.dumps(dashboard(name), indent=1) + "\n"
             for name in DASHBOARDS}
    files[HERE / "prometheusrule.yaml"] = dump(HEADER, prometheus_rule(rule_files()))
    return files


def write(files):
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--output", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--runbook-base", metavar="URL")
    args = parser.parse_args()
    if bool(args.output) != bool(args.runbook_base):
        parser.error("--output and --runbook-base go together")
    if args.output:
        write(linked(args.output, args.runbook_base))
        return
    files = made()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    stale += [path for path in HERE.glob("dashboards/*.json") if path not in files]
    if args.write:
        write(files)
    elif stale:
        sys.exit("out of date, run deploy/monitoring/generate.py --write: "
                 + ", ".join(path.name for path in stale))


if __name__ == "__main__":
    main()
