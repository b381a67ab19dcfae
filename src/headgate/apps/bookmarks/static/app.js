// The bookmarks page: asks the API, and shows what it says.

import { card, waiting } from "/bookmarks/cards.js";
import { Away, Gateway } from "/bookmarks/gateway.js";
import { LATER, Outbox, REFUSED, TAKEN } from "/bookmarks/outbox.js";

const API = "/v1/bookmarks";
const PAGE_SIZE = 30;
const LOOK_MS = 1000;
const LONGEST_LOOK_MS = 15000;
const SEARCH_MS = 200;
const AWAY_MS = 2000;
const LONGEST_AWAY_MS = 30000;
const AT_WORK = new Set(["processing", "retrying"]);

const NOTHING = "Nothing saved yet. Paste the address of a page above: it is read, and a model writes what it is about.";
const UNKNOWN = "Your bookmarks are shown here when the gateway is back. You can save pages meanwhile.";

const at = (id) => document.getElementById(id);
const shown = new Map(); // Bookmarks by id, in their order.
let last_id = null;
let loading = false;
let complaint = ""; // What the last load was told when it failed.
let loaded = false; // Whether the gateway has ever told what there is.
let asked = 0; // Only the answer to the latest question is shown.
let look_ms = LOOK_MS;
let look_timer;
let away_ms = AWAY_MS;
let away_timer;

// ---- Asking ------------------------------------------------------------------------------------------------

const tabs = new BroadcastChannel("headgate.bookmarks"); // Other tabs with this page.
const gateway = new Gateway({ changed: show_reach });

async function ask(path, options) {
  const answer = await gateway.ask(path, options);
  if (answer.status === 401) ask_for_key();
  return answer;
}

function ask_for_key() {
  if (at("key-form").hidden) {
    at("key-form").hidden = false;
    at("key").focus();
  }
}

function reason({ told, status }) {
  if (status === 401 && !gateway.key) return "This gateway asks for an access key.";
  return told.error?.message ?? `The gateway answered ${status}.`;
}

async function send(entry) {
  const access_key = gateway.key;
  let answer;
  try {
    answer = await ask(API, { method: "POST", body: entry.body, key: entry.key });
  } catch {
    return { outcome: LATER };
  }
  if (gateway.key !== access_key) return { outcome: LATER }; // Signed out meanwhile.
  if (answer.ok) {
    notice(answer.status === 200 ? "It was saved before." : "");
    take(answer.told, { first: true });
    return { outcome: TAKEN };
  }
  if ([401, 403, 408, 429].includes(answer.status) || answer.status >= 500) {
    notice(reason(answer));
    return { outcome: LATER, wait_ms: answer.wait_ms };
  }
  return { outcome: REFUSED, error: reason(answer) };
}

async function load({ more = false } = {}) {
  const question = ++asked;
  loading = true;
  const query = new URLSearchParams({ limit: PAGE_SIZE });
  if (at("search").value.trim()) query.set("q", at("search").value.trim());
  if (at("status").value) query.set("status", at("status").value);
  if (more && last_id) query.set("after", last_id);
  let answer;
  try {
    answer = await ask(`${API}?${query}`);
  } catch (error) {
    if (!(error instanceof Away)) notice(error.message);
    return load_later();
  } finally {
    loading = false;
  }
  if (question !== asked) return;
  if (!answer.ok) {
    complaint = reason(answer);
    notice(complaint);
    return answer.status >= 500 ? load_later() : undefined;
  }
  if (at("notice").textContent === complaint) notice("");
  if (!more) shown.clear();
  loaded = true;
  for (const bookmark of answer.told.data) shown.set(bookmark.id, bookmark);
  last_id = answer.told.last_id;
  at("more").hidden = !answer.told.has_more;
  render();
  look_later();
}

// While the gateway is away it is asked again, less and less often.
function load_later() {
  clearTimeout(away_timer);
  away_timer = setTimeout(load, away_ms);
  away_ms = Math.min(LONGEST_AWAY_MS, away_ms * 1.5);
}

function show_reach(away) {
  render();
  if (away) return load_later();
  clearTimeout(away_timer);
  away_ms = AWAY_MS;
  if (!loaded && !loading) load();
  outbox.flush();
}

// Those at work are looked at again, less and less often while nothing changes, and not while nobody sees it.
async function look() {
  if (document.hidden) return look_later();
  const working = [...shown.values()].filter((bookmark) => AT_WORK.has(bookmark.status)).slice(0, 20);
  let changed = false;
  for (const bookmark of working) {
    const answer = await ask(`${API}/${bookmark.id}`).catch(() => null);
    if (answer?.status === 404) changed = shown.delete(bookmark.id) || changed;
    if (!answer?.ok || !shown.has(bookmark.id)) continue;
    changed ||= answer.told.status !== bookmark.status || answer.told.error_message !== bookmark.error_message;
    shown.set(bookmark.id, answer.told);
  }
  look_ms = changed ? LOOK_MS : Math.min(LONGEST_LOOK_MS, look_ms * 1.3);
  if (changed) render();
  look_later();
}

function look_later() {
  clearTimeout(look_timer);
  if ([...shown.values()].some((bookmark) => AT_WORK.has(bookmark.status))) look_timer = setTimeout(look, look_ms);
}

