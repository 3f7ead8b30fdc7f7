// The pages: one line each. `key` is the letter after `g`; one without a key is reached from another page.
import type { FunctionComponent } from "preact";
import { AgentPage } from "./pages/agent";
import { Approvals } from "./pages/approvals";
import { AuditPage } from "./pages/audit";
import { BusPage } from "./pages/bus";
import { Capabilities } from "./pages/capabilities";
import { CostPage } from "./pages/cost";
import { MemoryPage } from "./pages/memory";
import { Overview } from "./pages/overview";
import { SystemPage } from "./pages/system";

export interface Page {
  id: string; // #/id
  title: string;
  key?: string;
  view: FunctionComponent;
}

export const PAGES: Page[] = [
  { id: "overview", title: "Overview", key: "o", view: Overview },
  { id: "approvals", title: "Approvals", key: "a", view: Approvals },
  { id: "memory", title: "Memory", key: "m", view: MemoryPage },
  { id: "capabilities", title: "Capabilities", key: "c", view: Capabilities },
  { id: "bus", title: "Bus", key: "b", view: BusPage },
  { id: "cost", title: "Cost", key: "$", view: CostPage },
  { id: "audit", title: "Audit", key: "u", view: AuditPage },
  { id: "system", title: "System", key: "s", view: SystemPage },
  { id: "agent", title: "Agent", view: AgentPage },
];
