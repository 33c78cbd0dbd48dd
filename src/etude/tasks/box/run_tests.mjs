// Runs files of node:test in a box, each in its own process, and reports each test's outcome on a descriptor of its
// own: the counterpart of run_tests.py, with the same job, rows and report. This process runs no code of the workspace;
// the processes that it starts get neither its standard input nor its standard output. Needs Node 20.

import fs from "node:fs";
import path from "node:path";

const given = fs.readFileSync(0);
const job = JSON.parse(given.subarray(8).toString());
fs.closeSync(0);
fs.openSync("/dev/null", "r"); // Takes the place of standard input.
const nonce = job.nonce;
delete job.nonce;

function say(row) {
  let line = Buffer.from(`${nonce} ${JSON.stringify(row)}\n`);
  while (line.length) {
    try {
      line = line.subarray(fs.writeSync(1, line));
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
}

function outcomeOf(passed, event) {
  if (event.skip !== undefined && event.skip !== false) return "skipped";
  if (event.todo !== undefined && event.todo !== false) return passed ? "xpassed" : "xfailed";
  return passed ? "passed" : "failed";
}

for (const folder of job.folders) fs.mkdirSync(folder, { recursive: true, mode: 0o755 });
let run;
try {
  ({ run } = await import("node:test"));
  if (typeof run !== "function") throw new Error(`node ${process.version} has no node:test run()`);
} catch (error) {
  say({ broken: String(error.message) });
  process.exit(3);
}
say({ ready: process.version });
process.chdir(job.workdir);
process.execArgv.length = 0; // Or every file's process would be given this script.

// A global function to which altered tests report values, and which returns them; the grader compares them outside of
// the box. Values wait in a file.
const told = `${job.report}.told`;
if (job.keeper) {
  const keeper = `
    import fs from "node:fs";
    const counts = new Map();
    function plain(value) {
      if (value === null) return "None";
      if (typeof value === "boolean") return value ? "True" : "False";
      if (typeof value === "number" && Number.isFinite(value)) return String(value);
      if (typeof value === "string") return JSON.stringify(value);
      if (Array.isArray(value)) return "[" + value.map(plain).join(", ") + "]";
      const made = value && [Object.prototype, null].includes(Object.getPrototypeOf(value));
      if (!made) throw new TypeError("not plain");
      return "{" + Object.keys(value).map((key) => JSON.stringify(key) + ": " + plain(value[key])).join(", ") + "}";
    }
    globalThis[${JSON.stringify(job.keeper)}] = (key, value) => {
      const count = (counts.get(key) ?? 0) + 1;
      counts.set(key, count);
      if (count > 1000) return value;
      let text = "";
      try { text = plain(value); } catch {}
      fs.appendFileSync(${JSON.stringify(told)}, JSON.stringify([key, text.length < 65536 ? text : ""]) + "\\n");
      return value;
    };`;
  process.execArgv.push("--import", `data:text/javascript,${encodeURIComponent(keeper)}`);
}

const files = [...new Set(job.ids.map((id) => id.split(" > ")[0]))].map((file) => path.join(job.workdir, file));
const names = [];
const seen = new Map();
const tests = {};
let failed = false;

// The line at which a test failed, counted from the test's first line.
function lineOf(event, file) {
  const stack = event.details?.error?.cause?.stack ?? event.details?.error?.stack ?? "";
  const place = String(stack).split("\n").find((line) => line.includes(`/${file}:`));
  const found = place && /:(\d+):\d+\)?$/.exec(place);
  return found ? Number(found[1]) - event.line : -1;
}

function finished(passed, event) {
  const file = event.file ? path.relative(job.workdir, event.file) : "";
  const outcome = outcomeOf(passed, event);
  if (outcome === "failed") failed = true;
  const isFile = event.nesting === 0 && path.resolve(job.workdir, event.name) === event.file;
  if (isFile || event.details?.type === "suite") return;
  const plain = [file, ...names.slice(0, event.nesting), event.name].join(" > ");
  const count = (seen.get(plain) ?? 0) + 1;
  seen.set(plain, count);
  const id = count === 1 ? plain : `${plain} #${count}`;
  tests[id] = outcome;
  const seconds = Math.round((event.details?.duration_ms ?? 0) * 10) / 10000;
  say({ test: id, outcome, seconds, line: passed ? null : lineOf(event, file) });
}

// Events come in source order: the start of a suite or test comes before those of the tests inside it.
for await (const { type, data } of run({ files, concurrency: 1 })) {
  if (type === "test:start") names[data.nesting] = data.name;
  else if (type === "test:pass") finished(true, data);
  else if (type === "test:fail") {
    finished(false, data);
    process.stderr.write(`not ok: ${data.name}: ${data.details?.error?.cause?.message ?? data.details?.error?.message}\n`);
  } else if (type === "test:stderr" || type === "test:stdout") process.stderr.write(data.message);
}
if (fs.existsSync(told)) {
  for (const line of fs.readFileSync(told, "utf8").split("\n").slice(0, -1)) {
    let key = "", text = "";
    try {
      [key, text] = JSON.parse(line);
    } catch {}
    say({ value: String(key), is: String(text) });
  }
}
const code = failed ? 1 : 0;
fs.writeFileSync(job.report, JSON.stringify({ nonce, exit: code, tests }));
say({ end: code, memory: 1024 * process.resourceUsage().maxRSS });
process.exit(code);
