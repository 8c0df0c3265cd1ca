"""A real Prometheus with what deploy/monitoring has for it."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import monitoring
import pytest
from cluster import free_port


class Prometheus:
    """The program over a copy of deploy/monitoring whose targets.yml is `targets`, and which looks each second.

    `rewrite`: from the text of a file of rules to what is loaded instead.
    """

    def __init__(self, targets, folder, rewrite=lambda text: text):
        shutil.copytree(monitoring.MONITORING, folder / "monitoring")
        (folder / "monitoring/targets.yml").write_text(json.dumps(targets))  # JSON is YAML
        config = folder / "monitoring/prometheus.yml"
        assert config.read_text().count("_interval: 15s") == 2
        config.write_text(config.read_text().replace("_interval: 15s", "_interval: 1s"))
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
