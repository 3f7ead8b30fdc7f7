// What an agent did, in time: one lane each for model, tools, policy, messages and state. The table below says the same.
import { useEffect, useState } from "preact/hooks";
import { all } from "../api";
import { deed, fault, laneOf, LANES, refused, type Lane } from "../entries";
import { short } from "../members";
import { Earlier, useAction } from "../parts/act";
import { Loaded, useGet } from "../parts/get";
import { Verdict } from "../parts/marks";
import { Empty } from "../parts/states";
import { Table } from "../parts/table";
import { AgentText, clock, Time } from "../parts/text";
import { keep, route } from "../router";
import { entryOf, listen } from "../store";
import type { AgentRow, Entry, List } from "../types";
import { EntryDrawer } from "./entry";

const SHOWN = 300;
const KINDS_LEFT_OUT = new Set(["accept"]); // a call that has begun is told by its end

/** The newest entries of one agent, those that come, and as many from before as were asked for. */
export function useEntries(id: string) {
  const got = useGet<List<Entry>>("/audit", { query: { agent: short(id), last: SHOWN, limit: SHOWN } });
  const [more, add] = useState<Entry[]>([]);
  const [older, setOlder] = useState<Entry[]>([]);
  useEffect(() => {
    add([]);
    setOlder([]);
    return listen((events) => {
      const mine = events.filter((event) => event.agent === id).map(entryOf);
      const fresh = mine.filter((entry): entry is Entry => entry !== null);
      if (fresh.length) add((old) => old.concat(fresh).slice(-SHOWN));
    });
  }, [id]);
  const known = new Map<number, Entry>();
  for (const entry of [...older, ...(got.data?.items ?? []), ...more]) known.set(entry.seq, entry);
  const sorted = [...known.values()].sort((a, b) => a.seq - b.seq);
  const first = sorted[0];
  const back = useAction(async () => {
    const page = await all<Entry>("/audit", { agent: short(id), to: (first?.seq ?? 1) - 1, last: SHOWN }, SHOWN);
    setOlder((old) => [...page, ...old]);
  });
  const entries = sorted.filter((entry) => !KINDS_LEFT_OUT.has(entry.kind)).slice(-(SHOWN + older.length));
  return { got, entries, earlier: Number(first?.aseq ?? 1) > 1 ? back : null };
}

export function Timeline({ row }: { row: AgentRow }) {
  const { got, entries, earlier } = useEntries(row.id);
  const [lane, choose] = useState<Lane | "">("");
  const seq = Number(route.value.query.entry ?? 0);
  const open = (entry: Entry) => keep({ entry: String(entry.seq) });
  const spans = spansOf(entries);
  const listed = spans.filter((span) => !lane || span.lane === lane).map((span) => span.entry).reverse();
  return (
    <>
    {seq ? <EntryDrawer seq={seq} known={entries.find((entry) => entry.seq === seq)} onClose={() => keep({ entry: "" })} /> : null}
    <Loaded got={got} lines={8}>
      {() => (
        <div class="timeline">
          {entries.length === 0 ? <Empty command={`agentctl events --agent ${row.name}`}>Nothing is recorded of it yet.</Empty> : <Lanes spans={spans} onOpen={open} chosen={seq} />}
          {entries.length ? (
            <section class="card" aria-label="what it did">
              <div class="card-head">
                <h2>What it did</h2>
                <div class="buttons" role="group" aria-label="lanes">
                  {(["", ...LANES] as const).map((one) => (
                    <button key={one} type="button" class="plain chip" aria-pressed={lane === one} onClick={() => choose(one)}>{one || "all"}</button>
                  ))}
                </div>
              </div>
              {listed.length === 0 ? <Empty>Nothing in this lane.</Empty> : null}
              {listed.length ? (
                <Table
                  label="entries of the journal, the newest first"
                  rows={listed}
                  id={(entry) => entry.seq}
                  onOpen={open}
                  chosen={seq}
                  columns={[
                    { title: "Time", cell: (entry) => <Time at={entry.time} /> },
                    { title: "Lane", spare: true, cell: (entry) => <span class="lane-word"><i class={`lane-dot ${laneOf(entry)}`} aria-hidden="true" />{laneOf(entry)}</span> },
                    { title: "What", wide: true, cell: (entry) => <><AgentText text={deed(entry)} />{fault(entry) ? <span class="fault"> <AgentText text={fault(entry)} /></span> : null}</> },
                    { title: "Decision", cell: (entry) => <Verdict verdict={entry.verdict} kind={entry.kind} /> },
                    { title: "Audit", align: "right", spare: true, cell: (entry) => `#${entry.seq}` },
                  ]}
                />
              ) : null}
              {earlier ? <Earlier acting={earlier} /> : null}
            </section>
          ) : null}
        </div>
      )}
    </Loaded>
    </>
  );
}

