"use strict";
// Everything that comes from outside is put on the page as text (textContent), never as HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const tip = document.getElementById("tip");
const SVG = new Set(["svg", "g", "path", "line", "circle", "rect", "text", "title", "desc"]);

function el(tag, attributes = {}, ...children) {
  const node = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter(child => child !== null && child !== undefined));
  return node;
}

// ---------------------------------------------------------------- numbers in words

const trim = (value, digits) => String(Number(value.toPrecision(digits)));
const FORMAT = {
  percent: v => `${(100 * v).toFixed(1)} %`,
  plain: v => (v !== 0 && (Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3) ? v.toExponential(2) : trim(v, 4)),
  count: v => Math.round(v).toLocaleString("en-US"),
  seconds: v => (v < 100 ? `${trim(v, 3)} s` : v < 6000 ? `${(v / 60).toFixed(1)} min` : `${(v / 3600).toFixed(1)} h`),
  bytes: v => {
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let k = 0;
    while (Math.abs(v) >= 1000 && k < units.length - 1) { v /= 1000; k += 1; }
    return `${trim(v, 3)} ${units[k]}`;
  },
};
const STEP = data.step, STEPS = `${STEP}s`; // what a line of numbers comes after: a round, of vertical runs an epoch
const AXES = {
  rounds: { label: STEPS, format: FORMAT.count },
  bytes: { label: `bytes, all ${STEP === "epoch" ? "parties" : "clients"}, both ways`, format: FORMAT.bytes },
  seconds: { label: "seconds of training", format: FORMAT.seconds },
  "virtual time": { label: "virtual time, by the run's clock", format: FORMAT.seconds },
};
const formatOf = metric => (metric.percent ? FORMAT.percent : FORMAT.plain);
const known = values => values.filter(v => v !== null && v !== undefined && Number.isFinite(v));
const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
function deviation(values) {
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(values.reduce((a, v) => a + (v - middle) ** 2, 0) / (values.length - 1));
}
// A spread needs no more than two digits, and none that the value does not have.
const FORMAT_SPREAD = new Map([[FORMAT.plain, v => trim(v, 2)], [FORMAT.seconds, v => `${trim(v, 2)} s`]]);
const spreadOf = (format, spread) => ` ± ${(FORMAT_SPREAD.get(format) ?? format)(spread)}`;
const withSpread = (format, value, spread) => format(value) + (spread === null ? "" : spreadOf(format, spread));

function ticks(low, high, count) {
  const step0 = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(step0));
  const step = [1, 2, 2.5, 5, 10].find(m => m * power >= step0 * 0.999) * power;
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) out.push(Number((k * step).toPrecision(12)));
  return out.length > 1 || count > 20 ? out : ticks(low, high, 2 * count);  // one number alone makes no axis
}

// ---------------------------------------------------------------- parts of a page

function section(id, title, lead, ...children) {
  const node = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title));
  if (lead) node.append(el("p", { class: "lead" }, lead));
  node.append(...children.flat());
  page.append(node);
  return node;
}

// A box that scrolls, and says so where something is out of sight.
function scrolling(kind, ...children) {
  const box = el("div", { class: `scroll ${kind}`, tabindex: "0", role: "region", "aria-label": "Table; it scrolls where it is wider than the page" }, children);
  const hint = el("p", { class: "more", hidden: true }, "More columns: scroll the table sideways →");
  const look = () => {
    const wide = box.scrollWidth > box.clientWidth + 2;
    hint.hidden = !wide;
    box.classList.toggle("cut", wide && box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
  };
  box.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(() => requestAnimationFrame(look)).observe(box); // in the next frame: its sign may change the size
  return el("div", { class: "framed" }, hint, box);
}

let groupCount = 0;
function choice(label, options, chosen, change) {
  groupCount += 1;
  const name = `choice-${groupCount}`;
  const boxes = options.map(([value, text]) =>
    el("label", {}, el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => change(value) }),
      el("span", {}, text)));
  return el("fieldset", { class: "choice" }, el("legend", {}, label), boxes);
}

function pick(label, options, chosen, change) {
  const select = el("select", { onchange: event => change(event.target.value) },
    options.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen) }, text)));
  return el("label", { class: "pick" }, label, select);
}

function table(columns, rows, caption, kind = "") {
  const head = el("thead", {}, el("tr", {}, columns.map(c => el("th", { scope: "col" }, c))));
  const body = el("tbody", {}, rows.map(row =>
    el("tr", {}, row.map((cell, k) => (k === 0 ? el("th", { scope: "row" }, cell) : el("td", {}, cell))))));
  return el("table", { class: kind }, el("caption", {}, caption), head, body);
}

// The table is made when it is asked for: the page opens quickly and stays small in memory.
function behind(caption, make) {
  const box = el("details", {}, el("summary", {}, "The table behind this picture"));
  box.fill = () => {
    while (box.children.length > 1) box.lastChild.remove();
    if (!box.open) return;
    const [columns, rows] = make();
    box.append(scrolling("", table(columns, rows, caption)));
  };
  box.addEventListener("toggle", box.fill);
  return box;
}

function say(x, y, title, rows) {
  tip.replaceChildren(el("b", {}, title), ...rows.map(([name, value, color]) =>
    el("div", {}, el("span", {}, color === undefined ? name : `● ${name}`), el("span", {}, value))));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
  tip.style.transform = `translate(${Math.max(6, left)}px, ${Math.max(6, Math.min(y - box.height / 2, innerHeight - box.height - 6))}px)`;
}
const hush = () => { tip.hidden = true; };

// Draws now and whenever the width changes.
function drawn(host, draw) {
  let width = 0;
  const again = force => {
    const now = Math.round(host.clientWidth);
    if (now > 0 && (force || Math.abs(now - width) > 1)) { width = now; draw(now); }
  };
  new ResizeObserver(() => requestAnimationFrame(() => again(false))).observe(host); // its height follows its width
  host.redraw = () => again(true);
  host.classList.add("host");
  again(false); // at once where it is on the page already, so that nothing below it jumps
  return host;
}
// On paper everything is drawn for the width of a page, whatever the window's.
for (const [event, on] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(event, () => {
    document.documentElement.classList.toggle("printing", on);
    document.querySelectorAll(".host").forEach(host => host.redraw());
  });
}

// ---------------------------------------------------------------- the line plot

