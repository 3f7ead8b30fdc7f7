// Entries of the journal in words: what was done, to what, and in which lane of a timeline it belongs.
import type { Entry } from "./types";

export type Lane = "model" | "tools" | "policy" | "messages" | "state";
export const LANES: Lane[] = ["model", "tools", "policy", "messages", "state"];

const MESSAGES = new Set(["SYS_SEND", "SYS_RECV", "SYS_ACK", "SYS_PUBLISH", "SYS_SUBSCRIBE", "SYS_REQUEST", "SYS_REPLY", "SYS_PIPE", "OP_POST"]);
const STATES = new Set(["SYS_SPAWN", "SYS_EXIT", "SYS_WAIT", "SYS_SIGNAL", "SYS_SLEEP", "SYS_READY", "SYS_CHECKPOINT", "SYS_TAKE", "SYS_FINISH", "SYS_EVENT"]);
const POLICY = new Set(["decision", "approval", "grant", "revoke", "policy.load", "policy.error", "label", "budget", "secret.use", "trust"]);
const NAMED = ["path", "tool", "agent", "to", "topic", "name", "file", "model", "kind", "question"];
const SIGNALS: Record<number, string> = {
  1: "SIGSTOP", 2: "SIGCONT", 3: "SIGINT", 4: "SIGKILL", 5: "SIGTERM", 6: "SIGUSR1", 7: "SIGUSR2",
  8: "SIGPOLICY", 9: "SIGTRUST", 10: "SIGBUDGET", 13: "SIGCHLD",
};

export type Facts = Record<string, unknown>;

export function map(value: unknown): Facts {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Facts) : {};
}

export function refused(entry: Entry): boolean {
  return entry.verdict === "refuse" || entry.verdict === "forbid";
}

/** Whether a person would want to know: a refusal, a question, an end that is none of its own. */
export function notable(entry: Entry): boolean {
  if (refused(entry) || entry.kind === "approval") return true;
  if (entry.kind === "exit") return !["normal", "requested"].includes(String(map(entry.body).class ?? ""));
  return entry.kind === "signal" || entry.kind === "park" || entry.kind === "policy.error";
}

export function laneOf(entry: Entry): Lane {
  if (refused(entry) || entry.verdict === "ask" || POLICY.has(entry.kind)) return "policy";
  if (entry.op === "SYS_THINK") return "model";
  if (entry.op && MESSAGES.has(entry.op)) return "messages";
  if (entry.op && STATES.has(entry.op)) return "state";
  if (entry.op) return "tools";
  if (["deliver", "ack", "dead", "accept"].includes(entry.kind)) return "messages";
  return entry.kind === "connect" ? "tools" : "state";
}

/** `SYS_WRITE /work/x`: what was done, and to what. */
export function deed(entry: Entry): string {
  return [entry.op ?? entry.kind, subject(entry)].filter(Boolean).join(" ");
}

export function subject(entry: Entry): string {
  const body = map(entry.body);
  const said = SPECIAL[entry.kind]?.(body);
  if (said) return said;
  const about = "request" in body ? map(body.request) : body;
  const name = NAMED.find((one) => about[one]);
  return name ? text(about[name]) : "";
}

const SPECIAL: Record<string, (body: Facts) => string> = {
  approval: (body) => {
    const state = text(body.state);
    const by = body.decided_by ? ` by ${text(body.decided_by)}` : "";
    return `${text(body.id)}: ${state === "pending" ? "a person is asked" : state}${by}`;
  },
  signal: (body) => ("signal" in body ? `${SIGNALS[Number(body.signal)] ?? text(body.signal)} from ${text(body.sender)}` : event(body)),
  spawn: event,
  state: event,
  connect: event,
  change: event,
  decision: event,
  exit: (body) => [body.class, body.code, body.reason].filter((word) => word !== "" && word !== undefined).map(text).join(", "),
  deliver: (body) => [body.type, body.path ?? body.agent].filter(Boolean).map(text).join(" "),
  grant: (body) => `c-${text(body.handle)} ${text(body.capability)} by ${text(body.by)}`,
  boot: (body) => (body.pid ? `process ${text(body.pid)}` : ""),
};

function event(body: Facts): string {
  if (Array.isArray(body.argv)) return body.argv.map(text).join(" ");
  const where = body.host ? `${text(body.host)}:${text(body.port)}` : text(body.level ?? body.state ?? "");
  return [text(body.event ?? ""), where].filter(Boolean).join(" ");
}

function text(value: unknown): string {
  return typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value);
}

/** Code and reason of what went wrong, if anything did. */
export function fault(entry: Entry): string {
  const body = map(entry.body);
  const error = map(body.error);
  const reason = text(error.reason ?? body.reason ?? "");
  return entry.code ? [entry.code, reason].filter(Boolean).join(": ") : "";
}
