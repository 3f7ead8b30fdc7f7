// The event stream: a ticket, a WebSocket, and after any cut the place where it stopped. It follows the session: there
// is one while there is a session, and whatever was known is forgotten with it.
import { effect, untracked } from "@preact/signals";
import { asProblem, post } from "./api";
import { leave, session } from "./session";
import { forget, link, lastEvent, refresh, snapshot, take } from "./store";
import type { StreamEvent } from "./types";

const FIRST_MS = 500;
const LONGEST_MS = 10_000;
const UNAUTHENTICATED = 4001;
const ROLE = 4003;
const SLOW = 4008;
const REVOKED = 4009;

let socket: WebSocket | undefined;
let timer: ReturnType<typeof setTimeout> | undefined;
let cursor: string | null = null;
let failures = 0;
let era = 0; // of the session; what an earlier one began is not continued

export function start(): void {
  effect(() => {
    const mine = session.value;
    era += 1;
    close();
    forget();
    cursor = null;
    failures = 0;
    link.value = mine ? "connecting" : "off";
    if (mine) untracked(() => void connect(era));
  });
  addEventListener("online", hurry);
  document.addEventListener("visibilitychange", () => document.hidden || hurry());
}

function hurry(): void {
  if (timer === undefined) return;
  clearTimeout(timer);
  void connect(era);
}

function close(): void {
  clearTimeout(timer);
  timer = undefined;
  const old = socket;
  socket = undefined;
  old?.close();
}

async function connect(mine: number): Promise<void> {
  timer = undefined;
  try {
    if (cursor === null || snapshot.value === null) {
      await refresh();
      if (mine !== era) return;
      if (snapshot.value === null) return again(mine);
      cursor = snapshot.value.cursor;
    }
    const { ticket } = await post<{ ticket: string }>("/session/tickets");
    if (mine === era) open(mine, ticket);
  } catch (error) {
    if (mine === era && asProblem(error).status !== 401) again(mine);
  }
}

function open(mine: number, ticket: string): void {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const one = new WebSocket(`${scheme}://${location.host}/api/v1/events`, ["agent-os.v1", `ticket.${ticket}`]);
  socket = one;
  one.onopen = () => one.send(JSON.stringify({ cursor, types: [], agents: [] }));
  one.onmessage = (message: MessageEvent<string>) => {
    if (one === socket) hear(mine, JSON.parse(message.data) as StreamEvent);
  };
  one.onclose = (event) => {
    if (one !== socket || mine !== era) return;
    socket = undefined;
    closed(mine, event.code, event.reason);
  };
}

function hear(mine: number, event: StreamEvent): void {
  if (event.cursor) cursor = event.cursor;
  if (event.type === "stream.live") {
    failures = 0;
    link.value = "live";
    lastEvent.value ??= Date.now();
    void refresh(); // what changed without an event of its own while nobody listened
  } else if (event.type === "stream.reset") {
    cursor = null;
    close();
    forget();
    void connect(mine);
  } else {
    take(event);
  }
}

function closed(mine: number, code: number, reason: string): void {
  if (code === UNAUTHENTICATED || code === REVOKED || code === ROLE) {
    leave(reason || (code === REVOKED ? "this session was taken back" : "this session is over"), "");
    return;
  }
  if (code === SLOW) failures = 0;
  again(mine);
}

function again(mine: number): void {
  if (mine !== era) return;
  link.value = "lost";
  const wait = Math.min(LONGEST_MS, FIRST_MS * 2 ** failures) * (0.75 + Math.random() / 2);
  failures += 1;
  clearTimeout(timer);
  timer = setTimeout(() => void connect(mine), wait);
}
