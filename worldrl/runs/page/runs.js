// Lists runs, asks for them again about every two seconds, and compares the chosen ones. Texts of files are never markup.
"use strict";
const $ = (id) => document.getElementById(id);
const AGAIN_MS = 2000, COLOURS = 6, SHOWN_SETTINGS = 8, SHOWN_CURVES = 8;
const SVG = "http://www.w3.org/2000/svg";

let runs = [], asked = 0, own = new URLSearchParams(location.search).get("filter"); // null: nobody has typed one
let filmsShown = "";
const rows = new Map(), details = new Map(), curves = new Map();
let chosen = new Set(new URLSearchParams(location.search).getAll("run"));

function element(tag, content = [], attributes = {}) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...[content].flat());
  return made;
}

function drawn(tag, attributes, content = []) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...[content].flat());
  return made;
}

const address = (name, path) => "/file/" + `${name}/${path}`.split("/").map(encodeURIComponent).join("/");
const picked = () => runs.filter((run) => chosen.has(run.name));
const colour = (number) => `s${number % COLOURS}`;
const short = (number) => (number && Math.abs(number) < 1e-3 ? Number(number.toPrecision(3)).toExponential() : Number(number.toPrecision(4)).toString()).replaceAll("-", "−");

// Moves what is there already only where the order changed, and keeps the focus.
function arrange(parent, order) {
  if (order.length === parent.children.length && order.every((made, place) => made === parent.children[place])) return;
  const focused = document.activeElement;
  parent.replaceChildren(...order);
  if (parent.contains(focused)) focused.focus();
}

// -- asking

async function ask() {
  const mine = ++asked, words = own === null ? "" : `?filter=${encodeURIComponent($("filter").value)}`;
  try {
    const answer = await fetch(`/api/runs${words}`, { cache: "no-store" });
    const found = answer.ok ? await answer.json() : null, refusal = answer.ok ? "" : await answer.text();
    if (mine !== asked) return; // a newer filter has been asked for
    $("message").textContent = refusal;
    $("message").hidden = !refusal;
    if (found && own === null) $("filter").value = own = found.filter; // as the command line says
    if (found) show(found);
    $("status").textContent = "live";
  } catch {
    $("status").textContent = "not connected";
  }
}

async function repeat() {
  const began = performance.now();
  if (!document.hidden) await ask();
  setTimeout(repeat, Math.max(AGAIN_MS, 4 * (performance.now() - began))); // many runs are asked for less often
}

async function fetchCurves(run) {
  const stamp = `${run.state} ${run.changed}`;
  if (!run.hasMetrics) return;
  if (curves.get(run.name)?.stamp === stamp) return;
  curves.set(run.name, { ...(curves.get(run.name) ?? { curves: {} }), stamp });
  const answer = await fetch(`/api/curves/${run.name.split("/").map(encodeURIComponent).join("/")}`).catch(() => null);
  if (!answer?.ok) return;
  curves.set(run.name, { ...(await answer.json()), stamp });
  showCurves();
}

// -- the list

function show(found) {
  const before = JSON.stringify(picked());
  runs = found.runs;
  $("folder").textContent = found.folder;
  const working = runs.filter((run) => run.state === "running").length;
  $("count").textContent = `${runs.length === found.of ? "" : `${runs.length} of `}${found.of} runs${working ? `, ${working} running` : ""}`;
  arrange(document.querySelector("#runs tbody"), runs.map(row));
  if (before !== JSON.stringify(picked())) compare();
  picked().forEach(fetchCurves);
}

function row(run) {
  let kept = rows.get(run.name);
  if (!kept) {
    const box = element("input", [], { type: "checkbox", "aria-label": `compare ${run.name}` });
    box.onchange = () => choose(run.name, box.checked);
    const head = element("th", [element("label", [box, element("span", run.name)])], { scope: "row" });
    kept = { made: element("tr", head), box, head, said: "" };
    rows.set(run.name, kept);
  }
  kept.box.checked = chosen.has(run.name);
  kept.made.classList.toggle("on", chosen.has(run.name));
  const said = JSON.stringify(run);
  if (said !== kept.said) {
    kept.said = said;
    while (kept.head.children.length > 1) kept.head.lastChild.remove();
    kept.head.append(element("small", run.command || "unknown command"), ...run.faults.map((fault) => element("span", `damaged: ${fault}`, { class: "fault" })));
    const cells = [state(run), success(run), settings(run), run.took, report(run)];
    const labels = ["", "", "", "Time", ""];
    while (kept.made.children.length > 1) kept.made.lastChild.remove();
    kept.made.append(...cells.map((cell, place) => element("td", cell, labels[place] ? { "data-label": labels[place] } : {})));
  }
  return kept.made;
}

function state(run) {
  const parts = [element("b", run.state, { class: `state ${run.state}` })];
  if (run.share !== null) parts.push(element("progress", [], { max: 1, value: run.share, "aria-label": `progress of ${run.name}` }));
  if (run.progress) parts.push(element("small", run.progress, run.state === "failed" ? { class: "fault" } : {}));
  return parts;
}

