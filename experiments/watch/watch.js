// The page of `sparring watch`: draws what /events sends (watch_json.c).
"use strict";

const cells = [];
const rows = [];
const modes = [];
const $ = id => document.getElementById(id);

function element(name, text, className) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

function link(href, text) {
  const a = element("a", text);
  a.href = href;
  return a;
}

function number(x, digits) {
  return x === null ? "-" : x.toLocaleString("en", {maximumSignificantDigits: digits});
}

function duration(s) {
  return s < 90 ? Math.ceil(s) + " s" : s < 5400 ? Math.round(s / 60) + " min" : number(s / 3600, 2) + " h";
}

// ---- what runs now

function svg(name, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  if (text !== undefined) e.textContent = text;
  return e;
}

// Column `index` of the points over their steps.
function chart(points, index, caption) {
  const width = 400, height = 130, left = 52, bottom = 18;
  const shown = points.filter(p => p[index] !== null);
  const figure = element("figure");
  figure.append(element("figcaption", caption));
  if (shown.length < 2) return figure;
  const values = shown.map(p => p[index]);
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) { low -= Math.abs(low) / 10 || 1; high += Math.abs(high) / 10 || 1; }
  const first = shown[0][0], last = shown[shown.length - 1][0];
  const x = step => left + (width - left - 4) * (step - first) / (last - first);
  const y = value => 6 + (height - bottom - 12) * (high - value) / (high - low);
  const picture = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${caption}: now ${number(values[values.length - 1], 4)}`});
  for (const value of [low, (low + high) / 2, high]) {
    picture.append(svg("line", {x1: left, x2: width, y1: y(value), y2: y(value)}));
    picture.append(svg("text", {x: left - 5, y: y(value) + 4, "text-anchor": "end"}, number(value, 3)));
  }
  picture.append(svg("text", {x: left, y: height - 3}, `step ${first}`));
  picture.append(svg("text", {x: width - 4, y: height - 3, "text-anchor": "end"}, last));
  picture.append(svg("path", {d: shown.map((p, i) => (i ? "L" : "M") + x(p[0]).toFixed(1) + " " + y(p[index]).toFixed(1)).join("")}));
  figure.append(picture);
  return figure;
}

function drawRun(run) {
  const box = element("div", undefined, "run");
  const ago = Date.now() / 1000 - run.changed;
  const where = [run.cell, run.run].filter(Boolean).join(", ");
  box.append(element("h3", (run.mode || "run") + (run.state === "running" ? "" : ", " + run.state), run.state === "failed" ? "failed" : ""));
  box.append(element("p", [where, run.ranks + (run.ranks === 1 ? " rank" : " ranks"), run.host && "rank 0 on " + run.host].filter(Boolean).join(" \u00b7 "), "soft"));
  if (run.planned_steps > 0) {
    const bar = element("progress");
    bar.max = run.planned_steps;
    bar.value = run.steps;
    bar.setAttribute("aria-label", "steps");
    box.append(bar);
  }
  const last = run.points[run.points.length - 1];
  const facts = [`step ${number(run.steps, 9)}` + (run.planned_steps > 0 ? ` of ${number(run.planned_steps, 9)}` : "")];
  if (last) facts.push(`loss ${number(last[1], 4)}`, `${number(last[2], 3)} samples/s`);
  if (run.state === "running" && run.changed > 0 && ago > 10) facts.push(`nothing new for ${duration(ago)}`);
  box.append(element("p", facts.join(" \u00b7 ")));
  const charts = element("div", undefined, "charts");
  charts.append(chart(run.points, 1, "Loss of rank 0"), chart(run.points, 2, "Samples per second"));
  box.append(charts);
  return box;
}

// ---- cells

function drawCell(cell) {
  const row = element("tr");
  const head = element("th");
  head.scope = "row";
  const name = cell.name || "all runs";
  if (cell.report) head.append(link(cell.report === "." ? "/report.html" : "/" + cell.report.split("/").map(encodeURIComponent).join("/") + "/report.html", name));
  else head.textContent = name;
  row.append(head);
  for (const mode of modes) {
    const m = cell.modes.find(x => x.name === mode);
    const field = element("td");
    if (m) {
      const ended = m.ok + m.failed;
      field.textContent = (m.planned > 0 ? `${ended}/${m.planned}` : `${ended}`) + (m.running ? ` +${m.running}` : "");
      if (m.failed) field.append(element("span", ` ${m.failed} failed`, "failed"));
      if (m.samples_per_second !== null) field.append(element("span", ` ${number(m.samples_per_second, 3)}/s`, "soft"));
    }
    row.append(field);
  }
  row.hidden = !name.includes($("filter").value);
  return row;
}

function drawHead() {
  $("head").replaceChildren(element("th", "cell"), ...modes.map(m => element("th", m || "runs")));
  rows.forEach((row, i) => { const now = drawCell(cells[i]); row.replaceWith(now); rows[i] = now; });
}

function takeCells(changed) {
  const before = modes.length;
  for (const cell of changed)
    for (const m of cell.modes)
      if (!modes.includes(m.name)) modes.push(m.name);
  for (const cell of changed) {
    const row = drawCell(cell);
    cells[cell.index] = cell;
    if (rows[cell.index]) rows[cell.index].replaceWith(row);
    else $("cells").append(row);
    rows[cell.index] = row;
  }
  if (modes.length !== before) drawHead();
}

function drawFailures() {
  const box = $("failures");
  const failures = cells.flatMap(cell => cell.failures.map(f => [cell.name, f.run, f.reason])).slice(-50);
  box.replaceChildren();
  if (failures.length === 0) return;
  box.append(element("h2", "Failed"));
  const list = element("ul");
  for (const [cell, run, reason] of failures) list.append(element("li", [cell, run].filter(Boolean).join(", ") + ": " + reason, "failed"));
  box.append(list);
}

// ---- events

function take(state) {
  const t = state.totals, ended = t.ok + t.failed;
  const title = state.title || state.path;
  document.title = `${ended}/${t.planned} ${title}`;
  $("title").textContent = title;
  $("all").max = Math.max(1, t.planned);
  $("all").value = ended;
  const facts = [`${ended} of ${t.planned} runs`];
  if (t.running) facts.push(`${t.running} running`);
  if (t.failed) facts.push(`${t.failed} failed`);
  if (ended < t.planned && t.seconds_left !== null) facts.push(`about ${duration(t.seconds_left)} left`);
  $("totals").textContent = facts.join(" \u00b7 ");
  $("index").replaceChildren(...(state.index ? [link("/index.html", "The report of all cells")] : []));
  takeCells(state.cells);
  $("filter-line").hidden = cells.length < 2;
  $("now").textContent = t.running || !state.runs.length ? "Now" : "The last run";
  $("runs").replaceChildren(...(state.runs.length ? state.runs.map(drawRun) : [element("p", "Nothing runs.", "soft")]));
  drawFailures();
}

const events = new EventSource("/events");
events.onmessage = e => { $("offline").style.display = "none"; take(JSON.parse(e.data)); };
events.onerror = () => { $("offline").style.display = "block"; };
$("filter").oninput = () => rows.forEach((row, i) => { row.hidden = !(cells[i].name || "all runs").includes($("filter").value); });