interface Span {
  entry: Entry;
  lane: Lane;
  from: number; // milliseconds
  to: number;
}

/** A call that was begun and ended is one span, from its intent to its outcome. */
export function spansOf(entries: Entry[]): Span[] {
  const begun = new Map<number, Entry>();
  const ended = new Set<number>();
  for (const entry of entries) if (entry.kind === "intent") begun.set(entry.seq, entry);
  for (const entry of entries) if (entry.kind === "outcome" && entry.ref && begun.has(entry.ref)) ended.add(entry.ref);
  return entries
    .filter((entry) => !ended.has(entry.seq))
    .map((entry) => {
      const at = Date.parse(entry.time);
      const intent = entry.ref ? begun.get(entry.ref) : undefined;
      return { entry, lane: laneOf(entry), from: intent ? Date.parse(intent.time) : at, to: at };
    });
}

const WIDTH = 1000;
const LEFT = 84;
const LANE = 34;
const TOP = 10;
const LEAST = 5;

interface Drawn {
  x: (ms: number) => number;
  cuts: number[];
}

/** Where a moment lies. Long silences are cut, so that what happened stays apart. */
function scale(spans: Span[]): Drawn {
  const moments = [...new Set(spans.flatMap((span) => [span.from, span.to]))].sort((a, b) => a - b);
  const gaps = moments.slice(1).map((at, index) => at - moments[index]!);
  const middle = [...gaps].sort((a, b) => a - b)[Math.floor(gaps.length / 2)] ?? 1;
  const longest = Math.max(20, 12 * middle);
  const places = [0];
  const cutAt: number[] = [];
  gaps.forEach((gap, index) => {
    if (gap > longest) cutAt.push(index);
    places.push(places[index]! + Math.min(gap, longest));
  });
  const all = places.at(-1) || 1;
  const width = WIDTH - LEFT - 14;
  const known = new Map(moments.map((at, index) => [at, LEFT + (width * places[index]!) / all]));
  const x = (ms: number) => known.get(ms) ?? LEFT;
  return { x, cuts: cutAt.length > 40 ? [] : cutAt.map((index) => (x(moments[index]!) + x(moments[index + 1]!)) / 2) };
}

function Lanes({ spans, onOpen, chosen }: { spans: Span[]; onOpen: (entry: Entry) => void; chosen: number }) {
  const { x, cuts } = scale(spans);
  const height = TOP + LANES.length * LANE + 22;
  const first = spans[0];
  const last = spans.at(-1);
  const bad = spans.filter((span) => refused(span.entry)).length;
  return (
    <section class="card lanes-card" aria-label="timeline">
      <svg viewBox={`0 0 ${WIDTH} ${height}`} class="lanes" role="img" aria-label={`Timeline of ${spans.length} entries in 5 lanes, ${bad} refused. The table below has all of them.`}>
        {LANES.map((lane, index) => (
          <g key={lane}>
            <line class="rail" x1={LEFT} x2={WIDTH - 10} y1={TOP + index * LANE + LANE / 2} y2={TOP + index * LANE + LANE / 2} />
            <text x={0} y={TOP + index * LANE + LANE / 2 + 4}>{lane}</text>
          </g>
        ))}
        {cuts.map((at) => <line key={at} class="silence" x1={at} x2={at} y1={TOP} y2={TOP + LANES.length * LANE} />)}
        {spans.map((span) => {
          const y = TOP + LANES.indexOf(span.lane) * LANE + LANE / 2;
          const [from, to] = [x(span.from), x(span.to)];
          const wide = Math.max(LEAST, to - from);
          const state = refused(span.entry) ? "bad" : span.entry.verdict === "ask" ? "held" : "";
          return (
            <rect
              key={span.entry.seq}
              class={`span ${span.lane} ${state} ${span.entry.seq === chosen ? "chosen" : ""}`}
              data-seq={span.entry.seq}
              x={to - wide}
              y={y - (state ? 11 : 8)}
              width={wide}
              height={state ? 22 : 16}
              rx={2}
              onClick={() => onOpen(span.entry)}
            >
              <title>{`${clock(span.entry.time)} ${deed(span.entry)}`}</title>
            </rect>
          );
        })}
        {first && last ? (
          <>
            <text class="axis" x={LEFT} y={height - 4}>{clock(first.from)}</text>
            <text class="axis" x={WIDTH - 10} y={height - 4} text-anchor="end">{clock(last.to)}</text>
          </>
        ) : null}
      </svg>
    </section>
  );
}
