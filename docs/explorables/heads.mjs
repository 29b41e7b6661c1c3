// Where heads attend, and what the best matrices make of it. A task is a map from tokens
// to outputs: tokens are numbers, outputs have two coordinates, so that every cell of the
// map is an arrow. A head is a picture (its weights) times one arrow.
import { html, svg, set, drawing, slider, button, toggle, choice, eachFrame } from "./controls.mjs";

const N = 5, UNIT = 38, START = { task: "convolution", angle: 60, second: false };
const PARTS = ["", "1", "½", "⅓", "¼", "⅕"];

// The keys that each of n queries attends to; beyond the border, the nearest.
export function picture(name, n = N) {
  const keys = {
    self: i => [i],
    left: i => [Math.max(i - 1, 0)],
    right: i => [Math.min(i + 1, n - 1)],
    both: i => [Math.max(i - 1, 0), Math.min(i + 1, n - 1)],
    reverse: i => [n - 1 - i],
    all: () => Array.from({ length: n }, (_, j) => j),
  }[name];
  return Array.from({ length: n }, (_, i) => keys(i));
}

// Hard attention: the chosen keys of a query share its weight.
export const weights = (chosen, n = N) => chosen.map(keys => Array.from({ length: n }, (_, j) => keys.includes(j) ? 1 / keys.length : 0));

// The two matrices of the convolution: W₁ for the left neighbor, W₂ for the right one.
export function taps(degrees) {
  const turn = degrees * Math.PI / 180;
  return [[1, 0], [Math.cos(turn), Math.sin(turn)]];
}

// A task as a map: entry [i][j] is what token j adds to output i.
export function target(task, degrees, n = N) {
  const map = Array.from({ length: n }, () => Array.from({ length: n }, () => [0, 0]));
  const add = (name, [x, y]) => picture(name, n).forEach(([j], i) => { map[i][j] = [map[i][j][0] + x, map[i][j][1] + y]; });
  if (task === "convolution") taps(degrees).forEach((tap, t) => add(["left", "right"][t], tap));
  else add(task === "identity" ? "self" : "reverse", [1, 0]);
  return map;
}

// What heads with these weights and matrices do: the sum of A_r times B_r.
export function layer(tables, boxes) {
  return tables[0].map((row, i) => row.map((_, j) => [0, 1].map(c => tables.reduce((sum, table, r) => sum + table[i][j] * boxes[r][c], 0))));
}

// The expected squared error of an output, for white tokens.
export function error(map, wanted) {
  let sum = 0;
  map.forEach((row, i) => row.forEach((cell, j) => cell.forEach((x, c) => { sum += (x - wanted[i][j][c]) ** 2; })));
  return sum / map.length;
}

// The best matrices for given weights of one or two heads (the shortest, if several are).
export function fit(tables, wanted) {
  const dot = (a, b) => a.reduce((sum, row, i) => sum + row.reduce((part, x, j) => part + x * b(i, j), 0), 0);
  const right = tables.map(table => [0, 1].map(c => dot(table, (i, j) => wanted[i][j][c])));
  const gram = tables.map(a => tables.map(b => dot(a, (i, j) => b[i][j])));
  if (tables.length === 1) return [right[0].map(x => x / gram[0][0])];
  const [[a, b], [, d]] = gram, det = a * d - b * b, trace = a + d;
  const inverse = det > 1e-9 * trace * trace ? [[d / det, -b / det], [-b / det, a / det]] : gram.map(row => row.map(x => x / trace ** 2));
  return inverse.map(row => [0, 1].map(c => row[0] * right[0][c] + row[1] * right[1][c]));
}

// The least error of any single head whose weights depend on positions: σ₂², or the
// smaller square if the matrices point apart.
export function floor(first, second) {
  const dot = (u, v) => u.reduce((sum, x, i) => sum + x * v[i], 0);
  const a = dot(first, first), b = dot(first, second), d = dot(second, second);
  // The smaller eigenvalue of the Gram matrix, without subtracting near equals.
  const larger = (a + d) / 2 + Math.hypot((a - d) / 2, b);
  return b < 0 ? Math.min(a, d) : larger > 0 ? Math.max(0, a * d - b * b) / larger : 0;
}

const number = x => (Math.abs(x) < 0.005 ? 0 : x).toFixed(2).replace("-", "−");

// An arrow of so many units, centered at a place: its shaft and its head, as paths. What
// is too short to point is a dot.
function arrow(x, y, dx, dy) {
  const size = Math.hypot(dx, dy);
  if (size < 1.5) return [`M${x} ${y}h.01`, ""];
  const ux = dx / size, uy = dy / size, head = Math.min(7, size / 1.6), ex = x + dx / 2, ey = y + dy / 2;
  const wing = side => `${ex - head * (ux * 0.9 + side * uy * 0.6)} ${ey - head * (uy * 0.9 - side * ux * 0.6)}`;
  return [`M${x - dx / 2} ${y - dy / 2}L${ex} ${ey}`, `M${wing(1)}L${ex} ${ey}L${wing(-1)}`];
}

