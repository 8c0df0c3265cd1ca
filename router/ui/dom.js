// Elements and numbers. Text goes into the page as text nodes only: nothing that a model or a client
// wrote is ever read as HTML.

export const byId = (id) => document.getElementById(id);

// make("td", {class: "n", title: "…"}, "text", child, …)
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// Only what has changed is touched, so that a reader's selection stays.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function say(text) {
  byId("status").textContent = text;
}

export function seconds(value) {
  if (value === null || value === undefined) return "\u2013";
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  return `${value.toFixed(2)} s`;
}

export const number = (value) => Math.round(value).toLocaleString("en-US");

// --- Stages of a request --------------------------------------------------------------------------

export const STAGES = ["router", "engine", "queue", "prefill", "decode"];

export function stageText(timing) {
  const text = STAGES.map((stage) => `${stage} ${seconds(timing[`${stage}_seconds`])}`).join(", ");
  return timing.wait_reason ? `${text}; waited for ${timing.wait_reason}` : text;
}

export function stageBar(timing) {
  const bar = make("div", {class: "stagebar", role: "img", "aria-label": stageText(timing), title: stageText(timing)});
  for (const stage of STAGES) {
    const part = make("i", {class: `s-${stage}`});
    part.style.flexGrow = Math.max(timing[`${stage}_seconds`], 0);
    bar.append(part);
  }
  return bar;
}

export function stageLegend(list, timing) {
  list.replaceChildren(...STAGES.map((stage) => make("li", {}, make("i", {class: `s-${stage}`, "aria-hidden": "true"}),
    timing ? `${stage} ${seconds(timing[`${stage}_seconds`])}` : stage)));
  return list;
}
