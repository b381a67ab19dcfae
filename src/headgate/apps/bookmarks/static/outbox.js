// The page's outbox: what is to be saved is written down first, with the key it keeps for ever, and sent when the
// gateway answers. Sending again is always safe: the key makes it count once.

const PLACE = "headgate.bookmarks.outbox";
const FIRST_WAIT_MS = 2000;
const LONGEST_WAIT_MS = 60000;

export const TAKEN = "taken"; // The gateway has it.
export const LATER = "later"; // Out of reach, full, or asking for another access key: it waits.
export const REFUSED = "refused"; // It will not be taken as it is: a person decides.

export class Outbox {
  #send;
  #changed;
  #flushing = false;
  #wait_ms = FIRST_WAIT_MS;
  #timer;

  // `send(entry)` answers {outcome, error?, wait_ms?}; `changed()` is called whenever there is something to show.
  constructor({ send, changed }) {
    this.#send = send;
    this.#changed = changed;
    addEventListener("online", () => this.flush());
    addEventListener("storage", (event) => event.key === PLACE && this.#changed());
  }

  entries() {
    try {
      const entries = JSON.parse(localStorage.getItem(PLACE) ?? "[]");
      return Array.isArray(entries) ? entries : [];
    } catch {
      return [];
    }
  }

  async add(body) {
    if (!this.entries().some((entry) => entry.body.url === body.url)) {
      this.#write([...this.entries(), { key: newKey(), body, error: null }]);
    }
    return this.flush();
  }

  retry(key) {
    this.#write(this.entries().map((entry) => (entry.key === key ? { ...entry, error: null } : entry)));
    return this.flush();
  }

  discard(key) {
    this.#write(this.entries().filter((entry) => entry.key !== key));
  }

  clear() {
    this.#write([]);
  }

  async flush() {
    if (this.#flushing) return;
    this.#flushing = true;
    clearTimeout(this.#timer);
    try {
      await this.#empty();
    } finally {
      this.#flushing = false;
    }
  }

  async #empty() {
    for (;;) {
      const entry = this.entries().find((one) => one.error === null);
      if (entry === undefined) return;
      const { outcome, error, wait_ms } = await this.#send(entry);
      if (outcome === LATER) return this.#again(wait_ms);
      this.#wait_ms = FIRST_WAIT_MS;
      if (outcome === TAKEN) this.discard(entry.key);
      else this.#write(this.entries().map((one) => (one.key === entry.key ? { ...one, error } : one)));
    }
  }

  #again(wait_ms = 0) {
    this.#timer = setTimeout(() => this.flush(), Math.max(wait_ms, this.#wait_ms));
    this.#wait_ms = Math.min(LONGEST_WAIT_MS, this.#wait_ms * 2);
  }

  #write(entries) {
    localStorage.setItem(PLACE, JSON.stringify(entries));
    this.#changed();
  }
}

// `crypto.randomUUID` is missing where a page came over plain HTTP from another machine.
function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
