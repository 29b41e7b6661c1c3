// Positions as clock hands: a step is a turn, the same everywhere. Two vectors that turn
// with their positions have a product that depends on the distance alone.
import { animation, button, choice, draggable, drawing, html, set, stillness, svg } from "./controls.mjs";

const WIDTH = 8, LAST = 40;
export const START = { vectors: "encodings", t: 9, s: 13 };

// How far each hand turns per position, in radians.
export const frequencies = (width = WIDTH, base = 10000) => Array.from({ length: width / 2 }, (_, i) => base ** (-2 * i / width));

// Turn the pairs of a vector clockwise, each by its own angle: the block rotation of a step.
export function rotate(vector, step, omega) {
  return omega.flatMap((w, i) => {
    const [x, y] = vector.slice(2 * i, 2 * i + 2), sin = Math.sin(w * step), cos = Math.cos(w * step);
    return [cos * x + sin * y, cos * y - sin * x];
  });
}

// All hands point at twelve: the encoding of position 0.
export const twelve = width => Array.from({ length: width }, (_, c) => c % 2);
export const encoding = (t, width = WIDTH) => rotate(twelve(width), t, frequencies(width));

// What turns: encodings, or a query and a key.
export const VECTORS = {
  encodings: { text: "Encodings pₜ and pₛ", q: twelve(WIDTH), k: twelve(WIDTH) },
  back: { text: "RoPE: a query for “3 back”", q: encoding(-3), k: twelve(WIDTH) },
  words: { text: "RoPE: another query and key", q: [0.8, 0.6, -0.6, 0.8, 0.25, 0.75, 0.5, -0.25], k: [-0.6, 0.8, 0.8, 0.4, 0.75, -0.25, 0.5, 0.5] },
};

// The share of each pair in the product of the turned vectors; their sum is the score.
export function products(q, k, t, s, omega) {
  const a = rotate(q, t, omega), b = rotate(k, s, omega);
  return omega.map((_, i) => a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1]);
}

export const score = (...given) => products(...given).reduce((sum, x) => sum + x, 0);

// Positions with this distance, both on the line: t stays if it can.
export function apart(t, distance) {
  const first = Math.min(LAST, Math.max(0, t, -distance), LAST - distance);
  return { t: first, s: first + distance };
}

// Move both by so many positions, or by as many as there is room for.
export function together({ t, s }, by) {
  const room = Math.min(LAST - Math.max(t, s), Math.max(-Math.min(t, s), by));
  return { t: t + room, s: s + room };
}

