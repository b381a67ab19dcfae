// The page's service worker: it keeps the page itself, so that the page and the bookmarklet open while the gateway is away.
// The files of SHELL are all it ever stores. It sees no key, and requests to the API pass it by.

const VERSION = "unversioned"; // A hash of the files, put in when this is served: other files are another worker.
const PREFIX = "headgate-bookmarks-";
const CACHE = PREFIX + VERSION;
const PAGE = "/bookmarks";
const FILES = ["app.js", "cards.js", "gateway.js", "outbox.js", "style.css"];
const SHELL = [PAGE, ...FILES.map((name) => `${PAGE}/${name}`)];
const PATIENCE_MS = 4000;

addEventListener("install", (event) => event.waitUntil(fill()));
addEventListener("activate", (event) => event.waitUntil(take_over()));
addEventListener("fetch", (event) => {
  const { origin, pathname } = new URL(event.request.url);
  if (event.request.method !== "GET" || origin !== location.origin || !SHELL.includes(pathname)) return;
  event.respondWith(answer(event.request, pathname));
});

async function fill() {
  const cache = await caches.open(CACHE);
  await cache.addAll(SHELL.map((path) => new Request(path, { cache: "reload", redirect: "error" })));
  await skipWaiting();
}

async function take_over() {
  await forget((name) => name !== CACHE);
  await clients.claim();
}

async function forget(which) {
  const names = await caches.keys();
  await Promise.all(names.filter((name) => name.startsWith(PREFIX) && which(name)).map((name) => caches.delete(name)));
}

// The gateway's own answer wherever there is one, so that a new version shows at once.
async function answer(request, path) {
  const asked = fetch(request);
  const late = new Promise((resolve) => setTimeout(resolve, PATIENCE_MS));
  const response = await Promise.race([asked, late]).catch(() => undefined);
  if (path === PAGE && response?.status === 404) await leave();
  // An error of a proxy is no answer of the gateway.
  if (response !== undefined && response.status < 500) return response;
  const kept = await caches.open(CACHE).then((cache) => cache.match(path));
  return kept ?? asked;
}

// The gateway serves no bookmarks any more: nothing of them stays behind.
async function leave() {
  await forget(() => true);
  await registration.unregister();
}
