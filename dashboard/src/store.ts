// What the page knows: a snapshot, and the events after it. Events are taken in together, once a frame; an event that
// changes rows does not invent their new state but has the snapshot read again, so what is shown is what the kernel said.
import { batch, computed, signal } from "@preact/signals";
import { asProblem, get, type Problem } from "./api";
import { merged } from "./members";
import { Pace } from "./pace";
import type { AgentRow, Entry, Snapshot, StreamEvent } from "./types";

export type Link = "off" | "connecting" | "live" | "lost";

const KEPT = 3000; // events; older ones are asked for again where they are needed
const AGAIN_MS = 400; // at least between two snapshots
const STORM_MS = 3000; // between two of them while changes keep coming

export const link = signal<Link>("off");
export const lastEvent = signal<number | null>(null); // milliseconds of the wall clock here
export const snapshot = signal<Snapshot | null>(null);
export const snapshotProblem = signal<Problem | null>(null);
export const recent = signal<readonly StreamEvent[]>([]);
export const seenEvents = signal(0); // how many since the page began, also those that are not kept

export const agents = computed<AgentRow[]>(() => {
  const told = snapshot.value;
  return told ? merged(told.declared, told.agents) : [];
});
export const byId = computed(() => new Map(agents.value.map((row) => [row.id, row])));
export const approvals = computed(() => snapshot.value?.approvals ?? []);

/** Whether buttons that change something may be pressed: the page is up to date, and the session may. */
export const mayAct = computed(() => link.value === "live" && snapshot.value?.session.role === "operator");

type Listener = (events: StreamEvent[]) => void;
const listeners = new Set<Listener>();

export function listen(hear: Listener): () => void {
  listeners.add(hear);
  return () => listeners.delete(hear);
}

let waiting: StreamEvent[] = [];
let scheduled = false;

export function take(event: StreamEvent): void {
  waiting.push(event);
  if (scheduled) return;
  scheduled = true;
  // A hidden tab has no frames; its events are taken in all the same.
  if (document.hidden) setTimeout(flush, 250);
  else requestAnimationFrame(flush);
}

function flush(): void {
  scheduled = false;
  const events = waiting;
  waiting = [];
  batch(() => {
    recent.value = recent.value.concat(events).slice(-KEPT);
    seenEvents.value += events.length;
    lastEvent.value = Date.now();
  });
  if (events.some(changesRows)) soon();
  for (const hear of listeners) hear(events);
}

const ROWS = new Set(["agent.state", "approval.new", "approval.done", "cost"]);

function changesRows(event: StreamEvent): boolean {
  return ROWS.has(event.type);
}

let timer: ReturnType<typeof setTimeout> | undefined;
let loading: Promise<void> | undefined;
let following: Promise<void> | undefined; // the one after it
const pace = new Pace(AGAIN_MS, STORM_MS);

/** The snapshot once more, at once if the last one is some time ago. */
export function soon(): void {
  if (timer !== undefined) return;
  timer = setTimeout(() => {
    timer = undefined;
    void refresh();
  }, pace.wait());
}

/** A snapshot that was asked for from now on: one that is on its way may be of the moment before. */
export function refresh(): Promise<void> {
  if (loading) {
    following ??= loading.then(() => {
      following = undefined;
      return refresh();
    });
    return following;
  }
  loading = load().finally(() => (loading = undefined));
  return loading;
}

async function load(): Promise<void> {
  const began = performance.now();
  pace.looking();
  try {
    const told = await get<Snapshot>("/snapshot");
    batch(() => {
      snapshot.value = told;
      snapshotProblem.value = null;
    });
  } catch (error) {
    snapshotProblem.value = asProblem(error);
  } finally {
    pace.looked(performance.now() - began);
  }
}

/** What is known belongs to another kernel, or to nobody: it must not be seen any more. */
export function forget(): void {
  clearTimeout(timer);
  timer = undefined;
  waiting = [];
  batch(() => {
    snapshot.value = null;
    snapshotProblem.value = null;
    recent.value = [];
    lastEvent.value = null;
  });
}

/** The entry of the journal that an event tells of. */
export function entryOf(event: StreamEvent): Entry | null {
  const data = event.data as { entry?: Entry; seq?: number };
  if (data.entry) return data.entry;
  return typeof data.seq === "number" ? (data as unknown as Entry) : null;
}
