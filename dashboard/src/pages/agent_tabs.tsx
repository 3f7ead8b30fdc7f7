// The tabs of an agent beside its timeline.
import { useState } from "preact/hooks";
import { deed, laneOf } from "../entries";
import { agentPath, short } from "../members";
import { Loaded, useGet } from "../parts/get";
import { Bar, Verdict } from "../parts/marks";
import { Empty } from "../parts/states";
import { Table } from "../parts/table";
import { AgentText, count, money, size, Time } from "../parts/text";
import { href, keep } from "../router";
import { snapshot } from "../store";
import type { AgentRow, Entry, List } from "../types";
import { EntryDrawer } from "./entry";
import { useEntries } from "./timeline";

interface Kept {
  path: string;
  size: number;
  version: number;
  writer: string;
  modified: number; // nanoseconds
}

const mine = (row: AgentRow) => (event: { agent: string | null }) => event.agent === row.id;

export function MemoryTab({ row }: { row: AgentRow }) {
  const got = useGet<List<Kept>>(`${agentPath(row.id)}/memory`, { query: { limit: 500 }, on: ["decision"], when: mine(row) });
  return (
    <section class="card" aria-label="memory">
      <div class="card-head"><h2>Memory</h2><a href={href("memory", [row.id])}>Browse, search and look back</a></div>
      <Loaded got={got}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty command={`agentctl memory ls ${row.name}`}>It keeps nothing below /mem.</Empty>
          ) : (
            <Table
              label="memory"
              rows={items}
              id={(one) => one.path}
              columns={[
                { title: "Path", wide: true, cell: (one) => <code><AgentText text={one.path} /></code> },
                { title: "Size", align: "right", cell: (one) => size(one.size) },
                { title: "Version", align: "right", spare: true, cell: (one) => one.version },
                { title: "Writer", spare: true, cell: (one) => <AgentText text={one.writer} /> },
                { title: "Changed", cell: (one) => <Time at={one.modified / 1e6} /> },
              ]}
            />
          )
        }
      </Loaded>
    </section>
  );
}

interface Held {
  handle: string;
  agent: string;
  capability: string;
  origin: string;
  from: string | null;
  left_s: number | null;
  used: Record<string, number>;
  limits: Record<string, number>;
}

export function CapabilitiesTab({ row }: { row: AgentRow }) {
  const got = useGet<List<Held>>("/capabilities", { query: { agent: short(row.id), limit: 500 }, on: ["decision", "agent.state"], when: mine(row) });
  return (
    <section class="card" aria-label="capabilities">
      <div class="card-head"><h2>Capabilities</h2><a href={href("capabilities", [], { agent: row.id })}>Where they come from</a></div>
      <Loaded got={got}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty command={`agentctl cap grant ${row.name} CAPABILITY`}>It holds none now.</Empty>
          ) : (
            <Table
              label="capabilities"
              rows={items}
              id={(one) => one.handle}
              columns={[
                { title: "Handle", cell: (one) => <code>{one.handle}</code> },
                { title: "Capability", wide: true, cell: (one) => <code><AgentText text={one.capability} /></code> },
                { title: "Origin", spare: true, cell: (one) => <AgentText text={[one.origin, one.from && one.from !== one.origin ? `from ${one.from}` : ""].filter(Boolean).join(" ")} /> },
                { title: "Used", align: "right", spare: true, cell: (one) => Object.values(one.used ?? {}).map(count).join(", ") || "–" },
                { title: "Ends", align: "right", cell: (one) => (one.left_s === null || one.left_s === undefined ? "–" : `${Math.round(one.left_s)} s`) },
              ]}
            />
          )
        }
      </Loaded>
    </section>
  );
}

