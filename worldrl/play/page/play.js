// Drives one session: keys become commands, one per chunk; frames are shown at an even pace.
"use strict";
const $ = (id) => document.getElementById(id);
// Key → index of the action and sign, as the scene camera sees it: it faces the robot.
const MOVES = {
  KeyW: [0, -1], KeyS: [0, 1], KeyA: [1, -1], KeyD: [1, 1], KeyE: [2, 1], KeyQ: [2, -1], KeyZ: [5, 1], KeyC: [5, -1],
  ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [1, -1], ArrowRight: [1, 1],
};
const WAYS = [0.01, 0.025, 0.05, 0.1]; // metres per chunk
const TAKEN_OVER = 4001, FULL = 4002;
const TOP_DB = 40, IDLE_MS = 1500, SAID_MS = 12000;

let socket, hello, frames = [], at = 0, following = true, due = 0;
let waiting = null, trip = 100, retry = 500;
let gripped = false, policyDrives = false, asked = null;
const held = new Set(), tapped = new Set();
let stick = [0, 0, 0, 0], buttons = [], pressed = null, firstFrame = null, hiding = 0;
const latencies = [], shownAt = [];

const chunks = () => (frames.length - 1) / hello.chunkFrames;
const frameMs = () => (1000 * hello.chunkSteps) / hello.chunkFrames / hello.controlHz / Number($("pace").value);
const gripper = () => ((frames.at(-1)?.gripper > 0) !== gripped ? 1 : -1); // as commanded last, or the other way
const seconds = (frame) => ((frame * hello.chunkSteps) / hello.chunkFrames / hello.controlHz).toFixed(1) + " s";

// -- connection

function connect() {
  const token = new URLSearchParams(location.search).get("session") || "";
  socket = new WebSocket(`ws://${location.host}/drive?session=${encodeURIComponent(token)}`);
  socket.binaryType = "arraybuffer";
  socket.onmessage = (event) => receive(event.data);
  socket.onclose = (event) => {
    waiting = null;
    setPolicy(false);
    status("not connected");
    if (event.code === TAKEN_OVER) say("Another tab drives this session now.", "bad", true);
    else if (event.code === FULL) {
      clearTimeout(hiding);
      $("again").hidden = false;
    }
    else {
      status("connecting again");
      setTimeout(connect, retry);
      retry = Math.min(2 * retry, 4000);
    }
  };
}

function send(request) {
  waiting = { sent: performance.now(), pressed };
  pressed = null;
  socket.send(JSON.stringify(request));
}

function receive(data) {
  if (typeof data === "string") return take(JSON.parse(data));
  const length = new DataView(data).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
  take(head, images(head, new Uint8Array(data, 4 + length)));
}

function images(head, bytes) {
  const size = head.rows * head.columns;
  return Array.from({ length: 2 * head.frames }, (_, number) => {
    const image = new ImageData(head.columns, head.rows), pixels = new Uint32Array(image.data.buffer);
    for (let pixel = 0, from = 3 * size * number; pixel < size; pixel++, from += 3) {
      pixels[pixel] = 0xff000000 | (bytes[from + 2] << 16) | (bytes[from + 1] << 8) | bytes[from];
    }
    return image;
  });
}

