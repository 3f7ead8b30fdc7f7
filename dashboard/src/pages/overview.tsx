// Everybody at one moment: the supervision tree, what is spent, refused and asked, and the red button.
import { computed, signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { finished } from "../api";
import { deed, fault, refused } from "../entries";
import { lately } from "../lately";
import { inTree, now, ROOT, short, type Placed } from "../members";
import { Act, tell } from "../parts/act";
import { AgentMark, Bar, Isolation, StateWord, tone, Verdict } from "../parts/marks";
import { Empty } from "../parts/states";
import { useSeen } from "../parts/table";
import { age, AgentText, Ago, count, harmless, money, size } from "../parts/text";
import { go, href } from "../router";
import { agents, approvals, snapshot, soon } from "../store";
import type { AgentRow, Use } from "../types";

const words = signal("");
const withEnded = signal(false);
const folded = signal<ReadonlySet<string>>(new Set());

function shown(row: AgentRow): boolean {
  if (!row.declared) return !["completed", "failed"].includes(row.state) || Boolean(row.quarantined);
  return !["stopped", "completed"].includes(row.state) || (row.activation === "on_schedule" && Boolean(row.wanted));
}

const rows = computed(() => {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = (row: AgentRow) => {
    const text = `${row.id}\n${row.role}\n${row.state}\n${row.level ?? ""}\n${now(row)}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  };
  return agents.value.filter((row) => row.id === ROOT || ((withEnded.value || shown(row)) && holds(row)));
});
const placed = computed(() => inTree(rows.value, folded.value));

export function Overview() {
  const told = snapshot.value;
  const everybody = agents.value.filter((row) => row.id !== ROOT);
  const paused = everybody.filter((row) => row.state === "paused").length;
  const running = everybody.filter((row) => ["running", "starting"].includes(row.state)).length;
  if (!told) return null;
  return (
    <div class="overview">
      <div class="page-head">
        <h1>Overview</h1>
        {paused ? <Act label="Resume all" deed={() => toAll("SIGCONT", "resumed")} /> : null}
        <Act label="Pause all" danger pendingLabel="Pausing …" disabled={running === 0} deed={() => toAll("SIGSTOP", "paused")} name="Pause all agents" />
      </div>
      <Tiles everybody={everybody} />
      <div class="columns">
        <section class="card tree-card" aria-label="supervision tree">
          <div class="card-head">
            <h2>Supervision tree</h2>
            <div class="buttons">
              <label class="check"><input type="checkbox" checked={withEnded} onChange={(event) => (withEnded.value = event.currentTarget.checked)} /> ended</label>
              <input type="search" data-search aria-label="find agents" placeholder="Find  /" value={words} onInput={(event) => (words.value = event.currentTarget.value)} />
            </div>
          </div>
          <Tree />
        </section>
        <Lately />
      </div>
    </div>
  );
}

async function toAll(signal: string, word: string): Promise<void> {
  const told = await finished<{ done: unknown[]; failed: { name: string; problem: { reason?: string } }[] }>("/signals", { signal });
  const failed = told.failed.map((one) => `${one.name}: ${one.problem.reason ?? "failed"}`);
  tell([`${told.done.length} ${word}`, ...failed.slice(0, 3)].join("; "));
}

function Tiles({ everybody }: { everybody: AgentRow[] }) {
  const told = snapshot.value;
  if (!told) return null;
  const counts = new Map<string, number>();
  for (const row of everybody) if (shown(row)) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
  const states = [...counts].sort((a, b) => b[1] - a[1]);
  const total = states.reduce((sum, [, number]) => sum + number, 0);
  const waiting = approvals.value.length;
  const journal = told.status.journal;
  return (
    <div class="tiles">
      <Tile title="Agents" value={count(total)}>
        {states.slice(0, 4).map(([state, number]) => <span key={state} class={`state ${tone(state)}`}>{number} {state}</span>)}
      </Tile>
      <Spend />
      <Violations />
      <Tile title="Approvals waiting" value={count(waiting)} bad={waiting > 0} to="approvals">
        {waiting ? "waits for you" : "nobody waits"}
      </Tile>
      <Tile title="Audit" value={journal === "ok" ? "ok" : journal} bad={journal !== "ok"} to="audit">
        {count(told.status.entries)} records
      </Tile>
    </div>
  );
}

function Tile({ title, value, bad, to, children }: { title: string; value: ComponentChildren; bad?: boolean; to?: string; children?: ComponentChildren }) {
  return (
    <section class={bad ? "card tile bad" : "card tile"} aria-label={title}>
      <h2 class="tile-title">{to ? <a href={href(to)}>{title}</a> : title}</h2>
      <p class="big">{value}</p>
      <p class="faint tile-foot">{children}</p>
    </section>
  );
}

function Spend() {
  const accounts = snapshot.value?.budgets ?? [];
  const top = accounts.find((one) => one.parent === null);
  const use = (name: string): Use | undefined => top?.uses.find((one) => one.resource === name);
  const cost = use("cost");
  const spent = (cost?.spent ?? 0) / 1e6;
  const cap = cost?.limit === null || cost?.limit === undefined ? null : cost.limit / 1e6;
  return (
    <Tile title="Spend" value={cap === null ? money(spent) : `${money(spent)} of ${money(cap)}`} to="cost" bad={cap !== null && spent >= 0.9 * cap}>
      {cap !== null ? <Bar spent={spent} held={(cost?.held ?? 0) / 1e6} limit={cap} label={`${money(spent)} of ${money(cap)} spent`} /> : "no cap ·"}
      {" "}{count(use("tokens")?.spent ?? 0)} tokens
    </Tile>
  );
}

const HOUR_S = 3600;
const LOOK_MS = 60_000;
const SELDOM = 5; // looks of which one is made while there is nothing to count

/** The kernel counts by minutes; what the stream told since that count comes on top. */
function Violations() {
  const told = snapshot.value;
  useEffect(() => {
    let turn = 0;
    const timer = setInterval(() => {
      turn += 1;
      if (!document.hidden && (snapshot.value?.status.refused_hour || turn % SELDOM === 0)) soon();
    }, LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  if (!told) return null;
  const { refused_hour: counted, entries, seconds } = told.status;
  const number = counted + lately.value.filter((entry) => refused(entry) && entry.seq > entries).length;
  const span = seconds >= HOUR_S ? "in the last hour" : `in ${age(seconds)}, since the kernel began`;
  return (
    <Tile title="Violations an hour" value={count(number)} bad={number > 0} to="audit">
      {number ? "refused" : "nothing refused"} {span}
    </Tile>
  );
}

const ROW = 34;
const MANY = 60;

function Tree() {
  const list = placed.value;
  const box = useRef<HTMLUListElement>(null);
  const many = list.length > MANY;
  const [from, to] = useSeen(box, list.length, ROW, many);
  const seen = list.slice(from, to);
  if (list.length <= 1) {
    return words.value ? <Empty>None of {agents.value.length - 1} is like that.</Empty> : <Empty command="agentctl run -- python my_agent.py">No agent yet. Run any command as one:</Empty>;
  }
  return (
    <>
      <div class="tree-row tree-titles" aria-hidden="true">
        <span>Name</span><span>State</span><span class="spare">Iso</span><span class="spare right">Age</span><span class="spare right">Memory</span><span class="spare">Now</span>
      </div>
      <ul class={many ? "tree many" : "tree"} role="tree" aria-label="agents" ref={box}>
        {from > 0 ? <li role="none" style={{ height: `${from * ROW}px` }} /> : null}
        {seen.map((one, index) => <Node key={one.row.id} one={one} at={from + index + 1} total={list.length} />)}
        {to < list.length ? <li role="none" style={{ height: `${(list.length - to) * ROW}px` }} /> : null}
      </ul>
    </>
  );
}

function Node({ one, at, total }: { one: Placed; at: number; total: number }) {
  const { row, depth, children } = one;
  const shut = folded.value.has(row.id);
  const open = () => row.id !== ROOT && go("agent", [row.id]);
  const fold = (shut: boolean) => {
    const next = new Set(folded.value);
    if (shut) next.add(row.id);
    else next.delete(row.id);
    folded.value = next;
  };
  const press = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter") open();
    else if (event.key === "ArrowLeft" && children) fold(true);
    else if (event.key === "ArrowRight" && children) fold(false);
    else if (step) ((step > 0 ? (event.currentTarget as HTMLElement).nextElementSibling : (event.currentTarget as HTMLElement).previousElementSibling) as HTMLElement | null)?.focus();
    else return;
    event.preventDefault();
  };
  const title = now(row);
  return (
    <li
      role="treeitem"
      class="tree-row"
      data-row
      data-agent={row.id}
      data-state={row.state}
      tabIndex={at === 1 ? 0 : -1}
      aria-level={depth + 1}
      aria-setsize={total}
      aria-posinset={at}
      aria-expanded={children ? !shut : undefined}
      onKeyDown={press}
      onClick={open}
    >
      <span class="tree-name" style={{ paddingLeft: `${depth * 20}px` }}>
        {children ? (
          <span class="fold" aria-hidden="true" onClick={(event) => (event.stopPropagation(), fold(!shut))}>{shut ? "▸" : "▾"}</span>
        ) : (
          <span class="fold" aria-hidden="true" />
        )}
        <AgentMark role={row.role} state={row.state} />
        <span class="cut"><AgentText text={row.name} /></span>
        {shut ? <span class="faint">+{one.below}</span> : null}
      </span>
      <span><StateWord state={row.state} /></span>
      <span class="spare"><Isolation level={row.level ?? row.isolation} /></span>
      <span class="spare right number">{row.age === undefined ? "–" : age(row.age)}</span>
      <span class="spare right number">{size(row.memory)}</span>
      <span class="spare cut faint" title={harmless(title)}><AgentText text={title} /></span>
    </li>
  );
}

function Lately() {
  const entries = lately.value
    .filter((entry) => entry.agent.includes("/"))
    .slice(-12)
    .reverse();
  return (
    <section class="card lately" aria-label="lately">
      <h2>Lately</h2>
      {entries.length === 0 ? <Empty>Refusals, questions, signals and failures show here as they happen.</Empty> : null}
      <ol>
        {entries.map((entry) => (
          <li key={entry.seq}>
            <a href={href("agent", [entry.agent], { entry: String(entry.seq) })}>
              <span class="lately-head"><Verdict verdict={entry.verdict} kind={entry.kind} /> <strong><AgentText text={short(entry.agent)} /></strong> <span class="faint"><Ago at={entry.time} /></span></span>
              <span class="cut"><AgentText text={deed(entry)} /></span>
              {fault(entry) ? <span class="cut faint"><AgentText text={fault(entry)} /></span> : null}
            </a>
          </li>
        ))}
      </ol>
    </section>
  );
}
