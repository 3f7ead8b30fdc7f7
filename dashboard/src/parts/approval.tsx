// One question as a card, and what is left of it when it is decided.
import { useId, useState } from "preact/hooks";
import { asProblem, post, type Problem } from "../api";
import { argumentsOf, left, originOf, outcome, questionOf, stands, writing, type Question, type Writing } from "../approvals";
import { full } from "../members";
import { href } from "../router";
import { mayAct } from "../store";
import { tell, whyOff } from "./act";
import { Diff } from "./diff";
import { Fields, filled, useDraft } from "./question";
import { ErrorBox } from "./states";
import { AgentText, age, asText, harmless, size, useClock } from "./text";
import { useGet } from "./get";

export type Places = Map<string, { top: number; at: number }>;

const GUARD_MS = 300;
const CONFLICT = 409;

interface CardProps {
  row: Question;
  arrived: number; // when the row was told, by the clock here
  places: Places;
  onDecided: (answer: Question) => void;
  onLate: (problem: Problem) => void;
}

export function Card({ row, arrived, places, onDecided, onLate }: CardProps) {
  const id = useId();
  const question = row.syscall === "SYS_ASK";
  const [scope, setScope] = useState("once");
  const [reason, setReason] = useState("");
  const [draft, change] = useDraft();
  const [doing, setDoing] = useState<"" | "approve" | "deny">("");
  const [problem, setProblem] = useState<Problem>();
  const [note, setNote] = useState("");
  const off = !mayAct.value || doing !== "";

  const decide = async (word: "approve" | "deny", byKey = false) => {
    if (off) return;
    if (performance.now() - (places.get(row.id)?.at ?? 0) < GUARD_MS) {
      setNote("This card has only just moved here. Look at it, then press again.");
      return;
    }
    setNote("");
    const answer = word === "approve" && question ? filled(row.schema, draft) : null;
    if (answer && "problem" in answer) {
      if (byKey) document.getElementById(`${id}-form`)?.querySelector<HTMLElement>("input, select, textarea")?.focus();
      setNote(`Not sent: ${answer.problem}.`);
      return;
    }
    setDoing(word);
    setProblem(undefined);
    const body = { outcome: word, args_hash: row.digest, scope: word === "approve" ? scope : "once", reason };
    try {
      const decided = await post<Question>(`/approvals/${row.id}/decision`, answer ? { ...body, value: answer.value } : body);
      tell(`${row.id} ${outcome(decided)}`);
      onDecided(decided);
    } catch (error) {
      const told = asProblem(error);
      if (told.status === CONFLICT) onLate(told);
      setProblem(told);
      setDoing("");
    }
  };
  const press = (event: KeyboardEvent) => {
    if (event.target !== event.currentTarget || event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
    if (event.key !== "a" && event.key !== "d") return;
    event.preventDefault();
    void decide(event.key === "a" ? "approve" : "deny", true);
  };
  return (
    <article class="card approval" data-row data-approval={row.id} tabIndex={0} aria-labelledby={`${id}-title`} onKeyDown={press}>
      <header class="approval-head">
        <h2 id={`${id}-title`}>
          <span class="badge">{row.id}</span> <a href={href("agent", [full(row.agent)])}><AgentText text={row.agent} /></a>
          {question ? " asks" : <> wants <AgentText text={row.wants} /></>}
        </h2>
        <Asked row={row} arrived={arrived} />
      </header>
      <Deadline row={row} arrived={arrived} />
      <Facts row={row} />
      {question ? (
        <blockquote class="agent-wrote" aria-label="the question, as the agent wrote it">
          <span class="agent-wrote-mark">the agent wrote</span>
          <AgentText text={questionOf(row)} block />
        </blockquote>
      ) : null}
      <Change row={row} />
      <Arguments row={row} open={!question} />
      <form
        id={`${id}-form`}
        class="approval-form"
        onSubmit={(event) => {
          event.preventDefault();
          void decide("approve");
        }}
      >
        {question ? <Fields schema={row.schema} draft={draft} change={change} disabled={off} /> : <Scopes row={row} scope={scope} set={setScope} disabled={off} />}
        <label class="approval-reason">
          Reason <span class="faint">(kept with the answer{question ? "" : "; a denial is told to the agent"})</span>
          <input value={reason} maxLength={1000} disabled={off} onInput={(event) => setReason(event.currentTarget.value)} />
        </label>
        <div class="buttons">
          <button type="submit" class="primary" disabled={off} aria-busy={doing === "approve"} title={whyOff() || undefined}>
            {doing === "approve" ? "Sending …" : question ? "Answer" : scope === "once" ? "Approve once" : `Approve: ${scope}`}
          </button>
          <button type="button" class="danger" disabled={off} aria-busy={doing === "deny"} title={whyOff() || undefined} onClick={() => void decide("deny")}>
            {doing === "deny" ? "Denying …" : "Deny"}
          </button>
          <span class="faint">{whyOff() || "keys: a approves, d denies, while the card has the focus"}</span>
        </div>
        {note ? <p class="approval-note" role="status">{note}</p> : null}
        {problem ? <ErrorBox problem={problem} retry={() => setProblem(undefined)} /> : null}
      </form>
    </article>
  );
}

/** How it ended, where its card was. Whoever was too late is told so here. */
export function Closed({ row, ended, late }: { row: Question; ended: Question | null; late?: Problem }) {
  const denied = ended?.state === "refused" || ended?.state === "expired" || ended?.state === "cancelled";
  return (
    <div class="card approval-closed" data-closed={row.id} role="status">
      <p>
        <span class="badge">{row.id}</span> <AgentText text={row.agent} />: <AgentText text={row.wants} />{" "}
        <span class={`state ${ended === null ? "busy" : denied ? "bad" : "ok"}`}>
          <AgentText text={ended === null ? "no longer waiting" : outcome(ended)} />
        </span>
      </p>
      {ended?.note ? <p class="faint">reason: <AgentText text={ended.note} /></p> : null}
      {late ? <p class="approval-late">Your answer came too late: <AgentText text={late.reason} /></p> : null}
    </div>
  );
}

function Asked({ row, arrived }: { row: Question; arrived: number }) {
  const now = useClock();
  return <span class="faint">asked {age(row.seconds + (now - arrived) / 1000)} ago</span>;
}

function Deadline({ row, arrived }: { row: Question; arrived: number }) {
  const now = useClock();
  if (row.left === null) return null;
  const rest = Math.max(0, row.left - (now - arrived) / 1000);
  const share = Math.min(1, rest / Math.max(1, row.left + row.seconds));
  return (
    <div class="deadline">
      <svg class={`bar ${share < 0.15 ? "bad" : share < 0.4 ? "held" : "ok"}`} viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={`${Math.round(share * 100)} percent of the time is left`}>
        <rect class="all" width="100" height="6" rx="1" />
        <rect class="spent-part" width={share * 100} height="6" rx="1" />
      </svg>
      <span class="number">{rest > 0 ? `denied in ${left(rest)}` : "the time is up"}</span>
    </div>
  );
}

function Facts({ row }: { row: Question }) {
  const origin = originOf(row);
  const facts: [string, preact.ComponentChildren][] = [];
  if (row.reasons.length || row.rules.length) {
    facts.push(["Because", <>{row.reasons.map((one, index) => <span key={index}><AgentText text={one} /> </span>)}<span class="faint">rule <AgentText text={row.rules.join(", ")} /></span></>]);
  }
  facts.push([
    "Origin",
    origin.known ? (
      <>
        <span class={`state ${origin.trusted ? "ok" : "held"}`}>{origin.trusted ? "trusted" : "untrusted"}</span>
        {origin.from.length ? <> from <AgentText text={origin.from.join(", ")} /></> : null}
        {origin.classes.map((word) => <span key={word}> <span class="badge"><AgentText text={word} /></span></span>)}
      </>
    ) : (
      "unknown"
    ),
  ]);
  if (row.syscall !== "SYS_ASK") facts.push(["Capability", <AgentText text={row.capability || "this call only"} />]);
  if (row.holds?.length) facts.push(["Holds", <AgentText text={row.holds.join(", ")} />]);
  for (const group of row.approvers) facts.push(["Only", <><AgentText text={group.join(" or ")} /> may answer</>]);
  return (
    <dl class="facts">
      {facts.map(([name, value], index) => (
        <div key={index}><dt>{name}</dt><dd>{value}</dd></div>
      ))}
    </dl>
  );
}

const MEANINGS: Record<string, (row: Question) => preact.ComponentChildren> = {
  once: () => "once: this very act, and no other",
  session: (row) => <>session: <AgentText text={row.capability} />, until this agent ends</>,
  always: (row) => <>always: <AgentText text={row.capability} />, for this agent's name and program, until revoked</>,
};

function Scopes({ row, scope, set, disabled }: { row: Question; scope: string; set: (scope: string) => void; disabled: boolean }) {
  const id = useId();
  return (
    <fieldset class="field">
      <legend>Approve</legend>
      <div class="choices down">
        {row.scopes.map((one) => (
          <label key={one}>
            <input type="radio" name={id} value={one} checked={scope === one} disabled={disabled} onChange={() => set(one)} />
            <span>{MEANINGS[one]?.(row) ?? one}</span>
          </label>
        ))}
      </div>
      {row.guest ? <p class="faint">Always is not offered for guests: a guest's code is in no digest.</p> : null}
    </fieldset>
  );
}

function Change({ row }: { row: Question }) {
  const change = writing(row);
  return change ? <Written agent={row.agent} change={change} /> : null;
}

export function memoryPath(agent: string, path: string): string {
  return `/agents/${encodeURIComponent(agent)}/memory/${path.replace(/^\/+/, "").split("/").map(encodeURIComponent).join("/")}`;
}

function Written({ agent, change }: { agent: string; change: Writing }) {
  const got = useGet<{ data: unknown; kind?: string }>(change.before === undefined ? memoryPath(agent, change.path) : null);
  const label = `what would change in ${harmless(change.path)}`;
  const title = <h3>{change.mode === "append" ? "Added to" : "Written to"} <AgentText text={change.path} /></h3>;
  if (got.loading) return <div class="change">{title}<p class="faint">Looking at what is there …</p></div>;
  const missing = got.problem?.code === "ENOENT" && got.problem.more.detail_code !== "route.unknown";
  const old = change.before ?? (missing ? "" : got.data?.data);
  const known = typeof old === "string";
  const before = known ? old : "";
  const after = change.mode === "append" ? before + change.text : change.text;
  return (
    <div class="change">
      {title}
      {missing ? <p class="faint">There is nothing at this path yet.</p> : null}
      {!known ? <p class="faint">What is there now cannot be shown as text{got.problem ? <>: <AgentText text={got.problem.reason} /></> : ""}. This is what comes:</p> : null}
      <Diff before={before} after={after} label={label} />
      {change.whole ? null : <p class="faint">Only the beginning is shown; the rest is bound by its hash, below.</p>}
    </div>
  );
}

function Arguments({ row, open }: { row: Question; open: boolean }) {
  const told = stands(row.args);
  const rows = told ? ([["arguments", row.args]] as [string, unknown][]) : argumentsOf(row);
  return (
    <details class="agent-wrote" open={open}>
      <summary><span class="agent-wrote-mark">the agent wrote</span> the exact arguments{row.syscall.startsWith("SYS_") ? ` of ${row.syscall}` : ""}</summary>
      <dl class="arguments">
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt><AgentText text={name} /></dt>
            <dd><Value value={value} /></dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

function Value({ value }: { value: unknown }) {
  const long = stands(value);
  if (!long) {
    const text = asText(value);
    return <AgentText text={text} block={text.includes("\n") || text.length > 100} />;
  }
  return (
    <>
      {long.begins ? <AgentText text={`${long.begins} …`} block /> : null}
      <span class="faint">{size(long.size)} in all, sha256 <code>{harmless(long.sha256)}</code></span>
    </>
  );
}
