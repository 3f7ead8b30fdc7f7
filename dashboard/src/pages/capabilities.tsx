// Who may do what, and who gave it: every capability was derived from one other, so they are a forest. A step shows what
// it narrowed; to revoke one takes its whole subtree, which is shown before.
import "../styles/capabilities.css";
import { useMemo, useRef, useState } from "preact/hooks";
import { asProblem, post, remove } from "../api";
import { example, fitting, forest, parts, uses, type CapabilityRow, type Placed, type Standing } from "../capabilities";
import { useKeys } from "../keys";
import { Act, Drawer, tell } from "../parts/act";
import { useAll } from "../parts/all";
import { Loaded, useGet } from "../parts/get";
import { Empty } from "../parts/states";
import { Table, useSeen } from "../parts/table";
import { AgentText, age, count } from "../parts/text";
import { full } from "../members";
import { href, keep, route } from "../router";
import { mayAct } from "../store";

const ROW = 40;
const MANY = 60;

export function Capabilities() {
  const everything = route.value.query.all === "yes";
  const live = { on: ["agent.state", "approval.done"], every: 10_000 };
  const got = useAll<CapabilityRow[]>(["/capabilities"], ([rows]) => rows as CapabilityRow[], live);
  const stands = useGet<{ standing: Standing[] }>("/capabilities", { ...live, query: { limit: 1 } });
  const reload = () => {
    got.reload();
    stands.reload();
  };
  return (
    <div class="capabilities">
      <header class="page-head">
        <h1>Capabilities</h1>
        <label class="check">
          <input type="checkbox" checked={everything} onChange={(event) => keep({ all: event.currentTarget.checked ? "yes" : "" })} />
          also what every agent holds without asking
        </label>
        <input
          data-search
          type="search"
          placeholder="Agent or capability …"
          aria-label="search"
          value={route.value.query.q ?? ""}
          onInput={(event) => keep({ q: event.currentTarget.value })}
        />
      </header>
      <Loaded got={got} lines={10}>
        {(rows) => <Forest held={rows} stands={stands.data?.standing ?? []} everything={everything} reload={reload} />}
      </Loaded>
    </div>
  );
}

interface ForestProps {
  held: CapabilityRow[];
  stands: Standing[];
  everything: boolean;
  reload: () => void;
}

function Forest({ held, stands, everything, reload }: ForestProps) {
  const words = route.value.query.q ?? "";
  const rows = useMemo(() => held.filter((row) => everything || row.origin !== "start"), [held, everything]);
  const placed = useMemo(() => forest(rows), [rows]);
  const shown = useMemo(() => fitting(placed, words), [placed, words]);
  const chosen = placed.find((one) => one.row.handle === route.value.query.c);
  const standing = stands.filter((one) => !words || `${one.agent} ${one.capability}`.toLowerCase().includes(words.toLowerCase()));
  return (
    <>
      <section class="card">
        <div class="card-head">
          <h2>Delegation</h2>
          <span class="faint">{count(shown.length)} of {count(placed.length)}, held by {count(new Set(rows.map((row) => row.agent)).size)} agents</span>
        </div>
        {shown.length ? (
          <Tree shown={shown} chosen={chosen?.row.handle} />
        ) : words ? (
          <Empty>No capability fits these words.</Empty>
        ) : (
          <Empty command="agentctl cap grant NAME 'http:api.example.com:get' --ttl 10m">Nobody holds more than every agent does.</Empty>
        )}
      </section>
      {standing.length ? <Stands rows={standing} reload={reload} /> : null}
      {chosen ? <Detail one={chosen} all={placed} reload={reload} /> : null}
    </>
  );
}

