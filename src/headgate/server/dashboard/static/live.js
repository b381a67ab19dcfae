// Keeps an open page fresh: parts come from the server when they change, words about time are counted here.
// Without this script every page can be read all the same.

const main = document.getElementById("main");
const STEPS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function duration(seconds) {
  const [size, unit] = STEPS.find(([size]) => seconds >= size) ?? [1, "s"];
  return `${Math.max(0, Math.round(seconds / size))} ${unit}`;
}

function say(moment) {
  const away = (Date.parse(moment.dateTime) - Date.now()) / 1000;
  const words = moment.dataset.words === "left" ? duration(Math.max(0, away)) : `${duration(Math.max(0, -away))} ago`;
  if (moment.textContent !== words) moment.textContent = words;
}

function sayAll(root) {
  root.querySelectorAll("time[data-words]").forEach(say);
}

// What is the same stays in place: focus, selection and opened parts survive.
function become(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.isEqualNode(fresh)) return;
  takeAttributes(old, fresh);
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  after.forEach((child, index) => (index < before.length ? become(before[index], child) : old.append(child)));
  before.slice(after.length).forEach((child) => child.remove());
}

function takeAttributes(old, fresh) {
  const kept = (name) => name === "open" && old.nodeName === "DETAILS";
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !kept(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value && !kept(name)) old.setAttribute(name, value);
}

function take(id, html) {
  const old = document.getElementById(id);
  if (!old || old.matches(".steady:hover") || old.querySelector("input:focus, textarea:focus, select:focus")) return;
  const fresh = old.cloneNode(false);
  // The server's own markup, in which every word of a stranger is escaped; the policy of the page runs nothing inline.
  fresh.innerHTML = html;
  sayAll(fresh);
  become(old, fresh);
}

let source;

function follow() {
  source?.close();
  // A page that nobody sees needs nothing, and a browser has few connections.
  if (document.hidden) return;
  source = new EventSource(main.dataset.live);
  source.onopen = () => document.body.classList.remove("stale");
  source.onmessage = (message) => Object.entries(JSON.parse(message.data)).forEach(([id, html]) => take(id, html));
  source.addEventListener("leave", () => location.reload());
  source.onerror = () => {
    document.body.classList.add("stale");
    // A refusal ends an EventSource for good; a server that comes back should find us.
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  };
}

function keys() {
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const search = document.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  });
  document.querySelectorAll(".filters select").forEach((select) => select.addEventListener("change", () => select.form.requestSubmit()));
}

keys();
setInterval(() => sayAll(document), 1000);
if (main.dataset.live) {
  follow();
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => source?.close());
}
addEventListener("pageshow", (event) => event.persisted && location.reload());
