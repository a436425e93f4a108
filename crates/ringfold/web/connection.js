// The connection to the master: messages of /api/events, read with fetch so that a token can be sent with the request.

const HISTORY_MAX = 300;
const EVENTS_MAX = 200;
const SILENCE_MAX = 12000;
const RETRY_MAX = 5000;

const TOKEN_KEY = "ringfold-token";

/** The token of this tab, if one was entered. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN_KEY) || "",
  set: (text) => sessionStorage.setItem(TOKEN_KEY, text),
  forget: () => sessionStorage.removeItem(TOKEN_KEY),
};

export function headers(shown = token.get()) {
  return shown ? { Authorization: `Bearer ${shown}` } : {};
}

/** Which rights a token gives. */
export async function session(shown = token.get()) {
  const response = await fetch("/api/session", { headers: headers(shown), cache: "no-store" });
  if (!response.ok) throw new Error(`the master answers ${response.status}`);
  return response.json();
}

/** Sends a command. Returns what was done, or throws why it was not. */
export async function command(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { ...headers(), "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer.done;
}

/** Follows the run. Calls `onStatus(status)`, and `onLink(state, text)` with live, stalled, lost or locked. */
export class Connection {
  constructor(onStatus, onLink) {
    this.onStatus = onStatus;
    this.onLink = onLink;
    this.status = null;
    this.retry = 500;
    this.abort = null;
  }

  async run() {
    for (;;) {
      let why = "the connection has ended";
      try {
        await this.follow();
      } catch (error) {
        if (error instanceof Locked) {
          this.onLink("locked", "");
          await new Promise((resolve) => (this.unlock = resolve));
          continue;
        }
        why = error.message;
      }
      this.onLink("lost", why);
      await new Promise((resolve) => setTimeout(resolve, this.retry));
      this.retry = Math.min(2 * this.retry, RETRY_MAX);
    }
  }

  /** Tries again with another token. */
  restart() {
    this.abort?.abort();
    this.unlock?.();
  }

  async follow() {
    this.abort = new AbortController();
    let watchdog = 0;
    const watch = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => this.abort.abort(), SILENCE_MAX);
    };
    watch();
    try {
      const response = await fetch("/api/events", { headers: headers(), cache: "no-store", signal: this.abort.signal });
      if (response.status === 401) throw new Locked();
      if (!response.ok) throw new Error(`the master answers ${response.status}`);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        watch();
        text += value;
        const messages = text.split("\n\n");
        text = messages.pop();
        messages.forEach((message) => this.take(message));
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  take(message) {
    let kind = "";
    let data = "";
    for (const line of message.split("\n")) {
      if (line.startsWith("event: ")) kind = line.slice(7);
      if (line.startsWith("data: ")) data = line.slice(6);
    }
    if (!data) return;
    const content = JSON.parse(data);
    this.retry = 500;
    if (kind === "problem") {
      this.onLink("stalled", content.error);
      return;
    }
    if (kind === "update" && this.status) {
      // Only what is new is sent.
      content.history = this.status.history.concat(content.history).slice(-HISTORY_MAX);
      content.events = this.status.events.concat(content.events).slice(-EVENTS_MAX);
    }
    this.status = content;
    this.onLink("live", "");
    this.onStatus(content);
  }
}

class Locked extends Error {}