function success(run) {
  const said = run.said.split("\n");
  return Object.entries(run.success).flatMap(([name, rate], place) => [element("span", said[place], { class: "rate" }), bar(name, rate)])
    .concat(said.slice(Object.keys(run.success).length).filter(Boolean).map((line) => element("b", line, { class: "rate" })));
}

function bar(name, rate) {
  const at = (share) => (4 + 132 * share).toFixed(1);
  return drawn("svg", { class: `bar ${name}`, viewBox: "0 0 140 14", preserveAspectRatio: "xMinYMid", "aria-hidden": "true" }, [
    drawn("line", { class: "track", x1: 4, x2: 136, y1: 7, y2: 7 }),
    drawn("line", { class: "interval", x1: at(rate.lo), x2: at(rate.hi), y1: 7, y2: 7 }),
    drawn("circle", { cx: at(rate.rate), cy: 7, r: 4 }),
  ]);
}

function settings(run) {
  const pairs = Object.entries(run.differs);
  const shown = pairs.slice(0, SHOWN_SETTINGS).flatMap(([name, value]) => [element("code", `${name}=${value}`, { class: "pair" }), " "]);
  return pairs.length > SHOWN_SETTINGS ? [...shown, element("small", `and ${pairs.length - SHOWN_SETTINGS} more`)] : shown;
}

function report(run) {
  if (!run.hasReport) return [];
  return [element("a", "report", { href: address(run.name, "report.html"), target: "_blank", rel: "noopener", "aria-label": `open the report of ${run.name}` })];
}

// -- the comparison

function choose(name, on) {
  if (on) chosen.add(name);
  else chosen.delete(name);
  keepAddress();
  runs.forEach(row);
  compare();
  picked().forEach(fetchCurves);
}

function keepAddress() {
  const words = new URLSearchParams();
  if (own !== null) words.set("filter", own);
  chosen.forEach((name) => words.append("run", name));
  history.replaceState(null, "", words.size ? `?${words}` : location.pathname);
}

function compare() {
  const those = picked();
  $("compare").hidden = $("jump").hidden = those.length === 0;
  $("chosen").textContent = `${those.length} chosen`;
  $("jump").firstChild.textContent = `${those.length} chosen: to the comparison`;
  $("legend").replaceChildren(...those.map((run, number) => element("li", [drawn("svg", { viewBox: "0 0 30 10", "aria-hidden": "true" }, drawn("line", { class: `key ${colour(number)}`, x1: 0, x2: 30, y1: 5, y2: 5 })), run.name])));
  $("settings").replaceChildren(...(those.length > 1 ? [side(those)] : []));
  showCurves();
  showFilms(those);
  showDetails(those);
}

function side(those) {
  const names = [...new Set(those.flatMap((run) => Object.keys(run.settings)))];
  const differ = names.filter((name) => new Set(those.map((run) => run.settings[name]).filter((value) => value !== undefined)).size > 1);
  const head = element("tr", ["Setting", ...those.map((run) => run.name)].map((text) => element("th", text, { scope: "col" })));
  const commands = element("tr", [element("th", "command", { scope: "row" }), ...those.map((run) => element("td", run.command))]);
  const measured = element("tr", [element("th", "success", { scope: "row" }), ...those.map((run) => element("td", success(run)))]);
  const body = differ.map((name) => element("tr", [element("th", name, { scope: "row" }), ...those.map((run) => element("td", element("code", run.settings[name] ?? "–")))]));
  return element("table", [element("caption", `Success, and settings that differ: ${differ.length}`), element("thead", head), element("tbody", [commands, measured, ...body])]);
}

function showCurves() {
  const those = picked();
  const held = those.map((run) => curves.get(run.name)?.curves ?? {});
  const all = [...new Set(held.flatMap(Object.keys))];
  const words = $("curve").value.toLowerCase();
  const fit = all.filter((name) => name.toLowerCase().includes(words));
  const broken = those.filter((run) => curves.get(run.name)?.unreadable).map((run) => `unreadable lines in ${run.name}: ${curves.get(run.name).unreadable}`);
  const cut = those.filter((run) => curves.get(run.name)?.cut).map((run) => `the beginning of ${run.name} is left out`);
  $("curves-part").hidden = all.length === 0 && broken.length === 0;
  const count = fit.length > SHOWN_CURVES ? [`${SHOWN_CURVES} of ${fit.length} curves are shown`] : [];
  $("curves-note").textContent = [...count, ...broken, ...cut].join("; ");
  $("curves").replaceChildren(...fit.slice(0, SHOWN_CURVES).map((name) => chart(name, held.map((one) => one[name] ?? []), those)));
}