export function MessagesTab({ row }: { row: AgentRow }) {
  const { got, entries } = useEntries(row.id);
  const [seq, open] = useState(0);
  const said = entries.filter((entry) => laneOf(entry) === "messages").reverse();
  return (
    <section class="card" aria-label="messages">
      <div class="card-head"><h2>Messages</h2><a href={href("bus")}>Topics, lanes and dead letters</a></div>
      <Loaded got={got}>
        {() =>
          said.length === 0 ? (
            <Empty command={`agentctl send ${row.name} '"hello"'`}>It sent and got none lately.</Empty>
          ) : (
            <Table
              label="messages, the newest first"
              rows={said}
              id={(entry) => entry.seq}
              onOpen={(entry: Entry) => open(entry.seq)}
              columns={[
                { title: "Time", cell: (entry) => <Time at={entry.time} /> },
                { title: "What", wide: true, cell: (entry) => <AgentText text={deed(entry)} /> },
                { title: "Decision", cell: (entry) => <Verdict verdict={entry.verdict} kind={entry.kind} /> },
                { title: "Audit", align: "right", spare: true, cell: (entry) => `#${entry.seq}` },
              ]}
            />
          )
        }
      </Loaded>
      {seq ? <EntryDrawer seq={seq} known={said.find((entry) => entry.seq === seq)} onClose={() => open(0)} /> : null}
    </section>
  );
}

function amount(resource: string, value: number): string {
  return resource === "cost" ? money(value / 1e6) : count(value);
}

export function CostTab({ row }: { row: AgentRow }) {
  const { got, entries } = useEntries(row.id);
  const account = snapshot.value?.budgets.find((one) => one.account === short(row.id) || one.account === row.id);
  const dear = entries.filter((entry) => entry.cost && Object.keys(entry.cost).length > 0).reverse();
  return (
    <>
      <section class="card" aria-label="budget">
        <div class="card-head"><h2>Budget</h2><a href={href("cost", [], { agent: row.id })}>Over time</a></div>
        {account?.uses.length ? (
          <Table
            label="budget"
            rows={account.uses}
            id={(use) => use.resource}
            columns={[
              { title: "Resource", cell: (use) => use.resource },
              { title: "Spent", align: "right", cell: (use) => amount(use.resource, use.spent) },
              { title: "Reserved", align: "right", spare: true, cell: (use) => amount(use.resource, use.held) },
              { title: "Limit", align: "right", cell: (use) => (use.limit === null ? "none" : amount(use.resource, use.limit)) },
              { title: "", wide: true, cell: (use) => <Bar spent={use.spent} held={use.held} limit={use.limit} label={`${use.resource}: ${use.spent} of ${use.limit} spent`} /> },
            ]}
          />
        ) : (
          <Empty command={`agentctl budget set ${row.name} --usd 1`}>It has no account of its own.</Empty>
        )}
      </section>
      <section class="card" aria-label="calls that cost something">
        <h2>Calls that cost something</h2>
        <Loaded got={got}>
          {() =>
            dear.length === 0 ? (
              <Empty>None lately.</Empty>
            ) : (
              <Table
                label="calls that cost something, the newest first"
                rows={dear}
                id={(entry) => entry.seq}
                onOpen={(entry) => keep({ tab: "", entry: String(entry.seq) })}
                columns={[
                  { title: "Time", cell: (entry) => <Time at={entry.time} /> },
                  { title: "What", wide: true, cell: (entry) => <AgentText text={deed(entry)} /> },
                  { title: "Cost", align: "right", cell: (entry) => Object.entries(entry.cost ?? {}).map(([name, value]) => `${amount(name, value)} ${name === "cost" ? "" : name}`).join(", ") },
                ]}
              />
            )
          }
        </Loaded>
      </section>
    </>
  );
}

const ENDED = new Set(["stopped", "completed", "failed", "quarantined"]);

interface Written {
  text: string;
  size: number;
}

export function LogsTab({ row }: { row: AgentRow }) {
  const got = useGet<Written>(`${agentPath(row.id)}/logs`, { query: { last: 400 }, every: ENDED.has(row.state) ? undefined : 3000 });
  return (
    <section class="card logs" aria-label="logs">
      <div class="card-head"><h2>Logs</h2><span class="faint">what it wrote, the last 400 lines</span></div>
      <Loaded got={got}>
        {({ text }) => (text ? <AgentText text={text} block /> : <Empty command={`agentctl logs -f ${row.name}`}>It wrote nothing yet.</Empty>)}
      </Loaded>
    </section>
  );
}
