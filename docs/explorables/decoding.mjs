// A small Transformer that changes the case of words writes an answer token by token, with
// and without a key–value cache. All its products are counted as they are computed.
import { html, svg, set, drawing, slider, button, toggle, choice, eachFrame } from "./controls.mjs";

export const D = 8, HIDDEN = 16, PLACES = 8;
const LETTERS = "acehiort";
export const VOCABULARY = ["pad", "begin", "end", "<U>", "<L>", ...LETTERS, ...LETTERS.toUpperCase()];
export const [PAD, BEGIN, END] = [0, 1, 2];
export const SOURCES = ["<U> Cat", "<L> TEa", "<U> heart", "<L> CHaiR"];

export const encode = text => [...text.split(" ").slice(0, 1), ...text.slice(4)].map(name => VOCABULARY.indexOf(name)).concat(END);

const zeros = (rows, columns) => Array.from({ length: rows }, () => new Array(columns).fill(0));
const sparse = (rows, columns, entries) => {
  const matrix = zeros(rows, columns);
  for (const [i, j, x] of entries) matrix[i][j] = x;
  return matrix;
};

// Weights chosen by hand. Columns of a token: three bits name the letter, then its case,
// then whether it is special; the last three hold its position on a circle, as three
// cosines that add up to zero. Whatever is written adds up to zero, too, so that a layer
// norm only scales. Matrices act from the right.
export function weights() {
  const content = [0, 1, 2, 3, 4];
  const special = [[-1, 1, -1, 0, 1], [-1, -1, 1, 0, 1], [-1, -1, -1, 0, 1], [1, 1, 1, 1, 1], [1, 1, 1, -1, 1]];
  const letter = (i, upper) => [i & 4, i & 2, i & 1, upper].map(bit => bit ? 1 : -1).concat(-1);
  const codes = VOCABULARY.map((_, w) => special[w] ?? letter((w - 5) % 8, w >= 13));
  const table = codes.map(code => {
    const rest = -code.reduce((a, b) => a + b) / 3;
    return [...code, rest, rest, rest].map(x => x * 0.36);
  });
  const positions = Array.from({ length: PLACES }, (_, t) => {
    const [a, b] = [0, -2 / 3].map(turn => Math.round(500 * Math.cos(Math.PI * (t / 4 + turn))) / 100);
    return [a, b, -a - b];
  }).map(p => [0, 0, 0, 0, 0, ...p]);
  // The circle's coordinates (3 cos, 3 sin), turned and scaled, beside a little content.
  const circle = (gain, turn, share) => {
    const c = gain * Math.cos(Math.PI * turn / 4), s = gain * Math.sin(Math.PI * turn / 4);
    const x = [2, -1, -1], y = [0, 1.73, -1.73];
    return sparse(D, D, [...x.flatMap((_, i) => [[5 + i, 0, c * x[i] - s * y[i]], [5 + i, 1, s * x[i] + c * y[i]]]), ...content.map(f => [f, 3 + f, share])]);
  };
  const copy = columns => sparse(D, D, columns.map(f => [f, f, 1]));
  const write = (gain, columns) => sparse(D, D, columns.flatMap(f => [[f, f, gain], ...[5, 6, 7].map(p => [f, p, -gain / 3])]));
  const none = new Array(D).fill(0);
  const attention = (query, bias, value, output) => ({ query, bias, key: circle(1, 0, 3), value, output });
  // Hidden unit f is the positive part of column f, hidden unit 8 + f the negative one.
  const pairs = Array.from({ length: D }, (_, f) => f);
  const network = {
    first: sparse(D, HIDDEN, pairs.flatMap(f => [[f, f, 1], [f, f + D, -1]])),
    second: sparse(HIDDEN, D, pairs.flatMap(f => [[f, f, 0.5], [f + D, f, -0.5]])),
  };
  return {
    table, output: codes.map(([a, b, c, upper, odd]) => [2 * a, 2 * b, 2 * c, 2 * upper, 6 * odd, 0, 0, 0]), positions,
    // Every token of the source fetches the case that the prompt, at position 0, asks for.
    encoder: { attention: attention(zeros(D, D), [6, 0, 0, 0, 0, 0, 0, 0], copy([3]), write(4, [3])), network },
    // Back to the token before, softly; then to the source, one position further on.
    decoder: { self: attention(circle(0.15, -1, 0.3), none, copy(content), write(0.5, content)), cross: attention(circle(2, 1, 0), none, copy(content), write(20, content)), network },
  };
}

