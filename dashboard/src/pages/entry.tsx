// One entry of the journal in full: which step and rule decided, where that is written, what was asked and answered.
import { deed, map, type Facts } from "../entries";
import { short } from "../members";
import { Drawer } from "../parts/act";
import { Loaded, useGet } from "../parts/get";
import { Bar, Verdict } from "../parts/marks";
import { AgentText, asText, Code, count, Time } from "../parts/text";
import { href } from "../router";
import { snapshot } from "../store";
import type { Entry } from "../types";

interface Step {
  step: number;
  name: string;
  answer: string;
  why: string;
  rule: string;
  where: string;
}

interface Explained {
  verdict: string;
  what: string;
  handle: string;
  capability: string;
  label: string[];
  mode: string;
  because?: string;
  allow?: string[];
  steps: Step[];
}

export function EntryDrawer({ seq, known, onClose }: { seq: number; known?: Entry; onClose: () => void }) {
  const got = useGet<Entry>(`/audit/${seq}`);
  const entry = got.data ? { ...known, ...got.data } : known;
  return (
    <Drawer title={`Audit #${seq}`} onClose={onClose}>
      {entry ? <About entry={entry} /> : null}
      {entry && explained(entry) ? <Decision seq={seq} entry={entry} /> : null}
      <Loaded got={got} lines={6}>{(full) => <Bodies entry={{ ...known, ...full }} />}</Loaded>
    </Drawer>
  );
}

// A decision of the gate about an agent; what people and the kernel did is not weighed.
function explained(entry: Entry): boolean {
  return Boolean(entry.verdict) && entry.agent.includes("/");
}

function About({ entry }: { entry: Entry }) {
  return (
    <>
      <p class="entry-what"><Verdict verdict={entry.verdict} kind={entry.kind} /> <strong><AgentText text={deed(entry)} /></strong></p>
      <dl class="facts">
        <div><dt>agent</dt><dd><AgentText text={short(entry.agent)} />{entry.inc ? `, life ${entry.inc}` : ""}</dd></div>
        <div><dt>time</dt><dd><Time at={entry.time} /></dd></div>
        <div><dt>audit</dt><dd><a href={href("audit", [], { entry: String(entry.seq) })}>#{entry.seq}</a> ({entry.kind})</dd></div>
        {entry.code ? <div><dt>code</dt><dd><code>{entry.code}</code></dd></div> : null}
        {entry.rule ? <div><dt>rule</dt><dd><code><AgentText text={entry.rule} /></code></dd></div> : null}
        {entry.label?.length ? <div><dt>label</dt><dd class="labels">{entry.label.map((one) => <span key={one} class="badge"><AgentText text={one} /></span>)}</dd></div> : null}
        {entry.isolation ? <div><dt>isolation</dt><dd>{entry.isolation}</dd></div> : null}
        {entry.mode ? <div><dt>mode</dt><dd>{entry.mode}</dd></div> : null}
        {entry.cost && Object.keys(entry.cost).length ? <div><dt>cost</dt><dd>{Object.entries(entry.cost).map(([name, value]) => `${name} ${value}`).join(", ")}</dd></div> : null}
      </dl>
      <BudgetLeft agent={entry.agent} />
    </>
  );
}

function BudgetLeft({ agent }: { agent: string }) {
  const account = snapshot.value?.budgets.find((one) => one.account === short(agent) || one.account === agent);
  const limited = account?.uses.filter((use) => use.limit !== null) ?? [];
  if (limited.length === 0) return null;
  return (
    <section>
      <h3>Budget left now</h3>
      <dl class="facts budget-facts">
        {limited.map((use) => (
          <div key={use.resource}>
            <dt>{use.resource}</dt>
            <dd>
              {count((use.limit ?? 0) - use.spent - use.held)} of {count(use.limit ?? 0)}
              <Bar spent={use.spent} held={use.held} limit={use.limit} label={`${use.spent} of ${use.limit} spent`} />
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function Decision({ seq, entry }: { seq: number; entry: Entry }) {
  const got = useGet<Explained>(`/decisions/d-${seq}`);
  return (
    <section class="decision">
      <h3>Decision</h3>
      <Loaded got={got} lines={6}>
        {(told) => (
          <>
            <dl class="facts">
              {told.because ? <div><dt>because</dt><dd><AgentText text={told.because} /></dd></div> : null}
              {told.handle ? <div><dt>capability</dt><dd><code><AgentText text={`${told.handle} ${told.capability}`} /></code></dd></div> : entry.handle ? <div><dt>capability</dt><dd><code>c-{entry.handle}</code></dd></div> : null}
              {told.allow?.map((command) => <div key={command}><dt>to allow</dt><dd><Code><AgentText text={command} /></Code></dd></div>)}
            </dl>
            <ol class="steps">
              {told.steps.map((step) => (
                <li key={step.step} class={`step ${step.answer.replaceAll(" ", "-")}`}>
                  <span class="step-name">{step.step} {step.name}</span>
                  <span class="step-answer">{step.answer}</span>
                  {step.rule ? <span>rule <code><AgentText text={step.rule} /></code></span> : null}
                  {step.where ? <span>in <code><AgentText text={step.where} /></code></span> : null}
                  {step.why ? <span class="faint"><AgentText text={step.why} /></span> : null}
                </li>
              ))}
            </ol>
          </>
        )}
      </Loaded>
    </section>
  );
}

function Bodies({ entry }: { entry: Entry }) {
  const body = entry.body;
  if (body === null || body === undefined) return <p class="faint">Nothing more is kept of it.</p>;
  const facts = map(body);
  if (!("request" in facts)) return <Body title="Record" value={body} />;
  const rest = Object.fromEntries(Object.entries(facts).filter(([name]) => !["request", "value"].includes(name))) as Facts;
  return (
    <>
      <Body title="Request" value={facts.request} />
      <Body title="Reply" value={facts.value} />
      {Object.keys(rest).length ? <Body title="Besides" value={rest} /> : null}
    </>
  );
}

function Body({ title, value }: { title: string; value: unknown }) {
  return (
    <section>
      <h3>{title}</h3>
      {value === null || value === undefined ? <p class="faint">nothing</p> : <AgentText text={asText(value)} block />}
    </section>
  );
}