// Two paths that show an arrow, the shaft of a class of its own.
function pointer(kind) {
  const shaft = svg("path", { class: `${kind} shaft` }), head = svg("path", { class: kind });
  const move = (x, y, dx, dy) => arrow(x, y, dx, dy).forEach((d, part) => set([shaft, head][part], { d }));
  return { nodes: [shaft, head], move };
}

// A table of buttons, one per query and key; the arrow keys walk, Enter and Space choose.
function board(head, pick, signal) {
  const caption = html("div", { class: "board-keys soft", "aria-hidden": "true" }, html("span"), ...Array.from({ length: N }, (_, j) => html("span", {}, String(j + 1))));
  const cells = [], rows = [];
  for (let i = 0; i < N; i++) {
    const row = html("div", { class: "board-row" }, html("span", { class: "soft", "aria-hidden": "true" }, String(i + 1)));
    for (let j = 0; j < N; j++) {
      const cell = html("button", { type: "button", tabindex: i || j ? -1 : 0 });
      cell.addEventListener("click", event => { focus(i, j); pick(i, j, event.shiftKey); }, { signal });
      cells.push(cell);
      row.append(cell);
    }
    rows.push(row);
  }
  let at = 0;
  const focus = (i, j) => {
    cells[at].tabIndex = -1;
    at = i * N + j;
    cells[at].tabIndex = 0;
    cells[at].focus({ preventScroll: true });
  };
  const node = html("div", { class: "board", role: "group", "aria-label": `where head ${head + 1} attends: rows are queries, columns are keys` }, caption, ...rows);
  node.addEventListener("keydown", event => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    focus(...[Math.floor(at / N) + step[0], at % N + step[1]].map(x => Math.min(N - 1, Math.max(0, x))));
  }, { signal });
  const show = chosen => cells.forEach((cell, index) => {
    const i = Math.floor(index / N), j = index % N, on = chosen[i].includes(j), part = on ? PARTS[chosen[i].length] : "";
    cell.textContent = part;
    set(cell, { "aria-pressed": on, "aria-label": `query ${i + 1}, key ${j + 1}${on ? `, weight ${part}` : ""}`, style: `--weight: ${on ? 1 / chosen[i].length : 0}` });
  });
  return { node, show };
}

export const label = "Choose where heads attend";