const TAKE = {
  hello(head) {
    hello = head;
    frames = [];
    retry = 500;
    hide();
    status("connected");
    history.replaceState(null, "", `?session=${head.token}`);
    fillForm();
    if (!head.started) begin();
  },
  start(head, [imagined, real]) {
    frames = [{ imagined, real }];
    [at, following, gripped] = [0, true, false];
    latencies.length = shownAt.length = 0;
    firstFrame = null;
    $("task").value = head.task;
    $("index").value = head.index;
    $("instruction").textContent = head.instruction;
    changed();
    lines();
  },
  chunk(head, shown) {
    const first = frames.length;
    for (let k = 0; k < head.frames; k++) {
      frames.push({
        imagined: shown[k], real: shown[head.frames + k], by: head.by, gripper: head.gripper, probability: head.probability[k], psnr: head.psnr[k],
        uncertainty: head.uncertainty?.[k], toolError: head.toolError?.[k], solved: head.solved[k],
        success: head.imaginedSuccess !== null && head.imaginedSuccess <= ((first + k) * hello.chunkSteps) / hello.chunkFrames,
      });
    }
    if (head.number < hello.kept) at = frames.length - 1; // driven before this page was loaded
    else if (waiting) arrive(first);
    changed();
    lines();
  },
  undo(head) {
    frames.length = 1 + head.keep * hello.chunkFrames;
    hello.kept = Math.min(hello.kept, head.keep);
    [at, following, firstFrame] = [frames.length - 1, true, null];
    changed();
    lines();
  },
  saved: (head) => say(`${head.steps} control steps are saved in ${head.folder}/real and ${head.folder}/imagined.`),
  error(head) {
    letGo();
    setPolicy(false);
    say(head.message, "bad");
  },
};

function take(head, shown) {
  TAKE[head.kind](head, shown);
  if (head.kind !== "hello") waiting = null;
}

function arrive(first) {
  const now = performance.now();
  trip = 0.8 * trip + 0.2 * (now - waiting.sent);
  if (waiting.pressed !== null) {
    at = first - 1; // a new command is shown at once
    firstFrame = { frame: first, pressed: waiting.pressed };
  }
  if (at >= first - 1) due = Math.max(now, due); // the pause between two chunks is no frame
}

// -- driving

function wanted() {
  const action = [0, 0, 0, 0, 0, 0, gripper()];
  for (const key of new Set([...held, ...tapped])) action[MOVES[key][0]] += MOVES[key][1];
  [action[0], action[1], action[2], action[5]] = [stick[1] + action[0], stick[0] + action[1], action[2] - stick[3], action[5] - stick[2]];
  const share = Math.min(1, Number($("step").value) / (hello.metresPerStep * hello.chunkSteps));
  const moves = action.slice(0, 6).map((number) => share * Math.max(-1, Math.min(1, number)));
  return gripped || moves.some((number) => number !== 0) ? [...moves, action[6]] : null;
}

function decide() {
  if (asked) {
    const request = asked();
    asked = null;
    return send(request);
  }
  const action = wanted();
  if (action && policyDrives) setPolicy(false);
  if (!frames.length || (!action && !policyDrives)) return;
  const keep = Math.floor(at / hello.chunkFrames);
  if (!following && keep < chunks()) return send({ do: "undo", keep });
  following = true;
  const left = (frames.length - 1 - at) * frameMs();
  if (pressed === null && left > trip + frameMs()) return;
  send(action ? { do: "drive", action } : { do: "policy" });
  tapped.clear();
  gripped = false;
}

function press(key) {
  if (key in MOVES && !held.has(key)) {
    held.add(key);
    tapped.add(key);
    pressed ??= performance.now();
  }
  mark();
}

function release(key) {
  held.delete(key);
  mark();
}

function grip() {
  gripped = !gripped;
  pressed ??= performance.now();
  mark();
}

function letGo() {
  held.clear();
  tapped.clear();
  gripped = false;
  mark();
}

function setPolicy(on) {
  policyDrives = on && Boolean(hello?.policy);
  $("policy").setAttribute("aria-pressed", policyDrives);
}

function ask(request) {
  setPolicy(false);
  asked = request;
}

function undo() {
  ask(() => ({ do: "undo", keep: Math.max(0, following ? chunks() - 1 : Math.floor(at / hello.chunkFrames)) }));
}

function begin() {
  if ($("setup").reportValidity()) ask(() => ({ do: "start", task: $("task").value, index: Number($("index").value) }));
}

