// One agent: its state and signals, and what is known of it, tab by tab.
import { finished } from "../api";
import { agentPath, descendants, now, OVER, short } from "../members";
import { Act, tell } from "../parts/act";
import { AgentMark, Isolation, StateWord } from "../parts/marks";
import { Empty } from "../parts/states";
import { Tabs } from "../parts/tabs";
import { age, AgentText, size } from "../parts/text";
import { href, keep, route } from "../router";
import { agents, byId } from "../store";
import type { AgentRow } from "../types";
import { CapabilitiesTab, CostTab, LogsTab, MemoryTab, MessagesTab } from "./agent_tabs";
import { Timeline } from "./timeline";

const TABS = [
  { id: "timeline", title: "Timeline", view: Timeline },
  { id: "memory", title: "Memory", view: MemoryTab },
  { id: "capabilities", title: "Capabilities", view: CapabilitiesTab },
  { id: "messages", title: "Messages", view: MessagesTab },
  { id: "cost", title: "Cost", view: CostTab },
  { id: "logs", title: "Logs", view: LogsTab },
];

export function AgentPage() {
  const id = route.value.args.join("/");
  const row = byId.value.get(id) ?? byId.value.get(`default/${id}`);
  if (!row) {
    return (
      <>
        <h1>{id ? <AgentText text={short(id)} /> : "No agent"}</h1>
        <Empty command="agentctl ps --all">{id ? "There is no such agent now." : "None is chosen."} <a href={href("overview")}>The overview</a> has all of them.</Empty>
      </>
    );
  }
  const tab = TABS.find((one) => one.id === route.value.query.tab) ?? TABS[0]!;
  const View = tab.view;
  return (
    <div class="agent">
      <Head row={row} />
      <Tabs label="about this agent" tabs={TABS} chosen={tab.id} onChoose={(one) => keep({ tab: one === "timeline" ? "" : one })}>
        <View key={row.id} row={row} />
      </Tabs>
    </div>
  );
}

function Head({ row }: { row: AgentRow }) {
  const parent = row.parent ? byId.value.get(row.parent) : undefined;
  const said = now(row);
  return (
    <header class="card agent-head">
      <div class="page-head">
        <AgentMark role={row.role} state={row.state} />
        <h1><AgentText text={row.name} /></h1>
        <Signals row={row} />
      </div>
      <dl class="agent-facts">
        <div><dt>state</dt><dd><StateWord state={row.state} /></dd></div>
        <div><dt>role</dt><dd>{row.role}</dd></div>
        <div><dt>isolation</dt><dd><Isolation level={row.level ?? row.isolation} /></dd></div>
        <div><dt>supervisor</dt><dd>{parent && parent.parent !== null ? <a href={href("agent", [parent.id])}><AgentText text={parent.name} /></a> : "root"}</dd></div>
        {row.age === undefined ? null : <div><dt>age</dt><dd>{age(row.age)}</dd></div>}
        {row.memory === undefined ? null : <div><dt>memory</dt><dd>{size(row.memory)}</dd></div>}
        {row.pid ? <div><dt>pid</dt><dd class="number">{row.pid}</dd></div> : null}
        {row.incarnation ? <div><dt>life</dt><dd class="number">{row.incarnation}</dd></div> : null}
        {row.max_restarts ? <div><dt>restarts</dt><dd class="number">{Math.min(row.consecutive ?? 0, row.max_restarts)}/{row.max_restarts}</dd></div> : null}
        {row.health ? <div><dt>health</dt><dd><AgentText text={row.health} /></dd></div> : null}
        {said ? <div><dt>now</dt><dd><AgentText text={said} /></dd></div> : null}
      </dl>
    </header>
  );
}

interface Signalled {
  done: { name: string; processes?: number }[];
  failed: { name: string; problem: { reason?: string } }[];
}

function Signals({ row }: { row: AgentRow }) {
  const below = descendants(agents.value, row.id).filter((one) => !OVER.has(one.state));
  const alive = !OVER.has(row.state);
  const paused = row.state === "paused";
  const send = async (signal: string, word: string, tree = false) => {
    const told = await finished<Signalled>(`${agentPath(row.id)}/signals`, { signal, tree });
    const failed = told.failed.map((one) => `${one.name}: ${one.problem.reason ?? "failed"}`);
    tell([`${row.name}${tree && told.done.length > 1 ? ` and ${told.done.length - 1} more` : ""} ${word}`, ...failed].join("; "));
  };
  const many = below.length === 1 ? "1 descendant" : `${below.length} descendants`;
  return (
    <div class="buttons signals">
      {paused ? (
        <Act key="resume" label="Resume" pendingLabel="Resuming …" deed={() => send("SIGCONT", "resumed")} />
      ) : (
        <Act key="pause" label="Pause" pendingLabel="Pausing …" disabled={!alive} deed={() => send("SIGSTOP", "paused")} />
      )}
      <Act label="Interrupt" disabled={!alive || paused} deed={() => send("SIGINT", "interrupted")} />
      <Act label="Terminate" pendingLabel="Terminating …" disabled={!alive} deed={() => send("SIGTERM", "terminated")} />
      <Act
        label="Kill"
        danger
        pendingLabel="Killing …"
        disabled={!alive}
        ask={{
          title: `Kill ${row.name}?`,
          yes: below.length ? `Kill ${below.length + 1} agents` : "Kill it",
          text: (
            <p>
              <AgentText text={row.name} /> {below.length ? `and its ${many}` : "has no descendants; it"} will be ended at once, with every process they started. What was not
              recorded is lost.
            </p>
          ),
        }}
        deed={() => send("SIGKILL", "killed", true)}
      />
    </div>
  );
}
