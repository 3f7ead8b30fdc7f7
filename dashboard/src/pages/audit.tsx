// The signed record: a strip of its newest entries and heads, what each says, a check of all of it, and proofs to keep.
import "../styles/audit.css";
import { useState } from "preact/hooks";
import { get, post } from "../api";
import { Drawer, Earlier, tell, useAction, type Acting } from "../parts/act";
import { Loaded, useGet, type Got } from "../parts/get";
import { Verdict } from "../parts/marks";
import { ErrorBox, Empty } from "../parts/states";
import { Table } from "../parts/table";
import { AgentText, Ago, asText, count, harmless, Time } from "../parts/text";
import { keep, route } from "../router";
import { link } from "../store";
import type { Entry, List } from "../types";

const SHOWN = 500;

const HEADS = 200; // of one page

interface Head {
  size: number; // entries that it covers
  root: string;
  wall_ns: number;
  boot: number;
}

export function AuditPage() {
  const { agent = "", kind = "", q = "", seq = "", looks = "" } = route.value.query;
  const query = { agent, last: SHOWN, limit: SHOWN };
  const got = useGet<List<Entry>>("/audit", { query, every: 30_000, on: ["decision", "agent.state"] });
  const heads = useHeads();
  return (
    <div class="audit">
      <header class="page-head">
        <h1>Audit</h1>
        <input type="search" aria-label="agent" placeholder="Agent …" value={agent} onChange={(event) => keep({ agent: event.currentTarget.value.trim() })} />
        <input data-search type="search" aria-label="search" placeholder="Words …" value={q} onInput={(event) => keep({ q: event.currentTarget.value })} />
      </header>
      <Verify />
      <Loaded got={got} lines={10}>
        {(list) => {
          const rows = list.items.filter((row) => looks || !looked(row)).reverse();
          const kinds = [...new Set(rows.map((row) => row.kind))].sort();
          const words = q.toLowerCase();
          const fitting = rows.filter((row) => (!kind || row.kind === kind) && (!words || asText(row).toLowerCase().includes(words)));
          return (
            <>
              <Strip rows={list.items} heads={heads.rows} />
              <section class="card">
                <div class="card-head">
                  <h2>Entries</h2>
                  <span class="buttons">
                    <span class="faint">{count(fitting.length)} of the newest {count(rows.length)}</span>
                    <label class="check">
                      <input type="checkbox" checked={looks === "yes"} onChange={(event) => keep({ looks: event.currentTarget.checked ? "yes" : "" })} />
                      also where operators only looked
                    </label>
                    <select aria-label="kind" value={kind} onChange={(event) => keep({ kind: event.currentTarget.value })}>
                      <option value="">every kind</option>
                      {kinds.map((one) => <option key={one} value={one}>{one}</option>)}
                    </select>
                  </span>
                </div>
                {fitting.length ? <Entries rows={fitting} /> : <Empty command="agentctl audit tail">No entry fits.</Empty>}
              </section>
              <Heads heads={heads} />
            </>
          );
        }}
      </Loaded>
      {seq ? <One seq={seq} /> : null}
    </div>
  );
}

// This page itself is one who looks: its own questions would be most of what it shows.
const looked = (row: Entry) => row.kind === "result" && row.effect === "p" && (row.op ?? "").startsWith("OP_") && row.verdict === "allow";
const refused = (row: Entry) => row.verdict === "refuse" || row.verdict === "forbid";

interface Signed {
  got: Got<List<Head>>;
  rows: Head[]; // the newest first
  earlier: Acting | null;
}

/** The newest heads, and as many from before as were asked for. */
function useHeads(): Signed {
  const got = useGet<List<Head>>("/audit/heads", { query: { limit: HEADS }, every: 30_000, on: ["decision", "agent.state"] });
  const [older, add] = useState<{ items: Head[]; next: string | null }>();
  const next = older ? older.next : (got.data?.next ?? null);
  const back = useAction(async () => {
    const page = await get<List<Head>>("/audit/heads", { limit: HEADS, cursor: next });
    add((old) => ({ items: [...(old?.items ?? got.data?.items ?? []), ...page.items], next: page.next }));
  });
  const known = new Map([...(older?.items ?? []), ...(got.data?.items ?? [])].map((head) => [head.size, head]));
  return { got, rows: [...known.values()].sort((a, b) => b.size - a.size), earlier: next ? back : null };
}

