// The scale is a dial: turn it, or drag a key, and watch weights, entropy and output.
// A moved key slides the output along one line, and the first-order formula says how far.
import { button, draggable, drawing, eachFrame, html, set, slider, svg } from "./controls.mjs";

// Coordinates are multiples of 1/32: their products are exact, so that keys can tie.
const GRID = 32, REACH = 2, TURNS = 200;
export const VALUES = [[1.625, -0.875], [-1.625, 0.75], [0.5, 1.625], [-0.875, -1.5], [1.5, 0.75]];
export const START = {
  turn: 100,
  query: [1.25, 0.75],
  keys: [[1.25, -0.125], [0.5, 1.25], [-1.125, 1], [-1, -0.875], [0.5, -1.25]],
  chosen: 1,
  from: [-0.125, 0.75],
};
// Here keys 1 and 2 have the same score.
export const TIE = { query: START.query, keys: START.keys.with(0, [1.25, 0.25]).with(1, [0.5, 1.5]) };

const dot = (x, y) => x.reduce((sum, _, c) => sum + x[c] * y[c], 0);
const average = (weights, vectors) => vectors[0].map((_, c) => weights.reduce((sum, a, j) => sum + a * vectors[j][c], 0));
const minus = (x, y) => x.map((_, c) => x[c] - y[c]);

// The slider holds all scales from 0 to infinity: 1 lies in the middle.
export const scale = turn => turn / (TURNS - turn);

export function softmax(scores, beta) {
  const top = Math.max(...scores);
  // An infinite scale times no gap would not be a number.
  const exps = scores.map(s => s === top ? 1 : Math.exp(beta * (s - top)));
  const total = exps.reduce((sum, x) => sum + x, 0);
  return exps.map(x => x / total);
}

export function attend(query, keys, values, beta) {
  const scores = keys.map(key => dot(query, key)), weights = softmax(scores, beta);
  return { scores, weights, output: average(weights, values) };
}

export const entropy = weights => weights.reduce((sum, a) => a > 0 ? sum - a * Math.log(a) : sum, 0);

// To first order, a move of key j moves the output by beta a_j (q . move) (v_j - h). Hard
// attention is constant, except at a tie.
export function predict(query, keys, values, beta, j, move) {
  const { weights, output } = attend(query, keys, values, beta);
  const share = beta === Infinity ? 0 : beta * weights[j] * dot(query, move);
  return minus(values[j], output).map(x => share * x);
}

// All that the stage shows: key `chosen` has come from `from`.
export function look({ turn, query, keys, chosen, from }, values = VALUES) {
  const beta = scale(turn), others = (_, j) => j !== chosen;
  const now = attend(query, keys, values, beta);
  const before = attend(query, keys.with(chosen, from), values, beta).output;
  const step = predict(query, keys.with(chosen, from), values, beta, chosen, minus(keys[chosen], from));
  const without = attend(query, keys.filter(others), values.filter(others), beta).output;
  const evenness = entropy(now.weights);
  return { beta, ...now, entropy: evenness, effective: Math.exp(evenness), before, step, without, moved: minus(now.output, before) };
}

// The longest a key of this direction can be within the plane.
export const longest = key => REACH * Math.hypot(...key) / Math.max(...key.map(Math.abs));

const snap = x => Math.min(REACH, Math.max(-REACH, Math.round(x * GRID) / GRID));
const minused = text => text.replace("-", "−");
const fixed = (x, digits = 2) => minused((Math.abs(x) < 0.5 * 10 ** -digits ? 0 : x).toFixed(digits));
const point = x => `(${fixed(x[0])}, ${fixed(x[1])})`;
const showScale = turn => {
  const beta = scale(turn);
  return beta === Infinity ? "∞ (hard)" : beta < 10 ? beta.toFixed(2) : beta.toFixed(beta < 100 ? 1 : 0);
};

// Planes are 200 units wide; REACH lies 8 units inside.
const SIZE = 200, UNIT = 92 / REACH;
const at = ([x, y]) => [SIZE / 2 + UNIT * x, SIZE / 2 - UNIT * y];
const line = (a, b) => `M${at(a).join(" ")}L${at(b).join(" ")}`;
const shift = p => `translate(${at(p).join(" ")})`;

// An arrow from a to b in the drawing's units, `aside` of the straight way.
function arrow(a, b, aside = 0, head = 7) {
  const [x, y] = minus(b, a), length = Math.hypot(x, y);
  if (length < 1) return "";
  const [u, v] = [x / length, y / length], off = p => [p[0] - aside * v, p[1] + aside * u];
  const [p, tip] = [off(a), off(b)], h = Math.min(head, length / 2);
  const barb = side => `${tip[0] - h * u - side * 0.6 * h * v} ${tip[1] - h * v + side * 0.6 * h * u}`;
  return `M${p.join(" ")}L${tip.join(" ")}M${barb(1)}L${tip.join(" ")}L${barb(-1)}`;
}

// The part of the way from a to b that stays within the frame, from 0 to 1.
function inside(a, b) {
  return Math.min(1, ...b.map((x, c) => x > SIZE - 14 ? (SIZE - 14 - a[c]) / (x - a[c]) : x < 14 ? (14 - a[c]) / (x - a[c]) : 1).map(share => Math.max(0, share)));
}