const WEIGHTS = weights();
const transpose = a => a[0].map((_, j) => a.map(row => row[j]));
const add = (a, b) => a.map((row, i) => row.map((x, j) => x + b[i][j]));

// A matrix product; its multiplications are added to counts[part].
function product(a, b, counts, part) {
  if (counts) counts[part] = (counts[part] ?? 0) + a.length * b.length * b[0].length;
  return a.map(row => b[0].map((_, j) => row.reduce((sum, x, k) => sum + x * b[k][j], 0)));
}

export function softmax(scores) {
  const top = Math.max(...scores), exp = scores.map(x => Math.exp(x - top)), sum = exp.reduce((a, b) => a + b);
  return exp.map(x => x / sum);
}

export const norm = x => x.map(row => {
  const mean = row.reduce((a, b) => a + b) / row.length;
  const variance = row.reduce((sum, x) => sum + (x - mean) ** 2, 0) / row.length;
  return row.map(x => (x - mean) / Math.sqrt(variance + 1e-5));
});

// Attention of one head. Keys and values may come from earlier steps.
function attend(w, x, { key, value }, { start = 0, causal = false, counts, parts: [projections, scores] }) {
  const query = product(x, w.query, counts, projections).map(row => row.map((x, j) => x + w.bias[j]));
  const table = product(query, transpose(key), counts, scores).map((row, i) => softmax(row.map((s, j) => causal && j > start + i ? -Infinity : s / Math.sqrt(D))));
  const output = product(product(table, value, counts, scores), w.output, counts, projections);
  return { query, key, value, table, output };
}

const think = (x, w, counts) => product(product(norm(x), w.first, counts, "network").map(row => row.map(x => Math.max(0, x))), w.second, counts, "network");
const embed = (tokens, start = 0) => tokens.map((w, i) => WEIGHTS.table[w].map((x, j) => x * Math.sqrt(D) + WEIGHTS.positions[start + i][j]));

export function encoder(source) {
  const { attention: w, network } = WEIGHTS.encoder;
  let x = embed(source);
  const normed = norm(x);
  x = add(x, attend(w, normed, { key: product(normed, w.key), value: product(normed, w.value) }, { parts: [] }).output);
  return norm(add(x, think(x, network)));
}

// One step of the decoder on new target tokens. A cache { self, cross } is read and
// extended; without one, `tokens` are all tokens so far.
export function decode(tokens, memory, cache) {
  const { self, cross, network } = WEIGHTS.decoder, counts = {};
  const start = cache?.self?.key.length ?? 0;
  let x = embed(tokens, start), normed = norm(x);
  const fresh = { key: product(normed, self.key, counts, "projections"), value: product(normed, self.value, counts, "projections") };
  const kept = cache?.self ? { key: [...cache.self.key, ...fresh.key], value: [...cache.self.value, ...fresh.value] } : fresh;
  const inner = attend(self, normed, kept, { start, causal: true, counts, parts: ["projections", "scores"] });
  x = add(x, inner.output);
  const context = cache?.cross ?? { key: product(memory, cross.key, counts, "source"), value: product(memory, cross.value, counts, "source") };
  const outer = attend(cross, norm(x), context, { counts, parts: ["cross", "reads"] });
  x = add(x, outer.output);
  x = add(x, think(x, network, counts));
  const logits = product(norm(x), transpose(WEIGHTS.output), counts, "logits");
  if (cache) Object.assign(cache, { self: kept, cross: context });
  return { logits, self: inner, cross: outer, counts };
}

// Greedy decoding: for each step what was computed, and the token it wrote.
export function write(text, cached) {
  const memory = encoder(encode(text)), tokens = [BEGIN], steps = [], cache = {};
  while (tokens.at(-1) !== END && steps.length < PLACES) {
    const step = cached ? decode(tokens.slice(-1), memory, cache) : decode(tokens, memory);
    const chances = softmax(step.logits.at(-1).map((x, w) => w === PAD ? -Infinity : x));
    tokens.push(chances.indexOf(Math.max(...chances)));
    steps.push({ ...step, chances });
  }
  return { tokens, steps };
}

