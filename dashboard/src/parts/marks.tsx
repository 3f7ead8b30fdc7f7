// Marks of agents: colour and icon tell the state, the shape the role, a badge the isolation. Never colour alone: each
// has its word, seen or read aloud.

const SHAPES: Record<string, string> = {
  root: "M8 1 15 8 8 15 1 8Z", // diamond
  supervisor: "M8 1 14.1 4.5V11.5L8 15 1.9 11.5V4.5Z", // hexagon
  service: "M2 2H14V14H2Z", // square
  user: "M8 1.5 15 14H1Z", // triangle
  worker: "M8 1.5A6.5 6.5 0 1 1 8 14.5A6.5 6.5 0 1 1 8 1.5Z", // circle
};

const ICONS: Record<string, string> = {
  running: "M6.5 5.3 11 8 6.5 10.7Z",
  starting: "M8 4.8V8L10.3 9.6",
  pending: "M8 4.8V8L10.3 9.6",
  waiting: "M5.2 8h.1M8 8h.1M10.8 8h.1",
  paused: "M6.4 5.4V10.6M9.6 5.4V10.6",
  backoff: "M10.6 6.2A3.2 3.2 0 1 0 11 9.2M10.8 4.4V6.5H8.7",
  blocked: "M5.5 8H10.5",
  stopped: "M6 6H10V10H6Z",
  completed: "M5.2 8.2 7.2 10.2 10.8 6",
  failed: "M6 6 10 10M10 6 6 10",
  quarantined: "M8 4.6V8.8M8 10.9V11",
};

export function tone(state: string): "ok" | "busy" | "held" | "bad" | "done" {
  if (state === "running") return "ok";
  if (state === "paused" || state === "suspended") return "held";
  if (state === "failed" || state === "quarantined") return "bad";
  return state === "completed" || state === "stopped" ? "done" : "busy";
}

export function AgentMark({ role, state }: { role: string; state: string }) {
  return (
    <svg class={`mark ${tone(state)}`} viewBox="0 0 16 16" width="20" height="20" role="img" aria-label={`${role}, ${state}`}>
      <path class="shape" d={SHAPES[role] ?? SHAPES.worker} />
      <path class="icon" d={ICONS[state] ?? ICONS.pending} />
    </svg>
  );
}

export function StateWord({ state }: { state: string }) {
  return <span class={`state ${tone(state)}`}>{state}</span>;
}

const LEVELS: Record<string, string> = {
  S0: "no isolation",
  none: "no process of its own",
  S1: "limits only",
  S2: "namespaces, Landlock, seccomp",
  S3: "as S2, with memory and CPU limited by the host",
  S4: "a machine of its own",
};

export function Isolation({ level }: { level: string | null | undefined }) {
  if (!level || level === "none") return <span class="faint">–</span>;
  return <span class={level === "S0" ? "badge bad" : "badge"} title={LEVELS[level]}>{level}</span>;
}

export function Verdict({ verdict, kind }: { verdict?: string; kind?: string }) {
  const refused = verdict === "refuse" || verdict === "forbid";
  const word = refused ? (verdict === "forbid" ? "FORBIDDEN" : "REFUSED") : verdict === "ask" ? "ask" : (verdict ?? kind ?? "");
  return <span class={`state ${refused ? "bad" : verdict === "ask" ? "held" : verdict === "allow" ? "ok" : "done"}`}>{word}</span>;
}

/** Spent, reserved and limit as a bar; the numbers stand beside it. */
export function Bar({ spent, held = 0, limit, label }: { spent: number; held?: number; limit: number | null; label: string }) {
  if (!limit) return null;
  const share = (part: number) => Math.min(100, (100 * part) / limit);
  const used = share(spent);
  return (
    <svg class={`bar ${used >= 90 ? "bad" : used >= 70 ? "held" : "ok"}`} viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={label}>
      <rect class="all" width="100" height="6" rx="1" />
      <rect class="held-part" width={share(spent + held)} height="6" rx="1" />
      <rect class="spent-part" width={used} height="6" rx="1" />
    </svg>
  );
}