function take(bookmark, { first = false } = {}) {
  const others = [...shown].filter(([id]) => id !== bookmark.id);
  if (first) {
    shown.clear();
    shown.set(bookmark.id, bookmark);
    for (const [id, other] of others) shown.set(id, other);
  } else {
    shown.set(bookmark.id, bookmark);
  }
  look_ms = LOOK_MS;
  render();
  look_later();
}

// ---- Acting ------------------------------------------------------------------------------------------------

const outbox = new Outbox({ send, changed: render });

async function act(button, path, method, done) {
  button.disabled = true;
  try {
    const answer = await ask(path, { method });
    if (answer.ok) done(answer.told);
    else notice(reason(answer));
  } catch (error) {
    notice(`${error.message} Try it again when it is back.`);
  } finally {
    button.disabled = false;
  }
}

const unsent = {
  send: (entry) => outbox.retry(entry.key),
  discard: (entry) => outbox.discard(entry.key),
};
const saved = {
  retry: (bookmark, button) => act(button, `${API}/${bookmark.id}/reprocess`, "POST", (told) => take(told)),
  remove: (bookmark, button) =>
    act(button, `${API}/${bookmark.id}`, "DELETE", () => {
      shown.delete(bookmark.id);
      render();
    }),
};

// Nothing of the one who leaves stays in this browser for the next one.
function sign_out() {
  const count = outbox.entries().length;
  const words = count === 1 ? "One page has" : `${count} pages have`;
  if (count && !confirm(`${words} not been sent yet and will be lost. Sign out all the same?`)) return;
  leave();
  tabs.postMessage("signed out");
}

function leave() {
  gateway.forget();
  outbox.clear();
  shown.clear();
  clearTimeout(look_timer);
  asked += 1; // What was asked under the old key is not shown.
  loaded = false;
  last_id = null;
  at("more").hidden = true;
  at("search").value = at("url").value = "";
  notice("You are signed out.");
  render();
  ask_for_key();
}

function save(event) {
  event.preventDefault();
  const url = at("url").value.trim();
  // Emptied at once: a second click finds nothing to save.
  at("url").value = "";
  if (!url) return;
  outbox.add({ url, created_from: "web" }).catch((error) => {
    // A browser that keeps nothing, or is full: what was typed must not be lost as well.
    at("url").value = url;
    notice(`This browser could not keep it (${error.message}), so it was not sent.`);
  });
}

// ---- Showing -----------------------------------------------------------------------------------------------

function notice(words) {
  at("notice").textContent = words;
}

function render() {
  const focused = document.activeElement?.title;
  const entries = outbox.entries();
  at("outbox").replaceChildren(...entries.map((entry) => waiting(entry, unsent)));
  at("bookmarks").replaceChildren(...[...shown.values()].map((bookmark) => card(bookmark, saved)));
  // Whoever stood on a button stands on it again.
  if (focused && document.activeElement === document.body) {
    [...document.querySelectorAll("main button")].find((one) => one.title === focused)?.focus();
  }
  at("away").hidden = !gateway.away;
  at("sign-out").hidden = !gateway.key;
  // What there is, is not known before the gateway has said it.
  const unknown = gateway.away && !loaded;
  at("search-form").hidden = unknown;
  at("empty").hidden = !unknown && (!loaded || shown.size + entries.length > 0);
  const searching = at("search").value.trim() || at("status").value;
  at("empty").textContent = unknown ? UNKNOWN : searching ? "Nothing matches." : NOTHING;
}

// ---- Beginning ---------------------------------------------------------------------------------------------

function start() {
  at("save-form").addEventListener("submit", save);
  at("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    load();
  });
  let typing;
  at("search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(load, SEARCH_MS);
  });
  at("status").addEventListener("change", () => load());
  at("more").addEventListener("click", () => load({ more: true }));
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    gateway.use(at("key").value.trim());
    at("key").value = "";
    at("key-form").hidden = true;
    notice("");
    load();
    outbox.flush();
  });
  at("sign-out").addEventListener("click", sign_out);
  tabs.addEventListener("message", leave);
  at("try-now").addEventListener("click", async ({ target }) => {
    target.disabled = true;
    await load();
    target.disabled = false;
  });
  document.addEventListener("visibilitychange", () => document.hidden || (look_later(), outbox.flush()));
  document.addEventListener("keydown", (event) => {
    const typing_in = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (typing_in || event.ctrlKey || event.metaKey || event.altKey) return;
    const field = { "/": "search", n: "url" }[event.key];
    if (field) {
      event.preventDefault();
      at(field).focus();
    }
  });
  at("bookmarklet").href = `javascript:location.href=${JSON.stringify(`${location.origin}/bookmarks#`)}+encodeURIComponent(location.href)`;
  at("bookmarklet").addEventListener("click", (event) => event.preventDefault());
  fill_in();
  addEventListener("hashchange", fill_in);
  render();
  load();
  outbox.flush();
  // Browsers offer it over https and on this machine only. Without it the page works while the gateway does.
  navigator.serviceWorker?.register("/bookmarks/worker.js", { scope: "/bookmarks", updateViaCache: "none" }).catch(() => {});
}

// The bookmarklet brings an address behind the #. It is filled in and not saved: any link could bring one.
function fill_in() {
  if (location.hash.length < 2) return;
  try {
    at("url").value = decodeURIComponent(location.hash.slice(1));
  } catch {
    return;
  }
  history.replaceState(null, "", location.pathname);
  at("url").focus();
}

start();
