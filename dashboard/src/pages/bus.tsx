// Messages: who has something waiting, in which lane, who hears which topic, and what could not be delivered and why.
import "../styles/bus.css";
import { useState } from "preact/hooks";
import { post, remove } from "../api";
import { Act, Drawer, tell } from "../parts/act";
import { useAll } from "../parts/all";
import { Loaded, useGet } from "../parts/get";
import { Empty } from "../parts/states";
import { Table } from "../parts/table";
import { AgentText, Ago, asText, count, size, Time } from "../parts/text";
import { full } from "../members";
import { href, keep, route } from "../router";
import type { List } from "../types";

type Lane = "high" | "normal" | "low";
const LANES: Lane[] = ["high", "normal", "low"];

interface Mailbox {
  agent: string;
  waiting: number;
  in_hand: number;
  bytes: number;
  oldest_ns: number | null;
  lanes: Record<Lane, number>;
}

interface Subscription {
  sub: string;
  topic: string;
  group: string;
  agents: string[];
  waiting: number;
  bytes: number;
}

interface Letter {
  id: string;
  message: string;
  to: string;
  receiver: string;
  from: string;
  tries: number;
  reason: string;
  detail: string;
  at_ns: number;
  payload: unknown;
}

interface Boxes extends List<Mailbox> {
  requests: { id?: string; from?: string; to?: string; [key: string]: unknown }[];
  dead: Record<string, number>;
}

const LIVE = { on: ["message"], every: 30_000, query: { limit: 500 } };
const ms = (ns: number) => ns / 1e6;

export function BusPage() {
  const boxes = useGet<Boxes>("/messages", LIVE);
  const topics = useGet<List<Subscription> & { reliable: string[] }>("/topics", LIVE);
  const letters = useAll<Letter[]>(["/dead-letters"], ([rows]) => rows as Letter[], { on: ["message"], every: 30_000 });
  const again = () => {
    boxes.reload();
    letters.reload();
  };
  return (
    <div class="bus">
      <header class="page-head">
        <h1>Bus</h1>
        <input
          data-search
          type="search"
          placeholder="Agent, topic or reason …"
          aria-label="search"
          value={route.value.query.q ?? ""}
          onInput={(event) => keep({ q: event.currentTarget.value })}
        />
      </header>
      <Loaded got={boxes} lines={2}>{(data) => <Depth boxes={data} />}</Loaded>
      <section class="card">
        <h2>Dead letters</h2>
        <Loaded got={letters} lines={3}>{(rows) => <Dead rows={rows} again={again} />}</Loaded>
      </section>
      <div class="columns even">
        <section class="card">
          <h2>Mailboxes</h2>
          <Loaded got={boxes} lines={3}>{(data) => <Mailboxes rows={data.items} />}</Loaded>
        </section>
        <section class="card">
          <h2>Topics</h2>
          <Loaded got={topics} lines={3}>{(data) => <Topics rows={data.items} reliable={data.reliable} />}</Loaded>
        </section>
      </div>
      <Loaded got={boxes} lines={1}>{(data) => (data.requests.length ? <Requests rows={data.requests} /> : null)}</Loaded>
    </div>
  );
}

const fits = (words: string[], wanted: string) => !wanted || words.join(" ").toLowerCase().includes(wanted.toLowerCase());