// Multiplications of step t (t tokens so far) for a source of s tokens, by part.
export function cost(t, s, cached, first = t === 1) {
  const rows = cached ? 1 : t;
  return {
    projections: 4 * rows * D * D,
    scores: 2 * rows * t * D,
    source: cached && !first ? 0 : 2 * s * D * D,
    cross: 2 * rows * D * D,
    reads: 2 * rows * s * D,
    network: 2 * rows * D * HIDDEN,
    logits: rows * D * VOCABULARY.length,
  };
}

export const sum = counts => Object.values(counts).reduce((a, b) => a + b, 0);

// All steps up to step n together, in closed form.
export function total(n, s, cached) {
  const token = 6 * D * D + 2 * s * D + 2 * D * HIDDEN + D * VOCABULARY.length;
  return cached ? n * token + n * (n + 1) * D + 2 * s * D * D : n * (n + 1) / 2 * token + n * (n + 1) * (2 * n + 1) / 3 * D + n * 2 * s * D * D;
}

const PARTS = {
  projections: "self-attention: projections", scores: "self-attention: scores, averages", source: "keys and values of the source",
  cross: "cross-attention: projections", reads: "cross-attention: scores, averages", network: "feed-forward network", logits: "logits",
};
const SHORT = { begin: "▸", end: "■", "<U>": "U", "<L>": "L" };
const START = { text: SOURCES[2], step: 4, cached: true };
const ROW = 22, CELL = 17, STRIP = 52;
const digits = x => Math.round(x).toLocaleString("en-US");
const large = x => x < 1e6 ? digits(x) : new Intl.NumberFormat("en-US", { notation: "compact", compactDisplay: "long", maximumSignificantDigits: 3 }).format(x);

// A row of numbers as bars up and down from its middle.
const bars = (row, x, y, most) => row.map((value, j) => `M${x + 5 + 6 * j} ${y + ROW / 2}v${(-value / most * (ROW / 2 - 3)).toFixed(2)}`).join("");
const largest = matrices => Math.max(...matrices.flat(2).map(Math.abs));

// Strips of bars for the rows of a matrix, to be filled and marked later.
function strips(root, name, role, x, rows) {
  root.append(svg("text", { x: x + STRIP / 2, y: 15, "text-anchor": "middle", class: role }, name));
  return Array.from({ length: rows }, (_, i) => {
    const y = 24 + ROW * i, frame = svg("rect", { x, y: y + 1, width: STRIP, height: ROW - 2 }), path = svg("path");
    const node = svg("g", { class: role }, frame, path);
    root.append(node);
    return (mark, row, most) => {
      set(node, { class: `${role} ${mark}` });
      if (row) set(path, { d: bars(row, x, y, most) });
    };
  });
}

// A table of weights, to be filled cell by cell; names of the columns go below its rows.
function table(root, x, rows, names) {
  const columns = names.length;
  root.append(svg("text", { x, y: 15, class: "query" }, "weights"));
  const below = names.map((name, j) => svg("text", { x: x + CELL * (j + 0.5), "text-anchor": "middle", class: "soft" }, SHORT[name] ?? name));
  root.append(...below);
  const nodes = Array.from({ length: rows }, (_, i) => Array.from({ length: columns }, (_, j) => {
    const at = { x: x + CELL * j, y: 24 + ROW * i }, cross = svg("path", { d: `M${at.x + 6} ${at.y + 8.5}l5 5m0 -5l-5 5` });
    const node = svg("g", {}, svg("rect", { ...at, width: CELL, height: ROW }), cross);
    root.append(node);
    return node;
  }));
  const outline = svg("rect", { class: "used", x, width: columns * CELL, height: ROW });
  root.append(outline);
  const fill = (i, j, mark, weight = 0) => {
    set(nodes[i][j], { class: mark, style: `--weight: ${weight.toFixed(4)}` });
    if (mark === "now") set(outline, { y: 24 + ROW * i, width: CELL * (j + 1) });
  };
  const name = (row, used) => below.forEach((text, j) => set(text, { y: 38 + ROW * row, display: j < used ? null : "none" }));
  return { fill, name };
}

export const label = "A small decoder, step by step";