/** One mark an entry, oldest at the left. Below, a tick for every head that was signed, and the bar of what they cover. */
function Strip({ rows, heads }: { rows: Entry[]; heads: Head[] }) {
  const first = rows[0]?.seq ?? 0;
  const last = rows.at(-1)?.seq ?? 0;
  const span = Math.max(1, last - first + 1);
  const newest = heads[0];
  const signed = newest ? Math.max(0, Math.min(span, newest.size - first + 1)) : 0;
  const here = heads.filter((head) => head.size >= first && head.size <= last);
  const label = `${rows.length} entries, ${first} to ${last}; ${rows.filter(refused).length} refused; ${newest ? `${here.length} heads, signed up to ${newest.size}` : "no head yet"}`;
  return (
    <section class="card">
      <div class="card-head">
        <h2>Strip</h2>
        <span class="faint">
          {newest ? <>head {count(newest.size)}, root <code>{harmless(newest.root.slice(0, 16))}…</code>, signed <Ago at={newest.wall_ns / 1e6} /></> : "not signed yet"}
        </span>
      </div>
      <svg class="strip" viewBox={`0 0 ${span} 30`} preserveAspectRatio="none" role="img" aria-label={label}>
        {rows.map((row) => (
          <rect key={row.seq} class={refused(row) ? "bad" : row.verdict === "ask" ? "held" : looked(row) ? "look" : "plain"} x={row.seq - first} width={0.8} y={refused(row) ? 0 : 7} height={refused(row) ? 19 : 12} />
        ))}
        <rect class="unsigned" width={span} height="4" y="26" />
        <rect class="signed" width={signed} height="4" y="26" />
        {here.map((head) => <rect key={head.size} class="head" x={Math.max(0, head.size - first + 1 - span / 400)} width={span / 400} y="20" height="10" />)}
      </svg>
      <p class="faint">#{count(first)} to #{count(last)} · a tall mark was refused, a pale one only looked · below, {count(here.length)} signed heads and what they cover</p>
    </section>
  );
}

function Heads({ heads }: { heads: Signed }) {
  return (
    <section class="card">
      <div class="card-head">
        <h2>Signed heads</h2>
        <span class="faint">{count(heads.rows.length)}{heads.earlier ? " of more" : ", all of them"}</span>
      </div>
      <Loaded got={heads.got} lines={4}>
        {() => (
          <Table
            label="signed heads"
            rows={heads.rows}
            id={(row) => row.size}
            columns={[
              { title: "Entries", align: "right", cell: (row) => count(row.size) },
              { title: "Signed", cell: (row) => <Time at={row.wall_ns / 1e6} /> },
              { title: "Root", wide: true, cell: (row) => <code>{harmless(row.root)}</code> },
              { title: "Boot", align: "right", spare: true, cell: (row) => count(row.boot) },
            ]}
          />
        )}
      </Loaded>
      {heads.earlier ? <Earlier acting={heads.earlier} /> : null}
    </section>
  );
}