export function mount(stage, { signal }) {
  stage.classList.add("heads");
  const state = { ...START, chosen: [picture("both"), picture("self")], several: true };
  const draw = eachFrame(show, signal);

  const task = choice({ label: "Task", options: { identity: "identity", permutation: "reverse the order", convolution: "convolution of two neighbors" }, value: state.task, signal, change: value => { state.task = value; draw(); } });
  const second = toggle({ label: "second head", value: state.second, signal, change: on => { state.second = on; follow(); draw(); } });
  const several = toggle({ label: "several keys per row", value: state.several, signal, change: on => { state.several = on; } });
  // Where rows have several keys, a click adds or removes one; elsewhere it moves the one.
  const follow = () => { several.input.checked = state.several = state.chosen.slice(0, state.second ? 2 : 1).flat().some(row => row.length > 1); };
  const angle = slider({ label: "Angle between W₁ and W₂", min: 0, max: 180, step: 5, value: state.angle, show: x => `${x}°`, signal, change: x => { state.angle = x; draw(); } });

  const names = { left: "left neighbor", right: "right neighbor", both: "both neighbors", self: "itself", reverse: "mirror image", all: "all tokens", own: "my own choice" };
  const heads = state.chosen.map((_, r) => {
    const table = board(r, (i, j, add) => {
      const row = state.chosen[r][i];
      if (!state.several && !add) state.chosen[r][i] = [j];
      else if (!row.includes(j)) state.chosen[r][i] = [...row, j].sort();
      else if (row.length > 1) state.chosen[r][i] = row.filter(key => key !== j);
      draw();
    }, signal);
    const preset = choice({ label: `Head ${r + 1} attends to`, options: names, signal, change: name => { state.chosen[r] = picture(name); follow(); draw(); } });
    // It says what is shown, and is no picture to choose.
    preset.select.querySelector("[value=own]").disabled = true;
    const box = pointer("box");
    const words = html("output", { class: "numbers" });
    const dial = svg("svg", { viewBox: "-22 -22 44 44", class: "dial", "aria-hidden": "true" }, ...box.nodes);
    const node = html("div", { class: "head" }, preset.node, table.node, html("div", { class: "what" }, dial, words));
    return { node, table, preset, box, words };
  });

  const map = drawing(264, 264, "The map of the layer: what each token adds to each output, as arrows");
  map.setAttribute("role", "img");
  const wanted = [], made = [];
  for (let i = 0; i < N; i++) {
    map.append(svg("text", { x: 17, y: 48 + 48 * i, "text-anchor": "end", class: "soft" }, String(i + 1)), svg("text", { x: 46 + 48 * i, y: 14, "text-anchor": "middle", class: "soft" }, String(i + 1)));
    for (let j = 0; j < N; j++) map.append(svg("rect", { x: 22 + 48 * j, y: 20 + 48 * i, width: 48, height: 48, class: "cell" }));
  }
  for (let i = 0; i < N * N; i++) {
    made.push(pointer("made"));
    wanted.push(pointer("wanted"));
    map.append(...made[i].nodes, ...wanted[i].nodes);
  }
  // Names of the two taps, in the middle row.
  const tapNames = ["W₁", "W₂"].map((name, t) => svg("text", { x: 72 + 96 * t, class: "soft" }, name));
  map.append(...tapNames);

  const X = degrees => 34 + 216 * degrees / 180, Y = e => 112 - 48 * e;
  const plot = drawing(264, 150, "Error per output against the angle");
  plot.setAttribute("role", "img");
  let curve = "M";
  for (let degrees = 0; degrees <= 180; degrees += 5) curve += `${X(degrees)} ${Y(floor(...taps(degrees)))}L`;
  const dot = svg("circle", { r: 6, class: "now" });
  plot.append(
    svg("path", { class: "axis", d: `M34 ${Y(2)}V${Y(0)}H250` }), svg("text", { x: 40, y: Y(2) + 5, class: "soft" }, "error"),
    ...[0, 1, 2].map(e => svg("text", { x: 28, y: Y(e) + 5, "text-anchor": "end", class: "soft" }, String(e))),
    ...[0, 90, 180].map(a => svg("text", { x: X(a), y: 130, "text-anchor": "middle", class: "soft" }, `${a}°`)),
    svg("text", { x: 142, y: 147, "text-anchor": "middle", class: "soft" }, "angle between W₁ and W₂"),
    svg("path", { class: "curve", d: curve.slice(0, -1) }),
    svg("text", { x: 250, y: Y(1) - 8, "text-anchor": "end" }, "best single head"), dot,
  );

  const told = html("output", { class: "told", "aria-live": "polite" });
  const reset = button("Reset", () => {
    Object.assign(state, START, { chosen: [picture("both"), picture("self")] });
    task.select.value = state.task;
    second.input.checked = state.second;
    follow();
    angle.set(state.angle);
    draw();
  }, signal);

  stage.append(
    html("p", { class: "prompt" }, "Click cells to choose where each query attends, and make the solid arrows cover the dashed ones. Each row keeps at least one key. The best matrices B for your choice are computed for you; their arrows are drawn at half size."),
    html("div", { class: "controls" }, task.node, second.node, several.node),
    told,
    html("div", { class: "work" }, ...heads.map(head => head.node), html("div", { class: "map" }, html("div", {}, "Layer (solid) and task (dashed)"), map)),
    html("div", { class: "limit" }, html("div", { class: "turn" }, angle.node, html("div", { class: "controls" }, reset)), plot),
  );

  function show() {
    const used = state.second ? 2 : 1, convolution = state.task === "convolution";
    const goal = target(state.task, state.angle);
    const tables = state.chosen.slice(0, used).map(chosen => weights(chosen));
    const boxes = fit(tables, goal), map = layer(tables, boxes), off = error(map, goal);
    const least = convolution && used === 1 ? floor(...taps(state.angle)) : 0;
    heads.forEach((head, r) => {
      head.node.hidden = r >= used;
      head.table.show(state.chosen[r]);
      const text = JSON.stringify(state.chosen[r]);
      head.preset.select.value = Object.keys(names).find(name => name !== "own" && JSON.stringify(picture(name)) === text) ?? "own";
      if (r >= used) return;
      const [x, y] = boxes[r];
      head.box.move(0, 0, UNIT / 2 * x, -UNIT / 2 * y);
      head.words.textContent = `B${"₁₂"[r]} = (${number(x)}, ${number(y)})`;
    });
    goal.forEach((row, i) => row.forEach((cell, j) => {
      const place = [46 + 48 * j, 44 + 48 * i], k = i * N + j, [x, y] = map[i][j];
      wanted[k].move(...place, UNIT * cell[0], -UNIT * cell[1]);
      made[k].move(...place, UNIT * x, -UNIT * y);
    }));
    tapNames.forEach((name, t) => set(name, { y: t && state.angle >= 90 ? 161 : 131, display: convolution ? null : "none" }));
    angle.node.hidden = !convolution;
    plot.toggleAttribute("hidden", !convolution);
    set(dot, { cx: X(state.angle), cy: Y(off) });
    const reached = off < 1e-9, best = off < least + 1e-9;
    stage.dataset.error = off;
    stage.dataset.reached = reached;
    told.replaceChildren(
      html("strong", {}, reached ? "✓ Reached, with error 0. " : `Error ${number(off)}. `),
      reached ? "The layer computes the task exactly."
        : best ? `No single head does better at this angle: ${state.chosen[0].some(row => row.length > 1) ? "one matrix serves both neighbors" : "it serves one neighbor and drops the other"}.`
          : least > 0 ? `The best single head has an error of ${number(least)}.`
            : `${convolution && state.angle > 0 ? "Two heads are" : "One head is"} enough for this task, but not with these keys.`,
    );
  }
  show();
}
