// What was spent, by agent or model, and what is left of each cap: settled, reserved, free.
import "../styles/cost.css";
import { useMemo, useRef, useState, useEffect } from "preact/hooks";
import { put } from "../api";
import { areas, below, burnt, running, stacked, stairs, stepFor, ticks, type CostAnswer, type Key, type Stacked, type Step } from "../costs";
import { Act, Modal, tell } from "../parts/act";
import { Loaded, useGet } from "../parts/get";
import { Bar } from "../parts/marks";
import { Empty } from "../parts/states";
import { Table } from "../parts/table";
import { AgentText, clock, count, harmless, money, size } from "../parts/text";
import { keep, route } from "../router";
import { mayAct, snapshot } from "../store";
import type { Account, List, Use } from "../types";

const SPANS: [string, string, number][] = [
  ["1h", "last hour", 3600],
  ["24h", "last day", 86_400],
  ["7d", "last week", 7 * 86_400],
  ["all", "all", 0],
];
const RESOURCES = ["cost", "tokens", "bytes", "count", "calls", "messages", "model_calls"];
const HEIGHT = 220;
const LEFT = 64;

export function amount(resource: string, value: number): string {
  if (resource === "cost") return money(value / 1e6);
  return resource === "bytes" ? size(value) : count(value);
}

export function CostPage() {
  return (
    <div class="cost">
      <header class="page-head"><h1>Cost</h1></header>
      <Spent />
      <Caps />
    </div>
  );
}

/** The chosen span: since when, and in steps of what. */
function chosen(): { since: number; step: Step } {
  const { span = "24h" } = route.value.query;
  const seconds = SPANS.find(([id]) => id === span)?.[2] ?? 86_400;
  // The beginning moves by whole minutes, so that the same question is asked for a while.
  const now = Math.floor(Date.now() / 60_000) * 60_000;
  return { since: seconds ? (now - seconds * 1000) * 1e6 : 0, step: stepFor(seconds || (snapshot.value?.status.seconds ?? 0)) };
}

function Spent() {
  const { by = "agent", span = "24h", of = "cost", view = "sum" } = route.value.query;
  const key: Key = by === "model" ? "model" : "agent";
  const { since, step } = chosen();
  const got = useGet<CostAnswer>("/costs", { query: { by: [key, step], since_ns: since }, on: ["cost"], every: 60_000 });
  return (
    <section class="card">
      <div class="card-head">
        <h2>Spent</h2>
        <div class="buttons">
          <Choice label="by" value={key} options={[["agent", "by agent"], ["model", "by model"]]} set={(word) => keep({ by: word })} />
          <Choice label="of" value={of} options={RESOURCES.map((one) => [one, one === "cost" ? "dollars" : one.replace("_", " ")])} set={(word) => keep({ of: word })} />
          <Choice label="since" value={span} options={SPANS.map(([id, text]) => [id, text])} set={(word) => keep({ span: word })} />
          <Choice label="as" value={view} options={[["sum", "in all"], ["rate", `each ${step}`]]} set={(word) => keep({ view: word })} />
        </div>
      </div>
      <Loaded got={got} lines={8}>
        {(answer) => <Picture answer={answer} by={key} step={step} resource={of} sum={view !== "rate"} />}
      </Loaded>
    </section>
  );
}

function Choice({ label, value, options, set }: { label: string; value: string; options: [string, string][]; set: (word: string) => void }) {
  return (
    <select aria-label={label} value={value} onChange={(event) => set(event.currentTarget.value)}>
      {options.map(([id, text]) => <option key={id} value={id}>{text}</option>)}
    </select>
  );
}

function Picture({ answer, by, step, resource, sum }: { answer: CostAnswer; by: Key; step: "minute" | "hour" | "day"; resource: string; sum: boolean }) {
  const stack = useMemo(() => stacked(answer.rows, by, step, resource), [answer, by, step, resource]);
  if (!stack.series.length) {
    return <Empty command="agentctl cost --by agent,day">Nothing was spent in this time.</Empty>;
  }
  const total = stack.series.reduce((all, line) => all + line.total, 0);
  return (
    <div class="cost-picture">
      <Area stack={sum ? running(stack) : stack} resource={resource} label={`${resource} by ${by}, ${sum ? "added up over time" : `each ${step}`}; the same numbers are in the table`} />
      <Table
        label={`${resource} by ${by}`}
        rows={stack.series}
        id={(line) => line.name}
        columns={[
          {
            title: by === "agent" ? "Agent" : "Model",
            wide: true,
            cell: (line) => <><span class={`swatch s${stack.series.indexOf(line)}`} aria-hidden="true" /><AgentText text={line.name} /></>,
          },
          { title: "Spent", align: "right", cell: (line) => amount(resource, line.total) },
          { title: "Share", align: "right", cell: (line) => `${Math.round((100 * line.total) / total)} %` },
        ]}
      />
      <p class="faint cost-total">In all {amount(resource, total)}</p>
    </div>
  );
}

