// What agents want that only a person may allow, or can tell them. A card shows all of one question; an answer carries
// the digest of what was shown, and the card says how it ended only when the kernel has said so.
import "../styles/approvals.css";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { all, type Problem } from "../api";
import { outcome, type Question } from "../approvals";
import { Card, Closed, type Places } from "../parts/approval";
import { Empty } from "../parts/states";
import { useGet, Loaded } from "../parts/get";
import { Table } from "../parts/table";
import { AgentText, age, count } from "../parts/text";
import { keep, route } from "../router";
import { approvals, snapshot, soon } from "../store";
import type { List } from "../types";

const MOST = 30; // cards at once

export function Approvals() {
  const decided = route.value.query.tab === "decided";
  const tab = (name: string, label: string, on: boolean) => (
    <button type="button" role="tab" aria-selected={on} onClick={() => keep({ tab: name })}>{label}</button>
  );
  return (
    <div class="approvals">
      <header class="page-head">
        <h1>Approvals</h1>
        <input
          data-search
          type="search"
          placeholder="Search …"
          aria-label="search"
          value={route.value.query.q ?? ""}
          onInput={(event) => keep({ q: event.currentTarget.value })}
        />
      </header>
      <div class="tabs" role="tablist" aria-label="which">
        {tab("", `Waiting (${count(approvals.value.length)})`, !decided)}
        {tab("decided", "Decided lately", decided)}
      </div>
      {decided ? <Decided /> : <Waiting />}
    </div>
  );
}

const named = (row: Question, words: string) =>
  !words || `${row.id} ${row.agent} ${row.wants} ${row.rules.join(" ")}`.toLowerCase().includes(words.toLowerCase());

function Waiting() {
  const pending = approvals.value as Question[];
  const arrived = useMemo(() => Date.now(), [snapshot.value]);
  const seen = useRef(new Map<string, Question>());
  const [closed, setClosed] = useState<ReadonlyMap<string, Question | null>>(new Map()); // null: how is not known yet
  const [late, setLate] = useState<ReadonlyMap<string, Problem>>(new Map());
  const [dropped, setDropped] = useState<ReadonlySet<string>>(new Set());
  const [most, setMost] = useState(MOST);
  const words = route.value.query.q ?? "";

  for (const row of pending) seen.current.set(row.id, row);
  const waiting = new Set(pending.map((row) => row.id));
  const gone = [...seen.current.keys()].filter((id) => !waiting.has(id) && !closed.get(id));
  useEffect(() => {
    // Somebody else answered, or nobody in time: ask how it ended.
    if (gone.length) void all<Question>("/approvals", { all: true }).then((rows) => close(rows), () => undefined);
  }, [gone.join(" ")]);
  const close = (rows: Question[]) =>
    setClosed((old) => {
      const found = rows.filter((row) => seen.current.has(row.id) && row.state !== "pending");
      return new Map([...old, ...found.map((row): [string, Question] => [row.id, row])]);
    });

  const shown = [...seen.current.values()]
    .filter((row) => (named(row, words) && !dropped.has(row.id)))
    .sort((a, b) => number(a.id) - number(b.id));
  const over = (row: Question) => closed.has(row.id) || !waiting.has(row.id);
  const list = useRef<HTMLDivElement>(null);
  const places = usePlaces(list);
  useFocusOnward(list, places, shown.filter((row) => !over(row)).map((row) => row.id));

  if (!shown.length) {
    return words && pending.length ? (
      <Empty>Nothing that waits fits these words.</Empty>
    ) : (
      <Empty command="agentctl approvals --watch">Nothing waits for a person. What agents ask for appears here by itself.</Empty>
    );
  }
  const finished = shown.filter(over);
  return (
    <>
      {finished.length ? (
        <p class="approvals-clear">
          <button type="button" onClick={() => setDropped(new Set([...dropped, ...finished.map((row) => row.id)]))}>
            Put away {finished.length} decided
          </button>
        </p>
      ) : null}
      <div class="approval-list" ref={list}>
        {shown.slice(0, most).map((row) =>
          over(row) ? (
            <Closed key={row.id} row={row} ended={closed.get(row.id) ?? null} late={late.get(row.id)} />
          ) : (
            <Card
              key={row.id}
              row={row}
              arrived={arrived}
              places={places}
              onDecided={(answer) => {
                close([answer]);
                soon();
              }}
              onLate={(problem) => {
                setLate((old) => new Map([...old, [row.id, problem]]));
                soon();
              }}
            />
          ),
        )}
      </div>
      {shown.length > most ? (
        <button type="button" onClick={() => setMost(most + MOST)}>Show {Math.min(MOST, shown.length - most)} of {shown.length - most} more</button>
      ) : null}
    </>
  );
}

