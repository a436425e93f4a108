// The token, and the commands of operators.

import { command, session, token } from "./connection.js";
import { setText } from "./format.js";

const by = (id) => document.getElementById(id);

export class Operator {
  /** `onRole(isAdmin)` is called when the rights change; `onToken()` when another token is used. */
  constructor(onRole, onToken) {
    Object.assign(this, { onRole, onToken, isAdmin: false, isDraining: false, rights: null });
    by("operator").addEventListener("click", () => this.ask());
    by("drain").addEventListener("click", () => this.confirmDrain());
    by("login-cancel").addEventListener("click", () => by("login").close());
    by("login-forget").addEventListener("click", () => this.use(""));
    by("login").querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.use(by("login-token").value.trim());
    });
    by("confirm-cancel").addEventListener("click", () => by("confirm").close());
    by("confirm").querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.carryOut();
    });
  }

  /** Asks the master what the token of this tab is good for. */
  async refresh() {
    try {
      this.setRights(await session());
    } catch {
      // The connection says that the master cannot be reached.
    }
  }

  setRights(rights) {
    this.rights = rights;
    this.isAdmin = rights.role === "admin";
    by("drain").hidden = !this.isAdmin;
    setText(by("operator"), this.isAdmin ? "Operator ✓" : "Operator");
    this.onRole(this.isAdmin);
  }

  showDraining(isDraining) {
    this.isDraining = isDraining;
    setText(by("drain"), isDraining ? "Accept peers again" : "Drain");
  }

  /** Asks for a token. */
  ask() {
    const isLocked = this.rights?.role === "none";
    const text = isLocked
      ? "This master shows its run only with a token: that of --http-token-file, or the admin token."
      : this.rights && !this.rights.has_admin_token
        ? "This master takes no commands here. Start it with --admin-token-file to evict peers and to drain the run."
        : "With the admin token you can evict peers and drain the run. It is kept until this tab is closed.";
    setText(by("login-text"), text);
    setText(by("login-error"), "");
    by("login-token").value = "";
    by("login-forget").hidden = !token.get();
    if (!by("login").open) by("login").showModal();
    by("login-token").focus();
  }

  async use(text) {
    try {
      const rights = await session(text);
      const isUseful = rights.role === "admin" || (rights.role === "reader" && rights.has_read_token);
      if (text && !isUseful) {
        setText(by("login-error"), "The master does not know this token.");
        return;
      }
      if (text) token.set(text);
      else token.forget();
      by("login").close();
      this.setRights(rights);
      this.onToken();
    } catch (error) {
      setText(by("login-error"), `The master cannot be asked: ${error.message}`);
    }
  }

  confirmEvict(peer) {
    this.confirm({
      title: `Evict ${peer.name}?`,
      text: "It leaves the run at once. Operations that it takes part in fail on all peers, and the others go on without it.",
      reason: "an operator asked for it",
      button: "Evict",
      run: (reason) => command("/api/evict", { peer: peer.id, reason }),
    });
  }

  confirmDrain() {
    const on = !this.isDraining;
    this.confirm({
      title: on ? "Drain the run?" : "Accept new peers again?",
      text: on ? "New peers are refused. Members go on until they leave." : "New peers may join the run.",
      reason: null,
      button: on ? "Drain" : "Accept peers",
      run: () => command("/api/drain", { on }),
    });
  }

  confirm(action) {
    this.action = action;
    setText(by("confirm-title"), action.title);
    setText(by("confirm-text"), action.text);
    setText(by("confirm-ok"), action.button);
    setText(by("confirm-error"), "");
    by("confirm-reason-row").hidden = action.reason === null;
    by("confirm-reason").value = action.reason || "";
    by("confirm").showModal();
  }

  async carryOut() {
    by("confirm-ok").disabled = true;
    try {
      await this.action.run(by("confirm-reason").value.trim() || "an operator asked for it");
      by("confirm").close();
    } catch (error) {
      setText(by("confirm-error"), error.message);
    } finally {
      by("confirm-ok").disabled = false;
    }
  }
}
