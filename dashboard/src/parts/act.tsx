// Buttons that change something. They show the true state: pending until the kernel confirms, off while the page is not
// up to date or the session may not; a refusal is told in the kernel's words beside the button.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { asProblem, type Problem } from "../api";
import { link, mayAct, snapshot } from "../store";
import { ErrorBox } from "./states";
import { harmless } from "./text";

export interface Acting {
  run: () => Promise<boolean>; // whether it was done
  pending: boolean;
  problem: Problem | undefined;
  clear: () => void;
}

export function useAction(deed: () => Promise<unknown>): Acting {
  const [pending, setPending] = useState(false);
  const [problem, setProblem] = useState<Problem | undefined>();
  const here = useRef(true);
  useEffect(() => () => void (here.current = false), []);
  const run = async () => {
    if (pending) return false;
    setPending(true);
    setProblem(undefined);
    try {
      await deed();
      return true;
    } catch (error) {
      if (here.current) setProblem(asProblem(error));
      return false;
    } finally {
      if (here.current) setPending(false);
    }
  };
  return { run, pending, problem, clear: () => setProblem(undefined) };
}

/** The button below a list that goes on into the past. */
export function Earlier({ acting }: { acting: Acting }) {
  return (
    <div class="buttons">
      <button type="button" disabled={acting.pending || link.value !== "live"} aria-busy={acting.pending} onClick={() => void acting.run()}>
        {acting.pending ? "Looking …" : "Earlier"}
      </button>
      {acting.problem ? <ErrorBox problem={acting.problem} retry={() => void acting.run()} /> : null}
    </div>
  );
}

/** Why a button is off, or an empty string. */
export function whyOff(): string {
  if (link.value !== "live") return "not connected";
  if (snapshot.value?.session.role !== "operator") return `a ${snapshot.value?.session.role ?? "viewer"} may only look`;
  return "";
}

interface ActProps {
  label: string;
  deed: () => Promise<unknown>;
  pendingLabel?: string;
  danger?: boolean;
  primary?: boolean;
  disabled?: boolean;
  ask?: { title: string; text: ComponentChildren; yes: string }; // asks once before
  done?: () => void;
  name?: string; // for screen readers, where the label alone says too little
}

export function Act({ label, deed, pendingLabel, danger, primary, disabled, ask, done, name }: ActProps) {
  const acting = useAction(deed);
  const [asking, setAsking] = useState(false);
  const off = whyOff();
  const kind = danger ? "danger" : primary ? "primary" : "";
  const go = async () => {
    setAsking(false);
    if (await acting.run()) done?.();
  };
  return (
    <span class="act">
      <button
        type="button"
        class={kind}
        disabled={!mayAct.value || disabled || acting.pending}
        aria-busy={acting.pending}
        aria-label={name}
        title={off || undefined}
        onClick={() => (ask ? setAsking(true) : void go())}
      >
        {acting.pending ? (pendingLabel ?? `${label} …`) : label}
      </button>
      {ask && asking ? (
        <Confirm title={ask.title} yes={ask.yes} danger={danger} onYes={() => void go()} onNo={() => setAsking(false)}>
          {ask.text}
        </Confirm>
      ) : null}
      {acting.problem ? <ErrorBox problem={acting.problem} retry={acting.clear} /> : null}
    </span>
  );
}

interface ConfirmProps {
  title: string;
  yes: string;
  danger?: boolean;
  children?: ComponentChildren;
  onYes: () => void;
  onNo: () => void;
}

export function Confirm({ title, yes, danger, children, onYes, onNo }: ConfirmProps) {
  return (
    <Modal label={title} class="confirm" onClose={onNo}>
      <h2>{harmless(title)}</h2>
      <div class="confirm-text">{children}</div>
      <div class="buttons">
        <button type="button" onClick={onNo}>Cancel</button>
        <button type="button" class={danger ? "danger" : "primary"} onClick={onYes} data-confirm>{yes}</button>
      </div>
    </Modal>
  );
}

/** A dialog of the browser: it holds the focus, Escape ends it, and the focus goes back to where it was. */
export function Modal(props: { label: string; class?: string; onClose: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    dialog.current?.showModal();
    return () => before?.focus?.();
  }, []);
  const outside = (event: MouseEvent) => {
    if (event.target === dialog.current) props.onClose();
  };
  return (
    <dialog
      ref={dialog}
      class={props.class}
      aria-label={harmless(props.label)}
      onClick={outside}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
    >
      {props.children}
    </dialog>
  );
}

/** What one thing is about, beside the page. */
export function Drawer(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  return (
    <Modal label={props.title} class="drawer" onClose={props.onClose}>
      <header class="drawer-head">
        <h2>{harmless(props.title)}</h2>
        <button type="button" class="plain" aria-label="close" onClick={props.onClose}>✕</button>
      </header>
      <div class="drawer-body">{props.children}</div>
    </Modal>
  );
}

const told = signal<{ id: number; text: string }[]>([]);
let next = 0;
const TOLD_MS = 6000;

/** A short sentence at the edge: something was done. */
export function tell(text: string): void {
  const id = next++;
  told.value = [...told.value, { id, text }];
  setTimeout(() => (told.value = told.value.filter((one) => one.id !== id)), TOLD_MS);
}

export function Told() {
  return (
    <div class="told" role="status" aria-live="polite">
      {told.value.map((one) => (
        <p key={one.id}>{harmless(one.text)}</p>
      ))}
    </div>
  );
}
