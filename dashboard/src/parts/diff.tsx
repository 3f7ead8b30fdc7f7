// A difference of two texts. Each line says by a sign, not by colour alone, whether it goes or comes.
import { diff, type Line } from "../diff";
import { AgentText } from "./text";

const SIGNS: Record<Line["kind"], string> = { same: " ", gone: "−", new: "+", cut: "⋯" };
const WORDS: Record<Line["kind"], string> = { same: "", gone: "removed: ", new: "added: ", cut: "" };
const MOST = 400;

export function Diff({ before, after, label }: { before: string; after: string; label: string }) {
  const lines = diff(before, after);
  if (!lines.length) return <p class="faint">Nothing would change.</p>;
  return (
    <div class="diff" role="region" aria-label={label} tabIndex={0}>
      {lines.slice(0, MOST).map((line, index) => (
        <div key={index} class={`diff-line ${line.kind}`}>
          <span class="diff-sign" aria-hidden="true">{SIGNS[line.kind]}</span>
          {WORDS[line.kind] ? <span class="unseen">{WORDS[line.kind]}</span> : null}
          <span class="diff-text"><AgentText text={line.text} /></span>
        </div>
      ))}
      {lines.length > MOST ? <p class="faint">{lines.length - MOST} lines more</p> : null}
    </div>
  );
}
