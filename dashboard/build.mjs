// The dashboard as files of the package: index.html, assets with hashed names, the licences of what is bundled.
// The same sources give the same bytes, wherever the checkout lies.
import { build, context } from "esbuild";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const argument = process.argv.indexOf("--out");
const out = argument > 0 ? process.argv[argument + 1] : join(here, "../src/agent_os/gateway/static");
const bundled = ["preact", "@preact/signals", "@preact/signals-core", "uplot", "d3-hierarchy"];

const options = {
  absWorkingDir: here,
  entryPoints: ["src/main.tsx"],
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "utf8",
  entryNames: "[name]-[hash]",
  assetNames: "[name]-[hash]",
  outdir: join(out, "assets"),
  publicPath: "/assets",
  loader: { ".svg": "file" },
  metafile: true,
  write: true,
  logLevel: "warning",
  plugins: [{ name: "page", setup: (one) => one.onEnd(page) }],
};

function page(result) {
  if (!result.metafile) return;
  const [file, facts] = Object.entries(result.metafile.outputs).find(([, one]) => one.entryPoint);
  const text = readFileSync(join(here, "index.html"), "utf8")
    .replace("{{js}}", `/assets/${basename(file)}`)
    .replace("{{icon}}", `/assets/${basename(Object.keys(result.metafile.outputs).find((one) => one.endsWith(".svg")))}`)
    .replace("{{css}}", `/assets/${basename(facts.cssBundle)}`);
  writeFileSync(join(out, "index.html"), text);
  writeFileSync(join(out, "licences.txt"), bundled.map(licence).join("\n"));
}

function licence(name) {
  const folder = join(here, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  return `${name} ${version} (${license})\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
}

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
if (process.argv.includes("--watch")) await (await context(options)).watch();
else await build(options);
