// The page: which view is shown, its colours, the key, the version.
import {getJson, setKey} from "./api.js";
import {loadModels, startChat} from "./chat.js";
import {byId, setText} from "./dom.js";
import {showFleet, startFleet} from "./fleet.js";

const VIEWS = ["chat", "fleet"];
const systemDark = matchMedia("(prefers-color-scheme: dark)");

function showView() {
  const name = location.hash.slice(1);
  if (name && !VIEWS.includes(name)) return;  // the skip link's
  const chosen = name || "chat";
  for (const view of VIEWS) {
    byId(`view-${view}`).hidden = view !== chosen;
    if (view === chosen) byId(`nav-${view}`).setAttribute("aria-current", "page");
    else byId(`nav-${view}`).removeAttribute("aria-current");
  }
  document.title = chosen === "fleet" ? "Fleet \u2013 Flotilla" : "Chat \u2013 Flotilla";
  showFleet(chosen === "fleet");
}

function showTheme() {
  const choice = byId("theme").value;
  const dark = choice === "dark" || (choice === "auto" && systemDark.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

async function loadVersion() {
  try {
    setText(byId("version"), (await getJson("version")).version);
  } catch {
    setText(byId("version"), "");  // without a key; the models' request says so
  }
}

byId("theme").addEventListener("change", showTheme);
systemDark.addEventListener("change", showTheme);
byId("api-key").addEventListener("change", () => {
  setKey(byId("api-key").value);
  loadModels();
  loadVersion();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("content").focus();
});
addEventListener("hashchange", showView);
showTheme();
startFleet();
startChat();
showView();
loadVersion();
