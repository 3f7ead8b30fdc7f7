// What an agent keeps: a tree, the values, how each came to be, and all of it as it was at any moment of the record.
import "../styles/memory.css";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { post } from "../api";
import { tree, type ChangeRow, type EntryRow, type Leaf } from "../memory";
import { short } from "../members";
import { useAction } from "../parts/act";
import { useAll } from "../parts/all";
import { memoryPath } from "../parts/approval";
import { Diff } from "../parts/diff";
import { Loaded, useGet } from "../parts/get";
import { ErrorBox, Empty } from "../parts/states";
import { Table, useSeen } from "../parts/table";
import { AgentText, Ago, asText, count, size, Time } from "../parts/text";
import { keep, route } from "../router";
import { agents, snapshot } from "../store";

const ROW = 30;
const MANY = 80;
const ms = (ns: number) => ns / 1e6;

export function MemoryPage() {
  const names = agents.value.filter((row) => row.id !== "system/root").map((row) => row.name);
  const agent = route.value.query.agent ?? names[0] ?? "";
  return (
    <div class="memory">
      <header class="page-head">
        <h1>Memory</h1>
        {names.length ? (
          <select aria-label="agent" value={agent} onChange={(event) => keep({ agent: event.currentTarget.value, path: "", at: "", find: "" })}>
            {[...new Set([...names, agent])].map((name) => <option key={name} value={name}>{name}</option>)}
          </select>
        ) : null}
      </header>
      {agent ? <Kept key={agent} agent={agent} /> : <Empty command="agentctl run my_agent.py:digest">There is no agent, so nobody remembers anything.</Empty>}
    </div>
  );
}

function Kept({ agent }: { agent: string }) {
  const { at = "", path = "", find = "" } = route.value.query;
  const got = useAll<EntryRow[]>([`/agents/${encodeURIComponent(agent)}/memory`], ([rows]) => rows as EntryRow[], { query: { as_of: at }, on: at ? undefined : ["decision"], when: (event) => short(event.agent ?? "") === agent, every: at ? undefined : 15_000 });
  return (
    <>
      <AsOf at={at} />
      <Search agent={agent} find={find} />
      <div class="columns memory-columns">
        <section class="card">
          <div class="card-head">
            <h2>Tree</h2>
            <span class="faint">{got.data ? `${count(got.data.length)} ${got.data.length === 1 ? "entry" : "entries"}` : ""}</span>
          </div>
          <Loaded got={got} lines={6}>
            {(rows) =>
              rows.length ? (
                <Tree rows={rows} chosen={path} />
              ) : (
                <Empty command={`agentctl memory ls ${agent}`}>{at ? `At entry ${at} it kept nothing.` : "This agent keeps nothing yet."}</Empty>
              )
            }
          </Loaded>
        </section>
        <section class="card">{path ? <Entry key={path} agent={agent} path={path} at={at} /> : <Empty>Choose an entry of the tree.</Empty>}</section>
      </div>
    </>
  );
}

/** The slider: a moment is an entry of the journal, which is what the kernel can answer for. */
function AsOf({ at }: { at: string }) {
  const newest = snapshot.value?.status.entries ?? 1;
  const [value, set] = useState(at ? Number(at) : newest);
  useEffect(() => {
    if (!at) set(newest);
  }, [at, newest]);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const move = (number: number) => {
    set(number);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => keep({ at: String(number) }), 150);
  };
  return (
    <section class="card as-of">
      <label>
        <span>As of entry</span>
        <input type="range" min={1} max={newest} value={value} aria-valuetext={at ? `entry ${value}` : "now"} onInput={(event) => move(Number(event.currentTarget.value))} />
      </label>
      <span class="number">{at ? `#${count(value)} of ${count(newest)}` : "now"}</span>
      <button type="button" disabled={!at} onClick={() => keep({ at: "" })}>Now</button>
      {at ? <a href={`#/audit?seq=${value}`}>the entry</a> : null}
    </section>
  );
}

interface Hit extends EntryRow {
  hits: number;
  excerpt: string;
}

function Search({ agent, find }: { agent: string; find: string }) {
  const [words, set] = useState(find);
  const [found, show] = useState<{ found: Hit[]; more: boolean }>();
  const acting = useAction(async () => show(await post(`/agents/${encodeURIComponent(agent)}/memory/search`, { query: words })));
  const submit = (event: Event) => {
    event.preventDefault();
    keep({ find: words });
    if (words.trim()) void acting.run();
    else show(undefined);
  };
  return (
    <section class="card">
      <form class="reach" role="search" onSubmit={submit}>
        <input data-search type="search" aria-label="words in paths and values" placeholder="Words in paths and values …" value={words} onInput={(event) => set(event.currentTarget.value)} />
        <button type="submit" disabled={acting.pending}>{acting.pending ? "Searching …" : "Search"}</button>
      </form>
      {acting.problem ? <ErrorBox problem={acting.problem} retry={() => void acting.run()} /> : null}
      {found && !acting.problem ? (
        found.found.length ? (
          <Table
            label="found"
            rows={found.found}
            id={(row) => row.path}
            onOpen={(row) => keep({ path: row.path })}
            columns={[
              { title: "Path", cell: (row) => <AgentText text={row.path} /> },
              { title: "Where", wide: true, cell: (row) => <AgentText text={row.excerpt} /> },
            ]}
          />
        ) : (
          <p class="faint">Nothing that it keeps has all of these words.</p>
        )
      ) : null}
    </section>
  );
}

