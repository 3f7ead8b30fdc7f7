// The machine and the kernel on it: what it can isolate, what was counted, whose model call waits, which goals are open.
import "../styles/system.css";
import { short } from "../members";
import { Loaded, useGet } from "../parts/get";
import { Empty } from "../parts/states";
import { Table } from "../parts/table";
import { AgentText, age, count, money, size } from "../parts/text";
import { snapshot } from "../store";
import type { List } from "../types";

interface Check {
  name: string;
  status: "ok" | "warn" | "fail";
  cause: string;
  fix: string;
}

interface Sample {
  name: string;
  labels: Record<string, string>;
  value?: number;
  sum?: number;
  count?: number;
}

interface Provider {
  name: string;
  dialect: string;
  base: string;
  keys: string[];
  missing: string[];
  add_key: string;
  limits: Record<string, number>;
}

interface Waiting {
  agent: string;
  model: string;
  priority: string;
  position: number;
  waited_ms: number;
  reason: string;
}

interface Limit {
  capacity: number;
  rate: number; // a second
  level: number;
  told: boolean; // the rate is the operator's or the provider's; else it was learned
}

interface Lane {
  key: string;
  model: string;
  waiting: number;
  in_flight: number;
  slots: number;
  limits: Record<string, Limit>;
}

interface Goal {
  id: string;
  part: string;
  goal?: string; // one that waits has `text`
  text?: string;
  agent?: string;
  priority?: string;
  state?: string;
  [key: string]: unknown;
}

export function SystemPage() {
  return (
    <div class="system">
      <header class="page-head"><h1>System</h1></header>
      <Kernel />
      <Doctor />
      <div class="columns even">
        <Models />
        <Goals />
      </div>
      <Metrics />
    </div>
  );
}

function Kernel() {
  const status = snapshot.value?.status;
  if (!status) return null;
  return (
    <section class="card">
      <h2>Kernel</h2>
      <dl class="facts">
        <div><dt>Version</dt><dd>{status.version}, process {status.pid}, up {age(status.seconds)}</dd></div>
        <div><dt>Journal</dt><dd>{status.journal}, {count(status.entries)} entries</dd></div>
        <div><dt>Agents</dt><dd>{Object.entries(status.agents).map(([state, number]) => `${number} ${state}`).join(", ") || "none"}</dd></div>
        <div><dt>Policy</dt><dd>{status.policy.mode}, {count(status.policy.files.length)} files{status.policy.alarm ? <>, <AgentText text={status.policy.alarm} /></> : ""}</dd></div>
        {status.quarantined.length ? <div><dt>Quarantine</dt><dd><AgentText text={status.quarantined.join(", ")} /></dd></div> : null}
      </dl>
    </section>
  );
}

const TONES = { ok: "ok", warn: "held", fail: "bad" };

function Doctor() {
  const got = useGet<{ level: string; minimum: string; ok: boolean; checks: Check[] }>("/doctor");
  return (
    <section class="card">
      <div class="card-head">
        <h2>Doctor</h2>
        {got.data ? <span class={`state ${got.data.ok ? "ok" : "bad"}`}>isolation {got.data.level}, minimum {got.data.minimum}: {got.data.ok ? "ready" : "not ready"}</span> : null}
      </div>
      <Loaded got={got} lines={8}>
        {(told) => (
          <Table
            label="checks"
            rows={[...told.checks].sort((a, b) => rank(a) - rank(b))}
            id={(row) => row.name}
            columns={[
              { title: "State", cell: (row) => <span class={`state ${TONES[row.status]}`}>{row.status}</span> },
              { title: "Check", whole: true, cell: (row) => row.name },
              { title: "Cause", wide: true, cell: (row) => <><AgentText text={row.cause} />{row.fix && row.status !== "ok" ? <p class="faint">fix: <AgentText text={row.fix} /></p> : null}</> },
            ]}
          />
        )}
      </Loaded>
    </section>
  );
}

const rank = (check: Check) => ["fail", "warn", "ok"].indexOf(check.status);