export function mount(stage, { signal }) {
  stage.classList.add("decoding");
  const state = { ...START }, draw = eachFrame(show, signal);
  let runs, marks;

  const source = choice({ label: "Source", options: Object.fromEntries(SOURCES.map(text => [text, text])), value: state.text, signal, change: text => { state.text = text; begin(); draw(); } });
  const cached = toggle({ label: "key–value cache", value: state.cached, signal, change: on => { state.cached = on; draw(); } });
  const go = step => { state.step = Math.min(runs.steps, Math.max(1, step)); at.set(state.step); draw(); };
  const back = button("← Back", () => go(state.step - 1), signal), next = button("Next →", () => go(state.step + 1), signal);
  const at = slider({ label: "step", min: 1, max: 6, step: 1, value: state.step, show: x => runs ? `${x} of ${runs.steps}` : "", signal, change: go });
  const reset = button("Reset", () => {
    Object.assign(state, START);
    source.select.value = state.text;
    cached.input.checked = state.cached;
    length.set(3);
    begin();
    go(state.step);
  }, signal);

  const read = html("span", { class: "tokens" }), written = html("span", { class: "tokens" });
  const told = html("output", { class: "told", "aria-live": "polite" });
  const inner = html("div"), outer = html("div");
  const rows = Object.fromEntries([...Object.keys(PARTS), "step", "all"].map(part => [part, [html("td"), html("td")]]));
  const line = (part, name, attributes = {}) => html("tr", attributes, html("th", { scope: "row" }, name), ...rows[part]);
  const heads = ["without cache", "with cache"].map(text => html("th", { scope: "col" }, text));
  const costs = html("table", { class: "costs numbers" },
    html("caption", {}, "Multiplications in this step"), html("thead", {}, html("tr", {}, html("td"), ...heads)),
    html("tbody", {}, ...Object.entries(PARTS).map(([part, name]) => line(part, name)), line("step", "this step", { class: "sum" }), line("all", "all steps so far", { class: "sum" })));
  const further = html("output", { class: "further" });
  const length = slider({ label: "If it went on to", min: 0, max: 4, step: 0.1, value: 3, show: x => { const n = digits(10 ** x); return `${n} step${n === "1" ? "" : "s"}`; }, signal, change: () => draw() });

  stage.append(
    html("div", { class: "controls" }, back, next, at.node),
    html("div", { class: "controls" }, cached.node, source.node, reset),
    html("div", { class: "texts" }, html("span", {}, "source"), read, html("span", {}, "answer"), written),
    told,
    html("div", { class: "panels-live" }, inner, outer),
    html("p", { class: "legend" }, html("span", { class: "key-now" }, "computed in this step"), html("span", { class: "key-kept" }, "kept from an earlier step"), html("span", { class: "key-hidden" }, "computed, then masked"), html("span", { class: "key-names" }, "▸ begin, ■ end, U and L the wanted case")),
    costs, html("div", { class: "long" }, length.node, further),
  );

  // Write the whole answer both ways, and draw empty tables of the right size.
  function begin() {
    const [without, with_] = [false, true].map(kept => write(state.text, kept));
    const names = encode(state.text).map(w => VOCABULARY[w]), tokens = with_.tokens.map(w => VOCABULARY[w]);
    const steps = with_.steps.length, s = names.length;
    runs = { without, with: with_, steps, s, names, tokens };
    set(at.input, { max: steps });
    state.step = Math.min(state.step, steps);
    at.set(state.step);
    const self = drawing(340, 28 + ROW * (steps + 1), ""), cross = drawing(340, 28 + ROW * s, "");
    [self, cross].forEach(root => root.setAttribute("role", "img"));
    const label = (root, i, name) => root.append(svg("text", { x: 0, y: 39 + ROW * i }, name));
    tokens.slice(0, steps).forEach((name, i) => label(self, i, name));
    names.forEach((name, i) => label(cross, i, name));
    marks = {
      drawings: [self, cross], names: [...self.querySelectorAll("text")],
      query: strips(self, "Q", "query", 50, steps), key: strips(self, "K", "key", 110, steps), value: strips(self, "V", "value", 170, steps),
      self: table(self, 238, steps, tokens.slice(0, steps)),
      sourceKey: strips(cross, "K", "key", 50, s), sourceValue: strips(cross, "V", "value", 110, s),
      cross: table(cross, 216, steps, names),
    };
    marks.queries = tokens.slice(0, steps).map((name, i) => svg("text", { x: 208, y: 39 + ROW * i, "text-anchor": "end" }, SHORT[name] ?? name));
    cross.append(...marks.queries);
    inner.replaceChildren(html("div", {}, "Self-attention, under the causal mask"), self);
    outer.replaceChildren(html("div", {}, "Cross-attention, to the source"), cross);
  }

  function show() {
    const { step: t, cached: kept } = state, { s, steps, names, tokens } = runs;
    const full = runs.without.steps[t - 1], one = runs.with.steps[t - 1], last = t - 1;
    const tops = ["query", "key", "value"].map(part => largest(runs.without.steps.at(-1).self[part]));
    for (let i = 0; i < steps; i++) {
      const now = i === last || (!kept && i < t), there = i < t;
      const [query, key, value] = ["query", "key", "value"].map(part => full.self[part][i]);
      marks.query[i](now ? "now" : "none", query, tops[0]);
      marks.key[i](now ? "now" : there ? "kept" : "none", key, tops[1]);
      marks.value[i](now ? "now" : there ? "kept" : "none", value, tops[2]);
      for (let j = 0; j < steps; j++)
        marks.self.fill(i, j, now && j <= i ? "now" : now && j < t ? "hidden" : there && j <= i ? "past" : "none", there && j <= i ? full.self.table[i][j] : 0);
      for (let j = 0; j < s; j++) marks.cross.fill(i, j, now ? "now" : there ? "past" : "none", there ? full.cross.table[i][j] : 0);
      for (const names of [marks.names, marks.queries]) set(names[i], { class: i === last ? "bold" : there ? "soft" : "none" });
    }
    for (let j = 0; j < s; j++) {
      const mark = kept && t > 1 ? "kept" : "now";
      marks.sourceKey[j](mark, full.cross.key[j], largest(full.cross.key));
      marks.sourceValue[j](mark, full.cross.value[j], largest(full.cross.value));
    }
    marks.self.name(t, t);
    marks.cross.name(t, s);
    [["Self-attention", full.self, tokens], ["Cross-attention", full.cross, names]].forEach(([name, { table }, words], k) => {
      const row = table[last], j = row.indexOf(Math.max(...row));
      set(marks.drawings[k], { "aria-label": `${name}: ${tokens[last]} attends most to ${words[j]}, with weight ${row[j].toFixed(2)}` });
    });
    set(back, { "aria-disabled": t === 1 });
    set(next, { "aria-disabled": t === steps });
    const chip = (name, kind) => html("span", { class: `token ${kind}` }, name);
    read.replaceChildren(...names.map(name => chip(name, "")));
    written.replaceChildren(...tokens.slice(0, t).map((name, i) => chip(name, i === last ? "last" : "")), html("span", {}, "→"), chip(tokens[t], "next"));
    const chance = Math.max(...one.chances).toFixed(2);
    const ending = t === steps ? `It writes end (probability ${chance}): the answer is complete.` : `It writes ${tokens[t]} (probability ${chance}).`;
    told.textContent = kept
      ? `Step ${t}, with a cache: one token goes through the decoder${t > 1 ? `; the keys and values of ${t === 2 ? "one earlier token" : `${t - 1} earlier tokens`} and of the source are kept` : ", and the keys and values of the source are computed"}. ${ending}`
      : `Step ${t}, without a cache: ${t === 1 ? "one token goes" : `${t === 2 ? "both" : `all ${t}`} tokens go`} through the decoder${t > 1 ? ", and only the last row is used" : ""}. ${ending}`;
    [full, one].forEach(({ counts }, c) => {
      for (const part of Object.keys(PARTS)) rows[part][c].textContent = digits(counts[part] ?? 0);
      rows.step[c].textContent = digits(sum(counts));
      rows.all[c].textContent = digits([runs.without, runs.with][c].steps.slice(0, t).reduce((all, step) => all + sum(step.counts), 0));
      const on = c === (kept ? 1 : 0);
      for (const cell of [heads[c], ...Object.values(rows).map(pair => pair[c])]) cell.className = on ? "on" : "";
    });
    const n = Math.round(10 ** length.input.valueAsNumber), [a, b] = [total(n, s, false), total(n, s, true)];
    const ratio = a / b < 10 ? (a / b).toFixed(1) : digits(a / b);
    further.textContent = `${large(a)} multiplications in all without a cache, ${a > b ? `${large(b)} with one: ${ratio} times fewer` : "as many as with one"}.`;
  }
  begin();
  show();
}