function Tree({ rows, chosen }: { rows: EntryRow[]; chosen: string }) {
  const [folded, fold] = useState<ReadonlySet<string>>(new Set());
  const leaves = useMemo(() => tree(rows, folded), [rows, folded]);
  const box = useRef<HTMLDivElement>(null);
  const many = leaves.length > MANY;
  const [from, to] = useSeen(box, leaves.length, ROW, many);
  const toggle = (path: string) => fold((old) => new Set(old.has(path) ? [...old].filter((one) => one !== path) : [...old, path]));
  const open = (leaf: Leaf) => (leaf.entry ? keep({ path: leaf.path }) : toggle(leaf.path));
  return (
    <div class={many ? "forest many" : "forest"} ref={box}>
      <ul role="tree" aria-label="entries" style={{ paddingTop: `${from * ROW}px`, paddingBottom: `${(leaves.length - to) * ROW}px` }}>
        {leaves.slice(from, to).map((leaf) => (
          <li
            key={leaf.path + (leaf.entry ? "" : "/")}
            role="treeitem"
            aria-level={leaf.depth + 1}
            aria-expanded={leaf.entry ? undefined : !folded.has(leaf.path)}
            aria-selected={leaf.path === chosen}
            data-row
            tabIndex={0}
            class={leaf.path === chosen ? "leaf chosen" : "leaf"}
            style={{ paddingLeft: `${8 + leaf.depth * 16}px` }}
            onClick={() => open(leaf)}
            onKeyDown={(event) => event.key === "Enter" && open(leaf)}
          >
            <span aria-hidden="true">{leaf.entry ? "·" : folded.has(leaf.path) ? "▸" : "▾"}</span>
            <span class="leaf-name"><AgentText text={leaf.name} /></span>
            <span class="faint">{leaf.entry ? size(leaf.entry.size) : count(leaf.inside)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

function shownText(data: unknown): { text: string; whole: boolean } {
  if (data !== null && typeof data === "object") {
    const facts = data as { base64?: string; size?: number; sha256?: string };
    if (typeof facts.base64 === "string") return { text: facts.base64, whole: false };
  }
  return { text: asText(data), whole: typeof data === "string" };
}

function Entry({ agent, path, at }: { agent: string; path: string; at: string }) {
  const { version = "" } = route.value.query;
  const place = memoryPath(agent, path);
  const got = useGet<EntryRow>(place, { query: version ? { version } : { as_of: at } });
  const past = useGet<{ changes: ChangeRow[] }>(place, { query: { history: true, limit: 100 }, every: 15_000 });
  return (
    <>
      <div class="card-head"><h2><AgentText text={path} /></h2>{version ? <button type="button" onClick={() => keep({ version: "" })}>Newest</button> : null}</div>
      <Loaded got={got} lines={5}>
        {(entry) => {
          const { text, whole } = shownText(entry.data);
          return (
            <>
              <dl class="facts">
                <div><dt>Version</dt><dd>{entry.version}{version || at ? " (not the newest, maybe)" : ""}</dd></div>
                <div><dt>Written by</dt><dd><AgentText text={entry.writer || "–"} />, <Time at={ms(entry.modified)} /></dd></div>
                <div><dt>Size</dt><dd>{size(entry.size)}</dd></div>
                {entry.labels?.length ? <div><dt>Label</dt><dd><AgentText text={entry.labels.join(", ")} /></dd></div> : null}
              </dl>
              <div class="agent-wrote">
                <span class="agent-wrote-mark">the agent wrote</span>
                {whole ? null : <p class="faint">This is no text; here in base64.</p>}
                <AgentText text={text} block />
              </div>
            </>
          );
        }}
      </Loaded>
      <h3>History</h3>
      <Loaded got={past} lines={3}>
        {(told) => <History place={place} changes={told.changes} version={version} />}
      </Loaded>
    </>
  );
}

function History({ place, changes, version }: { place: string; changes: ChangeRow[]; version: string }) {
  const at = changes.findIndex((one) => String(one.version) === version);
  const before = at >= 0 ? changes.slice(at + 1).find((one) => !one.gone) : undefined;
  return (
    <>
      <Table
        label="history"
        rows={changes}
        id={(row) => row.seq}
        chosen={changes[at]?.seq}
        onOpen={(row) => keep({ version: row.gone ? version : String(row.version) })}
        columns={[
          { title: "Version", cell: (row) => row.version },
          { title: "Change", cell: (row) => <>{row.change}{row.gone ? <span class="faint"> (content gone)</span> : null}</> },
          { title: "By", cell: (row) => <AgentText text={row.writer} /> },
          { title: "Size", align: "right", cell: (row) => size(row.size) },
          { title: "Entry", align: "right", spare: true, cell: (row) => `#${count(row.seq)}` },
          { title: "When", cell: (row) => <Ago at={ms(row.at_ns)} /> },
        ]}
      />
      {before ? <Since place={place} before={before.version} after={Number(version)} /> : null}
    </>
  );
}

function Since({ place, before, after }: { place: string; before: number; after: number }) {
  const old = useGet<EntryRow>(place, { query: { version: before } });
  const now = useGet<EntryRow>(place, { query: { version: after } });
  if (typeof old.data?.data !== "string" || typeof now.data?.data !== "string") return null;
  return (
    <div class="change">
      <h3>From version {before} to {after}</h3>
      <Diff before={old.data.data} after={now.data.data} label={`what changed from version ${before} to ${after}`} />
    </div>
  );
}
