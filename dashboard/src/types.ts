// What the kernel's rows look like. Names are those of `agentctl … -o json`; what is optional is not always told.

export type Role = "operator" | "auditor" | "viewer";

export interface Session {
  session: string;
  name: string;
  role: Role;
  boot: string;
}

export interface AgentRow {
  id: string;
  name: string;
  parent: string | null;
  role: string;
  state: string;
  declared: boolean;
  why?: string;
  until?: number | null;
  needs?: string[];
  health?: string;
  ready?: boolean;
  wanted?: boolean;
  index?: number;
  number?: number | null;
  pid?: number | null;
  incarnation?: number;
  consecutive?: number;
  max_restarts?: number | null;
  policy?: string;
  activation?: string;
  strategy?: string;
  kind?: string;
  detail?: string;
  isolation?: string;
  level?: string;
  processes?: number;
  memory?: number;
  age?: number;
  command?: string[];
  project?: string | null;
  quarantined?: boolean;
}

export interface Approval {
  id: string;
  agent: string;
  [key: string]: unknown;
}

export interface Use {
  resource: string;
  spent: number;
  held: number;
  limit: number | null;
}

export interface Account {
  account: string;
  parent: string | null;
  uses: Use[];
}

export interface Status {
  version: string;
  pid: number;
  seconds: number;
  agents: Record<string, number>;
  quarantined: string[];
  declared: number;
  entries: number;
  refused_hour: number;
  journal: string;
  clients: number;
  halting: boolean;
  policy: { mode: string; digest: string; version: number; alarm: string; files: unknown[] };
  [key: string]: unknown;
}

export interface Snapshot {
  cursor: string;
  status: Status;
  agents: Record<string, unknown>[];
  declared: Record<string, unknown>[];
  approvals: Approval[];
  budgets: Account[];
  session: { name: string; role: Role; boot: string };
}

// One entry of the journal, as `agentctl events -o json` tells it.
export interface Entry {
  seq: number;
  time: string;
  agent: string;
  kind: string;
  op?: string;
  verdict?: string;
  code?: string;
  rule?: string;
  step?: number | string;
  handle?: number;
  label?: string[];
  mode?: string;
  isolation?: string;
  inc?: number;
  aseq?: number;
  ref?: number;
  cost?: Record<string, number>;
  body?: unknown;
  body_hash?: string;
  [key: string]: unknown;
}

export interface StreamEvent {
  type: string;
  cursor?: string;
  ts: string;
  agent: string | null;
  data: Record<string, unknown>;
}

export interface List<T> {
  items: T[];
  next: string | null;
}
