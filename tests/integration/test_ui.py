"""The operator's page in a real Chromium, on a bare `flotilla serve` with two replicas.

The checks of contrast, names, structure, width and focus are tests/support/page_checks.js; each is also shown a
page with a mistake planted by a script.
"""

import hashlib
import json
import os
import signal

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from cluster import Cluster
from operator_page import Page, start_browser

SCHEMES = ("light", "dark")
SIZES = ((1280, 800), (360, 780))


@pytest.fixture(scope="module")
def cluster():
    with Cluster("--replicas", "2", "--threads", "1", disturbed=True) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, cluster):
    opened = Page(browser, cluster)
    yield opened
    opened.close()


def key(page, *keys):
    ActionChains(page.driver).send_keys(*keys).perform()


def focused(page):
    return page.script("return document.activeElement.id || document.activeElement.textContent.trim()")


# --- Chat -----------------------------------------------------------------------------------------

def test_a_streamed_answer_is_the_apis(page):
    for name, value in (("temperature", "0.8"), ("top_p", "0.9"), ("max_tokens", "24"), ("seed", "7")):
        page.fill(name, value)
    text = page.ask("What is the capital of France?")
    body = page.body()
    assert body["seed"] == 7 and body["top_p"] == 0.9 and body["stream"] and "stop" not in body
    whole = page.cluster.call("POST", "/v1/chat/completions",
                              {k: v for k, v in body.items() if k not in ("stream", "stream_options")})
    assert text and text == whole["choices"][0]["message"]["content"]
    facts = page.facts()
    assert facts["in"].split()[0] == str(whole["usage"]["prompt_tokens"])
    assert facts["out"] == str(whole["usage"]["completion_tokens"])
    assert facts["end"] == whole["choices"][0]["finish_reason"]
    assert float(facts["tokens/s"]) > 0 and facts["first token"].split()[1] in ("ms", "s")
    stages = page.texts("article.assistant .legend li")
    assert [stage.split()[0] for stage in stages] == ["router", "engine", "queue", "prefill", "decode"]
    # The next one has the whole conversation, and another seed another answer.
    page.fill("seed", "8")
    page.ask("And of Spain?")
    sent = page.body()["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert sent[2]["content"] == text


def test_stop_strings_end_the_answer(page):
    page.fill("temperature", "0")
    page.fill("max_tokens", "40")
    text = page.ask("Write a paragraph about the sea.")
    word = text.split()[3]
    page.element("#clear").click()
    page.fill("stop", f"never said\n{word}")
    assert page.ask("Write a paragraph about the sea.") == text[:text.index(word)]
    assert page.body()["stop"] == ["never said", word]
    assert page.facts()["end"] == "stop"


def test_the_stop_button_aborts(page):
    page.fill("max_tokens", "4000")
    page.fill("temperature", "0")
    page.fill("stop", "")
    before = max((request["number"] for request in page.fleet()["requests"]), default=0)
    # Commas have no end for a model of this size.
    page.element("#prompt").send_keys("Count from 1 to 5000, separated by commas." + Keys.ENTER)
    page.wait(lambda: "".join(page.texts("article.assistant .text")), "the first piece")
    assert page.element("#send").get_property("disabled")
    page.element("#abort").click()
    page.wait(lambda: page.texts("article.assistant .facts"), "the end")
    assert page.facts()["end"] == "stopped"
    ended = page.wait(lambda: [r for r in page.fleet()["requests"] if r["number"] > before], "the request's end")
    assert ended[-1]["outcome"] == "aborted" and ended[-1]["completion_tokens"] < 4000
    page.wait(lambda: page.fleet()["requests_active"] == 0, "nothing is left")
    assert not page.element("#send").get_property("disabled")


def test_an_error_is_shown_whole(page):
    page.refusals = 2
    page.fill("max_tokens", "-3")
    page.ask("Hi")
    error = page.texts("article.assistant .error")[-1]
    assert "HTTP 400" in error and "invalid_request_error" in error and "Field: max_tokens" in error
    whole = json.loads(page.texts("article.assistant .error pre")[-1])
    assert whole["error"]["param"] == "max_tokens" and whole["error"]["message"] in error
    assert page.element("#max_tokens").get_attribute("aria-invalid") == "true"
    page.element("#max_tokens").send_keys(Keys.BACKSPACE)
    assert page.element("#max_tokens").get_attribute("aria-invalid") is None, "it is being mended"
    page.fill("max_tokens", "2")
    page.fill("temperature", "warm")  # what is no number goes as it is
    page.ask("Hi")
    assert page.element("#temperature").get_attribute("aria-invalid") == "true"
    page.fill("temperature", "0")
    page.ask("Hi")
    assert [message["role"] for message in page.body()["messages"]] == ["system", "user"], "refused ones are no turns"


def test_what_a_model_writes_is_text(page):
    html = "<img src=x onerror=alert(1)><b>bold</b><script>alert(2)</script>"
    page.script("""
        const events = [{choices: [{delta: {content: arguments[0]}}]}, {choices: [{delta: {}, finish_reason: "stop"}]}];
        const stream = events.map((event) => `data: ${JSON.stringify(event)}\\n\\n`).join("") + "data: [DONE]\\n\\n";
        const fetchNow = window.fetch;
        window.fetch = async (url, options) => String(url).endsWith("chat/completions") ? new Response(stream) : fetchNow(url, options);
        """, html)
    assert page.ask(html) == html
    assert page.texts("article.user .text") == [html]
    assert page.script("return document.querySelectorAll('#messages :is(img, b:not(.facts b), script)').length") == 0


def test_the_key_stays_in_memory(page):
    page.element("#api-key").send_keys("sk-secret" + Keys.TAB)
    page.fill("max_tokens", "2")
    page.ask("Hi")
    sent = [event["params"]["request"]["headers"].get("Authorization")
            for event in page.events(page.driver.get_log("performance"))
            if event["method"] == "Network.requestWillBeSent" and event["params"]["request"]["url"].endswith("completions")]
    assert sent == ["Bearer sk-secret"]
    kept = page.script("return JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])")
    assert "sk-secret" not in kept
    command = page.texts("article.assistant .curl pre")[-1]
    assert "sk-secret" not in command and "Bearer $FLOTILLA_API_KEY" in command
    page.show("fleet")  # enough requests for the check at the end
    page.driver.refresh()
    page.wait(page.model, "the page again")
    assert page.element("#api-key").get_property("value") == ""


def test_a_router_with_keys_is_opened_by_one(browser, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"acme {hashlib.sha256(b'sk-right').hexdigest()}\n", encoding="utf-8")
    with Cluster("--threads", "1", "--api-keys-file", str(keys)) as cluster:
        page = Page(browser, cluster, keyed=True)
        page.wait(lambda: "asks for an API key" in "".join(page.texts("#messages .notice")), "the notice")
        page.element("#api-key").send_keys("sk-wrong" + Keys.TAB)
        page.wait(lambda: "HTTP 401" in "".join(page.texts("#models-error")), "the refusal")
        page.element("#api-key").send_keys(Keys.CONTROL + "a")
        page.element("#api-key").send_keys("sk-right" + Keys.TAB)
        page.wait(page.model, "the models' list")
        assert page.texts("#models-error") == []
        page.fill("max_tokens", "4")
        page.fill("temperature", "0")
        assert page.ask("Hi")
        page.show("fleet", replicas=1)
        page.wait(lambda: len(page.texts("#requests tr")) == 1, "its own request")
        page.refusals = 4  # models and version, without a key and with a wrong one
        page.close()


# --- Fleet ----------------------------------------------------------------------------------------

def test_the_fleet_is_shown(page):
    page.fill("max_tokens", "8")
    page.ask("Hi")
    page.show("fleet")
    assert page.texts("#total-ready") == ["2 of 2"]
    fleet = page.fleet()
    assert page.texts("#replicas th") == [replica["replica"] for replica in fleet["replicas"]]
    assert page.texts("#replicas .state") == ["ready", "ready"]
    newest = fleet["requests"][-1]
    row = f"#requests tr[data-number='{newest['number']}']"
    page.wait(lambda: page.texts(row), "the request's row")
    cells = page.texts(row + " td")
    assert cells[1] == newest["request_id"] and cells[2] == newest["replica"] and cells[3] == newest["outcome"]
    assert cells[5] == str(newest["completion_tokens"])
    stages = page.element(row + " .stagebar").get_attribute("aria-label")
    assert "prefill" in stages and "decode" in stages
    timing = newest["timing"]
    parts = sum(timing[f"{stage}_seconds"] for stage in ("router", "engine", "queue", "prefill", "decode"))
    assert abs(parts - newest["total_seconds"]) < 1e-3
    # Paused, it asks no more; then it goes on.
    page.element("#pause").click()
    shown = page.texts("#fleet-time")
    page.cluster.complete(prompt="Hi", max_tokens=1)
    assert page.texts("#fleet-time") == shown
    page.element("#pause").click()
    page.wait(lambda: len(page.texts("#requests tr")) == len(page.fleet()["requests"]), "the new request")


def test_a_killed_worker_is_a_pause(page):
    for name, value in (("temperature", "0.8"), ("max_tokens", "48"), ("seed", "3")):
        page.fill(name, value)
    whole = page.ask("Tell me a story.")
    page.element("#clear").click()
    page.element("#prompt").send_keys("Tell me a story." + Keys.ENTER)
    page.wait(lambda: "".join(page.texts("article.assistant .text")), "the first piece")
    schedulers = page.cluster.pids("scheduler")
    for pid in page.cluster.pids("worker"):  # one of them has it
        os.kill(pid, signal.SIGKILL)
    page.wait(lambda: page.texts("article.assistant .facts"), "the end")
    assert page.texts("article.assistant .text") == [whole]
    page.show("fleet")
    page.wait(lambda: page.texts("#replicas .state") == ["ready", "ready"], "both have workers again")
    assert page.cluster.pids("scheduler") == schedulers, "their schedulers kept the requests"


def test_a_restart_is_followed(page):
    page.show("fleet")
    launcher = page.cluster.process
    launcher.send_signal(signal.SIGSTOP)  # so that it can't be too quick for the eye
    try:
        os.kill(page.cluster.pids("scheduler")[0], signal.SIGKILL)  # and with it its replica
        page.wait(lambda: page.texts("#total-ready") == ["1 of 2"], "one is away")
        states = page.texts("#replicas .state")
        assert states.count("ready") == 1 and set(states) & {"unreachable", "connecting"}, states
    finally:
        launcher.send_signal(signal.SIGCONT)
    page.wait(lambda: page.texts("#total-ready") == ["2 of 2"], "both are ready")
    assert page.texts("#replicas .state") == ["ready", "ready"]


# --- For everybody --------------------------------------------------------------------------------

def each_view(page):
    """The views as they are used, in both schemes and sizes."""
    page.refusals = 1
    page.fill("max_tokens", "8")
    page.ask("Hi")
    page.fill("max_tokens", "-3")
    page.ask("Hi")
    page.script("document.querySelectorAll('details').forEach((each) => each.open = true)")
    for scheme in SCHEMES:
        page.theme(scheme)
        for size in SIZES:
            page.size(*size)
            for view in ("chat", "fleet"):
                page.show(view)
                if view == "fleet":
                    page.wait(lambda: page.texts("#requests tr"), "a finished request")
                yield scheme, size, view


def test_contrast_names_structure_and_width(page):
    for where in each_view(page):
        contrast = page.check("contrast")
        assert contrast["seen"] > 20, where
        wrong = contrast["wrong"] + page.check("names") + page.check("structure") + page.check("width")
        assert not wrong, (where, wrong)


@pytest.mark.parametrize("check,mistake", [
    ("contrast", "document.querySelector('#composer label').style.color = '#999'"),
    ("contrast", "document.getElementById('seed').style.borderColor = '#ddd'"),
    ("contrast", "document.documentElement.dataset.theme = 'dark'; document.documentElement.style.setProperty('--dim', '#5a6470')"),
    ("names", "document.querySelector('label[for=seed]').remove()"),
    ("names", "document.getElementById('abort').textContent = ''"),
    ("names", "document.getElementById('talk-title').remove()"),
    ("names", "document.querySelector('.brand img').removeAttribute('alt')"),
    ("structure", "document.getElementById('seed').tabIndex = 3"),
    ("structure", "document.getElementById('seed').id = 'stop'"),
    ("structure", "document.documentElement.lang = ''"),
    ("structure", "document.querySelectorAll('h2').forEach((h) => { h.outerHTML = `<h4>${h.textContent}</h4>` })"),
    ("structure", "const m = document.getElementById('messages'); m.removeAttribute('tabindex');"
                  "m.append('x'.repeat(999)); m.style.overflow = 'auto'; m.style.display = 'block'"),
    ("width", "document.getElementById('composer').style.width = '3000px'"),
    ("focus", "document.getElementById('prompt').focus(); document.getElementById('prompt').style.outline = 'none'"),
    ("focus", "document.getElementById('prompt').focus(); document.getElementById('prompt').style.outlineColor = '#eee'"),
])
def test_the_checks_find_planted_mistakes(page, check, mistake):
    found = lambda: page.check(check)["wrong"] if check == "contrast" else page.check(check)
    page.theme("light")
    if check == "focus":
        page.element("#prompt").send_keys("x")
    assert found() == []
    page.script(mistake)
    assert found() != []


def test_the_keyboard_is_enough(page):
    page.script("document.body.focus()")
    key(page, Keys.TAB)
    assert focused(page) == "Skip to the content"
    order = []
    while focused(page) != "prompt":
        assert page.check("focus") == []
        key(page, Keys.TAB)
        order.append(focused(page))
        assert len(order) < 40, order
    wanted = ["nav-chat", "nav-fleet", "api-key", "theme", "Request", "model", "system", "temperature", "top_p",
              "max_tokens", "seed", "stop", "messages", "prompt"]
    assert order == wanted, "as it is read"
    page.fill("max_tokens", "4000")
    page.fill("temperature", "0")
    key(page, "Count from 1 to 5000, separated by commas.", Keys.ENTER)
    page.wait(lambda: "".join(page.texts("article.assistant .text")), "the first piece")
    key(page, Keys.TAB)
    assert focused(page) == "abort" and page.check("focus") == []
    key(page, Keys.SPACE)
    page.wait(lambda: page.texts("article.assistant details.curl"), "the end")
    assert focused(page) == "prompt", "the focus is somewhere"
    # curl, opened and copied.
    ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    assert focused(page) == "curl"
    key(page, Keys.ENTER, Keys.TAB, Keys.TAB)
    assert focused(page) == "Copy as curl"
    key(page, Keys.ENTER)
    page.wait(lambda: focused(page).startswith(("Copied", "Selected")), "it is copied")
    # To the fleet by its link, and through it.
    page.script("document.getElementById('nav-fleet').focus()")
    key(page, Keys.ENTER)
    page.wait(lambda: len(page.texts("#requests tr")) > 0, "the fleet")
    order = []
    while "scale" not in order:
        key(page, Keys.TAB)
        order.append(focused(page)[:12])
        assert page.check("focus") == [] and len(order) < 12, order
    assert order[:3] == ["api-key", "theme", "pause"]
    key(page, Keys.ARROW_DOWN)
    assert page.element("#scale").get_property("value") == "clock"
    placed = page.script("return [...document.querySelectorAll('#requests .stagebar')].map((bar) => bar.style.marginLeft)")
    assert len(set(placed)) > 1, "bars by the clock begin at different times"


def test_the_skip_link_skips(page):
    key(page, Keys.TAB, Keys.ENTER)
    assert focused(page) == "content"
    assert page.element("#view-chat").is_displayed()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_systems_scheme_is_followed(page, scheme):
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    shown = lambda: page.script("return getComputedStyle(document.documentElement).backgroundColor")
    page.wait(lambda: page.script("return document.documentElement.dataset.theme") == scheme, scheme)
    own = shown()
    page.theme("dark" if scheme == "light" else "light")
    assert shown() != own, "the switch comes first"
    page.theme("auto")
    assert shown() == own


@pytest.mark.parametrize("preference,animation", [("reduce", "none"), ("no-preference", "blink")])
def test_reduced_motion_is_respected(page, preference, animation):
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                {"features": [{"name": "prefers-reduced-motion", "value": preference}]})
    assert page.script("""
        const article = document.createElement("article");
        article.className = "message running";
        article.append(Object.assign(document.createElement("div"), {className: "text"}));
        document.getElementById("messages").append(article);
        return getComputedStyle(article.firstChild, "::after").animationName""") == animation
