// The fleet as this router knows it, once a second while somebody looks.
import {getJson} from "./api.js";
import {errorBox} from "./chat.js";
import {byId, make, number, seconds, setText, stageBar, stageLegend, stageText} from "./dom.js";

const PERIOD_MS = 1000;
const RATE_MS = 5000;  // over which tokens a second are counted
const LINE_POINTS = 120;

const rows = new Map();  // of replicas, by index
const requestRows = new Map();  // by number
const samples = new Map();  // replica index → [{at, tokens}], the oldest first
const line = [];  // tokens a second, of all
let shown = false;
let timer = 0;
let fetching = null;
let last = null;

// --- Replicas -------------------------------------------------------------------------------------

function rateOf(replica, at) {
  const kept = samples.get(replica.index) ?? [];
  kept.push({at, tokens: replica.generated_tokens});
  while (kept.length > 2 && kept[0].at < at - RATE_MS) kept.shift();
  samples.set(replica.index, kept);
  const first = kept[0];
  return at > first.at ? (replica.generated_tokens - first.tokens) * 1000 / (at - first.at) : 0;
}

function stateOf(replica) {
  if (replica.retired) return ["retired", "warn"];
  if (replica.draining) return ["draining", "warn"];
  return [replica.state, replica.state === "ready" ? "good" : "bad"];
}

function replicaRow(index) {
  const cells = {};
  const row = make("tr", {"data-replica": index});
  const add = (name, attributes, ...children) => {
    cells[name] = make(name === "replica" ? "th" : "td", attributes, ...children);
    row.append(cells[name]);
  };
  add("replica", {scope: "row"});
  cells.stateText = make("span", {class: "state"});
  add("state", {}, cells.stateText);
  cells.circuitText = make("span");
  add("circuit", {}, cells.circuitText);
  for (const name of ["active", "running", "waiting"]) add(name, {class: "n"});
  cells.fill = make("i");
  cells.use = make("span");
  add("kv", {}, make("span", {class: "meter", "aria-hidden": "true"}, cells.fill), cells.use);
  add("rate", {class: "n"});
  add("first", {class: "n"});
  add("model", {});
  return {row, cells};
}

function showReplica(replica, rate) {
  if (!rows.has(replica.index)) {
    rows.set(replica.index, replicaRow(replica.index));
    byId("replicas").append(rows.get(replica.index).row);
  }
  const {row, cells} = rows.get(replica.index);
  const [state, look] = stateOf(replica);
  row.dataset.state = state;
  setText(cells.replica, replica.replica);
  setText(cells.stateText, state);
  cells.stateText.className = `state ${look}`;
  setText(cells.circuitText, replica.circuit.replace("_", " "));
  cells.circuitText.className = replica.circuit === "closed" ? "" : "warn";
  setText(cells.active, number(replica.requests_active));
  setText(cells.running, number(replica.requests_running));
  setText(cells.waiting, number(replica.requests_waiting));
  const use = replica.kv_pages_total > 0 ? 1 - replica.kv_pages_free / replica.kv_pages_total : 0;
  cells.fill.style.width = `${use * 100}%`;
  setText(cells.use, `${(use * 100).toFixed(use > 0 && use < 0.1 ? 1 : 0)} %`);
  setText(cells.rate, rate.toFixed(1));
  setText(cells.first, replica.first_token_seconds > 0 ? seconds(replica.first_token_seconds) : "\u2013");
  setText(cells.model, replica.model || "\u2013");
}

function dropOthers(map, present, drop) {
  for (const key of [...map.keys()]) {
    if (present.has(key)) continue;
    drop(map.get(key));
    map.delete(key);
  }
}

// --- Totals ---------------------------------------------------------------------------------------

function total(name, value) {
  const id = `total-${name.toLowerCase().replaceAll(/\W/g, "-")}`;
  if (!byId(id)) byId("totals").append(make("div", {}, make("dt", {}, name), make("dd", {id})));
  setText(byId(id), value);
}