function useWidth(): [{ current: HTMLDivElement | null }, number] {
  const box = useRef<HTMLDivElement>(null);
  const [width, set] = useState(600);
  useEffect(() => {
    if (!box.current) return;
    const sizes = new ResizeObserver(([entry]) => entry && set(Math.max(160, Math.floor(entry.contentRect.width))));
    sizes.observe(box.current);
    return () => sizes.disconnect();
  }, []);
  return [box, width];
}

function Area({ stack, resource, label }: { stack: Stacked; resource: string; label: string }) {
  const [box, width] = useWidth();
  const room = width - LEFT - 8;
  const drawn = areas(stack, room, HEIGHT);
  const marks = ticks(stack.most);
  const first = stack.moments[0]!;
  const last = stack.moments.at(-1)!;
  return (
    <div class="area" ref={box}>
      <svg width={width} height={HEIGHT + 34} role="img" aria-label={harmless(label)}>
        <g transform={`translate(${LEFT} 8)`}>
          {marks.map((value) => {
            const y = HEIGHT - (stack.most ? (value / stack.most) * HEIGHT : 0);
            return (
              <g key={value}>
                <path class="grid" d={`M0 ${y}H${room}`} />
                <text x={-8} y={y + 4} text-anchor="end">{amount(resource, value)}</text>
              </g>
            );
          })}
          {drawn.map((one, at) => (
            <path key={one.name} class={`part s${at}`} d={one.path}><title>{harmless(one.name)}</title></path>
          ))}
          <text x={0} y={HEIGHT + 20}>{clock(first)}</text>
          {last > first ? <text x={room} y={HEIGHT + 20} text-anchor="end">{clock(last)}</text> : null}
        </g>
      </svg>
    </div>
  );
}

interface Cap {
  account: string;
  parent: string | null;
  use: Use;
}

/** What is settled of each cap, what is reserved by calls under way, what is free. */
function Caps() {
  const got = useGet<List<Account>>("/budgets", { query: { limit: 500 }, on: ["cost", "agent.state"], every: 60_000 });
  const [open, setOpen] = useState<Cap>();
  return (
    <section class="card">
      <h2>Caps</h2>
      <Loaded got={got} lines={4}>
        {(list) => {
          const rows = list.items.flatMap((one) => one.uses.filter((use) => use.limit !== null).map((use): Cap => ({ account: one.account, parent: one.parent, use })));
          if (!rows.length) return <Empty command="agentctl budget set NAME cost=0.50usd">Nobody has a cap.</Empty>;
          rows.sort((a, b) => share(b.use) - share(a.use));
          return (
            <>
            <BurnDown caps={rows} accounts={list.items} />
            <Table
              label="caps"
              rows={rows}
              id={(row) => `${row.account} ${row.use.resource}`}
              onOpen={setOpen}
              columns={[
                { title: "Account", cell: (row) => <AgentText text={row.account} /> },
                { title: "Of", cell: (row) => row.use.resource.replace("_", " ") },
                { title: "Burnt down", wide: true, cell: (row) => <Burn use={row.use} /> },
                { title: "Settled", align: "right", cell: (row) => amount(row.use.resource, row.use.spent) },
                { title: "Reserved", align: "right", cell: (row) => (row.use.held ? amount(row.use.resource, row.use.held) : "–") },
                { title: "Left", align: "right", cell: (row) => amount(row.use.resource, Math.max(0, (row.use.limit ?? 0) - row.use.spent - row.use.held)) },
                { title: "Cap", align: "right", cell: (row) => amount(row.use.resource, row.use.limit ?? 0) },
              ]}
            />
            </>
          );
        }}
      </Loaded>
      {open ? <Change cap={open} close={() => setOpen(undefined)} again={got.reload} /> : null}
    </section>
  );
}

const CURVES = 6; // the caps that are nearest to their end
const LEAST = 0.01; // of a cap; less would be a straight line
const CURVE_WIDTH = 300;
const CURVE_HEIGHT = 90;

