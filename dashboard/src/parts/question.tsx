// The form for an answer, made of the schema that the agent gave: a person fills in fields and never has to write JSON,
// unless the schema asks for something that has no field.
import { useId, useState } from "preact/hooks";
import { AgentText, asText, harmless } from "./text";

export type Schema = Record<string, unknown>;
export type Filled = { value: unknown } | { problem: string };

type Draft = string | boolean | Record<string, Draft2> | undefined;
type Draft2 = string | boolean | undefined;

const kindOf = (schema: Schema): string => {
  if (Array.isArray(schema.enum)) return "enum";
  const type = schema.type;
  if (type === "object" && isMap(schema.properties) && Object.values(schema.properties).every(simple)) return "object";
  return simple(schema) ? String(type) : "json";
};

function isMap(value: unknown): value is Record<string, Schema> {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function simple(schema: unknown): boolean {
  if (!isMap(schema)) return false;
  const known = schema as Schema;
  return Array.isArray(known.enum) || ["boolean", "string", "integer", "number"].includes(String(known.type));
}

/** What a person wrote as the value that is asked for; or what is wrong with it. */
export function filled(schema: Schema | null, draft: Draft): Filled {
  const wanted = schema ?? { type: "string" };
  if (kindOf(wanted) === "object") {
    const drafts = (draft ?? {}) as Record<string, Draft2>;
    const value: Record<string, unknown> = {};
    const required = Array.isArray(wanted.required) ? wanted.required : [];
    for (const [name, part] of Object.entries(wanted.properties as Record<string, Schema>)) {
      if ((drafts[name] === undefined || drafts[name] === "") && !required.includes(name)) continue;
      const one = single(part, drafts[name]);
      if ("problem" in one) return { problem: `${harmless(name)}: ${one.problem}` };
      value[name] = one.value;
    }
    return { value };
  }
  return single(wanted, draft as Draft2);
}

function single(schema: Schema, draft: Draft2): Filled {
  const kind = kindOf(schema);
  if (kind === "enum") {
    const chosen = (schema.enum as unknown[])[Number(draft)];
    return draft === undefined || draft === "" ? { problem: "choose one" } : { value: chosen };
  }
  if (kind === "boolean") return draft === undefined ? { problem: "choose yes or no" } : { value: draft === true };
  const text = typeof draft === "string" ? draft : "";
  if (kind === "string") return { value: text };
  if (kind === "json") {
    try {
      return { value: JSON.parse(text) };
    } catch {
      return { problem: "this is no JSON" };
    }
  }
  const number = Number(text);
  if (text.trim() === "" || Number.isNaN(number)) return { problem: "write a number" };
  return kind === "integer" && !Number.isInteger(number) ? { problem: "write a whole number" } : { value: number };
}

interface FieldsProps {
  schema: Schema | null;
  draft: Draft;
  change: (draft: Draft) => void;
  disabled: boolean;
}

export function Fields({ schema, draft, change, disabled }: FieldsProps) {
  const wanted = schema ?? { type: "string" };
  if (kindOf(wanted) !== "object") {
    return <Field name="Your answer" schema={wanted} draft={draft as Draft2} change={change} disabled={disabled} />;
  }
  const drafts = (draft ?? {}) as Record<string, Draft2>;
  const required = Array.isArray(wanted.required) ? wanted.required : [];
  return (
    <>
      {Object.entries(wanted.properties as Record<string, Schema>).map(([name, part]) => (
        <Field
          key={name}
          name={name + (required.includes(name) ? "" : " (may stay empty)")}
          schema={part}
          draft={drafts[name]}
          change={(value) => change({ ...drafts, [name]: value })}
          disabled={disabled}
        />
      ))}
    </>
  );
}

interface FieldProps {
  name: string;
  schema: Schema;
  draft: Draft2;
  change: (draft: Draft2) => void;
  disabled: boolean;
}

function Field({ name, schema, draft, change, disabled }: FieldProps) {
  const id = useId();
  const kind = kindOf(schema);
  const about = typeof schema.description === "string" ? schema.description : "";
  const label = <AgentText text={name} />;
  if (kind === "boolean") {
    return (
      <fieldset class="field">
        <legend>{label}</legend>
        {about ? <p class="faint"><AgentText text={about} /></p> : null}
        <div class="choices">
          {[true, false].map((value) => (
            <label key={String(value)}>
              <input type="radio" name={id} checked={draft === value} disabled={disabled} onChange={() => change(value)} />
              {value ? "Yes" : "No"}
            </label>
          ))}
        </div>
      </fieldset>
    );
  }
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {about ? <p class="faint" id={`${id}-about`}><AgentText text={about} /></p> : null}
      <Input id={id} about={about ? `${id}-about` : undefined} kind={kind} schema={schema} draft={draft} change={change} disabled={disabled} />
    </div>
  );
}

function Input({ id, about, kind, schema, draft, change, disabled }: Omit<FieldProps, "name"> & { id: string; kind: string; about?: string }) {
  const common = { id, disabled, "aria-describedby": about };
  const text = typeof draft === "string" ? draft : "";
  if (kind === "enum") {
    return (
      <select {...common} value={text} onChange={(event) => change(event.currentTarget.value)}>
        <option value="">choose …</option>
        {(schema.enum as unknown[]).map((one, index) => (
          <option key={index} value={String(index)}>{harmless(asText(one))}</option>
        ))}
      </select>
    );
  }
  if (kind === "integer" || kind === "number") {
    const bound = (name: string) => (typeof schema[name] === "number" ? (schema[name] as number) : undefined);
    return (
      <input
        {...common}
        type="number"
        inputMode="decimal"
        step={kind === "integer" ? 1 : "any"}
        min={bound("minimum")}
        max={bound("maximum")}
        value={text}
        onInput={(event) => change(event.currentTarget.value)}
      />
    );
  }
  return (
    <>
      {kind === "json" ? <p class="faint">As JSON, by this schema: <AgentText text={schema} block /></p> : null}
      <textarea {...common} rows={kind === "json" ? 5 : 2} value={text} onInput={(event) => change(event.currentTarget.value)} />
    </>
  );
}

export function useDraft(): [Draft, (draft: Draft) => void] {
  const [draft, set] = useState<Draft>(undefined);
  return [draft, (value) => set(() => value)];
}
