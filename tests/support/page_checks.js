// What is wrong with the page as it is shown now, as lists of sentences; tests/integration/test_ui.py runs
// them. Source: WCAG 2.2, 1.3.1, 1.4.3, 1.4.10, 1.4.11, 2.4.3, 2.4.7, 4.1.2.
const shown = (element) => element.checkVisibility({visibilityProperty: true, opacityProperty: true});

function nameOf(element) {
  const id = element.id ? `#${element.id}` : element.className ? `.${String(element.className).split(" ").join(".")}` : "";
  return `<${element.localName}${id}> "${element.textContent.trim().slice(0, 30)}"`;
}

// --- Contrast -------------------------------------------------------------------------------------

function parseColor(text) {
  const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
  return {r, g, b, a};
}

const over = (top, below) => ({
  r: top.r * top.a + below.r * (1 - top.a), g: top.g * top.a + below.g * (1 - top.a),
  b: top.b * top.a + below.b * (1 - top.a), a: 1,
});

function backgroundOf(element) {
  const layers = [];
  for (let each = element; each; each = each.parentElement) {
    const color = parseColor(getComputedStyle(each).backgroundColor);
    layers.push(color);
    if (color.a === 1) break;
  }
  const page = parseColor(getComputedStyle(document.documentElement).backgroundColor);
  return layers.reduceRight((below, top) => over(top, below), {...page, a: 1});
}

function luminance({r, g, b}) {
  const linear = (value) => value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}

function ratio(one, other) {
  const [light, dark] = [luminance(one), luminance(other)].sort((x, y) => y - x);
  return (light + 0.05) / (dark + 0.05);
}

function contrastOf(element, pseudo) {
  const style = getComputedStyle(element, pseudo);
  const back = backgroundOf(element);
  const size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  return {has: ratio(over(parseColor(style.color), back), back), needs: large ? 3 : 4.5};
}

function contrast() {
  const wrong = [];
  let seen = 0;
  const judge = (element, pseudo) => {
    ++seen;
    const {has, needs} = contrastOf(element, pseudo);
    if (has < needs) wrong.push(`contrast ${has.toFixed(2)} of ${nameOf(element)}${pseudo ?? ""}, needs ${needs}`);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (node.data.trim() && shown(element) && !element.closest("noscript, .hidden, :disabled")) judge(element);
  }
  for (const input of document.querySelectorAll("input, textarea, select")) {
    if (!shown(input)) continue;
    judge(input);
    if (input.placeholder) judge(input, "::placeholder");
    const style = getComputedStyle(input);
    const has = ratio(parseColor(style.borderTopColor), backgroundOf(input.parentElement));
    if (has < 3) wrong.push(`the edge of ${nameOf(input)} has contrast ${has.toFixed(2)}, needs 3`);
  }
  for (const part of document.querySelectorAll(".stagebar i, .legend i, .meter i")) {
    const has = ratio(backgroundOf(part), backgroundOf(part.parentElement));
    if (shown(part) && !part.classList.contains("s-none") && has < 3)
      wrong.push(`${nameOf(part)} has contrast ${has.toFixed(2)} with what is behind it, needs 3`);
  }
  return {wrong, seen};
}

// --- Names ----------------------------------------------------------------------------------------

function referenced(element, attribute) {
  return (element.getAttribute(attribute) ?? "").split(" ").filter((id) => id)
    .map((id) => document.getElementById(id)?.textContent.trim() ?? "").join(" ").trim();
}

// Not by a placeholder: it goes when something is typed.
function accessibleName(element) {
  const labels = [...(element.labels ?? [])].map((label) => label.textContent.trim()).join(" ");
  return element.getAttribute("aria-label") || referenced(element, "aria-labelledby") || labels
    || element.getAttribute("alt") || (element.matches("a, button, summary") ? element.textContent.trim() : "");
}

function names() {
  const wrong = [];
  const needNames = "input, select, textarea, button, a, summary, nav, section, form, [role=region], [role=img], [tabindex='0']";
  for (const element of document.querySelectorAll(needNames)) {
    if (shown(element) && !accessibleName(element)) wrong.push(`${nameOf(element)} has no name`);
  }
  for (const image of document.querySelectorAll("img:not([alt])")) wrong.push(`${nameOf(image)} has no alt`);
  for (const element of document.querySelectorAll("[aria-labelledby], [aria-describedby]")) {
    for (const attribute of ["aria-labelledby", "aria-describedby"]) {
      if (element.hasAttribute(attribute) && !referenced(element, attribute)) wrong.push(`${nameOf(element)}: ${attribute} names nothing`);
    }
  }
  for (const label of document.querySelectorAll("label")) {
    if (!label.control) wrong.push(`${nameOf(label)} labels nothing`);
  }
  return wrong;
}

// --- Structure ------------------------------------------------------------------------------------

function structure() {
  const wrong = [];
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids.filter((each, i) => ids.indexOf(each) !== i))) wrong.push(`the id ${id} is there twice`);
  if (!document.documentElement.lang) wrong.push("the page has no language");
  if (!document.title) wrong.push("the page has no title");
  if (document.querySelectorAll("main").length !== 1) wrong.push("there must be one main");
  let before = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    if (!shown(heading)) continue;
    const level = Number(heading.localName[1]);
    if (level > before + 1) wrong.push(`${nameOf(heading)} follows a heading of level ${before}`);
    before = level;
  }
  for (const table of document.querySelectorAll("table")) {
    const columns = table.querySelectorAll("thead th[scope=col]").length;
    for (const row of table.querySelectorAll("tbody tr")) {
      if (row.cells.length !== columns) wrong.push(`a row of ${row.cells.length} cells under ${columns} headers`);
    }
  }
  for (const element of document.querySelectorAll("[tabindex]")) {
    if (element.tabIndex > 0) wrong.push(`${nameOf(element)} has tabindex ${element.tabIndex}: it jumps the order`);
  }
  for (const element of document.querySelectorAll("main *")) {
    const style = getComputedStyle(element);
    const scrolls = ["auto", "scroll"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1;
    if (shown(element) && scrolls && element.tabIndex < 0 && !element.matches("textarea"))
      wrong.push(`${nameOf(element)} scrolls, but not by keyboard`);
  }
  return wrong;
}

function width() {
  const {scrollWidth, clientWidth} = document.documentElement;
  return scrollWidth > clientWidth ? [`the page is ${scrollWidth} px wide in a window of ${clientWidth}`] : [];
}

// --- Focus ----------------------------------------------------------------------------------------

// Of what has the focus now, after a key.
function focus() {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  const wrong = [];
  if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2) wrong.push(`nothing shows that ${nameOf(element)} has the focus`);
  else if (ratio(parseColor(style.outlineColor), backgroundOf(element.parentElement)) < 3) wrong.push(`the focus on ${nameOf(element)} is hard to see`);
  const box = element.getBoundingClientRect();
  if (box.bottom < 0 || box.top > innerHeight || box.right < 0 || box.left > innerWidth) wrong.push(`${nameOf(element)} has the focus outside of the window`);
  return wrong;
}

return {contrast, names, structure, width, focus};
