// What a person would want to know: refusals, questions, signals, failures. Begins with the newest entries of the
// journal and goes on with the stream.
import { effect, signal, untracked } from "@preact/signals";
import { get } from "./api";
import { notable } from "./entries";
import { entryOf, link, listen } from "./store";
import type { Entry, List } from "./types";

const BACK = 500; // entries of the journal that are looked at in the beginning
const KEPT = 1000;

export const lately = signal<readonly Entry[]>([]); // the oldest first

export function startLately(): void {
  listen((events) => add(events.map(entryOf).filter((entry): entry is Entry => entry !== null)));
  effect(() => {
    if (link.value === "live") untracked(() => void look());
    if (link.value === "off") lately.value = [];
  });
}

async function look(): Promise<void> {
  try {
    const { items } = await get<List<Entry>>("/audit", { last: BACK, limit: BACK });
    add(items);
  } catch {
    // The list begins with what the stream tells; the next connection looks again.
  }
}

function add(entries: Entry[]): void {
  const fresh = entries.filter(notable);
  if (fresh.length === 0) return;
  const known = new Map(lately.peek().map((entry) => [entry.seq, entry]));
  for (const entry of fresh) known.set(entry.seq, entry);
  lately.value = [...known.values()].sort((a, b) => a.seq - b.seq).slice(-KEPT);
}