function plane(label) {
  const root = drawing(SIZE, SIZE, label);
  // A drawing within cuts off what leaves the frame.
  const inner = svg("svg", { x: 1, y: 1, width: SIZE - 2, height: SIZE - 2, viewBox: `1 1 ${SIZE - 2} ${SIZE - 2}` });
  inner.append(svg("path", { d: line([-REACH, 0], [REACH, 0]) + line([0, -REACH], [0, REACH]), class: "axes" }));
  root.append(svg("rect", { x: 1, y: 1, width: SIZE - 2, height: SIZE - 2, rx: 4, class: "frame" }), inner);
  return { root, inner, add(parent, tag, attributes, ...rest) { const node = svg(tag, attributes, ...rest); parent.append(node); return node; } };
}

export const label = "Scale, keys and the output of attention";

export function mount(stage, { signal }) {
  stage.classList.add("dial");
  const state = structuredClone(START);
  const ask = eachFrame(draw, signal);
  // Whoever grabs a key begins a move there.
  const grab = j => { state.chosen = j; state.from = [...state.keys[j]]; ask(); };

  const keyPlane = plane("Keys and query"), valuePlane = plane("Values and output");
  const level = keyPlane.add(keyPlane.inner, "path", { class: "level" });
  const ray = keyPlane.add(keyPlane.inner, "path", { class: "ray" });
  const trail = keyPlane.add(keyPlane.inner, "path", { class: "trail" });
  const queryArrow = keyPlane.add(keyPlane.inner, "path", { class: "query" });
  const ghostKey = keyPlane.add(keyPlane.inner, "circle", { class: "ghost key dot" });

  const told = [];
  const handle = (name, text, label, where, grabbed, place) => {
    const node = keyPlane.add(keyPlane.root, "g", { class: name },
      svg("circle", { r: 17, fill: "transparent" }), svg("circle", { class: "dot" }), svg("text", {}, text));
    node.addEventListener("pointerdown", grabbed, { signal });
    node.addEventListener("focus", grabbed, { signal });
    const move = (x, y) => { place([snap(x), snap(y)]); ask(); };
    told.push(draggable(node, {
      root: keyPlane.root, label, signal, text: () => describe(where), from: () => at(where()),
      move: (x, y) => move((x - SIZE / 2) / UNIT, (SIZE / 2 - y) / UNIT),
      nudge: (dx, dy) => { const [x, y] = where(); move(x + 2 * dx / GRID, y - 2 * dy / GRID); },
    }));
    return node;
  };
  let seen = look(state);
  const describe = where => {
    const j = state.keys.indexOf(where());
    const weight = j < 0 ? "" : `, score ${fixed(seen.scores[j])}, weight ${fixed(seen.weights[j], 3)}`;
    return `${point(where())}${weight}; output ${point(seen.output)}`;
  };
  const queryHandle = handle("query", "q", "Query", () => state.query, () => {}, p => { state.query = p; });
  const keyHandles = state.keys.map((_, j) =>
    handle("key", j + 1, `Key ${j + 1}`, () => state.keys[j], () => grab(j), p => { state.keys[j] = p; }));
  // The chosen key is seen above the others, wherever it is in their order.
  const topText = svg("text");
  const top = keyPlane.add(keyPlane.root, "g", { class: "key chosen top", "aria-hidden": "true" }, svg("circle", { class: "dot" }), topText);

  valuePlane.add(valuePlane.inner, "path", { class: "hull", d: `M${[0, 4, 2, 1, 3].map(j => at(VALUES[j]).join(" ")).join("L")}Z` });
  const pulls = VALUES.map(() => valuePlane.add(valuePlane.inner, "path", { class: "pull" }));
  const slide = valuePlane.add(valuePlane.inner, "path", { class: "slide" });
  const squares = VALUES.map(v => valuePlane.add(valuePlane.inner, "rect", { class: "value", x: -6, y: -6, width: 12, height: 12, transform: shift(v) }));
  VALUES.forEach((v, j) => {
    const [x, y] = at(v.map(c => c * 0.8));
    valuePlane.add(valuePlane.inner, "text", { class: "value", x, y }, j + 1);
  });
  const end = valuePlane.add(valuePlane.inner, "circle", { class: "end", r: 5 });
  const ghost = valuePlane.add(valuePlane.inner, "circle", { class: "ghost", r: 5 });
  const predicted = valuePlane.add(valuePlane.inner, "path", { class: "predicted" });
  const output = valuePlane.add(valuePlane.inner, "circle", { class: "output", r: 7 });

  const bars = html("div", { class: "bars numbers" }, html("span", {}, "key"), html("span", {}, "score"), html("span", {}, "weight"), html("span"));
  const bar = (label, score, name = "") => {
    const parts = { label: html("span", {}, label), score: html("span", {}, score), fill: html("span"), value: html("span", { class: "value" }) };
    bars.append(parts.label, parts.score, html("span", { class: `track ${name}` }, parts.fill), parts.value);
    return parts;
  };
  const rows = state.keys.map((_, j) => bar(j + 1, ""));
  const even = bar("entropy, nats", "", "entropy");
  even.score.remove();
  even.label.className = "two";
  const fact = html("p", { class: "numbers" }), effective = html("p", { class: "numbers" });

  const beta = slider({ label: "Scale β", min: 0, max: TURNS, step: 1, value: state.turn, show: showScale, signal, change(turn) { state.turn = turn; ask(); } });
  const length = slider({
    label: "", min: 0, max: 1, value: 0, show: x => x.toFixed(2), signal,
    change(x) {
      const now = Math.hypot(...direction);
      state.keys[state.chosen] = direction.map(c => c * x / now);
      ask();
    },
  });
  // A key of length zero remembers where it pointed.
  let direction = [1, 0];
  for (const event of ["pointerdown", "focus"]) length.input.addEventListener(event, () => grab(state.chosen), { signal });
  const put = given => {
    Object.assign(state, structuredClone(given));
    state.from ??= [...state.keys[state.chosen]];
    beta.set(state.turn);
    ask();
  };
  const resets = html("div", { class: "controls" },
    button("Give keys 1 and 2 equal scores", () => put({ ...TIE, chosen: 1, from: TIE.keys[1] }), signal),
    button("Reset", () => put(START), signal));

  const legend = html("strong");
  stage.append(
    html("p", { class: "prompt" }, "Move the scale, and drag a numbered key or the query q. Arrow keys move what is selected."),
    html("div", {}, html("strong", {}, "Keys and query"), keyPlane.root),
    html("div", {}, legend, valuePlane.root),
    html("div", { class: "controls dials" }, beta.node, length.node),
    bars,
    html("div", { class: "facts" }, effective, fact, resets));

  function draw() {
    seen = look(state);
    const { query, keys, chosen, from } = state, key = keys[chosen], name = chosen + 1;
    const went = Math.hypot(...minus(key, from)) > 0, size = Math.hypot(...query);
    if (Math.hypot(...key) > 1e-9) direction = key;
    const far = [-query[1], query[0]].map(c => size ? c * 4 * REACH / size : 0);
    set(level, { d: line(minus(key, far), minus(key, far.map(c => -c))) });
    set(ray, { d: line([0, 0], direction.map(c => c * longest(direction) / Math.hypot(...direction))) });
    set(trail, { d: went ? line(from, key) : "" });
    set(ghostKey, { transform: shift(from), visibility: went ? "visible" : "hidden" });
    set(queryArrow, { d: arrow(at([0, 0]), at(query), 0, 0) });
    set(queryHandle, { transform: shift(query) });
    const places = [query, ...keys].map(at);
    [queryHandle, ...keyHandles].forEach((node, j) => {
      // A finger needs room, but a handle must not take its neighbor's.
      const near = Math.min(...places.filter((_, i) => i !== j).map(p => Math.hypot(...minus(p, places[j]))));
      set(node, { transform: shift(j ? keys[j - 1] : query) });
      set(node.firstChild, { r: Math.min(17, Math.max(7, near / 2)) });
    });
    set(top, { transform: shift(key) });
    topText.textContent = name;
    legend.textContent = `Values □, output ●, without key ${name} ○`;

    set(slide, { d: line(seen.without, VALUES[chosen]) });
    set(end, { transform: shift(seen.without) });
    set(ghost, { transform: shift(seen.before), visibility: went ? "visible" : "hidden" });
    const [start, goal] = [at(seen.before), at(seen.before.map((h, c) => h + seen.step[c]))], share = inside(start, goal);
    set(predicted, { d: arrow(start, start.map((x, c) => x + share * (goal[c] - x)), 9) });
    set(output, { transform: shift(seen.output) });
    seen.weights.forEach((a, j) => {
      set(pulls[j], { d: line(seen.output, VALUES[j]), "stroke-width": 7 * a });
      set(squares[j], { "fill-opacity": a });
      rows[j].fill.style.transform = `scaleX(${a})`;
      rows[j].value.textContent = a.toFixed(3);
      rows[j].score.textContent = fixed(seen.scores[j]);
      rows[j].label.textContent = j === chosen ? `${j + 1} ◂` : j + 1;
    });
    even.fill.style.transform = `scaleX(${seen.entropy / Math.log(keys.length)})`;
    even.value.textContent = seen.entropy.toFixed(3);
    effective.textContent = `Effective number of keys: ${seen.effective.toFixed(2)} of ${keys.length}. Output: ${point(seen.output)}.`;
    const size2 = x => fixed(Math.hypot(...x), 3);
    fact.textContent = went
      ? `Key ${name} moved from the dashed circle: predicted step (arrow${share < 1 ? ", cut at the frame" : ""}) ${size2(seen.step)}, real step ${size2(seen.moved)}.${seen.beta === Infinity ? " Hard attention has no slope." : ""}`
      : `Move key ${name}: the output will stay on the line from ○ to value ${name}.`;
    length.node.firstChild.textContent = `Length of key ${name}`;
    length.input.max = longest(direction);
    length.set(Math.hypot(...key));
    told.forEach(tell => tell());
  }
  draw();
}
