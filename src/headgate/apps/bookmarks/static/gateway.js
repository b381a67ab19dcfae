// The page's way to the gateway: the access key, which is kept until the tab is closed or signed out, and whether
// anything answers there at all. Answers are never cached.

const KEY_PLACE = "headgate.key";
const PATIENCE_MS = 20000;
const FROM_A_PROXY = new Set([502, 503, 504]);

export class Away extends Error {}

export class Gateway {
  away = false;
  #changed;

  // `changed(away)` is called when the gateway stops answering, and when it answers again.
  constructor({ changed }) {
    this.#changed = changed;
  }

  get key() {
    return sessionStorage.getItem(KEY_PLACE);
  }

  use(key) {
    sessionStorage.setItem(KEY_PLACE, key);
  }

  forget() {
    sessionStorage.removeItem(KEY_PLACE);
  }

  async ask(path, { method = "GET", body, key } = {}) {
    const headers = {};
    if (this.key) headers["authorization"] = `Bearer ${this.key}`;
    if (key) headers["idempotency-key"] = key;
    if (body) headers["content-type"] = "application/json";
    let response, told;
    try {
      const signal = AbortSignal.timeout?.(PATIENCE_MS);
      response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
      told = await response.json().catch(() => null);
    } catch {
      throw this.#lost();
    }
    // A proxy that finds no gateway behind it answers in words of its own.
    if (told === null && FROM_A_PROXY.has(response.status)) throw this.#lost();
    this.#set(false);
    return {
      status: response.status,
      ok: response.ok,
      told: told ?? {},
      wait_ms: Number(response.headers.get("retry-after-ms") ?? 0),
    };
  }

  #lost() {
    this.#set(true);
    return new Away("The gateway cannot be reached.");
  }

  #set(away) {
    if (this.away === away) return;
    this.away = away;
    this.#changed(away);
  }
}
