// The frame around every page: navigation, banners, and the way in for whoever has no session yet.
import { Component, type ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import icon from "./icon.svg";
import { helpOpen } from "./keys";
import { PAGES } from "./pages";
import { Modal, Told } from "./parts/act";
import { ErrorBox, Loading } from "./parts/states";
import { AgentText, Ago, Code, harmless } from "./parts/text";
import { href, route } from "./router";
import { ended, enter, entering, quit, session } from "./session";
import { agents, approvals, lastEvent, link, refresh, snapshot, snapshotProblem } from "./store";
import { seen, switchTheme, theme } from "./theme";

export function App() {
  return session.value ? <Frame /> : <Door />;
}

function Frame() {
  const page = PAGES.find((one) => one.id === route.value.page);
  const title = page?.title ?? "Not found";
  useEffect(() => {
    document.title = `${title} · Agent OS`;
  }, [title]);
  return (
    <>
      <a class="skip" href="#main" onClick={toMain}>Skip to the page</a>
      <Side current={page?.id ?? ""} />
      <div class="body">
        <Banners />
        <main id="main" tabIndex={-1}>
          <Guard key={route.value.page + route.value.args.join("/")}>
            {page ? <Shown view={page.view} /> : <Missing />}
          </Guard>
        </main>
      </div>
      {helpOpen.value ? <Help /> : null}
      <Told />
    </>
  );
}

function toMain(event: MouseEvent): void {
  event.preventDefault(); // the fragment is the route
  document.getElementById("main")?.focus();
}

// A page is drawn once there is something to draw; until then its frame stands.
function Shown({ view: View }: { view: (typeof PAGES)[number]["view"] }) {
  if (snapshot.value) return <View />;
  if (snapshotProblem.value) return <ErrorBox problem={snapshotProblem.value} retry={() => void refresh()} />;
  return <Loading lines={8} />;
}

function Missing() {
  return (
    <div class="empty">
      <h1>There is no such page</h1>
      <p><a href={href("overview")}>To the overview</a></p>
    </div>
  );
}

// A fault in one page leaves the navigation alive.
class Guard extends Component<{ children: ComponentChildren }, { fault: unknown }> {
  state = { fault: null };
  static getDerivedStateFromError(fault: unknown) {
    return { fault };
  }
  render() {
    if (this.state.fault === null) return this.props.children;
    return <ErrorBox problem={this.state.fault} retry={() => this.setState({ fault: null })} />;
  }
}

function Side({ current }: { current: string }) {
  const waiting = approvals.value.length;
  const mine = snapshot.value?.session ?? session.value;
  const dark = (theme.value, seen() === "dark");
  return (
    <header class="side">
      <a class="brand" href={href("overview")}><Logo /> Agent OS</a>
      <nav aria-label="pages">
        {PAGES.filter((page) => page.key).map((page) => (
          <a key={page.id} href={href(page.id)} aria-current={page.id === current ? "page" : undefined}>
            {page.title}
            {page.id === "approvals" && waiting ? <span class="count" aria-label={`${waiting} waiting`}>{waiting}</span> : null}
          </a>
        ))}
      </nav>
      <div class="side-foot">
        <p class={`link ${link.value}`} role="status">
          <span class="dot" aria-hidden="true" /> {LINKS[link.value]}
        </p>
        {mine ? <p class="faint"><AgentText text={mine.name} /> · {mine.role}</p> : null}
        <div class="buttons">
          <button type="button" class="plain" onClick={switchTheme}>{dark ? "Light" : "Dark"}</button>
          <button type="button" class="plain" onClick={() => (helpOpen.value = true)}>Keys</button>
          <button type="button" class="plain" onClick={() => void quit()}>Leave</button>
        </div>
      </div>
    </header>
  );
}

const LINKS = { off: "no session", connecting: "connecting", live: "live", lost: "not connected" };

function Logo() {
  return <img src={icon} alt="" width="22" height="22" />;
}

function Banners() {
  const mode = snapshot.value?.status.policy.mode;
  const bare = agents.value.filter((row) => row.level === "S0" || (row.isolation === "S0" && !row.level));
  return (
    <div class="banners">
      {link.value === "lost" ? (
        <p class="banner bad" role="alert">
          Not connected. {lastEvent.value ? <>The last event came <Ago at={lastEvent.value} />; what</> : "What"} is shown
          may be out of date, and buttons are off. Trying again.
        </p>
      ) : null}
      {mode === "shadow" ? (
        <p class="banner held">The policy runs in <strong>shadow</strong>: what it would refuse is recorded, and happens.</p>
      ) : null}
      {bare.length ? (
        <p class="banner bad">
          <strong>Isolation S0</strong>: {bare.length === 1 ? <AgentText text={bare[0]?.name} /> : `${bare.length} agents`}{" "}
          without a sandbox. <Code>agentctl doctor</Code> says what this machine lacks.
        </p>
      ) : null}
      {snapshot.value?.status.policy.alarm ? <p class="banner bad"><AgentText text={snapshot.value.status.policy.alarm} /></p> : null}
    </div>
  );
}

function Door() {
  const [word, set] = useState("");
  const why = ended.value;
  useEffect(() => {
    document.title = "Agent OS";
  }, []);
  const submit = (event: Event) => {
    event.preventDefault();
    const given = word.trim();
    set("");
    if (given) void enter(given);
  };
  return (
    <main class="door" id="main">
      <h1><Logo /> Agent OS</h1>
      {why ? (
        <div class="error-box" role="alert">
          <p><AgentText text={why.reason} /></p>
          {why.hint ? <p class="hint"><AgentText text={why.hint} /></p> : null}
        </div>
      ) : null}
      <p>This page needs a code, valid once. Get one where the kernel runs, and open the address it prints:</p>
      <p><Code>agentctl ui</Code></p>
      <form onSubmit={submit}>
        <label for="code">Code</label>
        <input id="code" value={word} autocomplete="off" spellcheck={false} placeholder="K7QM-2XPD" onInput={(event) => set(event.currentTarget.value)} />
        <button type="submit" class="primary" disabled={entering.value}>{entering.value ? "Entering …" : "Enter"}</button>
      </form>
    </main>
  );
}

function Help() {
  const close = () => (helpOpen.value = false);
  const rows: [string, string][] = [
    ...PAGES.filter((page) => page.key).map((page): [string, string] => [`g ${page.key}`, page.title]),
    ["/", "search"],
    ["j k", "next and previous row"],
    ["Enter", "open"],
    ["a d", "approve, deny (the card in focus)"],
    ["Esc", "close"],
    ["?", "this list"],
  ];
  return (
    <Modal label="Keys" class="confirm" onClose={close}>
      <h2>Keys</h2>
      <dl class="keys">
        {rows.map(([key, what]) => (
          <div key={key}><dt><kbd>{key}</kbd></dt><dd>{harmless(what)}</dd></div>
        ))}
      </dl>
      <div class="buttons"><button type="button" onClick={close}>Close</button></div>
    </Modal>
  );
}