/** What was left of each cap over the chosen time. The top of a picture is the cap as it is now, the bottom nothing left. */
function BurnDown({ caps, accounts }: { caps: Cap[]; accounts: Account[] }) {
  const { since, step } = chosen();
  const used = caps.filter((cap) => cap.use.spent > 0 && share(cap.use) >= LEAST);
  const got = useGet<CostAnswer>(used.length ? "/costs" : null, { query: { by: ["agent", step], since_ns: since }, on: ["cost"], every: 60_000 });
  if (!got.data) return null;
  const until = Date.now();
  const curves = used
    .map((cap) => ({ cap, points: burnt(got.data!.rows, step, cap.use.resource, below(cap.account, accounts), Math.max(0, cap.use.limit! - cap.use.spent)) }))
    .filter(({ points }) => points.length > 0)
    .slice(0, CURVES);
  return (
    <div class="burn-down">
      {curves.map(({ cap, points }) => {
        const { account, use } = cap;
        const path = stairs(points, use.limit ?? 0, until, CURVE_WIDTH, CURVE_HEIGHT);
        const left = amount(use.resource, Math.max(0, use.limit! - use.spent));
        const reserved = use.limit ? (CURVE_HEIGHT * Math.min(use.limit, use.held)) / use.limit : 0;
        const end = CURVE_HEIGHT - (CURVE_HEIGHT * Math.max(0, use.limit! - use.spent)) / use.limit!;
        return (
          <figure key={`${account} ${use.resource}`} class={share(use) >= 0.9 ? "bad" : ""}>
            <figcaption><strong><AgentText text={account} /></strong> <span class="faint">{use.resource.replace("_", " ")}, {left} of {amount(use.resource, use.limit!)} left</span></figcaption>
            <svg viewBox={`0 0 ${CURVE_WIDTH} ${CURVE_HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={harmless(`${account}: ${use.resource} burnt down to ${left} of ${amount(use.resource, use.limit!)}; the table below has the numbers`)}>
              <path class="left" d={`${path}V${CURVE_HEIGHT}H0Z`} />
              {reserved ? <rect class="held-part" x={CURVE_WIDTH - 12} width={12} y={end} height={reserved} /> : null}
              <path class="line" d={path} />
            </svg>
            <p class="faint burn-axis"><span>{clock(points[0]!.at)}</span><span>now</span></p>
          </figure>
        );
      })}
    </div>
  );
}

const share = (use: Use) => (use.limit ? (use.spent + use.held) / use.limit : 1);

function Burn({ use }: { use: Use }) {
  const percent = 100 * share(use);
  const used = percent > 0 && percent < 1 ? "under 1" : String(Math.round(percent));
  return (
    <span class="burn">
      <Bar spent={use.spent} held={use.held} limit={use.limit} label={`${used} percent of the cap is used or reserved`} />
      <span class="number faint">{used} %</span>
    </span>
  );
}

function Change({ cap, close, again }: { cap: Cap; close: () => void; again: () => void }) {
  const { account, use } = cap;
  const money = use.resource === "cost";
  const [value, set] = useState(String(money ? (use.limit ?? 0) / 1e6 : use.limit));
  const number = Number(value);
  const bad = value.trim() === "" || Number.isNaN(number) || number < 0;
  return (
    <Modal label={`The cap of ${account}`} class="confirm" onClose={close}>
      <h2>The cap of <AgentText text={account} /></h2>
      <div class="confirm-text">
        <p>{amount(use.resource, use.spent)} settled, {amount(use.resource, use.held)} reserved.</p>
        <label class="field">
          May spend in all, {money ? "dollars" : use.resource.replace("_", " ")}
          <input type="number" min={0} step={money ? "0.01" : 1} value={value} disabled={!mayAct.value} onInput={(event) => set(event.currentTarget.value)} />
        </label>
      </div>
      <div class="buttons">
        <button type="button" onClick={close}>Cancel</button>
        <Act
          label="Set the cap"
          primary
          disabled={bad}
          deed={async () => {
            await put(`/budgets/${encodeURIComponent(account)}`, { limits: { [use.resource]: Math.round(money ? number * 1e6 : number) } });
            tell(`${account} may spend ${amount(use.resource, Math.round(money ? number * 1e6 : number))}`);
          }}
          done={() => {
            again();
            close();
          }}
        />
      </div>
    </Modal>
  );
}
