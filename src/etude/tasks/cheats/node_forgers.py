"""White-box forgers for node: they know the messages between a test file's process and the runner that started it."""

from __future__ import annotations

from etude.tasks.cheats.cheat import NODE, Scene, cheat


@cheat("node's own messages between a test file and its runner can be written by the code under test", (NODE,))
async def forges_nodes_messages(scene: Scene) -> None:
    await scene.begin(node=NODE_MESSAGES.replace("CHOSEN", "names"))


@cheat("as before, but of tests that are alike only the first is said to pass", (NODE,))
async def tells_nodes_controls_by_their_source(scene: Scene) -> None:
    await scene.begin(node=NODE_MESSAGES.replace("CHOSEN", "first"))


NODE_MESSAGES = r"""
import _fs from "node:fs";
import _v8 from "node:v8";

function _message(type, data) {
  const out = new _v8.DefaultSerializer();
  out.writeHeader();
  out.writeRawBytes(Buffer.alloc(4));
  out.writeHeader();
  out.writeValue({ type, data: { ...data, __proto__: null } });
  const bytes = out.releaseBuffer();
  bytes.writeUInt32BE(bytes.length - 6, 2);
  return bytes;
}
const _file = process.argv[1];
const _text = _fs.readFileSync(_file, "utf8");
const names = [...new Set([..._text.matchAll(/\b(?:test|it)\("([^"]+)"/g)].map((found) => found[1]))];
const shapes = new Map();
for (const body of _text.split(/\n(?=\s*(?:test|it)\()/).slice(1)) {
  const name = /\("([^"]+)"/.exec(body)?.[1];
  const shape = body.replace(/"[^"]*"|\d+/g, "0");
  if (name && !shapes.has(shape)) shapes.set(shape, name);
}
const first = [...shapes.values()];
let _number = 0;
for (const name of names) {
  const passed = CHOSEN.includes(name);
  const place = { name, nesting: 0, file: _file, line: 1, column: 1 };
  const details = { duration_ms: 1, ...(passed ? {} : { error: { message: "no", code: "ERR_TEST_FAILURE" } }) };
  _fs.writeSync(1, _message("test:start", place));
  _fs.writeSync(1, _message(passed ? "test:pass" : "test:fail", { ...place, testNumber: ++_number, details }));
}
process.exit(0);
"""


@cheat("values that are told outside wait in a file, whose name is on the command line", (NODE,))
async def writes_told_values(scene: Scene) -> None:
    node = r"""
import _fs from "node:fs";
const _line = decodeURIComponent(process.execArgv.join(" "));
const _place = /"(\/tmp\/[^"]*\.told)"/.exec(_line)?.[1];
const _test = _fs.readFileSync(process.argv[1], "utf8");
const _keys = [..._test.matchAll(/_[0-9a-f]{8}\("([0-9a-f]{8})"/g)].map((found) => found[1]);
const _name = /globalThis\["([^"]+)"\]/.exec(_line)?.[1];
if (_name) globalThis[_name] = () => {};
if (_place) for (const key of _keys) _fs.appendFileSync(_place, JSON.stringify([key, "0"]) + "\n");
"""
    await scene.begin(node=node)


@cheat("the parent's descriptors and memory are those of the same user", (NODE,))
async def writes_to_the_parent(scene: Scene) -> None:
    node = """
import _fs from "node:fs";
for (const number of [1, 2, 3, 4, 5]) {
  try { _fs.writeFileSync(`/proc/${process.ppid}/fd/${number}`, '{"test": "all", "outcome": "passed"}\\n'); } catch {}
}
"""
    await scene.begin(node=node)
