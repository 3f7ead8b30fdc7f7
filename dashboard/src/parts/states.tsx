// The states of a part of a page: loading, empty, in error.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { asProblem, type Problem } from "../api";
import { AgentText, Code } from "./text";

const PATIENCE_MS = 200;

/** Nothing for 200 ms, then a skeleton of the same height as what will come. */
export function Loading({ lines = 4 }: { lines?: number }) {
  const [shown, show] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => show(true), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div class={shown ? "skeleton" : "skeleton waiting"} role="status" aria-label="loading">
      {Array.from({ length: lines }, (_, index) => (
        <div key={index} class="skeleton-line" />
      ))}
    </div>
  );
}

/** One sentence, and the command that fills it. */
export function Empty({ children, command }: { children: ComponentChildren; command?: string }) {
  return (
    <div class="empty">
      <p>{children}</p>
      {command ? <Code>{command}</Code> : null}
    </div>
  );
}

/** Code, reason, hint, retry; the rest of the page stays. */
export function ErrorBox({ problem, retry }: { problem: unknown; retry?: () => void }) {
  const { code, reason, hint, more } = asProblem(problem) as Problem;
  const decision = typeof more.decision === "string" ? more.decision : "";
  return (
    <div class="error-box" role="alert">
      <p>
        <strong class="error-code">{code}</strong> <AgentText text={reason} />
      </p>
      {hint ? <p class="hint"><AgentText text={hint} /></p> : null}
      {decision ? <p class="hint">decision <Code>agentctl explain {decision}</Code></p> : null}
      {retry ? <button type="button" onClick={retry}>Try again</button> : null}
    </div>
  );
}