// series: [{label, color, points: [{x, y, low, high}], thin, dots}], sorted by x
function lines(host, options) {
  const shown = options.series.filter(s => s.points.length);
  const { xAxis, format, height = 340, pickPoint = null, chosen = null, focusable = true } = options;
  const width = host.clientWidth;
  if (!shown.length) { host.replaceChildren(el("p", { class: "none" }, "Nothing to draw: no series is chosen.")); return; }
  const xs = shown.flatMap(s => s.points.map(p => p.x));
  const ys = shown.flatMap(s => s.points.flatMap(p => [p.low ?? p.y, p.high ?? p.y]));
  let [x0, x1, y0, y1] = [Math.min(...extremes(xs)), Math.max(...extremes(xs)), Math.min(...extremes(ys)), Math.max(...extremes(ys))];
  if (options.range) [y0, y1] = options.range;
  else {
    const pad = (y1 - y0 || Math.abs(y1) || 1) * 0.05;
    const floor = options.percent || y0 >= 0 ? 0 : -Infinity;
    [y0, y1] = [Math.max(floor, y0 - pad), options.percent ? Math.min(1, y1 + pad) : y1 + pad];
  }
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  if (y0 === y1) y1 = y0 + 1;
  const ends = !options.noEnds && width > 640 && shown.length > 1 && shown.length <= 12;
  const margin = { left: 58, right: ends ? Math.min(204, 34 + 7 * Math.max(...shown.map(s => Math.min(24, s.label.length)))) : 22, top: 10, bottom: 40 };
  const right = width - margin.right, bottom = height - margin.bottom;
  const X = v => margin.left + (v - x0) / (x1 - x0) * (right - margin.left);
  const Y = v => bottom - (v - y0) / (y1 - y0) * (bottom - margin.top);
  const at = v => v.toFixed(1);
  const svg = el("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: focusable ? "0" : null,
    "aria-label": `${options.title}. ${focusable ? "Arrow keys read the values; " : ""}the table below has them all.` });
  for (const t of ticks(y0, y1, height > 240 ? 6 : 4)) {
    svg.append(el("line", { class: "grid", x1: margin.left, x2: right, y1: at(Y(t)), y2: at(Y(t)) }),
      el("text", { x: margin.left - 8, y: at(Y(t) + 4), "text-anchor": "end" }, format(t).replace(/\.0 %$/, " %")));
  }
  for (const t of ticks(x0, x1, Math.max(3, Math.floor((right - margin.left) / 90)))) {
    if (xAxis === AXES.rounds && !Number.isInteger(t)) continue;
    svg.append(el("text", { x: at(X(t)), y: bottom + 18, "text-anchor": "middle" }, xAxis.format(t)));
  }
  svg.append(el("line", { class: "axis", x1: margin.left, x2: right, y1: bottom, y2: bottom }),
    el("text", { x: at((margin.left + right) / 2), y: height - 6, "text-anchor": "middle" }, xAxis.label));
  // A line that runs on another is dashed, so that both can be seen.
  const apart = (a, b) => mean(a.points.map((p, k) => Math.abs(X(p.x) - X(b.points[k].x)) + Math.abs(Y(p.y) - Y(b.points[k].y))));
  const near = (a, b) => a.points.length === b.points.length && apart(a, b) < 2;
  const upon = shown.map((s, k) => shown.slice(0, k).filter(other => near(s, other)).length);
  const quiet = shown.length > 3 ? " quiet" : ""; // many bands would be one grey
  for (const [index, s] of shown.entries()) {
    const color = `s${s.color % data.colors}${s.color >= data.colors ? " dashed" : ""}${quiet}`;
    const group = el("g", { class: color, "data-series": s.label });
    const band = s.points.filter(p => p.low !== undefined && p.low !== null);
    if (band.length > 1) {
      const up = band.map(p => `${at(X(p.x))},${at(Y(Math.min(p.high, y1)))}`);
      const down = band.map(p => `${at(X(p.x))},${at(Y(Math.max(p.low, y0)))}`).reverse();
      group.append(el("path", { class: "band", d: `M${up.join("L")}L${down.join("L")}Z` }));
    }
    if (s.points.length > 1) {
      group.append(el("path", { class: `line${s.thin ? " thin" : ""}${s.color >= data.colors ? " dashed" : ""}${upon[index] ? ` upon${Math.min(upon[index], 3)}` : ""}`,
        d: `M${s.points.map(p => `${at(X(p.x))},${at(Y(p.y))}`).join("L")}` }));
    }
    if (s.dots || s.points.length === 1) {
      const many = s.points.length > 80; // outlines would cover the dots beside them
      for (const p of s.points) group.append(el("circle", { class: `${many || !s.dots ? "dot" : "open"} clickable`, r: many ? 2 : 4, cx: at(X(p.x)), cy: at(Y(p.y)) }));
    }
    svg.append(group);
  }
  if (ends) {
    const marks = shown.map(s => ({ s, y: Y(s.points[s.points.length - 1].y) })).sort((a, b) => a.y - b.y);
    marks.forEach((m, k) => { if (k) m.y = Math.max(m.y, marks[k - 1].y + 15); });
    const over = Math.max(0, marks[marks.length - 1].y - bottom);
    for (const m of marks) {
      const text = m.s.label.length > 24 ? `${m.s.label.slice(0, 23)}…` : m.s.label;
      svg.append(el("g", { class: `s${m.s.color % data.colors}`, "data-series": m.s.label },
        el("rect", { class: "rect", x: right + 7, y: at(m.y - over - 2), width: 10, height: 4, rx: 2 }),
        el("text", { class: "end", x: right + 22, y: at(m.y - over + 4) }, text)));
    }
  }
  options.onDrawn?.(shown);
  const mark = el("g", {});
  svg.append(mark);
  const grid = [...new Set(xs)].sort((a, b) => a - b);
  let place = -1;
  function show(k, clientX, clientY) {
    place = Math.max(0, Math.min(grid.length - 1, k));
    const value = grid[place];
    const near = shown.map(s => [s, nearest(s.points, value)]).filter(([, p]) => Math.abs(X(p.x) - X(value)) < 12);
    mark.replaceChildren(el("line", { class: "cross", x1: at(X(value)), x2: at(X(value)), y1: margin.top, y2: bottom }),
      ...near.map(([s, p]) => el("g", { class: `s${s.color % data.colors}` }, el("circle", { class: "open", r: 4.5, cx: at(X(p.x)), cy: at(Y(p.y)) }))));
    const rows = near.slice().sort((a, b) => b[1].y - a[1].y)
      .map(([s, p]) => [p.name ?? s.label, withSpread(format, p.y, p.spread ?? null), s.color]);
    const box = svg.getBoundingClientRect();
    say(clientX ?? box.left + X(value) * box.width / width, clientY ?? box.top + box.height / 3,
      options.tipTitle ? options.tipTitle(value) : `${xAxis.format(value)} ${xAxis === AXES.rounds ? STEPS : ""}`, rows);
  }
  const indexAt = event => {
    const box = svg.getBoundingClientRect();
    const value = x0 + ((event.clientX - box.left) * width / box.width - margin.left) / (right - margin.left) * (x1 - x0);
    return nearestIndex(grid, value);
  };
  svg.addEventListener("pointermove", event => show(indexAt(event), event.clientX, event.clientY));
  svg.addEventListener("pointerleave", () => { mark.replaceChildren(); hush(); });
  svg.addEventListener("blur", () => { mark.replaceChildren(); hush(); });
  if (pickPoint) svg.addEventListener("click", event => pickPoint(grid[indexAt(event)]));
  svg.addEventListener("keydown", event => {
    const moves = { ArrowRight: place + 1, ArrowLeft: place < 0 ? grid.length - 1 : place - 1, Home: 0, End: grid.length - 1 };
    if (event.key in moves) { show(moves[event.key]); if (pickPoint) pickPoint(grid[place]); event.preventDefault(); }
    if (event.key === "Escape") { mark.replaceChildren(); hush(); }
    if (event.key === "Enter" && pickPoint && place >= 0) pickPoint(grid[place]);
  });
  if (chosen !== null) {
    const points = shown.filter(s => s.dots).flatMap(s => s.points.filter(p => p.x === chosen));
    for (const p of points) svg.append(el("circle", { class: "chosen", r: 8, cx: at(X(p.x)), cy: at(Y(p.y)) }));
  }
  const had = host.contains(document.activeElement) && document.activeElement.tagName.toLowerCase() === "svg";
  host.replaceChildren(svg);
  if (had) svg.focus({ preventScroll: true });
  highlight(lit, svg);
}
// Math.min(...values) has a limit on how many.
const extremes = values => { let a = Infinity, b = -Infinity; for (const v of values) { if (v < a) a = v; if (v > b) b = v; } return [a, b]; };
function nearestIndex(sorted, value) {
  let a = 0, b = sorted.length - 1;
  while (b - a > 1) { const c = (a + b) >> 1; if (sorted[c] < value) a = c; else b = c; }
  return Math.abs(sorted[a] - value) <= Math.abs(sorted[b] - value) ? a : b;
}
const nearest = (points, x) => points[nearestIndex(points.map(p => p.x), x)];

// A group's runs as one series: at each round the mean over its seeds and one standard deviation to both sides.
function seriesOf(group, color, key, axis) {
  const byRound = new Map();
  for (const r of group.runs) {
    const run = data.runs[r];
    const ys = run.y[key];
    if (!ys || !run.x[axis]) continue; // a reference line sends nothing
    run.x.rounds.forEach((t, k) => {
      if (ys[k] === null) return;
      if (!byRound.has(t)) byRound.set(t, { x: [], y: [] });
      byRound.get(t).x.push(run.x[axis][k]);
      byRound.get(t).y.push(ys[k]);
    });
  }
  const most = Math.max(0, ...[...byRound.values()].map(v => v.y.length));
  const points = [...byRound.entries()].sort((a, b) => a[0] - b[0])
    .filter(([, v]) => v.y.length === most || axis === "rounds")
    .map(([t, v]) => {
      const y = mean(v.y), spread = deviation(v.y);
      return { round: t, x: mean(v.x), y, spread, low: spread === null ? null : y - spread, high: spread === null ? null : y + spread };
    });
  return { label: group.label, color, points };
}

// ---------------------------------------------------------------- header