function readGamepad() {
  const pad = navigator.getGamepads?.().find(Boolean);
  if (!pad) return;
  const before = stick.some(Boolean), down = pad.buttons.map((button) => button.pressed);
  stick = [0, 1, 2, 3].map((axis) => (Math.abs(pad.axes[axis] || 0) > 0.2 ? pad.axes[axis] : 0));
  if (!before && stick.some(Boolean)) pressed ??= performance.now();
  [grip, undo, null, () => setPolicy(!policyDrives)].forEach((act, number) => act && down[number] && !buttons[number] && act());
  buttons = down;
}

const SHORTCUTS = { Space: grip, Backspace: undo, KeyP: () => setPolicy(!policyDrives), KeyR: begin };
WAYS.forEach((_, number) => (SHORTCUTS[`Digit${number + 1}`] = () => ($("step").selectedIndex = number)));

addEventListener("keydown", (event) => {
  const control = event.target.closest("input, select, button, summary");
  if (event.ctrlKey || event.altKey || event.metaKey || !hello) return;
  if (event.code === "Escape") return dismiss();
  if (control && !(control.matches("button") && event.code in MOVES)) return;
  if (event.code in MOVES) press(event.code);
  else if (event.code in SHORTCUTS) event.repeat || SHORTCUTS[event.code]();
  else return;
  event.preventDefault();
});
addEventListener("keyup", (event) => release(event.code));
addEventListener("blur", letGo);
for (const button of document.querySelectorAll("[data-key]")) {
  const key = button.dataset.key;
  button.addEventListener("pointerdown", (event) => { button.setPointerCapture(event.pointerId); press(key); });
  for (const end of ["pointerup", "pointercancel"]) button.addEventListener(end, () => release(key));
  button.addEventListener("click", (event) => { if (event.detail === 0) { press(key); release(key); } });
}
$("gripper").onclick = grip;
$("undo").onclick = undo;
$("policy").onclick = () => setPolicy(!policyDrives);
$("save").onclick = () => ask(() => ({ do: "save" }));
$("again").onclick = connect;
$("setup").onsubmit = (event) => { event.preventDefault(); begin(); };
$("task").onchange = begin;
$("time").oninput = () => {
  [at, following] = [Number($("time").value), false];
  following = at === frames.length - 1;
  setPolicy(false);
  changed();
};
// After a click the keyboard drives again; who uses Tab stays on the control.
addEventListener("click", (event) => { if (event.detail > 0 && event.target.closest("button")) $("stage").focus(); });

// -- showing

function tick(now) {
  requestAnimationFrame(tick);
  if (!hello) return;
  readGamepad();
  if (following && at < frames.length - 1 && now >= due) {
    at += 1;
    due = Math.max(due + frameMs(), now);
    measure(now);
    changed();
  }
  if (!waiting && socket.readyState === WebSocket.OPEN) decide();
}

function resize(canvas, image) {
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.style.setProperty("--aspect", image.width / image.height);
}

function changed() {
  const frame = frames[at];
  for (const world of ["imagined", "real"]) {
    const canvas = $(world), image = frame[world];
    if (canvas.width !== image.width || canvas.height !== image.height) resize(canvas, image);
    canvas.getContext("2d").putImageData(image, 0, 0);
  }
  $("imagined-success").hidden = !frame.success;
  $("real-success").hidden = !frame.solved;
  $("time").max = frames.length - 1;
  $("time").value = at;
  $("time").setAttribute("aria-valuetext", seconds(at));
  $("where").textContent = `${seconds(at)}${frame.by ? `, driven by ${frame.by}` : ""}.`;
  $("past").hidden = following || at % hello.chunkFrames === 0;
  $("from").textContent = seconds(at - (at % hello.chunkFrames));
  const number = (value, digits, unit) => (value === undefined ? "–" : `${value.toFixed(digits)} ${unit}`);
  $("probability").textContent = frame.by ? `${(100 * frame.probability).toFixed(0)} %` : "–";
  $("solved").textContent = frame.by ? (frame.solved ? "solved" : "not solved") : "–";
  $("uncertainty-tile").hidden = frames.at(-1).uncertainty === undefined;
  $("uncertainty").textContent = number(100 * frame.uncertainty, 1, "%");
  $("error").textContent = number(frame.psnr, 1, "dB");
  $("tool-tile").hidden = frames.at(-1).toolError === undefined;
  $("tool").textContent = number(1000 * frame.toolError, 0, "mm");
  mark();
}

