// What an approval asks, taken apart: what would be written where, where its data comes from, how it ended.
import type { Approval } from "./types";

export interface Question extends Approval {
  digest: string;
  wants: string;
  syscall: string;
  args: unknown; // an agent wrote this
  origins: Record<string, string[]>;
  capability: string;
  rules: string[];
  reasons: string[];
  scopes: string[];
  guest: boolean;
  approvers: string[][];
  decided_by: string;
  scope: string;
  note: string;
  holds: string[] | null;
  schema: Record<string, unknown> | null;
  value: unknown;
  state: string;
  seconds: number;
  left: number | null;
}

type Args = Record<string, unknown>;

function map(value: unknown): Args {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Args) : {};
}

export interface Writing {
  path: string;
  text: string; // what is to be written, or its beginning
  whole: boolean; // all of it is in `text`
  mode: "replace" | "append" | "create";
  before?: string; // known from the arguments alone
}

const SPACES: Record<string, string> = { working: "/mem/working", episodic: "/mem/episodic", semantic: "/mem/semantic" };

/** What a call would write, if it is one that writes. */
export function writing(row: Question): Writing | null {
  const args = map(row.args);
  if (row.syscall === "SYS_WRITE") return written(args.path, args.data, args.mode);
  if (row.syscall !== "SYS_EXEC") return null;
  const params = map(args.params);
  const tool = String(args.tool ?? "").split("@")[0];
  if (tool === "file.edit" && typeof params.old === "string" && typeof params.new === "string") {
    return { path: String(params.path), text: params.new, whole: true, mode: "replace", before: params.old };
  }
  if (tool === "file.write") return written(params.path, params.content, params.mode);
  if (tool !== "memory.store") return null;
  const space = String(params.space ?? "semantic");
  return written(`${SPACES[space] ?? `/mem/${space}`}/${params.key}`, params.value, space === "episodic" ? "append" : "replace");
}

function written(path: unknown, data: unknown, mode: unknown): Writing | null {
  if (typeof path !== "string") return null;
  const how = mode === "append" || mode === "create" ? mode : "replace";
  if (typeof data === "string") return { path, text: data, whole: true, mode: how };
  const begins = map(data).begins;
  return typeof begins === "string" ? { path, text: begins, whole: false, mode: how } : null;
}

export interface Origin {
  trusted: boolean;
  known: boolean;
  from: string[];
  classes: string[];
}

/** Where what it says comes from, as far as the kernel saw: all its arguments together. */
export function originOf(row: Question): Origin {
  const words = new Set(Object.values(row.origins ?? {}).flat());
  const after = (prefix: string) => [...words].filter((word) => word.startsWith(prefix)).map((word) => word.slice(prefix.length));
  return { trusted: !words.has("untrusted"), known: words.size > 0, from: after("from:"), classes: after("class:") };
}

/** Content that the record keeps by its hash only: `begins`, `size`, `sha256`. */
export function stands(value: unknown): { begins: string; size: number; sha256: string } | null {
  const facts = map(value);
  if (typeof facts.sha256 !== "string" || typeof facts.size !== "number") return null;
  return { begins: typeof facts.begins === "string" ? facts.begins : "", size: facts.size, sha256: facts.sha256 };
}

/** Arguments by name, those first that say something. */
export function argumentsOf(row: Question): [string, unknown][] {
  const args = map(row.args);
  if (!Object.keys(args).length) return [["", row.args]];
  const told = Object.entries(args).filter(([, value]) => value !== null && value !== undefined);
  return told.filter(([name]) => !(row.syscall === "SYS_ASK" && (name === "question" || name === "schema")));
}

export function questionOf(row: Question): string {
  const asked = map(row.args).question;
  const long = stands(asked);
  return typeof asked === "string" ? asked : long ? `${long.begins} …` : "";
}

const OUTCOMES: Record<string, string> = { refused: "denied", used: "approved", void: "approved" };
const SINCE: Record<string, string> = { used: ", and used", void: ", and void since: the gate refused it by then" };

/** `approved by local:0, once, and used`. */
export function outcome(row: Question): string {
  const state = OUTCOMES[row.state] ?? row.state;
  const by = row.decided_by ? ` by ${row.decided_by}` : "";
  const scope = state === "approved" && row.scope ? `, ${row.scope}` : "";
  return `${state}${by}${scope}${SINCE[row.state] ?? ""}`;
}

export function left(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const minutes = Math.floor(whole / 60);
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}
