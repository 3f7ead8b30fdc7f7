// Tabs as the keyboard expects them: one stop, then the arrows.
import type { ComponentChildren } from "preact";

interface TabsProps {
  label: string;
  tabs: { id: string; title: string }[];
  chosen: string;
  onChoose: (id: string) => void;
  children: ComponentChildren;
}

export function Tabs({ label, tabs, chosen, onChoose, children }: TabsProps) {
  const press = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = tabs.findIndex((one) => one.id === chosen);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    if (!next) return;
    onChoose(next.id);
    document.getElementById(`tab-${next.id}`)?.focus();
  };
  return (
    <>
      <div class="tabs" role="tablist" aria-label={label} onKeyDown={press}>
        {tabs.map((one) => (
          <button
            key={one.id}
            id={`tab-${one.id}`}
            type="button"
            role="tab"
            aria-selected={one.id === chosen}
            aria-controls="tab-panel"
            tabIndex={one.id === chosen ? 0 : -1}
            onClick={() => onChoose(one.id)}
          >
            {one.title}
          </button>
        ))}
      </div>
      <div id="tab-panel" role="tabpanel" aria-labelledby={`tab-${chosen}`} class="tab-panel">{children}</div>
    </>
  );
}