function header() {
  const themes = [["auto", "Auto"], ["light", "Light"], ["dark", "Dark"]];
  const theme = choice("Colours", themes, "auto", value => {
    if (value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
    repaint();
  });
  theme.classList.add("theme");
  const words = el("div", {}, el("p", { class: "eyebrow" }, "unalike report"), el("h1", {}, data.title),
    el("ul", { class: "facts" }, data.facts.map(f => el("li", {}, f))));
  const unfinished = data.runs.filter(r => r.asked && r.rounds < r.asked);
  if (unfinished.length === 1) {
    const r = unfinished[0];
    const which = data.runs.length > 1 ? `${r.folder}: ` : "";
    words.append(el("p", { class: "badge" }, `${which}not finished, ${FORMAT.count(r.rounds)} of ${FORMAT.count(r.asked)} ${STEPS}`));
  } else if (unfinished.length) words.append(el("p", { class: "badge" }, `${unfinished.length} of ${data.runs.length} runs are not finished`));
  if (data.idle.length) words.append(el("p", { class: "badge" }, `without a finished ${STEP}: ${data.idle.join(", ")}`));
  const lost = data.comparison.diverged;
  if (lost.length) words.append(el("p", { class: "badge" }, `diverged: ${lost.join("; ")}`));
  page.append(el("header", { class: "top" }, words, theme));
}

const painters = [];
const repaint = () => painters.forEach(paint => paint());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

function navigation() {
  const links = [...page.querySelectorAll("section")].map(s => el("a", { href: `#${s.id}` }, s.querySelector("h2").textContent));
  page.querySelector("header.top").after(el("nav", { class: "parts", "aria-label": "Parts of the report" }, links));
}

// ---------------------------------------------------------------- verdict and numbers

// The answer in bold first; its table comes after the picture.
function verdict() {
  const { verdict: said, answers } = data.comparison;
  if (!said.length) return;
  const [short, ...rest] = said;
  const node = section("verdict", "The answer", "", el("p", { class: "short" }, short.replace(/^In short: /, "")));
  node.classList.add("verdict");
  if (!answers.length) node.append(...rest.map(line => el("p", {}, line)));
}

function answers() {
  const { verdict: said, answers: rows, statistics } = data.comparison;
  if (!rows.length) return;
  const [head, ...body] = rows, sure = head.length - 1;
  const whole = text => text.replaceAll(" %", "\u00a0%");
  const cells = row => row.map((cell, k) => (k === 0 ? el("th", { scope: "row", role: "rowheader" }, whole(cell))
    : el("td", { role: "cell", class: k === sure && cell.startsWith("sure") ? "sure" : "" }, whole(cell))));
  const notes = said.slice(1).filter(line => !line.startsWith("Measured: "));
  const measured = said.find(line => line.startsWith("Measured: ")) ?? "";
  const node = section("answers", "Which method for what", measured.replace(/^Measured: /, "Measured is "), scrolling("free",
    el("table", { class: "words answers", role: "table" }, el("thead", {}, el("tr", { role: "row" }, head.map(h => el("th", { scope: "col", role: "columnheader" }, h)))),
      el("tbody", {}, body.map(row => el("tr", { role: "row" }, cells(row)))))));
  if (notes.length) node.append(el("details", {}, el("summary", {}, `${notes.length} notes`), notes.map(noted)));
  if (statistics.length > 1) {
    node.append(el("details", {}, el("summary", {}, "The statistics behind it"), el("p", { class: "none" }, data.comparison.method),
      scrolling("", table(statistics[0], statistics.slice(1), "Every test of this page, corrected together"))));
  }
}

function noted(line) {
  const cut = line.indexOf(": ");
  return el("p", { class: "note" }, el("b", {}, line.slice(0, cut + 1)), line.slice(cut + 1));
}

// One table of numbers: a comparison's own where there is one, with the last round under a fold, else the last round.
function numbers() {
  const rows = data.comparison.table;
  if (data.comparison.answers.length && rows.length > 1) {
    section("numbers", "Every method", "In the round that was chosen as above; reference lines come last.",
      scrolling("free", table(rows[0], rows.slice(1), "What the answer rests on")),
      el("details", {}, el("summary", {}, "The same after the last round, whichever round was chosen"), lastRound()));
    return;
  }
  const lead = data.summary.rows.length === 1 ? "" : "Mean ± standard deviation over seeds; the best method of a column is bold (reference lines do not count). Never the best round on test data.";
  section("numbers", `After the last ${STEP}`, lead, lastRound());
  if (rows.length > 1) page.lastChild.append(scrolling("free", table(rows[0], rows.slice(1), "What the answer rests on")));
}

const nameOfColumn = column => (column.key === "rounds" ? STEPS : column.label);

function lastRound() {
  const { columns, rows } = data.summary;
  if (rows.length === 1) {
    const tiles = columns.filter(c => rows[0].cells[c.key]).map(c => {
      const [value, spread] = rows[0].cells[c.key];
      const format = FORMAT[c.kind];
      return el("div", {}, el("dt", {}, nameOfColumn(c)), el("dd", {}, format(value), spread === null ? "" : el("small", {}, spreadOf(format, spread))));
    });
    return el("dl", { class: "tiles" }, tiles);
  }
  const short = { ...FORMAT, plain: v => trim(v, 3), seconds: v => FORMAT.seconds(Number(v.toPrecision(2))) };
  const uneven = rows.some(r => r.seeds !== rows[0].seeds);
  const ranked = rows.some(r => !r.reference) ? rows.filter(r => !r.reference) : rows;
  const body = rows.map((row, k) => {
    const cells = columns.map(c => {
      if (!row.cells[c.key]) return el("td", {}, "–");
      const [value, spread] = row.cells[c.key];
      const format = short[c.kind];
      const all = known(ranked.map(r => r.cells[c.key]?.[0]));
      const best = c.better === "higher" ? Math.max(...all) : c.better === "lower" ? Math.min(...all) : null;
      return el("td", { class: value === best && ranked.includes(row) ? "best" : "" }, format(value),
        spread ? el("small", {}, ` ± ${c.kind === "percent" ? format(spread) : FORMAT.plain(Number(spread.toPrecision(2)))}`) : "");
    });
    return el("tr", {}, el("th", { scope: "row" }, el("span", { class: `swatch s${k % data.colors}` }), row.label), uneven ? el("td", {}, String(row.seeds)) : null, cells);
  });
  const head = el("thead", {}, el("tr", {}, ["method", ...(uneven ? ["seeds"] : []), ...columns.map(nameOfColumn)].map(c => el("th", { scope: "col" }, c))));
  return scrolling("free", el("table", {}, head, el("tbody", {}, body)));
}

// ---------------------------------------------------------------- curves

const hidden = new Set();
const legends = [];
const curvePlots = [];

function legend() {
  const list = el("ul", { class: "legend", "aria-label": "Methods: press to hide or show" });
  if (data.groups.length > 1) {
    list.append(...data.groups.map((g, k) => el("li", { class: `s${k % data.colors}` },
      el("button", {
        type: "button", "aria-pressed": "true", "data-group": k,
        onclick: () => {
          if (hidden.has(k)) hidden.delete(k); else hidden.add(k);
          for (const other of legends) other.querySelector(`[data-group="${k}"]`)?.setAttribute("aria-pressed", String(!hidden.has(k)));
          curvePlots.forEach(plot => plot.redraw());
        },
        onpointerenter: () => highlight(g.label), onpointerleave: () => highlight(null),
        onfocus: () => highlight(g.label), onblur: () => highlight(null),
      }, el("i", {}), g.label, el("small", {})))));
    legends.push(list);
  }
  return list;
}
let lit = null; // the method that the pointer or the focus is on in a legend
function highlight(label, within = document) {
  lit = label;
  for (const mark of within.querySelectorAll("[data-series]")) {
    mark.classList.toggle("faded", label !== null && mark.dataset.series !== label);
    mark.classList.toggle("lit", label !== null && mark.dataset.series === label);
  }
}

// Methods that have no line in a picture are grey in its legend, and say why.
function absent(list, there) {
  for (const button of list?.querySelectorAll("button") ?? []) {
    const none = !hidden.has(Number(button.dataset.group)) && !there.has(data.groups[Number(button.dataset.group)].label);
    button.classList.toggle("absent", none);
    button.querySelector("small").textContent = none ? " (no such number)" : "";
  }
}

function curveFigure(state, title, height, list = null) {
  const host = el("div", {});
  const metric = () => data.metrics.find(m => m.key === state.key);
  const series = () => data.groups.map((g, k) => seriesOf(g, k, state.key, state.axis)).filter((s, k) => !hidden.has(k));
  drawn(host, () => lines(host, {
    series: series(), xAxis: AXES[state.axis], format: formatOf(metric()), percent: metric().percent, height,
    title: `${title ?? metric().label} against ${AXES[state.axis].label}: ${data.groups.map(g => g.label).join(", ")}`,
    onDrawn: shown => absent(list, new Set(shown.map(s => s.label))),
  }));
  curvePlots.push(host);
  const rows = behind("Mean ± standard deviation over seeds", () => {
    const all = series();
    const rounds = [...new Set(all.flatMap(s => s.points.map(p => p.round)))].sort((a, b) => a - b);
    const maps = all.map(s => new Map(s.points.map(p => [p.round, p])));
    return [[STEP, ...all.flatMap(s => (state.axis === "rounds" ? [s.label] : [`${s.label}, ${state.axis}`, s.label]))],
      rounds.map(t => [String(t), ...maps.flatMap(m => {
        const p = m.get(t);
        const value = p ? withSpread(formatOf(metric()), p.y, p.spread) : "";
        return state.axis === "rounds" ? [value] : [p ? AXES[state.axis].format(p.x) : "", value];
      })])];
  });
  host.redraw = (draw => () => { draw(); rows.fill(); })(host.redraw);
  return el("figure", {}, host, rows);
}

function curves() {
  const metrics = data.metrics.filter(m => !m.drift && data.runs.some(r => r.y[m.key]));
  if (!metrics.length) return;
  const state = { axis: "rounds", key: metrics[0].key };
  const list = legend();
  const figure = curveFigure(state, null, 380, list);
  const redraw = () => figure.firstChild.redraw();
  const axes = choice("Horizontal axis", Object.keys(AXES).filter(a => data.runs.some(r => r.x[a])).map(a => [a, a === "rounds" ? STEPS : a]), "rounds", value => { state.axis = value; redraw(); });
  const what = pick("Show", metrics.map(m => [m.key, m.label]), state.key, value => { state.key = value; redraw(); });
  what.id = "metric";
  axes.id = "axis";
  const seeds = Math.max(...data.groups.map(g => g.runs.length));
  section("curves", "Over the run", seeds > 1 ? "Lines are means over seeds, bands one standard deviation to both sides." : "",
    el("div", { class: "bar" }, what, axes), list, figure);
}

// ---------------------------------------------------------------- clients

const state = { run: 0, client: null };
const listeners = [];
const changed = () => listeners.forEach(listen => listen());
const clientsOf = run => (run.clients === null || run.clients === undefined ? null : data.clients[run.clients]);
const nameOf = (who, k) => (who.names ? who.names[k] : `client ${who.ids[k]}`);
const groupOf = r => data.groups.findIndex(g => g.runs.includes(r));
const runLabel = r => {
  const g = data.groups[groupOf(r)];
  return g.runs.length > 1 ? `${g.label}, seed ${data.runs[r].seed}` : g.label;
};
const decoded = new Map();
function historyOf(r) {
  const history = data.runs[r].history;
  if (!history) return null;
  if (!decoded.has(r)) decoded.set(r, Uint8Array.from(atob(history.bytes), c => c.charCodeAt(0)));
  return decoded.get(r);
}
function clientCurve(r, k) {
  const run = data.runs[r], bytes = historyOf(r), who = clientsOf(run);
  if (!bytes || !who) return [];
  const { rounds, low, high } = run.history, width = who.ids.length;
  return rounds.map((t, i) => ({ x: t, y: bytes[i * width + k] })).filter(p => p.y !== 255)
    .map(p => ({ x: p.x, y: low + p.y / 254 * (high - low) }));
}
function sorted(r) {
  const values = data.runs[r].values ?? [];
  const sign = data.runs[r].better === "lower" ? -1 : 1; // the worst client first
  return values.map((v, k) => [v, k]).filter(([v]) => v !== null).sort((a, b) => sign * (a[0] - b[0]) || a[1] - b[1]);
}
const scoreFormat = run => (run.percent ? FORMAT.percent : FORMAT.plain);

function choose(k) {
  state.client = k;
  changed();
}

function clients() {
  const able = data.runs.map((r, k) => k).filter(k => data.runs[k].values && clientsOf(data.runs[k]));
  if (!able.length && data.vertical.length) return; // parties have no samples of their own
  if (!able.length) {
    section("clients", "Client by client", "", el("p", { class: "none" },
      data.clients.length ? "Clients were not evaluated on data of their own: give them a test share (--test 0.2) to see how each one does."
        : "These runs recorded nothing of single clients. A run that is given callbacks=[unalike.report.Record()] does."));
    return;
  }
  state.run = able[0];
  const histogram = drawn(el("div", {}), () => drawHistogram(histogram));
  const curve = drawn(el("div", {}), () => drawSorted(curve, able));
  const detail = el("div", { id: "client", "aria-live": "polite" });
  const score = data.runs[able[0]].name;
  const values = behind("Every client after the last evaluated round", () => {
    const who = clientsOf(data.runs[state.run]);
    return [["client", "samples", score], sorted(state.run).map(([v, k]) => [nameOf(who, k), FORMAT.count(who.samples[k]), scoreFormat(data.runs[state.run])(v)])];
  });
  const bins = behind(`How many clients have which ${score}`, () => [[score, "clients"],
    binned(state.run).map(b => [`${b.label}`, String(b.count)])]);
  const bar = el("div", { class: "bar" });
  if (able.length > 1) {
    bar.append(pick("Run", able.map(r => [r, runLabel(r)]), state.run, value => { state.run = Number(value); changed(); }));
    bar.lastChild.id = "run";
  }
  const chooser = el("span", {});
  bar.append(chooser);
  section("clients", "Client by client", `Each client's ${score} on its own test samples after the last evaluated round. Choose a client in any picture to see its data and its history.`,
    bar, el("div", { class: "pair" },
      el("figure", {}, el("h3", {}, `Clients, worst to best`), curve, values),
      el("figure", {}, el("h3", {}, `How many clients have which ${score}`), histogram, bins)), detail);
  let shownRun = null;
  listeners.push(() => {
    const run = data.runs[state.run], who = clientsOf(run);
    if (!who) return;
    if (shownRun !== run.clients || !chooser.firstChild) {
      shownRun = run.clients;
      const options = who.ids.map((id, k) => [k, who.names ? `${who.names[k]}` : `client ${id}`]);
      chooser.replaceChildren(pick("Client", [["", "choose one"], ...options], state.client ?? "", v => choose(v === "" ? null : Number(v))));
    }
    chooser.querySelector("select").value = state.client === null ? "" : String(state.client);
    histogram.redraw(); curve.redraw(); values.fill(); bins.fill();
    drawClient(detail);
  });
}

function binned(r) {
  const run = data.runs[r], values = known(run.values ?? []);
  let [low, high] = run.percent ? [0, 1] : extremes(values);
  if (low === high) high = low + 1;
  const count = 20, format = scoreFormat(run);
  const bins = Array.from({ length: count }, (_, k) => ({ low: low + k * (high - low) / count, high: low + (k + 1) * (high - low) / count, count: 0 }));
  for (const v of values) bins[Math.min(count - 1, Math.max(0, Math.floor((v - low) / (high - low) * count + 1e-9)))].count += 1;
  for (const b of bins) b.label = `${format(b.low)} to ${format(b.high)}`.replaceAll(".0 %", " %");
  return bins;
}

function drawHistogram(host) {
  const run = data.runs[state.run], width = host.clientWidth, height = 300;
  const bins = binned(state.run), most = Math.max(1, ...bins.map(b => b.count));
  const margin = { left: 40, right: 12, top: 10, bottom: 40 }, bottom = height - margin.bottom;
  const X = k => margin.left + k / bins.length * (width - margin.left - margin.right);
  const Y = v => bottom - v / most * (bottom - margin.top);
  const svg = el("svg", { class: `plot s${groupOf(state.run) % data.colors}`, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Histogram of the clients' ${run.name} for ${runLabel(state.run)}; the table below has the counts.` });
  for (const t of ticks(0, most, 4).filter(Number.isInteger)) {
    svg.append(el("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: Y(t), y2: Y(t) }),
      el("text", { x: margin.left - 8, y: Y(t) + 4, "text-anchor": "end" }, String(t)));
  }
  const chosen = state.client === null ? null : run.values[state.client];
  bins.forEach((b, k) => {
    svg.append(el("rect", { class: "rect", x: X(k) + 1, width: Math.max(1, X(k + 1) - X(k) - 2), y: Y(b.count), height: bottom - Y(b.count), rx: 2 }));
    svg.append(el("rect", { x: X(k), width: X(k + 1) - X(k), y: margin.top, height: bottom - margin.top, "fill-opacity": 0,
      onpointermove: event => say(event.clientX, event.clientY, b.label, [[b.count === 1 ? "client" : "clients", String(b.count)]]), onpointerleave: hush }));
    if (k % 5 === 0) svg.append(el("text", { x: X(k), y: bottom + 18, "text-anchor": "middle" }, scoreFormat(run)(b.low).replace(".0 %", " %")));
  });
  svg.append(el("text", { x: X(bins.length), y: bottom + 18, "text-anchor": "end" }, scoreFormat(run)(bins[bins.length - 1].high).replace(".0 %", " %")),
    el("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: bottom, y2: bottom }),
    el("text", { x: (margin.left + width) / 2, y: height - 6, "text-anchor": "middle" }, `${run.name}, and how many clients have it`));
  if (chosen !== null && chosen !== undefined) {
    const place = X((chosen - bins[0].low) / (bins[bins.length - 1].high - bins[0].low) * bins.length);
    svg.append(el("line", { class: "chosen", x1: place, x2: place, y1: margin.top, y2: bottom }));
  }
  host.replaceChildren(svg);
}

function drawSorted(host, able) {
  const run = data.runs[state.run], who = clientsOf(run), order = sorted(state.run);
  const own = groupOf(state.run);
  const others = data.groups.map((g, k) => [k, g.runs.find(r => able.includes(r))])
    .filter(([k, r]) => k !== own && r !== undefined && data.runs[r].score === run.score)
    .map(([k, r]) => ({ label: data.groups[k].label, color: k, thin: true, points: sorted(r).map(([v], i) => ({ x: i + 1, y: v })) }));
  const points = order.map(([v, k], i) => ({ x: i + 1, y: v, name: nameOf(who, k) }));
  const place = order.findIndex(([, k]) => k === state.client);
  lines(host, {
    series: [...others, { label: data.groups[own].label, color: own, points, dots: true }],
    xAxis: { label: "clients, sorted (each method by itself)", format: FORMAT.count }, format: scoreFormat(run), percent: run.percent,
    range: run.percent ? [0, 1] : null, height: 300, noEnds: true, chosen: place < 0 ? null : place + 1,
    title: `The clients' ${run.name}, sorted, for ${runLabel(state.run)}`,
    tipTitle: value => `${FORMAT.count(value)} of ${order.length}`,
    pickPoint: value => { const hit = order[value - 1]; if (hit) choose(hit[1]); },
  });
}

function drawClient(host) {
  const run = data.runs[state.run], who = clientsOf(run), k = state.client;
  if (k === null || !who || k >= who.ids.length) {
    host.className = "";
    host.replaceChildren();
    return;
  }
  host.className = "client";
  const value = run.values[k];
  const head = el("header", {}, el("h3", {}, nameOf(who, k)), el("p", {}, `${FORMAT.count(who.samples[k])} training samples` +
    (value === null || value === undefined ? "; it has no test samples of its own" : `; ${run.name} ${scoreFormat(run)(value)} with ${runLabel(state.run)}`)));
  head.append(onlyThis(who, k));
  const mix = el("div", {}), over = el("div", {});
  const parts = [];
  if (who.labels) {
    parts.push(el("figure", {}, el("h3", {}, "Its labels"), mix, el("figcaption", {}, "Bars: this client's share of each class. Outlines: all clients together."),
      behind("Training samples of each class", () => [["class", "samples", "share", "all clients"],
        who.classes.map((c, j) => [c, FORMAT.count(who.labels[k][j]), FORMAT.percent(who.labels[k][j] / Math.max(1, who.samples[k])), FORMAT.percent(overall(who)[j])])])));
  }
  const series = data.groups.map((g, color) => {
    const runs = g.runs.filter(r => data.runs[r].clients === run.clients && data.runs[r].score === run.score);
    const all = runs.map(r => new Map(clientCurve(r, k).map(p => [p.x, p.y])));
    const rounds = all.length ? [...all[0].keys()].filter(t => all.every(m => m.has(t))) : [];
    return { label: g.label, color, runs: runs.length, points: rounds.map(t => ({ x: t, y: mean(all.map(m => m.get(t))) })) };
  }).filter(s => s.points.length);
  if (series.length) {
    const seeds = series.some(s => s.runs > 1) ? " Means over the seeds that share its data." : "";
    parts.push(el("figure", {}, el("h3", {}, `Its ${run.name} over the rounds`), over, el("figcaption", {}, `On its own test samples.${seeds}`),
      behind(`${run.name} after each shown round`, () => [["round", ...series.map(s => s.label)],
        series[0].points.map(p => [String(p.x), ...series.map(s => { const q = s.points.find(o => o.x === p.x); return q ? scoreFormat(run)(q.y) : ""; })])])));
  }
  host.replaceChildren(head, ...[clientGains(series, run, k)].filter(part => part), el("div", { class: "pair" }, parts));
  if (who.labels) drawn(mix, () => drawMix(mix, who, k));
  if (series.length) {
    drawn(over, () => lines(over, { series, xAxis: AXES.rounds, format: scoreFormat(run), percent: run.percent,
      range: run.percent ? [0, 1] : null, height: 260, title: `${run.name} of ${nameOf(who, k)} over the rounds` }));
  }
}

// A page for one client: everything that is not about it is hidden, and the address names it.
function onlyThis(who, k) {
  const alone = document.documentElement.classList.contains("alone");
  return el("button", { type: "button", class: "quiet only", "aria-pressed": String(alone), onclick: () => {
    document.documentElement.classList.toggle("alone", !alone);
    history.replaceState(null, "", alone ? "#clients" : `#client-${who.ids[k]}`);
    changed();
    document.querySelectorAll(".host").forEach(host => host.redraw());
    document.querySelector("button.only")?.focus();
  } }, alone ? "Show all clients" : "Only this client");
}

// What a client has of each method, beside FedAvg's model and beside training alone.
function clientGains(series, run, k) {
  if (series.length < 2) return null;
  const last = s => known(data.groups[s.color].runs.filter(r => data.runs[r].clients === run.clients).map(r => data.runs[r].values?.[k]));
  const ends = series.filter(s => last(s).length).map(s => ({ label: s.label, color: s.color, y: mean(last(s)) }));
  const of = name => ends.find(e => data.runs[data.groups[e.color].runs[0]].method.toLowerCase().replace("-", "") === name);
  const marks = [["fedavg", "to FedAvg"], ["localonly", "to training alone"]].map(([name, title]) => [of(name), title]).filter(([end]) => end);
  const points = v => (v === 0 ? "the same" : v > 0 ? "+" : "−") + (v === 0 ? "" : run.percent ? `${(100 * Math.abs(v)).toFixed(1)} points` : FORMAT.plain(Math.abs(v)));
  const format = scoreFormat(run);
  const rows = ends.map(e => [e.label, format(e.y), ...marks.map(([end]) => (e.label === end.label ? "" : points(e.y - end.y)))]);
  return scrolling("free", table(["method", `${run.name} on its own test samples`, ...marks.map(([, title]) => title)], rows, "What it gains, after the last evaluated round"));
}

const totals = new Map();
function overall(who) {
  if (!totals.has(who)) {
    const sums = who.classes.map((_, j) => who.labels.reduce((a, row) => a + row[j], 0));
    const all = sums.reduce((a, b) => a + b, 0) || 1;
    totals.set(who, sums.map(s => s / all));
  }
  return totals.get(who);
}

function drawMix(host, who, k) {
  const width = host.clientWidth, height = 260, margin = { left: 48, right: 8, top: 10, bottom: 40 }, bottom = height - margin.bottom;
  const shares = who.labels[k].map(v => v / Math.max(1, who.samples[k])), all = overall(who);
  const top = Math.max(0.05, ...shares, ...all);
  const X = j => margin.left + j / shares.length * (width - margin.left - margin.right);
  const Y = v => bottom - v / top * (bottom - margin.top);
  const svg = el("svg", { class: "plot s0", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Shares of the classes at ${nameOf(who, k)}; the table below has the numbers.` });
  for (const t of ticks(0, top, 4)) {
    svg.append(el("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: Y(t), y2: Y(t) }),
      el("text", { x: margin.left - 8, y: Y(t) + 4, "text-anchor": "end" }, FORMAT.percent(t).replace(".0 %", " %")));
  }
  const every = Math.ceil(shares.length / Math.max(1, Math.floor((width - 60) / 26)));
  shares.forEach((v, j) => {
    const left = X(j) + 1.5, wide = Math.max(1, X(j + 1) - X(j) - 3);
    svg.append(el("rect", { class: "rect", x: left, width: wide, y: Y(v), height: bottom - Y(v), rx: 2 }),
      el("rect", { class: "rect all", x: left, width: wide, y: Y(all[j]), height: bottom - Y(all[j]), rx: 2, opacity: .45 }));
    svg.append(el("rect", { x: X(j), width: X(j + 1) - X(j), y: margin.top, height: bottom - margin.top, "fill-opacity": 0,
      onpointermove: event => say(event.clientX, event.clientY, `class ${who.classes[j]}`, [["samples", FORMAT.count(who.labels[k][j])], ["share", FORMAT.percent(v)], ["all clients", FORMAT.percent(all[j])]]), onpointerleave: hush }));
    if (j % every === 0) svg.append(el("text", { x: (X(j) + X(j + 1)) / 2, y: bottom + 18, "text-anchor": "middle" }, who.classes[j]));
  });
  svg.append(el("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: bottom, y2: bottom }),
    el("text", { x: (margin.left + width) / 2, y: height - 6, "text-anchor": "middle" }, "class"));
  host.replaceChildren(svg);
}

// ---------------------------------------------------------------- who has what

function classes() {
  const able = data.groups.map(g => [g.label, data.runs[g.runs[0]].by_class]).filter(([, rows]) => rows);
  if (!able.length) return;
  const share = v => (v === null || v === undefined ? "–" : FORMAT.percent(v));
  const one = able.length === 1, names = [...new Map(able.flatMap(([, rows]) => rows.map(r => [r.class, r.samples])))];
  const head = ["class", "samples", ...(one ? ["recall", "precision", "F1"] : able.map(([label]) => label))];
  const body = names.map(([name, samples]) => {
    const found = able.map(([, rows]) => rows.find(r => r.class === name) ?? {});
    return [name, FORMAT.count(samples), ...(one ? ["recall", "precision", "f1"].map(k => share(found[0][k])) : found.map(r => share(r.recall)))];
  });
  section("classes", "Class by class", "After the last round, on the test set, or else over all clients' test samples together.",
    scrolling("free", table(head, body, one ? able[0][0] : "Recall of each class, by method; of several seeds the first")));
}

function labels() {
  const first = data.runs.find(r => clientsOf(r)?.labels);
  if (!first) return;
  const how = { order: "class" };
  const host = el("div", {});
  const who = () => (clientsOf(data.runs[state.run])?.labels ? clientsOf(data.runs[state.run]) : clientsOf(first));
  const main = row => row.indexOf(Math.max(...row));
  const orders = {
    number: () => 0,
    size: (w, a, b) => w.samples[b] - w.samples[a],
    class: (w, a, b) => main(w.labels[a]) - main(w.labels[b]) || Math.max(...w.labels[b]) / (w.samples[b] || 1) - Math.max(...w.labels[a]) / (w.samples[a] || 1),
  };
  let order = [];
  drawn(host, () => {
    const w = who();
    order = w.ids.map((_, k) => k).sort((a, b) => orders[how.order](w, a, b) || a - b);
    drawLabels(host, w, order);
  });
  painters.push(() => host.redraw());
  listeners.push(() => host.redraw());
  const rows = behind("Training samples of each client and class", () => {
    const w = who();
    return [["client", "samples", ...w.classes], order.map(k => [nameOf(w, k), FORMAT.count(w.samples[k]), ...w.labels[k].map(v => (v ? String(v) : ""))])];
  });
  const sort = choice("Order of the clients", [["class", "by main class"], ["size", "by size"], ["number", "as given"]], "class",
    value => { how.order = value; host.redraw(); rows.fill(); });
  sort.id = "order";
  const w = who();
  const some = w.population > w.ids.length ? ` ${FORMAT.count(w.ids.length)} of ${FORMAT.count(w.population)} clients are shown.` : "";
  const note = w.ids.length > DOTS ? "Dark: a large share of the client's samples." : "The area of a dot is the number of samples.";
  section("labels", "Who has which classes", `A column is a client, a row a class. ${note}${some}`,
    el("div", { class: "bar" }, sort), el("figure", {}, host, rows));
}

const DOTS = 120; // clients up to which a cell is a dot whose area one can compare; beyond it, a shade

function drawLabels(host, who, order) {
  const width = host.clientWidth, classes = who.classes.length, count = order.length;
  const left = 18 + 7 * Math.max(...who.classes.map(c => c.length)), top = 4, bottom = 26;
  const cell = (width - left - 4) / count, row = Math.max(4, Math.min(26, 420 / classes));
  const height = Math.round(row * classes + top + bottom), ratio = Math.max(1, window.devicePixelRatio || 1);
  const canvas = el("canvas", { class: "plot clickable", width: Math.round(width * ratio), height: Math.round(height * ratio), tabindex: "0", role: "img",
    "aria-label": `Which client has which classes: ${count} clients, ${classes} classes. Arrow keys go from client to client; the table below has the numbers.` });
  const pen = canvas.getContext("2d"), css = getComputedStyle(document.documentElement);
  const color = name => css.getPropertyValue(name).trim();
  pen.scale(ratio, ratio);
  pen.font = `12px ${color("--sans")}`;
  pen.fillStyle = color("--soft");
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const every = Math.ceil(12 / row);
  who.classes.forEach((c, j) => { if (j % every === 0) pen.fillText(c, left - 8, top + (j + .5) * row); });
  pen.textAlign = "center";
  pen.fillText(`${FORMAT.count(count)} clients`, left + (width - left) / 2, height - 9);
  pen.strokeStyle = color("--grid");
  for (let j = 0; j <= classes; j += 1) { pen.beginPath(); pen.moveTo(left, top + j * row); pen.lineTo(width - 4, top + j * row); pen.stroke(); }
  const most = Math.max(1, ...who.labels.map(r => Math.max(...r))), dots = count <= DOTS;
  pen.fillStyle = color("--c0");
  order.forEach((k, i) => who.labels[k].forEach((v, j) => {
    if (!v) return;
    if (dots) {
      const radius = Math.max(1, Math.sqrt(v / most) * Math.min(row * .62, Math.max(cell * .62, 5)));
      pen.globalAlpha = .85;
      pen.beginPath();
      pen.arc(left + (i + .5) * cell, top + (j + .5) * row, radius, 0, 7);
      pen.fill();
    } else {
      pen.globalAlpha = Math.min(1, .12 + .88 * Math.sqrt(v / Math.max(1, who.samples[k])));
      pen.fillRect(left + i * cell, top + j * row + .5, Math.max(cell, .75), row - 1);
    }
  }));
  pen.globalAlpha = 1;
  const place = order.indexOf(state.client);
  if (place >= 0) {
    pen.strokeStyle = color("--ink");
    pen.lineWidth = 1.5;
    pen.strokeRect(left + place * cell - 1, top - 2, Math.max(3, cell) + 2, row * classes + 4);
  }
  const hit = event => {
    const box = canvas.getBoundingClientRect();
    return [Math.floor(((event.clientX - box.left) * width / box.width - left) / cell), Math.floor(((event.clientY - box.top) * height / box.height - top) / row)];
  };
  const inside = (i, j) => i >= 0 && i < count && j >= 0 && j < classes;
  canvas.addEventListener("pointermove", event => {
    const [i, j] = hit(event);
    if (!inside(i, j)) { hush(); return; }
    const k = order[i], v = who.labels[k][j];
    say(event.clientX, event.clientY, nameOf(who, k), [[`class ${who.classes[j]}`, `${FORMAT.count(v)} of ${FORMAT.count(who.samples[k])}`]]);
  });
  canvas.addEventListener("pointerleave", hush);
  canvas.addEventListener("blur", hush);
  canvas.addEventListener("click", event => { const [i, j] = hit(event); if (inside(i, j)) choose(order[i]); });
  canvas.addEventListener("keydown", event => {
    const moves = { ArrowRight: place + 1, ArrowLeft: place < 0 ? count - 1 : place - 1, Home: 0, End: count - 1 };
    if (event.key === "Escape") hush();
    if (!(event.key in moves)) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(count - 1, moves[event.key])), k = order[next], box = canvas.getBoundingClientRect();
    choose(k);
    const top3 = who.labels[k].map((v, j) => [v, j]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([v]) => v);
    say(box.left + (left + next * cell) * box.width / width, box.top + box.height / 2, nameOf(who, k), top3.map(([v, j]) => [`class ${who.classes[j]}`, FORMAT.count(v)]));
  });
  const had = host.contains(document.activeElement) && document.activeElement.tagName === "CANVAS";
  host.replaceChildren(canvas);
  if (had) canvas.focus({ preventScroll: true });
}

// ---------------------------------------------------------------- clusters

function clusters() {
  const able = data.groups.map(g => [g.label, data.runs[g.runs[0]]]).filter(([, run]) => run.clusters);
  if (!able.length) return;
  const lead = "A row is a client, a column an evaluated round, a colour the cluster it was in; grey where it had none yet. Rows are sorted by the groups that were planted, where there are any, and by the last cluster.";
  const node = section("clusters", "Who is with whom", lead);
  able.forEach(([label, run]) => node.append(clusterFigure(label, run)));
}

function clusterFigure(label, run) {
  const found = run.clusters, who = clientsOf(run), end = found.of[found.of.length - 1];
  const planted = who.planted ?? end.map(() => 0);
  const order = end.map((_, k) => k).sort((a, b) => planted[a] - planted[b] || end[a] - end[b] || a - b);
  const host = el("div", {});
  drawn(host, () => drawClusters(host, label, found, who, order));
  painters.push(() => host.redraw());
  const format = found.percent ? FORMAT.percent : FORMAT.plain;
  const named = c => (c < 0 ? "none yet" : String(c));
  const rows = found.parts.map(p => [named(p.cluster), FORMAT.count(p.clients), ...(found.score ? [p.score === null ? "–" : format(p.score)] : [])]);
  const parts = table(["cluster", "clients", ...(found.score ? [`${found.score}, mean over its clients`] : [])], rows, "After the last evaluated round");
  const members = behind("Each client's cluster", () => [["client", ...(who.planted ? ["planted group"] : []), "cluster"],
    order.map(k => [nameOf(who, k), ...(who.planted ? [String(planted[k])] : []), named(end[k])])]);
  const agree = found.ari === null ? "" : ` Adjusted Rand index against the planted groups: ${FORMAT.plain(found.ari)} (1: the same division, 0: chance).`;
  const splits = (found.tree ?? []).map(([round, from, a, b]) => el("li", {}, `round ${round}: cluster ${from} became ${a} and ${b}`));
  return el("figure", {}, el("figcaption", {}, el("b", {}, label), `: ${FORMAT.count(found.parts.filter(p => p.cluster >= 0).length)} clusters.${agree}`),
    host, scrolling("free", parts), splits.length ? el("ul", { class: "splits" }, splits) : null, members);
}

function drawClusters(host, label, found, who, order) {
  const width = host.clientWidth, left = 56, top = 4, bottom = 24, rounds = found.rounds.length;
  const row = Math.max(1, Math.min(12, 480 / order.length)), cell = (width - left - 4) / rounds;
  const height = Math.round(row * order.length + top + bottom), ratio = Math.max(1, window.devicePixelRatio || 1);
  const canvas = el("canvas", { class: "plot", width: Math.round(width * ratio), height: Math.round(height * ratio), role: "img",
    "aria-label": `${label}: the cluster of ${order.length} clients over ${rounds} rounds; the tables below have the numbers.` });
  const pen = canvas.getContext("2d"), css = getComputedStyle(document.documentElement);
  const color = name => css.getPropertyValue(name).trim();
  // clusters in use at the end have the first colours, whatever their numbers
  const used = [...new Set([...found.of].reverse().flat())].filter(c => c >= 0);
  const shade = new Map(used.map((c, k) => [c, color(`--c${k % data.colors}`)]));
  pen.scale(ratio, ratio);
  found.of.forEach((of, i) => order.forEach((k, j) => {
    pen.fillStyle = shade.get(of[k]) ?? color("--grid");
    pen.fillRect(left + i * cell, top + j * row, cell + .5, Math.max(1, row - (row > 4 ? 1 : 0)));
  }));
  pen.font = `12px ${color("--sans")}`;
  pen.fillStyle = color("--soft");
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  if (who.planted) {
    const groups = [...new Set(order.map(k => who.planted[k]))];
    groups.forEach(g => {
      const places = order.map((k, j) => [who.planted[k], j]).filter(([p]) => p === g).map(([, j]) => j);
      pen.fillText(`group ${g}`, left - 6, top + (mean(places) + .5) * row);
      pen.fillRect(left - 4, top + places[0] * row, 2, row * places.length - 1);
    });
  }
  pen.textAlign = "center";
  pen.fillText(`round ${found.rounds[0]} to ${found.rounds[rounds - 1]}`, left + (width - left) / 2, height - 9);
  canvas.addEventListener("pointermove", event => {
    const box = canvas.getBoundingClientRect();
    const i = Math.floor(((event.clientX - box.left) * width / box.width - left) / cell);
    const j = Math.floor(((event.clientY - box.top) * height / box.height - top) / row);
    if (i < 0 || i >= rounds || j < 0 || j >= order.length) { hush(); return; }
    const k = order[j], cluster = found.of[i][k];
    const group = who.planted ? [["planted group", String(who.planted[k])]] : [];
    say(event.clientX, event.clientY, `${nameOf(who, k)}, round ${found.rounds[i]}`, [["cluster", cluster < 0 ? "none yet" : String(cluster)], ...group]);
  });
  canvas.addEventListener("pointerleave", hush);
  host.replaceChildren(canvas);
}

// ---------------------------------------------------------------- boosted trees

function trees() {
  const able = data.groups.map(g => [g.label, data.runs[g.runs[0]]]).filter(([, run]) => Array.isArray(run.forest));
  if (!able.length) return;
  const node = section("trees", "Trees", "A tree is read from left to right. The upper way is taken where the words at a split are true, the lower one where they are not; the number at the end is what the tree adds to a row's margin.");
  for (const [label, run] of able) for (const found of run.forest) node.append(...treeFigures(label, found));
}

function treeFigures(label, found) {
  const whose = found.who ? `${label}, what ${found.who} may see` : label;
  const count = found.trees === null ? "" : ` ${FORMAT.count(found.trees)} ${found.trees === 1 ? "tree" : "trees"}.`;
  const bars = found.shares.filter(s => s.rows.length).map(shares => {
    const host = el("div", {});
    drawn(host, () => drawShares(host, shares));
    return el("figure", {}, host, behind(shares.of, () => [["name", shares.of], shares.rows.map(([name, v]) => [name, FORMAT.percent(v)])]));
  });
  const few = found.drawn.length && found.drawn.length < found.trees ? ` The first ${found.drawn.length} are drawn.` : "";
  return [el("h3", { class: "after" }, whose), el("p", { class: "lead" }, `${count}${few}`), el("div", { class: "pair" }, bars), ...found.drawn.map(treeFigure)];
}

function drawShares(host, shares) {
  const width = host.clientWidth, row = 20, height = row * shares.rows.length + 26;
  const most = Math.max(...shares.rows.map(([, v]) => v)) || 1, left = Math.min(190, width * .42), room = width - left - 58;
  const svg = el("svg", { class: "plot s0", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${shares.of}; the table below has the numbers.` },
    el("text", { x: 0, y: 13 }, shares.of));
  shares.rows.forEach(([name, v], k) => {
    const y = 24 + row * k, long = Math.floor(left / 6.6);
    svg.append(el("text", { x: left - 8, y: y + 12, "text-anchor": "end" }, name.length > long ? `${name.slice(0, long - 1)}…` : name, el("title", {}, name)),
      el("rect", { class: "rect", x: left, y: y + 2, width: Math.max(1, v / most * room), height: row - 6, rx: 2 }),
      el("text", { x: left + v / most * room + 6, y: y + 12 }, FORMAT.percent(v)));
  });
  host.replaceChildren(svg);
}

function treeFigure(tree) {
  const host = el("div", {});
  drawn(host, () => drawTree(host, tree));
  const rows = () => tree.nodes.map(([place, words, gain, above]) => typeof words === "number" ? [String(place), "leaf", FORMAT.plain(words), "", ""]
    : [String(place), words, "", gain === null ? "–" : FORMAT.plain(gain), above ? "upper" : "lower"]);
  return el("figure", { class: "after" }, el("figcaption", {}, el("b", {}, tree.title)), scrolling("free", host),
    behind(`${tree.title}: the children of place k are 2k (upper) and 2k + 1 (lower)`, () => [["place", "asked", "adds", "gain", "way without a value"], rows()]));
}

// Leaves are rows, levels are columns; a box too narrow for all levels scrolls.
function drawTree(host, tree) {
  const nodes = new Map(tree.nodes.map(node => [node[0], node])), at = new Map();
  const depth = Math.max(...tree.nodes.map(([place]) => Math.floor(Math.log2(place))));
  const step = Math.max(132, (host.clientWidth - 96) / Math.max(1, depth)), row = 19;
  let leaves = 0;
  const put = place => {
    const level = Math.floor(Math.log2(place)), x = 12 + level * step;
    const leaf = typeof nodes.get(place)[1] === "number";
    const y = leaf ? 16 + row * leaves++ : (put(2 * place) + put(2 * place + 1)) / 2;
    at.set(place, [x, y]);
    return y;
  };
  put(1);
  const width = Math.ceil(12 + depth * step + 78), height = Math.ceil(row * leaves + 14);
  const svg = el("svg", { class: "tree", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${tree.title}: ${leaves} leaves; the table below has all splits.` });
  for (const [place, [x, y]] of at) {
    if (place === 1) continue;
    const [px, py] = at.get(place >> 1);
    svg.append(el("path", { class: "way", d: `M${px.toFixed(1)} ${py.toFixed(1)}V${y.toFixed(1)}H${x.toFixed(1)}` }));
  }
  for (const [place, [x, y]] of at) {
    const [, words, gain, above] = nodes.get(place);
    if (typeof words === "number") {
      const kind = words < 0 ? "s1" : "s0";
      svg.append(el("g", { class: kind }, el("circle", { class: "dot", cx: x, cy: y, r: 3.5 }), el("text", { x: x + 8, y: y + 4 }, `${words > 0 ? "+" : words < 0 ? "−" : ""}${FORMAT.plain(Math.abs(words))}`)));
      continue;
    }
    const long = Math.floor((step - 14) / 6.6), cut = Math.max(words.lastIndexOf(" ≤ "), words.lastIndexOf(" is not "));
    const end = cut < 0 ? "" : words.slice(cut); // a long name is cut, a number never
    const short = words.length > long ? `${words.slice(0, Math.max(3, long - 1 - end.length))}…${end}` : words;
    svg.append(el("g", {}, el("circle", { class: "knot", cx: x, cy: y, r: 3 }), el("text", { class: "asked", x: x + 7, y: y + 4 }, short),
      el("title", {}, `${words}?${gain === null ? "" : ` Gain ${FORMAT.plain(gain)}.`} A row without the value goes ${above ? "up" : "down"}.`)));
  }
  host.replaceChildren(svg);
}

// ---------------------------------------------------------------- drift

function drift() {
  const there = key => data.runs.some(r => known(r.y[key] ?? []).length);
  const figures = [["drift_mean", "How far clients move in a round"], ["drift_cosine", "How much their updates agree"]]
    .filter(([key]) => there(key)).map(([key, title]) => {
      const figure = curveFigure({ axis: "rounds", key }, title, 280);
      figure.prepend(el("h3", {}, title));
      figure.insertBefore(el("figcaption", {}, key === "drift_mean" ? "Mean Euclidean size of the update that a client sends."
        : "Mean cosine over all pairs of a round's updates: 1 all agree, 0 no common direction."), figure.lastChild);
      return figure;
    });
  const pictured = data.groups.map((g, k) => k).filter(k => data.runs[data.groups[k].runs[0]].features.length);
  if (!figures.length && !pictured.length) return;
  const node = section("drift", "Drift", "Clients with unlike data pull the model apart. These are measurements of the simulator: they read every client's update.");
  if (figures.length) node.append(legend(), el("div", { class: "pair" }, figures));
  if (pictured.length) features(node, pictured);
}

function features(node, able) {
  const now = { group: able[0], early: 0 };
  const left = el("div", {}), right = el("div", {}), bar = el("div", { class: "bar" }), words = [el("h3", {}), el("h3", {})];
  const pictures = () => data.runs[data.groups[now.group].runs[0]].features;
  const one = which => (which === 0 ? Math.min(now.early, pictures().length - 1) : pictures().length - 1);
  const hosts = [left, right];
  const redraw = () => hosts.forEach((host, which) => {
    const picture = pictures()[one(which)];
    words[which].textContent = `${which ? "Late" : "Early"}: clients' features after round ${FORMAT.count(picture.round)}`;
    host.redraw();
    tables[which].fill();
  });
  const draw = which => drawFeatures(hosts[which], now.group, pictures()[one(which)], pictures()[0]);
  hosts.forEach((host, which) => drawn(host, () => draw(which)));
  const tables = [0, 1].map(which => behind("Two principal components of each client's mean features", () => {
    const picture = pictures()[one(which)], places = picture.places ?? pictures()[0].places;
    const who = clientsOf(data.runs[data.groups[now.group].runs[0]]);
    return [["client", "first", "second"], places.map((k, i) => [nameOf(who, k), FORMAT.plain(picture.points[2 * i]), FORMAT.plain(picture.points[2 * i + 1])])];
  }));
  const rebuild = () => {
    const rounds = pictures().slice(0, -1);
    now.early = Math.min(now.early, Math.max(0, rounds.length - 1));
    bar.replaceChildren();
    if (able.length > 1) bar.append(pick("Method", able.map(k => [k, data.groups[k].label]), now.group, v => { now.group = Number(v); rebuild(); }));
    if (rounds.length > 1) bar.append(pick("Early picture", rounds.map((p, k) => [k, `after round ${FORMAT.count(p.round)}`]), now.early, v => { now.early = Number(v); redraw(); }));
    redraw();
  };
  listeners.push(redraw);
  node.append(el("h3", { class: "client" }, "What the model makes of each client's data"), bar, el("div", { class: "pair" },
    el("figure", {}, words[0], left, tables[0]), el("figure", {}, words[1], right, tables[1])),
    el("p", { class: "none after" }, "A mark is a client: its mean features under the global model, on the two directions in which clients differ most. It is written as the client's main class."));
  rebuild();
}

function drawFeatures(host, group, picture, first) {
  const run = data.runs[data.groups[group].runs[0]], who = clientsOf(run), places = picture.places ?? first.places;
  const width = host.clientWidth, height = Math.min(380, Math.round(width * .82)), margin = { left: 26, right: 14, top: 14, bottom: 30 };
  const xs = picture.points.filter((_, k) => k % 2 === 0), ys = picture.points.filter((_, k) => k % 2 === 1);
  const reach = Math.max(1e-12, ...[...extremes(xs), ...extremes(ys)].map(Math.abs)) * 1.06;
  const X = v => margin.left + (v + reach) / (2 * reach) * (width - margin.left - margin.right);
  const Y = v => height - margin.bottom - (v + reach) / (2 * reach) * (height - margin.top - margin.bottom);
  const svg = el("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Principal components of ${places.length} clients' features after round ${picture.round} of ${data.groups[group].label}; the table below has the numbers.` });
  svg.append(el("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: Y(0), y2: Y(0) }),
    el("line", { class: "grid", x1: X(0), x2: X(0), y1: margin.top, y2: height - margin.bottom }));
  places.forEach((k, i) => {
    const row = who.labels ? who.labels[k] : null, best = row ? row.indexOf(Math.max(...row)) : 0;
    const name = row ? who.classes[best] : "●", glyph = name.length <= 3 ? name : "●";
    const x = X(xs[i]), y = Y(ys[i]);
    if (k === state.client) svg.append(el("circle", { class: "chosen", cx: x, cy: y, r: 11 }));
    svg.append(el("text", { class: `glyph clickable s${best % data.colors}`, x, y: y + 4, "data-client": k,
      onclick: () => choose(k), onpointerleave: hush,
      onpointermove: event => say(event.clientX, event.clientY, nameOf(who, k),
        row ? [[`class ${name}`, FORMAT.percent(row[best] / Math.max(1, who.samples[k]))], ["samples", FORMAT.count(who.samples[k])]] : [["samples", FORMAT.count(who.samples[k])]]) }, glyph));
  });
  const share = picture.explained;
  svg.append(el("text", { x: width - margin.right, y: height - 8, "text-anchor": "end" }, `across ${FORMAT.percent(share[0])}, up ${FORMAT.percent(share[1])} of the variance`));
  host.replaceChildren(svg);
}

// ---------------------------------------------------------------- settings and how to repeat it

function command(text) {
  const button = el("button", { type: "button", class: "quiet", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected: copy it";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  } }, "Copy");
  const code = el("pre", {}, text);
  return [code, button];
}

function repeat() {
  const own = data.commands.filter(c => c.command);
  const parts = [];
  if (data.comparison.command) parts.push(...command(data.comparison.command));
  else if (own.length) parts.push(...command(own[0].command));
  if (own.length > 1) {
    const box = el("details", {}, el("summary", {}, `The command of each of the ${own.length} runs`));
    box.addEventListener("toggle", () => { if (box.children.length === 1) own.forEach(c => box.append(el("h3", {}, c.run), el("pre", {}, c.command))); });
    parts.push(box);
  }
  if (!parts.length && data.vertical.length) return; // its tables are not named in its folder
  if (!parts.length) parts.push(el("p", { class: "none" }, "These runs were started by a Python program: run it again with the settings below."));
  section("repeat", "Do it again", own.length || data.comparison.command ? "The same command gives the same numbers." : "", parts);
}

function privacy() {
  if (!data.privacy.length) return;
  const channel = data.privacy.some(p => p.channel.length), epsilon = data.privacy.some(p => p.epsilon !== null);
  const body = data.privacy.map(p => el("tr", {}, el("th", { scope: "row" }, p.label), el("td", {}, p.leaves),
    channel ? el("td", {}, p.channel.join(", then ") || "as it is") : null,
    channel ? el("td", {}, p.plain === null || p.plain === p.up ? FORMAT.bytes(p.up) : `${FORMAT.bytes(p.up)}, ${FORMAT.bytes(p.plain)} without the channel`) : null,
    epsilon ? el("td", {}, p.epsilon === null ? "none: no guarantee" : `ε = ${trim(p.epsilon, 4)}${p.delta === null ? "" : ` at δ = ${p.delta < 1e-3 ? p.delta.toExponential() : trim(p.delta, 3)}`}`) : null));
  const heads = ["method", "leaves a client", ...(channel ? ["goes through", "sent up"] : []), ...(epsilon ? ["guarantee"] : [])];
  const head = heads.length > 2 ? el("thead", {}, el("tr", {}, heads.map(h => el("th", { scope: "col" }, h)))) : null;
  const scroll = (...parts) => scrolling("free", el("table", { class: "words" }, parts.filter(p => p)));
  const seen = data.privacy.filter(p => p.sees.length).map(p => el("details", { open: data.privacy.length === 1 },
    el("summary", {}, data.privacy.length === 1 ? "Who sees what" : `Who sees what: ${p.label}`),
    scroll(el("tbody", {}, p.sees.map(([who, of, words], k) => el("tr", {},
      el("th", { scope: "row" }, k && p.sees[k - 1][0] === who ? "" : who), el("td", {}, of), el("td", {}, words)))))));
  section("privacy", "What leaves a client", "And who can read it, as the method declares. The server of a real federation sees every message that is neither sealed nor hidden by a channel.",
    scroll(head, el("tbody", {}, body)), seen);
}

// ---------------------------------------------------------------- parties with different columns of the same people

function parties() {
  if (!data.vertical.length) return;
  const several = data.vertical.length > 1, head = text => (several ? [el("h3", {}, text)] : []);
  const tables = (name, make) => data.vertical.filter(v => v[name].length).flatMap(v => [...head(v.label), ...make(v)]);
  const learned = tables("coefficients", v => v.coefficients.map(coefficients));
  if (learned.length) {
    section("coefficients", "What the model learned", "Coefficients of prepared columns: how much the score changes with one standard deviation, where columns are standardised. A party's coefficients are its own; no other party is sent them.", learned);
  }
  const matched = tables("matching", v => [el("ul", {}, v.matching.map(line => el("li", {}, line)))]);
  if (matched.length) section("matching", "Who are the same people", "", matched);
  const seen = tables("sees", v => [scrolling("free", table(["who gets it", "what it is told", "what that is"], v.sees, "Everything that crosses", "words"))]);
  if (seen.length) section("sees", "Who sees what", "As the method declares; nothing else can cross.", seen);
}

function coefficients(party) {
  const heads = party.outputs.length === 1 ? ["coefficient"] : party.outputs;
  const rows = party.rows.map(([name, values]) => [name, ...values.map(v => (v === null ? "–" : FORMAT.plain(v)))]);
  const box = scrolling("", table(["column", ...heads], rows, `${party.party}: seen by ${party.party} alone`));
  return party.more ? el("div", {}, box, el("p", { class: "none" }, `${party.more} smaller ones are not shown.`)) : box;
}

function settings() {
  const { columns, rows } = data.settings;
  const body = rows.map(r => el("tr", { class: r.differs ? "differs" : "" }, el("th", { scope: "row" }, r.key), r.values.map(v => el("td", {}, v))));
  const head = el("thead", {}, el("tr", {}, ["setting", ...columns].map(c => el("th", { scope: "col" }, c))));
  const one = rows.filter(r => r.differs).length;
  const box = el("details", {}, el("summary", {}, `${rows.length} settings`),
    scrolling("", el("table", { class: "words" }, head, el("tbody", {}, body))));
  section("settings", "Settings", columns.length > 1 && one ? "What differs comes first and is shaded." : "", box);
}

// `unalike watch` serves this page: look now and then whether there is more to show.
function live() {
  const note = el("p", { class: "badge", role: "status" }, "live: the page follows the runs");
  page.querySelector("header.top > div").append(note);
  let failed = 0;
  const look = async () => {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      const now = await answer.text();
      failed = 0;
      if (answer.ok && now !== data.live) { location.reload(); return; }
      note.textContent = "live: the page follows the runs";
    } catch {
      failed += 1;
      note.textContent = "unalike watch has stopped: the page stays as it is";
    }
    if (failed < 30) setTimeout(look, 2000);
  };
  setTimeout(look, 2000);
}

function notes() {
  const histories = data.runs.filter(r => r.history && r.history.rounds.length < r.history.of);
  const lines_ = [`Curves are thinned evenly to at most 400 points; the first and the last ${STEP} are always among them. The numbers after the last ${STEP} are not thinned.`];
  if (data.runs.some(r => r.history)) {
    lines_.push(`A client's history is rounded to 1/254 of its range${histories.length ? `, and shows ${histories[0].history.rounds.length} of ${histories[0].history.of} evaluated rounds, evenly spaced` : ""}.`);
  }
  lines_.push("This page is one file. It asks for nothing from any network.");
  page.append(el("footer", {}, lines_.map(t => el("p", {}, t))));
}

header();
verdict();
curves();
answers();
numbers();
clients();
classes();
labels();
clusters();
trees();
drift();
parties();
privacy();
repeat();
settings();
notes();
navigation();
const named = /^#client-(\d+)$/.exec(location.hash);
const wanted = named && data.clients.length ? clientsOf(data.runs[state.run])?.ids.indexOf(Number(named[1])) ?? -1 : -1;
if (wanted >= 0) {
  state.client = wanted;
  document.documentElement.classList.add("alone");
}
changed();
if (data.live) live();
addEventListener("scroll", hush, { passive: true });
document.documentElement.dataset.ready = "yes";
