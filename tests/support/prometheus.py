"""A real Prometheus with what deploy/monitoring has for it."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import monitoring
import pytest
import yaml
from cluster import free_port


class Prometheus:
    """The program over a copy of deploy/monitoring whose targets.yml is `targets`, and which looks each second.

    `rewrite`: from the text of a file of rules to what is loaded instead. `scrape_s`: seconds between scrapes, within
    which a page must come. `jobs`: more of them.
    """

    def __init__(self, targets, folder, rewrite=lambda text: text, scrape_s=1, jobs=()):
        shutil.copytree(monitoring.MONITORING, folder / "monitoring")
        (folder / "monitoring/targets.yml").write_text(json.dumps(targets))  # JSON is YAML
        config = folder / "monitoring/prometheus.yml"
        settings = yaml.safe_load(config.read_text())
        assert settings["global"] == {"scrape_interval": "15s", "evaluation_interval": "15s"}
        settings["global"] = {"scrape_interval": f"{scrape_s}s", "evaluation_interval": "1s"}
        settings["scrape_configs"] += jobs
        config.write_text(yaml.safe_dump(settings))
        for rules in (folder / "monitoring/rules").glob("*.yaml"):
            rules.write_text(rewrite(rules.read_text(encoding="utf-8")), encoding="utf-8")
        self.address = f"127.0.0.1:{free_port()}"
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={self.address}"], stdout=log, stderr=log)

    def get(self, path, **parameters):
        """`data` of the answer; None while it is not up; an error of Prometheus' fails."""
        url = f"http://{self.address}/api/v1/{path}?" + urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            pytest.fail(f"{parameters}: {error.read().decode()}")
        except OSError:
            return None

    def query(self, expression):
        data = self.get("query", query=expression)
        return data and data["result"]

    def firing(self):
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"}

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
