// Who holds what, and from whom: rows become a forest, and each step says what was narrowed.

export interface CapabilityRow {
  handle: string;
  agent: string;
  capability: string; // as people write it
  canonical: string;
  origin: string; // start: every agent holds this without asking
  parent: string | null;
  from: string;
  left_s: number | null;
  used: Record<string, number>;
  limits: Record<string, number>;
  open: number;
  mounted: boolean;
}

export interface Standing {
  handle: string; // q-7
  agent: string;
  capability: string;
  age_s: number;
  rules: string[];
  scope: string;
  by: string;
  uses: number;
}

export interface Parts {
  kind: string;
  target: string;
  actions: string[];
  constraints: Record<string, string>;
}

/** `capability://mem/mem/**?action=read,write&count=5` in its parts. */
export function parts(canonical: string): Parts {
  const [place = "", query = ""] = canonical.replace(/^capability:\/\//, "").split("?", 2);
  const slash = place.indexOf("/");
  const kind = slash < 0 ? place : place.slice(0, slash);
  const rest = slash < 0 ? "" : place.slice(slash);
  const constraints = Object.fromEntries(new URLSearchParams(query));
  const actions = (constraints.action ?? "").split(",").filter(Boolean);
  delete constraints.action;
  return { kind, target: ROOTED.has(kind) ? rest : rest.slice(1), actions, constraints };
}

const ROOTED = new Set(["file", "mem"]);

/** What a step gives away of what its parent holds; empty: handed on as it was. */
export function narrowed(parent: string, child: string): string[] {
  const above = parts(parent);
  const below = parts(child);
  const said: string[] = [];
  if (above.target !== below.target) said.push(`target ${above.target || "all"} → ${below.target || "all"}`);
  const lost = above.actions.filter((one) => !below.actions.includes(one));
  if (lost.length) said.push(`no ${lost.join(", ")}`);
  for (const [name, value] of Object.entries(below.constraints)) {
    const before = above.constraints[name];
    if (before !== value) said.push(before === undefined ? `${name} at most ${value}` : `${name} ${before} → ${value}`);
  }
  return said;
}

export interface Placed {
  row: CapabilityRow;
  depth: number;
  below: CapabilityRow[]; // everything that was derived from it
  chain: CapabilityRow[]; // from the root of its tree down to it
  narrowed: string[];
  last: boolean[]; // for each step above it: whether that was the last child, for the lines of the picture
}

export function forest(rows: readonly CapabilityRow[]): Placed[] {
  const known = new Map(rows.map((row) => [row.handle, row]));
  const children = new Map<string | null, CapabilityRow[]>();
  for (const row of rows) {
    const parent = row.parent !== null && known.has(row.parent) ? row.parent : null;
    const list = children.get(parent);
    if (list) list.push(row);
    else children.set(parent, [row]);
  }
  const placed: Placed[] = [];
  const walk = (row: CapabilityRow, chain: CapabilityRow[], last: boolean[]): CapabilityRow[] => {
    const above = chain.at(-1);
    const mine: Placed = {
      row,
      depth: chain.length,
      below: [],
      chain: [...chain, row],
      narrowed: above ? narrowed(above.canonical, row.canonical) : [],
      last,
    };
    placed.push(mine);
    const own = children.get(row.handle) ?? [];
    children.delete(row.handle); // whatever the rows say, nothing is told twice
    own.forEach((child, index) => mine.below.push(child, ...walk(child, mine.chain, [...last, index === own.length - 1])));
    return mine.below;
  };
  for (const row of children.get(null) ?? []) walk(row, [], []);
  return placed;
}

/** Rows that fit, with all above them: a branch without its root would say nothing. */
export function fitting(all: readonly Placed[], words: string): Placed[] {
  const wanted = words.trim().toLowerCase();
  if (!wanted) return [...all];
  const shown = new Set<string>();
  for (const one of all) {
    if (`${one.row.handle} ${one.row.agent} ${one.row.capability}`.toLowerCase().includes(wanted)) {
      for (const step of one.chain) shown.add(step.handle);
    }
  }
  return all.filter((one) => shown.has(one.row.handle));
}

/** `3/50`, `7`, or nothing. */
export function uses(row: CapabilityRow): string {
  const names = new Set([...Object.keys(row.limits), ...Object.keys(row.used)]);
  return [...names]
    .map((name) => `${name} ${row.used[name] ?? 0}${row.limits[name] === undefined ? "" : `/${row.limits[name]}`}`)
    .join(", ");
}

/** One thing that a capability reaches, as an act that the gate can be asked about; the star is for a person to fill. */
export function example(row: CapabilityRow): string {
  const { kind, target, actions } = parts(row.canonical);
  return [kind, target.replace(/\*+$/, "").replace(/\*/g, "x"), actions[0]].filter(Boolean).join(":");
}
