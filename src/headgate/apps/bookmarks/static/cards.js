// Bookmarks as elements of the page. Titles and summaries are other people's words: they become text nodes and nothing else.

const WORDS = { saving: "saving", processing: "processing", retrying: "retrying", done: "done", failed: "failed" };

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
  const next = status === "retrying" && at_time ? ` (${at_time})` : "";
  return element("p", { words: `${error_message}${next}`, className: "trouble" });
}

// `actions`: {retry(bookmark, button), remove(bookmark, button)}.
export function card(bookmark, { retry, remove }) {
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
        (event) => retry(bookmark, event.target),
        { wanted: true },
      ),
    );
  }
  actions.append(
    button("Delete", `Delete ${name}`, (event) => {
      if (confirm(`Delete “${name}”?`)) remove(bookmark, event.target);
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

// What is in the outbox. `actions`: {send(entry), discard(entry)}.
export function waiting(entry, { send, discard }) {
  const item = element("li", { className: "card" });
  item.dataset.status = entry.error ? "failed" : "saving";
  item.append(element("div", { className: "head" }, link(entry.body.url, entry.body.url), badge(item.dataset.status)));
  const actions = element("div", { className: "actions" });
  if (entry.error) actions.append(button("Send again", `Send ${entry.body.url} again`, () => send(entry), { wanted: true }));
  actions.append(button("Discard", `Do not save ${entry.body.url}`, () => discard(entry)));
  const about = entry.error ? "" : "kept in this browser until the gateway has it";
  if (entry.error) item.append(element("p", { words: entry.error, className: "trouble" }));
  item.append(element("div", { className: "foot" }, element("div", { words: about, className: "place" }), actions));
  return item;
}