const quantile = (values, share) => [...values].sort((a, b) => a - b)[Math.ceil(share * values.length) - 1];

function measure(now) {
  if (now - shownAt.at(-1) > IDLE_MS) shownAt.length = 0;
  shownAt.push(now);
  if (shownAt.length > 60) shownAt.shift();
  if (shownAt.length > 8) $("rate").textContent = ((1000 * (shownAt.length - 1)) / (now - shownAt[0])).toFixed(0);
  if (!firstFrame || at < firstFrame.frame) return;
  latencies.push(now - firstFrame.pressed);
  firstFrame = null;
  $("latency").textContent = `${quantile(latencies, 0.5).toFixed(0)} ms`;
  $("slowest").textContent = `95 %: ${quantile(latencies, 0.95).toFixed(0)} ms`;
}

function lines() {
  const last = Math.max(1, frames.length - 1);
  const line = (id, value) =>
    $(id).setAttribute("points", frames.slice(1).map((frame, k) => `${k + 1},${44 - 42 * value(frame)}`).join(" "));
  for (const id of ["success", "psnr"]) $(id).setAttribute("viewBox", `0 0 ${last} 44`);
  line("success-line", (frame) => frame.probability);
  line("solved-line", (frame) => Number(frame.solved));
  line("psnr-line", (frame) => Math.min(1, frame.psnr / TOP_DB));
  const height = 44 - 42 * hello.threshold;
  for (const [name, value] of Object.entries({ x1: 0, x2: last, y1: height, y2: height })) $("threshold").setAttribute(name, value);
}

function mark() {
  $("gripper").firstChild.data = gripper() > 0 ? "Open " : "Close ";
  for (const button of document.querySelectorAll("[data-key]")) button.classList.toggle("down", held.has(button.dataset.key));
  $("undo").disabled = frames.length < 2;
  $("save").disabled = frames.length < 2;
}

function fillForm() {
  $("model").textContent = `world model ${hello.worldModel}${hello.policy ? `, policy ${hello.policy}` : ""}`;
  $("policy").hidden = !hello.policy;
  $("task").replaceChildren(...hello.tasks.map((task) => new Option(task.instruction, task.name)));
  const chosen = Math.max($("step").selectedIndex, -1);
  $("step").replaceChildren(...WAYS.map((way, number) => new Option(`${100 * way} cm (key ${number + 1})`, way)));
  $("step").selectedIndex = chosen < 0 ? 1 : chosen;
  $("rule").textContent = `${(100 * hello.threshold).toFixed(0)} %`;
  $("chunk").textContent = `${hello.chunkSteps} control steps, ${hello.chunkSteps / hello.controlHz} s`;
}

function say(text, kind = "", again = false) {
  $("message").hidden = false;
  $("message").className = kind;
  $("message").firstChild.textContent = text;
  $("again").hidden = !again;
  clearTimeout(hiding);
  if (!again) hiding = setTimeout(hide, SAID_MS);
}

function dismiss() {
  const opened = document.querySelector("details[open]");
  if (opened?.contains(document.activeElement)) opened.firstElementChild.focus();
  if (opened) opened.open = false;
  if ($("again").hidden) hide();
}

function hide() {
  $("message").hidden = $("again").hidden = true;
}

function status(text) {
  $("status").textContent = text;
}

connect();
requestAnimationFrame(tick);
$("stage").focus();
