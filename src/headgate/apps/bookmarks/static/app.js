// The bookmarks page: asks the API, shows what it says. Titles and summaries are anybody's words: they become text nodes
// and nothing else.

import { LATER, Outbox, REFUSED, TAKEN } from "/bookmarks/outbox.js";

const API = "/v1/bookmarks";
const KEY_PLACE = "headgate.key";
const PAGE_SIZE = 30;
const LOOK_MS = 1000;
const LONGEST_LOOK_MS = 15000;
const SEARCH_MS = 200;
const AT_WORK = new Set(["processing", "retrying"]);
const WORDS = { saving: "saving", processing: "processing", retrying: "retrying", done: "done", failed: "failed" };

const at = (id) => document.getElementById(id);
const shown = new Map(); // Bookmarks by id, in their order.
let last_id = null;
let loaded = false; // Whether the gateway has ever told what there is.
let asked = 0; // Only the answer to the latest question is shown.
let look_ms = LOOK_MS;
let look_timer;

// ---- Asking ------------------------------------------------------------------------------------------------

class Unreachable extends Error {}

async function ask(path, { method = "GET", body, key } = {}) {
  const headers = {};
  const access_key = sessionStorage.getItem(KEY_PLACE);
  if (access_key) headers["authorization"] = `Bearer ${access_key}`;
  if (key) headers["idempotency-key"] = key;
  if (body) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
  } catch {
    throw new Unreachable("The gateway cannot be reached.");
  }
  const told = await response.json().catch(() => ({}));
  if (response.status === 401) ask_for_key();
  return { status: response.status, ok: response.ok, told, wait_ms: Number(response.headers.get("retry-after-ms") ?? 0) };
}

function ask_for_key() {
  if (at("key-form").hidden) {
    at("key-form").hidden = false;
    at("key").focus();
  }
}

function reason({ told, status }) {
  if (status === 401 && !sessionStorage.getItem(KEY_PLACE)) return "This gateway asks for an access key.";
  return told.error?.message ?? `The gateway answered ${status}.`;
}

async function send(entry) {
  let answer;
  try {
    answer = await ask(API, { method: "POST", body: entry.body, key: entry.key });
  } catch (error) {
    notice(`${error.message} What you save is kept here and sent later.`);
    return { outcome: LATER };
  }
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
  const query = new URLSearchParams({ limit: PAGE_SIZE });
  if (at("search").value.trim()) query.set("q", at("search").value.trim());
  if (at("status").value) query.set("status", at("status").value);
  if (more && last_id) query.set("after", last_id);
  let answer;
  try {
    answer = await ask(`${API}?${query}`);
  } catch (error) {
    return notice(error.message);
  }
  if (question !== asked) return;
  if (!answer.ok) return notice(reason(answer));
  if (!more) shown.clear();
  loaded = true;
  for (const bookmark of answer.told.data) shown.set(bookmark.id, bookmark);
  last_id = answer.told.last_id;
  at("more").hidden = !answer.told.has_more;
  render();
  look_later();
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
    notice(error.message);
  } finally {
    button.disabled = false;
  }
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

function element(tag, { words, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  if (words !== undefined) made.textContent = words;
  made.append(...children);
  return made;
}

function button(words, title, onclick, { wanted = false } = {}) {
  return element("button", { words, title, type: "button", className: wanted ? "quiet wanted" : "quiet", onclick });
}

function link(url, words) {
  // The API keeps only http and https; a link is made of nothing else.
  if (!/^https?:\/\//i.test(url)) return element("span", { words });
  return element("a", { words, href: url, rel: "noopener noreferrer nofollow", target: "_blank" });
}

function badge(status) {
  return element("span", { words: WORDS[status] ?? "unknown", className: `badge ${WORDS[status] ?? ""}` });
}

// Where it leads and since when it is here; a page without a title has its address above.
function place(bookmark) {
  const day = new Date(bookmark.created_at).toLocaleDateString(undefined, { dateStyle: "medium" });
  const host = bookmark.title ? bookmark.url.split("/")[2] : null;
  return element("div", { words: [host, day].filter(Boolean).join(" · "), className: "place" });
}

function trouble({ status, error_message, waiting_until }) {
  const at_time = waiting_until && new Date(waiting_until).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" });
  // What is held says itself until when.
  const next = status === "retrying" && at_time ? ` — it is tried again at ${at_time}` : "";
  return element("p", { words: `${error_message}${next}`, className: "trouble" });
}

function card(bookmark) {
  const item = element("li", { className: "card" });
  item.dataset.id = bookmark.id;
  item.dataset.status = bookmark.status;
  const name = bookmark.title ?? bookmark.url;
  const actions = element("div", { className: "actions" });
  if (bookmark.can_retry) {
    actions.append(
      button(
        "Retry",
        `Process ${name} again`,
        (event) => act(event.target, `${API}/${bookmark.id}/reprocess`, "POST", (told) => take(told)),
        { wanted: true },
      ),
    );
  }
  actions.append(
    button("Delete", `Delete ${name}`, (event) => {
      if (!confirm(`Delete “${name}”?`)) return;
      act(event.target, `${API}/${bookmark.id}`, "DELETE", () => {
        shown.delete(bookmark.id);
        render();
      });
    }),
  );
  item.append(element("div", { className: "head" }, link(bookmark.url, name), badge(bookmark.status)), place(bookmark));
  if (bookmark.summary) item.append(element("p", { words: bookmark.summary }));
  if (bookmark.error_message) item.append(trouble(bookmark));
  const facts = [bookmark.category, bookmark.language, ...bookmark.tags.map((tag) => `#${tag}`)].filter(Boolean);
  const told = facts.map((words) => element("span", { words }));
  item.append(element("div", { className: "foot" }, element("div", { className: "facts" }, ...told), actions));
  return item;
}

function waiting(entry) {
  const item = element("li", { className: "card" });
  item.dataset.status = entry.error ? "failed" : "saving";
  item.append(element("div", { className: "head" }, link(entry.body.url, entry.body.url), badge(item.dataset.status)));
  if (!entry.error) {
    item.append(element("div", { words: "kept in this browser until the gateway has it", className: "place" }));
    return item;
  }
  const actions = element("div", { className: "actions" });
  actions.append(
    button("Send again", `Send ${entry.body.url} again`, () => outbox.retry(entry.key), { wanted: true }),
    button("Discard", `Do not save ${entry.body.url}`, () => outbox.discard(entry.key)),
  );
  item.append(element("p", { words: entry.error, className: "trouble" }), element("div", { className: "foot" }, actions));
  return item;
}

function render() {
  const focused = document.activeElement?.title;
  const entries = outbox.entries();
  at("outbox").replaceChildren(...entries.map(waiting));
  at("bookmarks").replaceChildren(...[...shown.values()].map(card));
  // Whoever stood on a button stands on it again.
  if (focused && document.activeElement === document.body) {
    [...document.querySelectorAll("main button")].find((one) => one.title === focused)?.focus();
  }
  const searching = at("search").value.trim() || at("status").value;
  at("empty").hidden = !loaded || shown.size + entries.length > 0;
  at("empty").textContent = searching ? "Nothing matches." : "Nothing saved yet. Paste the address of a page above: it is read, and a model writes what it is about.";
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
    sessionStorage.setItem(KEY_PLACE, at("key").value.trim());
    at("key").value = "";
    at("key-form").hidden = true;
    notice("");
    load();
    outbox.flush();
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
