// What was spent: rows of a key and a moment become series, stacked on each other.

export interface CostRow {
  agent?: string;
  model?: string;
  minute?: string;
  hour?: string;
  day?: string;
  spent: Record<string, number>;
}

export interface CostAnswer {
  by: string[];
  rows: CostRow[];
  total: Record<string, number>;
}

export type Key = "agent" | "model";
export type Step = "minute" | "hour" | "day";
const SECONDS: Record<Step, number> = { minute: 60, hour: 3600, day: 86_400 };
const OTHERS = "others";
const MOST = 7; // series that have a colour of their own

export interface Series {
  name: string;
  values: number[]; // one for each moment
  total: number;
}

export interface Stacked {
  moments: number[]; // milliseconds, evenly apart
  series: Series[]; // the largest first
  most: number; // of one moment, all together
}

/** `2026-01-31T12:05` as milliseconds. */
export function moment(text: string): number {
  const filled = text.length === 10 ? `${text}T00:00` : text.length === 13 ? `${text}:00` : text;
  return Date.parse(`${filled}Z`);
}

/** As fine as there is room for. */
export function stepFor(seconds: number): Step {
  return seconds <= 26 * 3600 ? "minute" : seconds <= 14 * 86_400 ? "hour" : "day";
}

export function stacked(rows: CostRow[], key: Key, step: Step, resource: string, until = Date.now()): Stacked {
  const told = rows
    .map((row) => ({ name: String(row[key] || "(none)"), at: moment(String(row[step])), amount: row.spent[resource] ?? 0 }))
    .filter((one) => one.amount > 0 && !Number.isNaN(one.at));
  if (!told.length) return { moments: [], series: [], most: 0 };
  const width = SECONDS[step] * 1000;
  const first = Math.min(...told.map((one) => one.at)) - width; // it began with nothing
  const last = Math.max(first, Math.floor(until / width) * width, ...told.map((one) => one.at));
  const moments = Array.from({ length: Math.min(2000, Math.round((last - first) / width) + 1) }, (_, at) => first + at * width);
  const totals = new Map<string, number>();
  for (const one of told) totals.set(one.name, (totals.get(one.name) ?? 0) + one.amount);
  const names = [...totals].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name]) => name);
  const own = new Set(names.length > MOST + 1 ? names.slice(0, MOST) : names);
  const series = new Map<string, Series>();
  for (const one of told) {
    const name = own.has(one.name) ? one.name : OTHERS;
    const line = series.get(name) ?? { name, values: moments.map(() => 0), total: 0 };
    series.set(name, line);
    const at = Math.round((one.at - first) / width);
    line.values[at] = (line.values[at] ?? 0) + one.amount;
    line.total += one.amount;
  }
  const ordered = [...series.values()].sort((a, b) => Number(a.name === OTHERS) - Number(b.name === OTHERS) || b.total - a.total);
  const sums = moments.map((_, at) => ordered.reduce((sum, line) => sum + (line.values[at] ?? 0), 0));
  return { moments, series: ordered, most: Math.max(...sums) };
}

/** Each amount together with all before it: what was spent until then. */
export function running(stack: Stacked): Stacked {
  const series = stack.series.map((line) => {
    let sum = 0;
    return { ...line, values: line.values.map((value) => (sum += value)) };
  });
  return { ...stack, series, most: series.reduce((sum, line) => sum + line.total, 0) };
}

/** The outline of each area, from the bottom up, in a box of `width` by `height`. */
export function areas(stack: Stacked, width: number, height: number): { name: string; path: string }[] {
  const count = stack.moments.length;
  const x = (at: number) => (count > 1 ? (at / (count - 1)) * width : 0);
  const y = (value: number) => height - (stack.most ? (value / stack.most) * height : 0);
  const base = stack.moments.map(() => 0);
  return stack.series.map((line) => {
    const lower = base.map((value, at) => `${fixed(x(at))},${fixed(y(value))}`);
    line.values.forEach((value, at) => (base[at] = (base[at] ?? 0) + value));
    const upper = base.map((value, at) => `${fixed(x(at))},${fixed(y(value))}`);
    if (count === 1) {
      // One moment alone is as wide as the picture.
      const [, top] = upper[0]!.split(",");
      const [, bottom] = lower[0]!.split(",");
      return { name: line.name, path: `M0,${bottom}L0,${top}L${width},${top}L${width},${bottom}Z` };
    }
    return { name: line.name, path: `M${upper.join("L")}L${lower.reverse().join("L")}Z` };
  });
}

export interface Account {
  account: string;
  parent: string | null;
}

/** An account and all below it: what these spend, it spends. */
export function below(account: string, accounts: readonly Account[]): Set<string> {
  const found = new Set([account]);
  for (let before = 0; before < found.size; ) {
    before = found.size;
    for (const one of accounts) if (one.parent !== null && found.has(one.parent)) found.add(one.account);
  }
  return found;
}

/** What was left after each moment of spending, the oldest first; it ends with what is left now. */
export function burnt(rows: CostRow[], step: Step, resource: string, who: ReadonlySet<string>, left: number): { at: number; left: number }[] {
  const spent = new Map<number, number>();
  for (const row of rows) {
    const at = moment(String(row[step])) + SECONDS[step] * 1000; // a row is what was spent until its end
    const amount = who.has(String(row.agent)) ? (row.spent[resource] ?? 0) : 0;
    if (amount > 0 && !Number.isNaN(at)) spent.set(at, (spent.get(at) ?? 0) + amount);
  }
  const points: { at: number; left: number }[] = [];
  let rest = left;
  for (const [at, amount] of [...spent].sort((a, b) => b[0] - a[0])) {
    points.unshift({ at, left: rest });
    rest += amount;
  }
  const first = points[0];
  if (first) points.unshift({ at: first.at - SECONDS[step] * 1000, left: rest });
  return points;
}

/** A staircase in a box of `width` by `height`: the top is the cap, the bottom nothing left. */
export function stairs(points: readonly { at: number; left: number }[], cap: number, until: number, width: number, height: number): string {
  const first = points[0];
  if (!first) return "";
  const span = Math.max(1, until - first.at);
  const x = (at: number) => fixed((Math.min(span, at - first.at) / span) * width);
  const y = (left: number) => fixed(height - Math.max(0, Math.min(1, cap ? left / cap : 0)) * height);
  return `M0,${y(first.left)}${points.slice(1).map((one) => `H${x(one.at)}V${y(one.left)}`).join("")}H${width}`;
}

const fixed = (number: number) => number.toFixed(1);

/** Round steps for an axis: 0, 0.2, 0.4 … */
export function ticks(most: number, wanted = 4): number[] {
  if (most <= 0) return [0];
  const rough = most / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? rough;
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => at * step);
}
