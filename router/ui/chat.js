// The playground: a conversation with a model, what each answer took, and what was refused.
import {ApiError, asCurl, getJson, hasKey, streamChat} from "./api.js";
import {byId, make, number, say, seconds, stageBar, stageLegend} from "./dom.js";

const conversation = [];  // {role, content} of what went well
let running = null;  // AbortController of the answer that comes in

// A number as one; what is none goes as it is, and the API says what is wrong with it.
function valueOf(id) {
  const text = byId(id).value.trim();
  return text === "" ? undefined : Number.isFinite(Number(text)) ? Number(text) : text;
}

function requestBody(messages) {
  const stop = byId("stop").value.split("\n").filter((line) => line !== "");
  const system = byId("system").value;
  return {
    model: byId("model").value,
    messages: [...(system ? [{role: "system", content: system}] : []), ...messages],
    temperature: valueOf("temperature"),
    top_p: valueOf("top_p"),
    max_tokens: valueOf("max_tokens"),
    seed: valueOf("seed"),
    stop: stop.length > 0 ? stop : undefined,
    stream: true,
    stream_options: {include_usage: true},
    return_timing: true,
  };
}

// --- What is shown --------------------------------------------------------------------------------

// A reader at the end stays there; one who looks back is not moved.
function keepAtEnd(change) {
  const box = byId("messages");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  change();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function addMessage(role, text) {
  byId("empty").hidden = true;
  const body = make("div", {class: "text"}, text);
  const article = make("article", {class: `message ${role}`}, make("h3", {}, role === "user" ? "You" : "Model"), body);
  byId("messages").append(article);
  return {article, body};
}

function fact(name, value) {
  return make("span", {}, `${name} `, make("b", {}, value));
}

function showFacts(article, answer) {
  const facts = make("p", {class: "facts"});
  if (answer.firstMs) facts.append(fact("first token", seconds(answer.firstMs / 1000)));
  const tokens = answer.usage?.completion_tokens ?? answer.pieces;
  const decodeMs = answer.lastMs - answer.firstMs;
  if (tokens > 1 && decodeMs > 0) facts.append(fact("tokens/s", ((tokens - 1) * 1000 / decodeMs).toFixed(1)));
  if (answer.usage) {
    const cached = answer.usage.prompt_tokens_details?.cached_tokens ?? 0;
    facts.append(fact("in", `${number(answer.usage.prompt_tokens)}${cached ? ` (${number(cached)} cached)` : ""}`),
      fact("out", number(answer.usage.completion_tokens)));
  }
  facts.append(fact("end", answer.finish ?? (answer.stopped ? "stopped" : "error")));
  article.append(facts);
  if (answer.timing) article.append(stageBar(answer.timing), stageLegend(make("ul", {class: "legend", "aria-label": "Stages"}), answer.timing));
}

// Without a secure context there is no clipboard: then the text is selected.
async function copy(pre, button) {
  try {
    await navigator.clipboard.writeText(pre.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(pre);
    button.textContent = "Selected: press Ctrl+C";
  }
  say(button.textContent);
}

function showCurl(article, body) {
  const pre = make("pre", {tabindex: "0", "aria-label": "curl command"}, asCurl(body));
  const button = make("button", {type: "button"}, "Copy as curl");
  button.addEventListener("click", () => copy(pre, button));
  article.append(make("details", {class: "curl"}, make("summary", {}, "curl"), pre, button));
}

export function errorBox(error) {
  const box = make("div", {class: "error", role: "alert"});
  if (!(error instanceof ApiError)) {
    const lost = error instanceof TypeError;  // what fetch throws
    box.append(make("b", {}, lost ? "The router can't be reached. " : "Failed. "), error.message);
    return box;
  }
  const about = [`HTTP ${error.status}`, error.type, error.code].filter((part) => part).join(" \u00b7 ");
  box.append(make("p", {}, make("b", {}, about)), make("p", {}, error.message));
  if (error.field) box.append(make("p", {}, "Field: ", make("code", {}, error.field)));
  if (error.requestId) box.append(make("p", {}, "Request: ", make("code", {}, error.requestId)));
  box.append(make("details", {}, make("summary", {}, "The answer as it came"), make("pre", {tabindex: "0", "aria-label": "The answer as it came"}, error.body)));
  return box;
}

function markField(name) {
  for (const input of byId("parameters").querySelectorAll("[data-field]")) {
    const wrong = name !== "" && (input.dataset.field === name || name.startsWith(`${input.dataset.field}[`));
    if (wrong) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
}

// --- A request ------------------------------------------------------------------------------------

function takeChunk(answer, chunk, body) {
  const choice = chunk.choices?.[0];
  const piece = choice?.delta?.content ?? "";
  if (piece) {
    answer.lastMs = performance.now() - answer.startMs;
    answer.firstMs ||= answer.lastMs;
    answer.pieces += 1;
    answer.text += piece;
    keepAtEnd(() => body.append(piece));
  }
  answer.finish = choice?.finish_reason ?? answer.finish;
  answer.usage = chunk.usage ?? answer.usage;
  answer.timing = chunk.timing ?? answer.timing;
}

async function ask(text) {
  const question = {role: "user", content: text};
  const sent = requestBody([...conversation, question]);
  addMessage("user", text);
  const {article, body} = addMessage("assistant", "");
  const answer = {startMs: performance.now(), firstMs: 0, lastMs: 0, pieces: 0, text: "", stopped: false};
  article.classList.add("running");
  markField("");
  setRunning(new AbortController());
  let failure = null;
  try {
    await streamChat(sent, running.signal, (chunk) => takeChunk(answer, chunk, body));
  } catch (error) {
    answer.stopped = error.name === "AbortError";
    if (!answer.stopped) failure = error;
  }
  setRunning(null);
  article.classList.remove("running");
  keepAtEnd(() => {
    if (failure) article.append(errorBox(failure));
    else showFacts(article, answer);
    showCurl(article, sent);
  });
  if (failure) markField(failure.field ?? "");
  else conversation.push(question, {role: "assistant", content: answer.text});
  say(failure ? "The request failed." : answer.stopped ? "Stopped." : "The answer is complete.");
}

function setRunning(controller) {
  running = controller;
  byId("abort").disabled = controller === null;
  byId("send").disabled = byId("clear").disabled = controller !== null;
  // A control that had the focus and is off now would leave the keyboard nowhere.
  if (document.activeElement === document.body || document.activeElement?.disabled) byId("prompt").focus();
}

function submit() {
  const text = byId("prompt").value;
  if (running || text.trim() === "") return;
  byId("prompt").value = "";
  ask(text);
}

export async function loadModels() {
  const select = byId("model");
  try {
    const list = await getJson("v1/models");
    const chosen = select.value;
    select.replaceChildren(...list.data.map((model) => make("option", {value: model.id}, model.id)));
    if (list.data.some((model) => model.id === chosen)) select.value = chosen;
    byId("models-error")?.remove();
  } catch (error) {
    const needsKey = error.status === 401 && !hasKey();
    const box = needsKey ? make("p", {class: "notice", role: "alert"}, "This router asks for an API key: enter it above.") : errorBox(error);
    box.id = "models-error";
    byId("models-error")?.remove();
    byId("messages").prepend(box);
  }
}

export function startChat() {
  byId("parameters-box").open = !matchMedia("(max-width: 56rem)").matches;
  byId("parameters").addEventListener("submit", (event) => event.preventDefault());
  byId("parameters").addEventListener("input", (event) => event.target.removeAttribute("aria-invalid"));
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  byId("abort").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", () => {
    conversation.length = 0;
    for (const article of byId("messages").querySelectorAll("article")) article.remove();
    byId("empty").hidden = false;
    say("The conversation is empty.");
    byId("prompt").focus();
  });
  loadModels();
}