function Entries({ rows }: { rows: Entry[] }) {
  return (
    <Table
      label="entries"
      rows={rows}
      id={(row) => row.seq}
      onOpen={(row) => keep({ seq: String(row.seq) })}
      columns={[
        { title: "#", align: "right", cell: (row) => count(row.seq) },
        { title: "When", cell: (row) => <Time at={row.time} /> },
        { title: "Who", cell: (row) => <AgentText text={row.agent.replace(/^default\//, "")} /> },
        { title: "Kind", cell: (row) => row.kind },
        { title: "Call", wide: true, cell: (row) => row.op ?? "" },
        { title: "Verdict", cell: (row) => (row.verdict ? <Verdict verdict={row.verdict} /> : null) },
        { title: "Rule", spare: true, cell: (row) => <AgentText text={row.rule ?? ""} /> },
      ]}
    />
  );
}

function One({ seq }: { seq: string }) {
  const got = useGet<Entry>(`/audit/${encodeURIComponent(seq)}`);
  const proof = useAction(async () => {
    const told = await get<{ size: number }>("/audit/proofs", { seq });
    save(`proof-${seq}.json`, told);
    tell(`the proof of entry ${seq} in the log of ${told.size} was saved`);
  });
  return (
    <Drawer title={`Entry ${seq}`} onClose={() => keep({ seq: "" })}>
      <Loaded got={got}>
        {(entry) => (
          <>
            <dl class="facts">
              {Object.entries(entry).filter(([name]) => name !== "body").map(([name, value]) => (
                <div key={name}><dt>{name}</dt><dd><AgentText text={asText(value)} /></dd></div>
              ))}
            </dl>
            {entry.body !== undefined ? (
              <section class="agent-wrote">
                <span class="agent-wrote-mark">what was asked and answered</span>
                <AgentText text={asText(entry.body)} block />
              </section>
            ) : null}
          </>
        )}
      </Loaded>
      <div class="buttons">
        <button type="button" disabled={proof.pending || link.value !== "live"} onClick={() => void proof.run()}>{proof.pending ? "Proving …" : "Export the proof"}</button>
      </div>
      {proof.problem ? <ErrorBox problem={proof.problem} retry={() => void proof.run()} /> : null}
    </Drawer>
  );
}

function save(name: string, value: unknown): void {
  const address = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: "application/json" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

interface Report {
  ok: boolean;
  first_bad: number | null;
  entries: number;
  heads: number;
  signed: number;
  findings: { seq: number; what: string }[];
  gaps: { seq: number; what: string }[];
}

interface Operation {
  id: string;
  state: "running" | "done" | "failed";
  result?: Report;
  error?: { code?: string; reason?: string; hint?: string };
}

const LOOK_MS = 500;

function Verify() {
  const [result, show] = useState<{ report: Report; ms: number; at: number }>();
  const acting = useAction(async () => {
    const began = performance.now();
    show(undefined);
    let told = await post<Report | Operation>("/audit/verify");
    while ("state" in told) {
      if (told.state === "failed") throw new Error(told.error?.reason ?? "the check did not come to its end");
      if (told.state === "done" && told.result) {
        told = told.result;
        break;
      }
      await new Promise((done) => setTimeout(done, LOOK_MS));
      told = await get<Operation>(`/operations/${told.id}`);
    }
    show({ report: told as Report, ms: performance.now() - began, at: Date.now() });
  });
  const report = result?.report;
  return (
    <section class="card">
      <div class="card-head">
        <h2>Integrity</h2>
        <button type="button" class="primary" disabled={acting.pending || link.value !== "live"} aria-busy={acting.pending} onClick={() => void acting.run()}>
          {acting.pending ? "Verifying …" : "Verify"}
        </button>
      </div>
      {acting.problem ? <ErrorBox problem={acting.problem} retry={() => void acting.run()} /> : null}
      {report && result ? (
        <div role="status">
          <p>
            <span class={`state ${report.ok ? "ok" : "bad"}`}>{report.ok ? "integrity OK" : `integrity FAILED, first bad entry ${report.first_bad}`}</span>{" "}
            {count(report.entries)} entries hashed again, {count(report.heads)} heads, {count(report.signed)} entries signed, in {(result.ms / 1000).toFixed(1)} s, <Time at={result.at} />
          </p>
          {[...report.findings, ...report.gaps].slice(0, 10).map((one) => <p key={one.seq}>#{one.seq} <AgentText text={one.what} /></p>)}
        </div>
      ) : acting.pending ? null : (
        <p class="faint">Every entry is hashed again and compared with every signed head. Against whoever holds this machine only a head kept elsewhere helps: <code>agentctl audit head</code></p>
      )}
    </section>
  );
}
