// Everybody as one list, as `agentctl ps` has it: agents of manifests and those that run without one, one row an id.
import type { AgentRow } from "./types";

export const ROOT = "system/root";
type Raw = Record<string, unknown>;

export function short(id: string): string {
  return id === ROOT ? "root" : id.replace(/^default\//, "");
}

/** The whole id of a name that may be short. */
export function full(name: string): string {
  return name === "root" ? ROOT : name.includes("/") ? name : `default/${name}`;
}

export function merged(declared: Raw[], living: Raw[]): AgentRow[] {
  const processes = new Map(living.map((one) => [one.id as string, one]));
  const rows: Raw[] = [];
  for (const record of declared) {
    rows.push(ofManifest(record, processes.get(record.id as string)));
    processes.delete(record.id as string);
  }
  for (const one of processes.values()) rows.push({ ...one, declared: false, role: one.role || "worker" });
  if (!rows.some((row) => row.id === ROOT)) {
    rows.unshift({ id: ROOT, role: "root", parent: null, state: "running", declared: false });
  }
  for (const row of rows) {
    row.name = short(row.id as string);
    if (row.quarantined) row.state = "quarantined"; // however its process is, or ended
    row.parent = row.id === ROOT ? null : row.parent || ROOT;
  }
  return rows as unknown as AgentRow[];
}

// The state of one that lives is that of its process, if it has one. Its number here is not its pid on the host.
function ofManifest(record: Raw, process: Raw | undefined): Raw {
  const facts = { ...record, number: record.pid, pid: null, declared: true };
  if (!process) return record.state === "active" ? { ...facts, state: "running" } : facts;
  const { id, role, parent } = record;
  return { ...facts, ...process, id, role, parent, declared: true, state: seen(record, process) };
}

function seen(record: Raw, process: Raw): unknown {
  if (record.state !== "active") return record.state;
  const needs = (record.needs ?? []) as string[];
  const notYet = process.state === "running" && !record.ready && needs.length === 0;
  return notYet ? "starting" : process.state;
}

export interface Placed {
  row: AgentRow;
  depth: number;
  children: number;
  below: number; // all descendants
}

/** In the order of the supervision tree. One whose supervisor is not listed hangs from root. */
export function inTree(rows: AgentRow[], folded: ReadonlySet<string> = new Set()): Placed[] {
  const known = new Set(rows.map((row) => row.id));
  const below = new Map<string, AgentRow[]>();
  for (const row of rows) {
    if (row.id === ROOT) continue;
    const parent = row.parent && known.has(row.parent) ? row.parent : ROOT;
    const list = below.get(parent);
    if (list) list.push(row);
    else below.set(parent, [row]);
  }
  const order = (row: AgentRow) => row.index ?? Number.MAX_SAFE_INTEGER;
  for (const list of below.values()) {
    list.sort((a, b) => order(a) - order(b) || (a.number ?? 0) - (b.number ?? 0) || (a.id < b.id ? -1 : 1));
  }
  const placed: Placed[] = [];
  const walk = (row: AgentRow, depth: number, hidden: boolean): number => {
    const children = below.get(row.id) ?? [];
    below.delete(row.id); // taken out: whatever the rows say, nobody is told twice
    const mine: Placed = { row, depth, children: children.length, below: children.length };
    if (!hidden) placed.push(mine);
    for (const child of children) mine.below += walk(child, depth + 1, hidden || folded.has(row.id));
    return mine.below;
  };
  const root = rows.find((row) => row.id === ROOT);
  if (root) walk(root, 0, false);
  return placed;
}

export function descendants(rows: AgentRow[], id: string): AgentRow[] {
  const found: AgentRow[] = [];
  const wanted = new Set([id]);
  let grown = true;
  while (grown) {
    grown = false;
    for (const row of rows) {
      if (row.parent && wanted.has(row.parent) && !wanted.has(row.id)) {
        wanted.add(row.id);
        found.push(row);
        grown = true;
      }
    }
  }
  return found;
}

/** What there is to say of it at this moment: why it does not run, else what it runs. */
export function now(row: AgentRow, wall = Date.now() / 1000): string {
  const why = row.why ?? "";
  if (row.declared && !["running", "starting", "paused"].includes(row.state)) {
    const left = (row.until ?? wall) - wall;
    const parts = [
      row.activation === "on_schedule" && row.wanted && row.state === "completed" ? "waits for its time" : "",
      left >= 1 ? `again in ${left.toFixed(0)} s` : "",
      row.state === "blocked" && row.needs?.length ? `needs ${row.needs.map(short).join(", ")}` : "",
      row.state === "backoff" && why ? `after ${why}` : why,
    ];
    return parts.filter(Boolean).join(", ");
  }
  if (row.needs?.length) return `not ready: needs ${row.needs.map(short).join(", ")}`;
  if (/^(degraded|unhealthy)/.test(row.health ?? "")) return row.health ?? "";
  const words = row.command ?? (row.detail ? [row.detail] : []);
  return row.kind === "native" && words.length > 1 ? (words.at(-1)?.split("/").pop() ?? "") : words.join(" ");
}

export const OVER = new Set(["stopped", "completed", "failed", "quarantined"]);

/** As addresses name it: `clock`, or `~` in place of the slash outside the default namespace. */
export function agentPath(id: string): string {
  return `/agents/${encodeURIComponent(id.replace(/^default\//, "").replace("/", "~"))}`;
}
