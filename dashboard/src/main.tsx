// The entry: follow the address, the session, the stream and the keys; draw the rest.
import { render } from "preact";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/parts.css";
import "./styles/pages.css";
import "./theme";
import { App } from "./app";
import { startKeys } from "./keys";
import { startLately } from "./lately";
import { follow } from "./router";
import { enter } from "./session";
import { start } from "./stream";

follow((code) => void enter(code));
startKeys();
start();
startLately();
render(<App />, document.getElementById("app") as HTMLElement);
