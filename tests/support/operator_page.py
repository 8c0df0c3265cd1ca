"""A Chromium, and the operator's page in it: for tests/integration/test_ui.py."""

import json
import os
import pathlib
import shutil

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from cluster import wait_until

CHECKS = pathlib.Path(__file__).with_name("page_checks.js").read_text(encoding="utf-8")
PATIENCE_S = 300


def start_browser():
    for program in ("chromium", "chromedriver"):
        assert shutil.which(program), f"{program} is missing: apt-get install chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(flag)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(PATIENCE_S)
    return driver


class Page:
    def __init__(self, driver, cluster, keyed=False):
        self.driver = driver
        self.cluster = cluster
        self.refusals = 0  # answers with an error that the test provokes: Chromium logs each
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.size(1280, 800)
        self.driver.get("about:blank")
        self.logged()
        self.driver.get(cluster.http + "/ui/")
        if not keyed:
            self.wait(self.model, "the models' list")

    def model(self):
        return self.script("return document.getElementById('model').value")

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def wait(self, condition, what):
        return wait_until(condition, PATIENCE_S, what)

    def element(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        return self.script("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def fill(self, name, text):
        self.script("document.getElementById(arguments[0]).value = arguments[1]", name, text)

    def size(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def theme(self, name):
        self.script("const t = document.getElementById('theme'); t.value = arguments[0];"
                    "t.dispatchEvent(new Event('change'))", name)

    def show(self, view, replicas=2):
        self.script("location.hash = arguments[0]", view)
        self.wait(lambda: self.element(f"#view-{view}").is_displayed(), view)
        if view == "fleet":
            self.wait(lambda: len(self.texts("#replicas tr")) == replicas, "the replicas")

    def check(self, name):
        return self.script(f"return (function() {{ {CHECKS} }})().{name}()")

    def ask(self, text):
        """Sends a message and waits for the end of its answer; its text."""
        before = len(self.texts("article.assistant details.curl"))
        self.element("#prompt").send_keys(text + Keys.ENTER)
        self.wait(lambda: len(self.texts("article.assistant details.curl")) > before, "the answer's end")
        return self.texts("article.assistant .text")[-1]

    def facts(self):
        """Of the last answer: {'in': '31', 'out': '24', …}."""
        return dict(self.script("""
            const facts = [...document.querySelectorAll("article.assistant")].at(-1).querySelectorAll(".facts span");
            return [...facts].map((fact) => [fact.firstChild.data.trim(), fact.querySelector("b").textContent])"""))

    def body(self):
        """Of the last request, as the curl command has it."""
        command = self.texts("article.assistant .curl pre")[-1]
        return json.loads(command.split(" -d '", 1)[1][:-1].replace("'\\''", "'"))

    def fleet(self):
        return self.cluster.call("GET", "/ui/fleet.json")

    def logged(self):
        return self.driver.get_log("browser"), self.driver.get_log("performance")

    def events(self, log):
        return [json.loads(entry["message"])["message"] for entry in log]

    def close(self):
        console, performance = self.logged()
        errors = [entry for entry in console if entry["level"] in ("SEVERE", "WARNING")]
        refusals = [entry for entry in errors if entry["source"] == "network"]
        assert len(refusals) <= self.refusals and len(errors) == len(refusals), errors
        asked = [event["params"]["request"]["url"] for event in self.events(performance)
                 if event["method"] == "Network.requestWillBeSent"]
        assert len(asked) > 5, "the page's files at least"
        others = [url for url in asked if not url.startswith((self.cluster.http + "/", "about:"))]
        assert not others, f"requests to others: {others}"