function Models() {
  const got = useGet<{ providers: Provider[]; aliases: Record<string, string>; waiting: Waiting[]; lanes: Lane[] }>("/models", { every: 15_000 });
  return (
    <section class="card">
      <h2>Model queue</h2>
      <Loaded got={got} lines={5}>
        {(told) => (
          <>
            {told.waiting.length ? (
              <Table
                label="calls that wait"
                rows={told.waiting}
                id={(row) => `${row.agent} ${row.position}`}
                columns={[
                  { title: "Agent", cell: (row) => <AgentText text={row.agent} /> },
                  { title: "Model", cell: (row) => <AgentText text={row.model} /> },
                  { title: "Waited", align: "right", cell: (row) => age(row.waited_ms / 1000) },
                  { title: "Because of", wide: true, cell: (row) => <AgentText text={row.reason} /> },
                ]}
              />
            ) : (
              <p class="faint">No model call waits.</p>
            )}
            {told.lanes.length ? (
              <Table
                label="limits"
                rows={told.lanes}
                id={(row) => `${row.key} ${row.model}`}
                columns={[
                  { title: "Model", cell: (row) => <AgentText text={row.model} /> },
                  { title: "At once", align: "right", cell: (row) => `${count(row.in_flight)} of ${count(row.slots)}` },
                  { title: "Limits that are known", wide: true, cell: (row) => <Limits limits={row.limits} /> },
                ]}
              />
            ) : null}
            <Table
              label="providers"
              rows={told.providers}
              id={(row) => row.name}
              columns={[
                { title: "Provider", cell: (row) => <AgentText text={row.name} /> },
                { title: "Key", whole: true, cell: (row) => (row.missing.length ? <span class="state held">no key</span> : row.keys.length ? "has its key" : "needs none") },
                { title: "Limits a minute, given", wide: true, cell: (row) => Object.entries(row.limits).map(([name, number]) => `${count(number)} ${name.replace("_", " ")}`).join(", ") || "–" },
              ]}
            />
          </>
        )}
      </Loaded>
    </section>
  );
}

function Limits({ limits }: { limits: Record<string, Limit> }) {
  const known = Object.entries(limits);
  if (!known.length) return <span class="faint">none yet</span>;
  return (
    <>
      {known.map(([kind, one]) => (
        <p key={kind}>
          {kind.replaceAll("_", " ")}: {count(Math.floor(one.level))} of {count(Math.round(one.capacity))} left, {count(Math.round(60 * one.rate))} a minute, {one.told ? "told" : "learned"}
        </p>
      ))}
    </>
  );
}

function Goals() {
  const got = useGet<List<Goal>>("/goals", { query: { all: true, limit: 200 }, every: 15_000 });
  return (
    <section class="card">
      <h2>Goals</h2>
      <Loaded got={got} lines={5}>
        {(list) =>
          list.items.length ? (
            <Table
              label="goals"
              rows={[...list.items].reverse()}
              id={(row) => row.id}
              columns={[
                { title: "Id", whole: true, cell: (row) => row.id },
                { title: "State", cell: (row) => row.part === "ended" ? String(row.state ?? "ended") : row.part },
                { title: "Agent", cell: (row) => <AgentText text={row.agent ? short(row.agent) : "–"} /> },
                { title: "Goal", wide: true, cell: (row) => <AgentText text={String(row.goal ?? row.text ?? "").slice(0, 200)} /> },
                { title: "Urgency", spare: true, cell: (row) => <AgentText text={row.priority ?? ""} /> },
              ]}
            />
          ) : (
            <Empty command="agentctl submit 'Summarise the notes'">The scheduler has no goal.</Empty>
          )
        }
      </Loaded>
    </section>
  );
}

function Metrics() {
  const got = useGet<{ counters: Sample[]; gauges: Sample[]; histograms: Sample[] }>("/metrics", { every: 30_000 });
  return (
    <section class="card">
      <h2>Metrics</h2>
      <Loaded got={got} lines={6}>
        {(told) => {
          const rows = [...told.gauges, ...told.counters, ...told.histograms];
          return (
            <Table
              label="metrics"
              rows={rows}
              id={(row) => row.name + JSON.stringify(row.labels)}
              columns={[
                { title: "What", whole: true, cell: (row) => row.name.replaceAll("_", " ") },
                { title: "Of", wide: true, cell: (row) => <AgentText text={Object.values(row.labels ?? {}).join(", ")} /> },
                { title: "Value", align: "right", cell: (row) => value(row) },
              ]}
            />
          );
        }}
      </Loaded>
    </section>
  );
}

function value(row: Sample): string {
  if (row.count !== undefined) return row.count ? `${count(row.count)}, ${((1000 * (row.sum ?? 0)) / row.count).toFixed(2)} ms each` : "0";
  if (row.name.includes("usd")) return money(row.value ?? 0);
  return row.name.includes("bytes") ? size(row.value) : count(row.value ?? 0);
}