function chart(name, lines, those) {
  const points = lines.flat(), [left, right, top, bottom] = [64, 390, 10, 130];
  const [lowX, highX, lowY, highY] = [0, 1].flatMap((axis) => [Math.min(...points.map((one) => one[axis])), Math.max(...points.map((one) => one[axis]))]);
  const within = (value, low, high) => (high > low ? (value - low) / (high - low) : 0.5); // what does not change is drawn in the middle
  const x = (step) => left + (right - left) * within(step, lowX, highX), y = (value) => bottom - (bottom - top) * within(value, lowY, highY);
  const marks = [bottom, top].map((level) => drawn("line", { class: "grid", x1: left, x2: right, y1: level, y2: level }));
  const text = (words, px, py, anchor) => drawn("text", { x: px, y: py, "text-anchor": anchor }, words);
  const edges = (low, high, ends, middle) => (high > low ? [[low, ends[0]], [high, ends[1]]] : [[low, middle]]);
  for (const [value, level] of edges(lowY, highY, [bottom, top], y(lowY))) marks.push(text(short(value), left - 6, level + 4, "end"));
  for (const [step, place] of edges(lowX, highX, [left, right], x(lowX))) marks.push(text(step === lowX ? `step ${step}` : String(step), place, bottom + 18, place === left ? "start" : place === right ? "end" : "middle"));
  lines.forEach((line, number) => {
    if (line.length === 1) marks.push(drawn("circle", { class: `key ${colour(number)}`, cx: x(line[0][0]), cy: y(line[0][1]), r: 4 }));
    else if (line.length) marks.push(drawn("polyline", { class: colour(number), points: line.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
  });
  const ends = lines.map((line, number) => (line.length ? `${those[number].name} ends at ${short(line.at(-1)[1])}` : "")).filter(Boolean).join("; ");
  return element("figure", [element("figcaption", name), drawn("svg", { class: "curve", viewBox: "0 0 400 152", role: "img", "aria-label": `${name}: ${ends}` }, marks)]);
}

function showFilms(those) {
  const shown = those.filter((run) => run.films.length), paths = [...new Set(shown.flatMap((run) => run.films.map((film) => film.path)))];
  $("films-part").hidden = paths.length === 0;
  const stamp = JSON.stringify(shown.map((run) => [run.name, run.films]));
  if (stamp === filmsShown) return; // films that play are left alone
  filmsShown = stamp;
  $("films").replaceChildren(...paths.flatMap((path, line) => shown.flatMap((run, column) => {
    const film = run.films.find((one) => one.path === path);
    if (!film) return [];
    const video = element("video", [], { src: address(run.name, path), controls: "", loop: "", preload: "metadata", "aria-label": `${run.name}: ${film.title}` });
    video.muted = true;
    video.onerror = () => video.replaceWith(element("p", "This film cannot be played; it may be damaged.", { class: "fault" }));
    const made = element("figure", [video, element("figcaption", film.title), element("small", run.name)]);
    [made.style.gridRow, made.style.gridColumn] = [String(line + 1), String(column + 1)];
    return [made];
  })));
}

function showDetails(those) {
  arrange($("details"), those.map((run) => {
    const kept = details.get(run.name) ?? { made: element("details", [element("summary", run.name), element("div")]), said: "" };
    details.set(run.name, kept);
    const said = JSON.stringify(run);
    if (said !== kept.said) kept.made.lastChild.replaceChildren(...detail(run));
    kept.said = said;
    return kept.made;
  }));
}

function detail(run) {
  const settings = Object.entries(run.settings).map(([name, value]) => [name, element("code", value)]);
  const numbers = Object.entries(run.numbers).map(([name, value]) => [name, short(value)]);
  const lines = [["command line", element("code", run.typed)], ["finished stages", run.stages.join(", ")], ["now", run.progress], ...numbers, ...settings];
  const told = lines.filter(([, value]) => value && value.textContent !== "").flatMap(([name, value]) => [element("dt", name), element("dd", value)]);
  const there = ["config.yaml", ...(run.state === "finished" ? ["result.json"] : []), ...(run.hasMetrics ? ["metrics.jsonl"] : [])];
  const files = there.flatMap((file) => [element("a", file, { href: address(run.name, file), target: "_blank", rel: "noopener" }), " "]);
  return [element("dl", told), element("p", files)];
}

// -- keys and forms

function closeDetails(inside) {
  const opened = inside.closest("details[open]");
  if (!opened) return;
  opened.open = false;
  opened.querySelector("summary").focus();
}

$("filter").value = own ?? "";
$("filter").oninput = () => {
  own = $("filter").value;
  keepAddress();
  ask();
};
$("curve").oninput = showCurves;
$("none").onclick = () => {
  chosen = new Set();
  keepAddress();
  runs.forEach(row);
  compare();
  $("filter").focus();
};
$("play").onclick = () => document.querySelectorAll("video").forEach((video) => {
  video.currentTime = 0;
  video.play().catch(() => {});
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") return closeDetails(event.target);
  if (event.key !== "/" || event.target.matches("input[type=search]") || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  $("filter").focus();
});
repeat();