function Tree({ shown, chosen }: { shown: Placed[]; chosen?: string }) {
  const box = useRef<HTMLDivElement>(null);
  const many = shown.length > MANY;
  const [from, to] = useSeen(box, shown.length, ROW, many);
  useKeys({ Enter: () => (document.activeElement as HTMLElement | null)?.click() });
  return (
    <div class={many ? "forest many" : "forest"} ref={box}>
      <ul role="tree" aria-label="delegation forest" style={{ paddingTop: `${from * ROW}px`, paddingBottom: `${(shown.length - to) * ROW}px` }}>
        {shown.slice(from, to).map((one) => (
          <li
            key={one.row.handle}
            role="treeitem"
            aria-level={one.depth + 1}
            aria-selected={one.row.handle === chosen}
            data-row
            data-handle={one.row.handle}
            tabIndex={0}
            class={one.row.handle === chosen ? "cap-step chosen" : "cap-step"}
            onClick={() => keep({ c: one.row.handle })}
          >
            <Lines last={one.last} />
            <span class="cap-step-body">
              <span class="cap-step-main">
                <span class="badge">{one.row.handle}</span> <strong><AgentText text={one.row.capability} /></strong>
              </span>
              <span class="cap-step-more faint">
                <AgentText text={`${one.row.from} → ${one.row.agent}`} />
                {one.narrowed.length ? <> · narrowed: <AgentText text={one.narrowed.join("; ")} /></> : one.depth ? " · handed on as it was" : null}
                {uses(one.row) ? ` · used ${uses(one.row)}` : null}
                {one.row.left_s !== null ? ` · ends in ${age(one.row.left_s)}` : null}
                {one.row.mounted ? " · mounted" : null}
              </span>
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

// The branches beside a row: a picture only, the level is told by aria-level.
function Lines({ last }: { last: boolean[] }) {
  if (!last.length) return null;
  const wide = last.length * 18;
  return (
    <svg class="branches" width={wide} height={ROW} viewBox={`0 0 ${wide} ${ROW}`} aria-hidden="true">
      {last.map((end, at) => {
        const x = at * 18 + 8.5;
        const own = at === last.length - 1;
        if (!own) return end ? null : <path key={at} d={`M${x} 0V${ROW}`} />;
        return <path key={at} d={`M${x} 0V${end ? ROW / 2 : ROW}M${x} ${ROW / 2}H${wide}`} />;
      })}
    </svg>
  );
}

function Detail({ one, all, reload }: { one: Placed; all: Placed[]; reload: () => void }) {
  const close = () => keep({ c: "" });
  const { row, chain, below } = one;
  const { kind, target, actions, constraints } = parts(row.canonical);
  const others = all.filter((other) => other.row.agent === row.agent && other.row.handle !== row.handle);
  return (
    <Drawer title={`${row.handle} of ${row.agent}`} onClose={close}>
      <dl class="facts">
        <div><dt>Capability</dt><dd><AgentText text={row.capability} /></dd></div>
        <div><dt>Kind</dt><dd>{kind}</dd></div>
        <div><dt>Target</dt><dd><AgentText text={target || "all"} /></dd></div>
        <div><dt>Actions</dt><dd>{actions.join(", ") || "–"}</dd></div>
        <div><dt>Bounds</dt><dd><AgentText text={Object.entries(constraints).map(([name, value]) => `${name} ${value}`).join(", ") || "none"} /></dd></div>
        <div><dt>Used</dt><dd>{uses(row) || "not yet"}</dd></div>
        <div><dt>Ends</dt><dd>{row.left_s === null ? "with its agent" : `in ${age(row.left_s)}`}</dd></div>
        <div><dt>Open</dt><dd>{row.open ? `${row.open} opened by it${row.mounted ? ", one of them a mount" : ""}` : "nothing"}</dd></div>
        <div><dt>Held by</dt><dd><a href={href("agent", [full(row.agent)])}><AgentText text={row.agent} /></a></dd></div>
      </dl>
      <section>
        <h3>From root to here</h3>
        <ol class="chain">
          {chain.map((step, at) => {
            const lost = all.find((other) => other.row.handle === step.handle)?.narrowed ?? [];
            return (
              <li key={step.handle}>
                <span class="badge">{step.handle}</span> <AgentText text={`${step.from} → ${step.agent}`} />
                <span class="faint"> {at === 0 ? <AgentText text={step.capability} /> : lost.length ? <AgentText text={lost.join("; ")} /> : "as it was"}</span>
              </li>
            );
          })}
        </ol>
      </section>
      <Reach row={row} all={all} />
      {others.length ? (
        <section>
          <h3>What else <AgentText text={row.agent} /> can reach</h3>
          <ul class="chain">
            {others.slice(0, 50).map((other) => (
              <li key={other.row.handle}><span class="badge">{other.row.handle}</span> <AgentText text={other.row.capability} /></li>
            ))}
          </ul>
        </section>
      ) : null}
      <section class="revoke">
        <h3>Take it back</h3>
        <p>{below.length ? `${below.length} derived from it go with it.` : "Nothing was derived from it."} What it opened is closed at once.</p>
        <Act
          label={`Revoke ${row.handle}`}
          danger
          deed={async () => {
            const told = await remove<{ revoked: string[]; closed: number; killed: string[] }>(`/capabilities/${row.handle}`);
            tell(`revoked ${told.revoked.join(" ")}${told.killed.length ? `; killed ${told.killed.join(", ")}` : ""}`);
          }}
          done={() => {
            reload();
            close();
          }}
          ask={{ title: `Revoke ${row.handle} of ${row.agent}?`, yes: `Revoke ${1 + below.length}`, text: <Subtree top={row} below={below} /> }}
        />
      </section>
    </Drawer>
  );
}

/** What goes with it, said before anybody says yes. */
function Subtree({ top, below }: { top: CapabilityRow; below: CapabilityRow[] }) {
  const going = [top, ...below];
  const mounted = [...new Set(going.filter((row) => row.mounted).map((row) => row.agent))];
  return (
    <>
      <p>This takes back {going.length === 1 ? "one capability" : `${going.length} capabilities`}, of {new Set(going.map((row) => row.agent)).size} agents:</p>
      <ul class="subtree">
        {going.map((row) => (
          <li key={row.handle}><span class="badge">{row.handle}</span> <AgentText text={`${row.agent}: ${row.capability}`} /></li>
        ))}
      </ul>
      {mounted.length ? <p class="warn">It is mounted: the process of <AgentText text={mounted.join(", ")} /> is killed.</p> : null}
    </>
  );
}

/** Who can do one thing: the gate is asked, agent by agent, of those that hold anything of the kind. */
function Reach({ row, all }: { row: CapabilityRow; all: Placed[] }) {
  const [what, set] = useState(example(row));
  const [found, show] = useState<{ agent: string; can: boolean; why: string }[]>();
  const [asking, setAsking] = useState(false);
  const kind = what.split(":")[0] ?? "";
  const agents = [...new Set(all.filter((one) => parts(one.row.canonical).kind === kind).map((one) => one.row.agent))].slice(0, 100);
  const ask = async (event: Event) => {
    event.preventDefault();
    setAsking(true);
    show(undefined);
    const told = [];
    for (const agent of agents) {
      try {
        const said = await post<{ verdict: string; reason?: string }>("/capabilities/check", { agent, capability: what });
        told.push({ agent, can: said.verdict === "allow", why: said.verdict });
      } catch (error) {
        const { code, reason } = asProblem(error);
        told.push({ agent, can: false, why: `${code} ${reason}` });
        if (code === "EINVAL") break; // the same for everybody
      }
    }
    show(told);
    setAsking(false);
  };
  return (
    <section>
      <h3>Who can reach it</h3>
      <form class="reach" onSubmit={(event) => void ask(event)}>
        <input aria-label="one act, as a capability without a star" value={what} onInput={(event) => set(event.currentTarget.value)} />
        <button type="submit" disabled={asking || !mayAct.value}>{asking ? "Asking …" : "Ask the gate"}</button>
      </form>
      {found ? (
        <ul class="chain" aria-label="who can">
          {found.map((one) => (
            <li key={one.agent}>
              <span class={`state ${one.can ? "ok" : one.why === "ask" ? "held" : "done"}`}>{one.can ? "yes" : one.why === "ask" ? "after a person's yes" : "no"}</span>{" "}
              <AgentText text={one.agent} />{one.can || one.why === "ask" || one.why === "refuse" ? null : <span class="faint"> <AgentText text={one.why} /></span>}
            </li>
          ))}
        </ul>
      ) : null}
    </section>
  );
}

function Stands({ rows, reload }: { rows: Standing[]; reload: () => void }) {
  return (
    <section class="card">
      <h2>Approvals that stand</h2>
      <Table
        label="approvals that stand"
        rows={rows}
        id={(row) => row.handle}
        columns={[
          { title: "Id", cell: (row) => row.handle },
          { title: "Agent", cell: (row) => <AgentText text={row.agent} /> },
          { title: "Capability", wide: true, cell: (row) => <AgentText text={row.capability} /> },
          { title: "For", cell: (row) => (row.scope === "session" ? "while it lives" : row.scope) },
          { title: "By", spare: true, cell: (row) => <AgentText text={row.by} /> },
          { title: "Age", spare: true, align: "right", cell: (row) => age(row.age_s) },
          { title: "Uses", align: "right", cell: (row) => count(row.uses) },
          {
            title: "",
            cell: (row) => (
              <Act
                label="Revoke"
                name={`revoke ${row.handle}`}
                danger
                deed={() => remove(`/capabilities/${row.handle}`)}
                done={reload}
                ask={{ title: `Revoke the approval ${row.handle}?`, yes: "Revoke", text: <p><AgentText text={`${row.agent} is asked about ${row.capability} again.`} /></p> }}
              />
            ),
          },
        ]}
      />
    </section>
  );
}