const number = (id: string) => Number(id.replace(/^q-/, ""));

/** When each card came to where it is: keys and clicks are for what a person has had time to see there. */
function usePlaces(list: { current: HTMLElement | null }): Places {
  const places = useRef<Places>(new Map()).current;
  const look = () => {
    const box = list.current;
    if (!box) return;
    const from = box.getBoundingClientRect().top;
    for (const card of box.querySelectorAll<HTMLElement>("[data-approval]")) {
      const id = card.dataset.approval ?? "";
      const top = card.getBoundingClientRect().top - from;
      const known = places.get(id);
      if (!known || Math.abs(known.top - top) > 2) places.set(id, { top, at: performance.now() });
    }
  };
  useLayoutEffect(look);
  useEffect(() => {
    if (!list.current) return;
    const sizes = new ResizeObserver(look);
    sizes.observe(list.current);
    return () => sizes.disconnect();
  }, [list.current]);
  return places;
}

/** The focus of a card that is over goes on to the next one that waits. */
function useFocusOnward(list: { current: HTMLElement | null }, places: Places, waiting: string[]): void {
  const last = useRef<string | null>(null);
  useLayoutEffect(() => {
    const before = last.current;
    if (before !== null && !waiting.includes(before) && document.activeElement === document.body) {
      const next = waiting.find((id) => number(id) > number(before)) ?? waiting.at(-1);
      const card = next ? list.current?.querySelector<HTMLElement>(`[data-approval="${next}"]`) : null;
      if (card && next) {
        card.focus();
        places.set(next, { top: places.get(next)?.top ?? 0, at: performance.now() });
      }
      last.current = null;
    }
  });
  useEffect(() => {
    const note = (event: FocusEvent) => {
      const card = (event.target as HTMLElement).closest?.<HTMLElement>("[data-approval]");
      last.current = card?.dataset.approval ?? null;
    };
    addEventListener("focusin", note);
    return () => removeEventListener("focusin", note);
  }, []);
}

function Decided() {
  const got = useGet<List<Question>>("/approvals", { query: { all: true, limit: 500 }, on: ["approval.done"] });
  const words = route.value.query.q ?? "";
  return (
    <Loaded got={got}>
      {(list) => {
        const rows = list.items.filter((row) => row.state !== "pending" && named(row, words)).reverse();
        if (!rows.length) return <Empty command="agentctl approvals --all">Nothing was decided in the last day.</Empty>;
        return (
          <Table
            label="decided lately"
            rows={rows}
            id={(row) => row.id}
            columns={[
              { title: "Id", cell: (row) => row.id },
              { title: "Agent", cell: (row) => <AgentText text={row.agent} /> },
              { title: "Wanted", wide: true, cell: (row) => <AgentText text={row.wants} /> },
              { title: "Outcome", cell: (row) => <AgentText text={outcome(row)} /> },
              { title: "Reason", spare: true, cell: (row) => <AgentText text={row.note} /> },
              { title: "Asked", spare: true, align: "right", cell: (row) => `${age(row.seconds)} ago` },
            ]}
          />
        );
      }}
    </Loaded>
  );
}