// All that the stage shows of two positions.
export function look({ vectors, t, s }) {
  const { q, k } = VECTORS[vectors], omega = frequencies(), shares = products(q, k, t, s, omega);
  return { shares, score: score(q, k, t, s, omega), turns: omega.map(w => w * (s - t) * 180 / Math.PI) };
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const fixed = (x, digits = 2) => (Math.abs(x) < 0.5 * 10 ** -digits ? 0 : x).toFixed(digits).replace("-", "−");
const signed = x => x > 0 ? `+${x}` : String(x).replace("-", "−");
const degrees = x => `${fixed(x, Math.abs(x) < 1 ? 2 : Math.abs(x) < 10 ? 1 : 0)}°`;

// Where things stand: the line of positions, the clocks, the curve of scores.
const LEFT = 20, STEP = 8, LINE = 42, FACE = { y: 50, r: 36 };
const along = t => LEFT + STEP * t;
const CURVE = { x: 180, unit: 4, y: 78, up: 17 };
const onCurve = (r, value) => [CURVE.x + CURVE.unit * r, CURVE.y - CURVE.up * value];

export const label = "Two positions as the hands of clocks";

export function mount(stage, { signal }) {
  stage.classList.add("clocks");
  const state = { ...START }, shown = { t: state.t, s: state.s }, omega = frequencies();
  // Hands glide to where they belong, so that the eye can follow the turn.
  const glide = animation(passed => {
    const rest = Math.exp(-14 * passed);
    let still = true;
    for (const name of ["t", "s"]) {
      shown[name] = state[name] + (shown[name] - state[name]) * rest;
      if (Math.abs(shown[name] - state[name]) < 0.004) shown[name] = state[name];
      else still = false;
    }
    drawHands();
    return !still;
  }, signal);
  const go = change => {
    Object.assign(state, change);
    if (stillness()) Object.assign(shown, { t: state.t, s: state.s });
    draw();
    glide.start();
  };

  const track = drawing(360, 98, "Positions"), told = [];
  const dial = drawing(360, 138, "Clocks"), plot = drawing(360, 178, "Score against distance");
  track.append(svg("path", { class: "line", d: `M${along(0)} ${LINE}H${along(LAST)}` }));
  for (let t = 0; t <= LAST; t += 10) track.append(svg("text", { class: "soft tick", x: along(t), y: LINE + 20 }, t));
  for (let t = 0; t <= LAST; t++) track.append(svg("path", { class: "line", d: `M${along(t)} ${LINE}v${t % 10 ? 3 : 6}` }));

  const span = svg("g", { class: "both" }, svg("rect", { class: "hit", y: LINE - 11, height: 22 }), svg("rect", { class: "bar", y: LINE - 6, height: 12, rx: 6 }), svg("path", { class: "grip" }));
  const pin = (name, y) => svg("g", { class: name === "t" ? "query" : "key" },
    svg("circle", { cy: y, r: 17, fill: "transparent" }), svg("path", { class: "stem", d: `M0 ${y}V${LINE}` }), svg("circle", { class: "dot", cy: y, r: 11 }), svg("text", { y }, name));
  const pins = { t: pin("t", 14), s: pin("s", 86) };
  track.append(span, pins.t, pins.s);
  const tell = (root, node, { nudge, ...options }) => told.push(draggable(node, { root, nudge: (dx, dy) => nudge(dx - dy), signal, ...options }));
  const words = () => `score ${fixed(look(state).score)}`;
  for (const [name, label] of [["t", "Position t"], ["s", "Position s"]])
    tell(track, pins[name], {
      label, text: () => `${state[name]}; ${words()}`, range: { min: 0, max: LAST, now: () => state[name] }, from: () => [along(state[name]), 0],
      move: x => go({ [name]: clamp(Math.round((x - LEFT) / STEP), 0, LAST) }),
      nudge: by => go({ [name]: clamp(state[name] + by, 0, LAST) }),
    });
  tell(track, span, {
    label: "Both positions", text: () => `${state.t} and ${state.s}; ${words()}`, range: { min: 0, max: LAST, now: () => state.t }, from: () => [along(state.t), 0],
    move: x => go(together(state, Math.round((x - LEFT) / STEP) - state.t)), nudge: by => go(together(state, by)),
  });

  const hands = omega.map((w, i) => {
    const node = svg("g", { transform: `translate(${45 + 90 * i} ${FACE.y})` });
    const parts = { turn: svg("path", { class: "turn" }), from: svg("path", { class: "from" }), k: svg("path", { class: "hand key" }), q: svg("path", { class: "hand query" }), angle: svg("text", { y: 58 }), share: svg("text", { y: 78, class: "share" }) };
    node.append(svg("circle", { r: FACE.r, class: "face" }), svg("path", { class: "line", d: `M0 ${-FACE.r}v4` }), ...Object.values(parts));
    dial.append(node);
    return parts;
  });
  for (let i = 1; i < omega.length; i++) dial.append(svg("text", { x: 90 * i, y: FACE.y + 78 }, "+"));

  const path = svg("path", { class: "curve" }), drop = svg("path", { class: "drop" });
  const mark = svg("g", { class: "mark" }, svg("circle", { r: 17, fill: "transparent" }), svg("circle", { class: "dot", r: 7 }));
  plot.append(svg("path", { class: "line", d: `M${onCurve(-LAST, 0).join(" ")}H${onCurve(LAST, 0)[0]}M${onCurve(0, 4).join(" ")}V${onCurve(0, -4)[1]}` }));
  for (const r of [-40, -20, 0, 20, 40]) plot.append(svg("text", { class: "soft tick", x: onCurve(r, 0)[0], y: 166 }, signed(r)));
  for (const y of [4, 0, -4]) plot.append(svg("text", { class: "soft side", x: onCurve(-LAST, y)[0] - 4, y: onCurve(0, y)[1] }, fixed(y, 0)));
  plot.append(path, drop, mark);
  tell(plot, mark, {
    label: "Distance s − t", text: () => `${signed(state.s - state.t)}; ${words()}`, range: { min: -LAST, max: LAST, now: () => state.s - state.t }, from: () => [onCurve(state.s - state.t, 0)[0], 0],
    move: x => go(apart(state.t, clamp(Math.round((x - CURVE.x) / CURVE.unit), -LAST, LAST))),
    nudge: by => go(apart(state.t, clamp(state.s - state.t + by, -LAST, LAST))),
  });

  const which = choice({ label: "Vectors", options: Object.fromEntries(Object.entries(VECTORS).map(([key, { text }]) => [key, text])), value: state.vectors, signal, change: vectors => go({ vectors }) });
  const total = html("output", { class: "total" }), step = html("p", { class: "numbers" });
  const reset = button("Reset", () => { which.select.value = START.vectors; go(START); }, signal);
  stage.append(
    html("p", { class: "prompt" }, "Drag t or s along the line of positions, both by the bar between them, or the dot on the curve. Arrow keys move what is selected."),
    html("div", {}, track, step, dial, html("p", { class: "numbers" }, total)),
    html("div", {}, html("p", {}, "Score against the distance s − t"), plot, html("div", { class: "controls" }, which.node, reset)));

  function drawHands() {
    const { q, k } = VECTORS[state.vectors], a = rotate(q, shown.t, omega), b = rotate(k, shown.s, omega);
    // The step turns the key from where it would be at t.
    const start = rotate(k, shown.t, omega);
    hands.forEach((parts, i) => {
      const hand = v => `M0 0L${0.88 * FACE.r * v[2 * i]} ${-0.88 * FACE.r * v[2 * i + 1]}`;
      set(parts.q, { d: hand(a) });
      set(parts.k, { d: hand(b) });
      set(parts.from, { d: hand(start) });
      set(parts.turn, { d: arc(Math.atan2(start[2 * i], start[2 * i + 1]), omega[i] * (shown.s - shown.t)) });
    });
  }

  function draw() {
    const { vectors, t, s } = state, { q, k } = VECTORS[vectors], seen = look(state), rope = vectors !== "encodings";
    set(pins.t, { transform: `translate(${along(t)})` });
    set(pins.s, { transform: `translate(${along(s)})` });
    const middle = along((t + s) / 2), half = Math.max(13, Math.abs(s - t) * STEP / 2);
    for (const rect of span.querySelectorAll("rect")) set(rect, { x: middle - half, width: 2 * half });
    set(span.lastChild, { d: [-3, 0, 3].map(x => `M${middle + x} ${LINE - 3}v6`).join("") });
    hands.forEach((parts, i) => {
      parts.angle.textContent = degrees(seen.turns[i]);
      parts.share.textContent = fixed(seen.shares[i]);
    });
    step.textContent = rope
      ? `Query at t = ${t}, key at s = ${s}. From t (thin hand) to s, a distance of ${signed(s - t)}, the key turns by`
      : `A step of ${signed(s - t)}, from t = ${t} to s = ${s}, turns the hands by`;
    total.textContent = `${rope ? "Score" : `p${low(t)} · p${low(s)}`} = ${fixed(seen.score, 3)}, the sum of the products`;
    set(dial, { role: "img", "aria-label": `Clocks: turned by ${seen.turns.map(degrees).join(", ")}; products ${seen.shares.map(x => fixed(x)).join(", ")}` });
    const [x, y] = onCurve(s - t, seen.score);
    set(mark, { transform: `translate(${x} ${y})` });
    set(drop, { d: `M${x} ${y}V${onCurve(0, -4)[1]}` });
    if (path.dataset.of !== vectors) {
      path.dataset.of = vectors;
      const points = Array.from({ length: 4 * LAST + 1 }, (_, i) => onCurve(i / 2 - LAST, score(q, k, 0, i / 2 - LAST, omega)).map(c => c.toFixed(2)).join(" "));
      set(path, { d: `M${points.join("L")}` });
    }
    drawHands();
    told.forEach(each => each());
  }
  draw();
}

const low = n => [...String(n)].map(c => "₀₁₂₃₄₅₆₇₈₉"[c]).join("");

// A curved arrow around a clock, clockwise if positive, full turns left out.
function arc(start, turn) {
  const angle = turn % (2 * Math.PI), r = FACE.r + 6;
  const spot = (a, radius = r) => `${(radius * Math.sin(a)).toFixed(2)} ${(-radius * Math.cos(a)).toFixed(2)}`;
  if (Math.abs(angle) * r < 5) return "";
  const to = start + angle, back = to - Math.sign(angle) * Math.min(Math.abs(angle), 0.16);
  return `M${spot(start)}A${r} ${r} 0 ${Math.abs(angle) > Math.PI ? 1 : 0} ${angle > 0 ? 1 : 0} ${spot(to)}M${spot(back, r - 4)}L${spot(to)}L${spot(back, r + 4)}`;
}