function showLine(rate) {
  line.push(rate);
  if (line.length > LINE_POINTS) line.shift();
  if (!byId("line")) {
    byId("totals").append(make("div", {class: "line"}, make("dt", {id: "line-title"}, "Tokens/s, the last two minutes"), make("dd", {id: "line"})));
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${LINE_POINTS} 30`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.append(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
    byId("line").append(svg);
  }
  const most = Math.max(...line, 1);
  const svg = byId("line").firstChild;
  svg.setAttribute("aria-label", `now ${rate.toFixed(1)}, at most ${most.toFixed(1)}`);
  const begin = LINE_POINTS - line.length;
  svg.firstChild.setAttribute("points", line.map((value, i) => `${begin + i + 0.5},${(28.5 - 27 * value / most).toFixed(1)}`).join(" "));
}

function showTotals(fleet, rate) {
  const ready = fleet.replicas.filter((replica) => stateOf(replica)[0] === "ready").length;
  const sum = (name) => fleet.replicas.reduce((all, replica) => all + replica[name], 0);
  total("Ready", `${ready} of ${fleet.replicas.length}`);
  total("In flight", number(fleet.requests_active));
  total("Running", number(sum("requests_running")));
  total("Waiting", number(sum("requests_waiting") + fleet.requests_parked));
  total("Tokens/s", rate.toFixed(1));
  showLine(rate);
}

// --- Finished requests ----------------------------------------------------------------------------

const clockTime = (ms) => new Date(ms).toTimeString().slice(0, 8);

function requestRow(request) {
  const bar = request.timing ? stageBar(request.timing)
    : make("div", {class: "stagebar", role: "img", "aria-label": `total ${seconds(request.total_seconds)}`}, make("i", {class: "s-none"}));
  const good = ["stop", "length", "embedded"].includes(request.outcome);
  const input = request.cached_tokens ? `${number(request.prompt_tokens)} (${number(request.cached_tokens)})` : number(request.prompt_tokens);
  const row = make("tr", {"data-number": request.number},
    make("td", {}, clockTime(request.arrival_unix_ms)),
    make("td", {class: "id mono", title: request.request_id}, request.request_id, request.choice ? ` #${request.choice}` : ""),
    make("td", {}, request.replica || "\u2013"),
    make("td", {class: good ? "" : request.outcome === "error" ? "bad" : "warn"}, request.outcome),
    make("td", {class: "n"}, input), make("td", {class: "n"}, number(request.completion_tokens)),
    make("td", {class: "n"}, seconds(request.first_token_seconds)), make("td", {class: "n"}, seconds(request.total_seconds)),
    make("td", {class: "stages"}, bar, make("span", {class: "hidden"}, request.timing ? stageText(request.timing) : "")));
  return {row, bar, request};
}

// Bars begin together, or where the clock says.
function placeBars() {
  const all = [...requestRows.values()];
  if (all.length === 0) return;
  const byClock = byId("scale").value === "clock";
  const beginOf = ({request}) => byClock ? request.arrival_unix_ms / 1000 : 0;
  const begin = Math.min(...all.map(beginOf));
  const end = Math.max(...all.map((each) => beginOf(each) + each.request.total_seconds));
  const scale = 100 / Math.max(end - begin, 0.001);
  for (const each of all) {
    each.bar.style.marginLeft = `${Math.min((beginOf(each) - begin) * scale, 99)}%`;
    each.bar.style.width = `${each.request.total_seconds * scale}%`;
  }
}

function showRequests(requests) {
  dropOthers(requestRows, new Set(requests.map((request) => request.number)), ({row}) => row.remove());
  for (const request of requests) {
    if (requestRows.has(request.number)) continue;
    requestRows.set(request.number, requestRow(request));
    byId("requests").prepend(requestRows.get(request.number).row);
  }
  byId("no-requests").hidden = requests.length > 0;
  placeBars();
}

// --- Polling --------------------------------------------------------------------------------------

function show(fleet) {
  // A router that has begun again counts from nothing.
  if (last && fleet.replicas.some((replica) => (samples.get(replica.index)?.at(-1).tokens ?? 0) > replica.generated_tokens)) {
    samples.clear();
    dropOthers(requestRows, new Set(), ({row}) => row.remove());
  }
  last = fleet;
  let rate = 0;
  for (const replica of fleet.replicas) {
    const own = rateOf(replica, fleet.now_unix_ms);
    rate += own;
    showReplica(replica, own);
  }
  const present = new Set(fleet.replicas.map((replica) => replica.index));
  dropOthers(rows, present, ({row}) => row.remove());
  dropOthers(samples, present, () => {});
  showTotals(fleet, rate);
  showRequests(fleet.requests);
  setText(byId("fleet-time"), `${clockTime(fleet.now_unix_ms)}${fleet.draining ? " \u00b7 this router is draining" : ""}`);
}

async function poll() {
  const own = fetching = new AbortController();
  try {
    const signal = AbortSignal.any([own.signal, AbortSignal.timeout(5 * PERIOD_MS)]);
    show(await getJson("ui/fleet.json", {signal}));
    byId("fleet-error").replaceChildren();
  } catch (error) {
    if (!own.signal.aborted) showFailure(error);
  }
  if (fetching === own) schedule();  // another poll has begun since: that one goes on
}

// Once for as long as it lasts: an alert is read out.
function showFailure(error) {
  const box = byId("fleet-error");
  if (box.dataset.text === error.message && box.firstChild) return;
  box.dataset.text = error.message;
  box.replaceChildren(errorBox(error));
}

const active = () => shown && !document.hidden && byId("pause").getAttribute("aria-pressed") === "false";

function schedule() {
  clearTimeout(timer);
  timer = active() ? setTimeout(poll, PERIOD_MS) : 0;
}

function restart() {
  clearTimeout(timer);
  fetching?.abort();
  if (active()) poll();
}

export function showFleet(visible) {
  shown = visible;
  restart();
}

export function startFleet() {
  stageLegend(byId("legend"));
  byId("scale").addEventListener("change", placeBars);
  byId("pause").addEventListener("click", () => {
    const pause = byId("pause").getAttribute("aria-pressed") === "false";
    byId("pause").setAttribute("aria-pressed", String(pause));
    restart();
  });
  document.addEventListener("visibilitychange", restart);
}