/** All lanes together, as a picture with its numbers. */
function Depth({ boxes }: { boxes: Boxes }) {
  const sums = LANES.map((lane) => boxes.items.reduce((sum, one) => sum + (one.lanes?.[lane] ?? 0), 0));
  const most = Math.max(1, ...sums);
  const dead = Object.values(boxes.dead).reduce((sum, one) => sum + one, 0);
  const hand = boxes.items.reduce((sum, one) => sum + one.in_hand, 0);
  return (
    <section class="card">
      <div class="card-head">
        <h2>Depth by lane</h2>
        <span class="faint">{count(hand)} in hand · {count(dead)} dead</span>
      </div>
      <dl class="bus-lanes">
        {LANES.map((lane, at) => (
          <div key={lane}>
            <dt>{lane}</dt>
            <dd>
              <svg class={`bus-lane ${lane}`} viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={`${sums[at]} wait in the lane ${lane}`}>
                <rect class="all" width="100" height="10" />
                <rect class="part" width={(100 * sums[at]!) / most} height="10" />
              </svg>
            </dd>
            <dd class="number">{count(sums[at]!)}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function Mailboxes({ rows }: { rows: Mailbox[] }) {
  const found = rows.filter((row) => fits([row.agent], route.value.query.q ?? ""));
  if (!found.length) return <Empty command="agentctl send NAME 'hello'">No message waits for anybody.</Empty>;
  return (
    <Table
      label="mailboxes"
      rows={found}
      id={(row) => row.agent}
      columns={[
        { title: "Agent", wide: true, cell: (row) => <a href={href("agent", [full(row.agent)])}><AgentText text={row.agent} /></a> },
        ...LANES.map((lane) => ({ title: lane, align: "right" as const, cell: (row: Mailbox) => count(row.lanes?.[lane] ?? 0) })),
        { title: "In hand", align: "right", cell: (row) => count(row.in_hand) },
        { title: "Bytes", align: "right", spare: true, cell: (row) => size(row.bytes) },
        { title: "Oldest", spare: true, whole: true, cell: (row) => (row.oldest_ns === null ? "–" : <Ago at={ms(row.oldest_ns)} />) },
      ]}
    />
  );
}

function Topics({ rows, reliable }: { rows: Subscription[]; reliable: string[] }) {
  const found = rows.filter((row) => fits([row.topic, ...row.agents], route.value.query.q ?? ""));
  return (
    <>
      {found.length ? (
        <Table
          label="topics"
          rows={found}
          id={(row) => row.sub}
          columns={[
            { title: "Topic", wide: true, cell: (row) => <AgentText text={row.topic} /> },
            { title: "Group", spare: true, cell: (row) => <AgentText text={row.group || "–"} /> },
            { title: "Heard by", cell: (row) => <AgentText text={row.agents.join(", ")} /> },
            { title: "Behind", align: "right", cell: (row) => count(row.waiting) },
            { title: "Bytes", align: "right", spare: true, cell: (row) => size(row.bytes) },
          ]}
        />
      ) : (
        <Empty command="agentctl bus sub 'news.>'">Nobody has subscribed to a topic.</Empty>
      )}
      {reliable.length ? <p class="faint">These lose nothing, and refuse publishers while somebody is too far behind: <AgentText text={reliable.join(", ")} /></p> : null}
    </>
  );
}

function Requests({ rows }: { rows: Boxes["requests"] }) {
  return (
    <section class="card">
      <h2>Open requests</h2>
      <ul class="requests">
        {rows.map((row, index) => (
          <li key={index}><AgentText text={Object.entries(row).map(([name, value]) => `${name} ${asText(value)}`).join("   ")} /></li>
        ))}
      </ul>
    </section>
  );
}

function Dead({ rows, again }: { rows: Letter[]; again: () => void }) {
  const [open, setOpen] = useState<string>();
  const found = rows.filter((row) => fits([row.receiver, row.to, row.from, row.reason, row.detail], route.value.query.q ?? ""));
  const chosen = found.find((row) => row.id === open);
  if (!found.length) return <Empty command="agentctl bus dead">{rows.length ? "No dead letter fits these words." : "Everything was delivered: there is no dead letter."}</Empty>;
  return (
    <>
      <Table
        label="dead letters"
        rows={found}
        id={(row) => row.id}
        onOpen={(row) => setOpen(row.id)}
        columns={[
          { title: "Id", cell: (row) => row.id },
          { title: "For", cell: (row) => <AgentText text={row.receiver} /> },
          { title: "From", spare: true, cell: (row) => <AgentText text={row.from} /> },
          { title: "Reason", wide: true, cell: (row) => <span class="one-line"><strong>{row.reason}</strong> <AgentText text={row.detail} /></span> },
          { title: "Tries", align: "right", spare: true, cell: (row) => count(row.tries) },
          { title: "When", cell: (row) => <Ago at={ms(row.at_ns)} /> },
        ]}
      />
      {chosen ? <LetterDrawer row={chosen} close={() => setOpen(undefined)} again={again} /> : null}
    </>
  );
}

function LetterDrawer({ row, close, again }: { row: Letter; close: () => void; again: () => void }) {
  const done = () => {
    again();
    close();
  };
  return (
    <Drawer title={`Dead letter ${row.id}`} onClose={close}>
      <dl class="facts">
        <div><dt>For</dt><dd><AgentText text={row.receiver} /></dd></div>
        {row.to !== row.receiver ? <div><dt>Topic</dt><dd><AgentText text={row.to} /></dd></div> : null}
        <div><dt>From</dt><dd><AgentText text={row.from} /></dd></div>
        <div><dt>Reason</dt><dd>{row.reason}</dd></div>
        <div><dt>Tries</dt><dd>{count(row.tries)}</dd></div>
        <div><dt>When</dt><dd><Time at={ms(row.at_ns)} /></dd></div>
        <div><dt>Message</dt><dd><AgentText text={row.message} /></dd></div>
      </dl>
      {row.detail ? (
        <section class="agent-wrote">
          <span class="agent-wrote-mark">the agent wrote</span>
          <h3>Why it was not taken</h3>
          <AgentText text={row.detail} block />
        </section>
      ) : null}
      <section class="agent-wrote">
        <span class="agent-wrote-mark">the sender wrote</span>
        <h3>What it says</h3>
        <AgentText text={asText(row.payload)} block />
      </section>
      <div class="buttons">
        <Act
          label="Redeliver"
          primary
          deed={async () => {
            const said = await post<{ id: string }>(`/dead-letters/${encodeURIComponent(row.id)}/redeliver`);
            tell(`${row.id} sent again as ${said.id}`);
          }}
          done={done}
        />
        <Act
          label="Drop"
          danger
          deed={async () => {
            await remove(`/dead-letters/${encodeURIComponent(row.id)}`);
            tell(`${row.id} dropped`);
          }}
          done={done}
          ask={{ title: `Drop ${row.id}?`, yes: "Drop it", text: <p>It will not be delivered any more. The record keeps that it was.</p> }}
        />
      </div>
    </Drawer>
  );
}
