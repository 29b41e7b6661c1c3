// Arithmetic first: pure functions of numbers and text. What touches the page follows.

/** Read a layer: a peak for each row of each map, then codes from 0 to the peak. */
export function decode(base64, maps, queries, keys, bits) {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const rows = maps * queries;
  const peaks = new Float32Array(bytes.buffer, 0, rows);
  const Codes = bits === 8 ? Uint8Array : Uint16Array;
  const codes = new Codes(bytes.buffer, 4 * rows, rows * keys);
  return { peaks, codes, queries, keys, top: 2 ** bits - 1 };
}

/** The weights of one query in one map. */
export function rowOf(layer, map, query) {
  const { peaks, codes, queries, keys, top } = layer;
  const at = map * queries + query;
  const row = new Float64Array(keys);
  for (let k = 0; k < keys; k++) row[k] = (peaks[at] * codes[at * keys + k]) / top;
  return row;
}

/** Indices of the largest weights, the largest first; the first of equals leads. */
export function largest(row, count) {
  return [...row.keys()].sort((a, b) => row[b] - row[a] || a - b).slice(0, count);
}

/** A patch by its place, a token by its text and index: texts may be equal. */
export function nameOf(axis, index) {
  return axis.grid ? axis.labels[index] : `${axis.labels[index]} [${index}]`;
}

export function format(weight) {
  if (weight === 0) return "0";
  return weight >= 0.001 ? weight.toPrecision(3) : weight.toExponential(1);
}

/** What full color stands for: the largest weight, tokens before the patches aside. */
export function scaleOf(row, axis) {
  let top = 0;
  for (let k = axis.grid ? axis.lead : 0; k < row.length; k++) top = Math.max(top, row[k]);
  return top || 1;
}

/** The token an arrow key leads to, on a grid or along a line; null for other keys. */
export function step(axis, index, key) {
  const last = axis.labels.length - 1;
  const columns = axis.grid ? axis.grid[1] : 0;
  const first = axis.grid ? axis.lead : 0;
  const at = Math.max(index, first) - first;
  const moves = {
    ArrowLeft: columns ? (at % columns ? -1 : 0) : -1,
    ArrowRight: columns ? (at % columns < columns - 1 ? 1 : 0) : 1,
    ArrowUp: columns ? -columns : -1,
    ArrowDown: columns || 1,
    Home: -at,
    End: last - first - at,
  };
  if (!(key in moves)) return null;
  const to = first + at + moves[key];
  return to < first || to > last ? first + at : to;
}

const escaped = (text) =>
  String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

/** A map as SVG text: patches over the image, or a matrix of tokens. */
export function svgOf({ title, queries, keys, query, rowFor }) {
  const cells = [];
  const cell = (x, y, w, h, weight, share, label, k) =>
    cells.push(
      `<rect x="${x}" y="${y}" width="${w}" height="${h}" fill-opacity="${(0.85 * Math.min(1, share)).toFixed(3)}" ` +
        `data-key="${k}" data-weight="${+weight.toPrecision(6)}"><title>${escaped(label)}: ${format(weight)}</title></rect>`,
    );
  let width, height, under = "", words = "";
  if (keys.grid) {
    const [rows, columns] = keys.grid;
    const w = 16;
    const h = +((16 * keys.size[0] * columns) / (rows * keys.size[1])).toFixed(3);
    [width, height] = [w * columns, h * rows + (keys.lead ? 20 : 0)];
    const row = rowFor(query);
    const scale = scaleOf(row, keys);
    under = `<image href="${keys.image}" width="${w * columns}" height="${h * rows}" preserveAspectRatio="none"/>`;
    row.forEach((weight, k) => {
      const patch = k - keys.lead;
      if (patch < 0) cell(k * 20, h * rows + 4, 16, 16, weight, weight, keys.labels[k], k);
      else cell((patch % columns) * w, Math.floor(patch / columns) * h, w, h, weight, weight / scale, keys.labels[k], k);
    });
  } else {
    const margin = 90;
    [width, height] = [margin + 18 * keys.labels.length, margin + 18 * queries.labels.length];
    const rows = queries.labels.map((_, q) => rowFor(q));
    const scale = Math.max(...rows.map((row) => scaleOf(row, keys)));
    rows.forEach((row, q) =>
      row.forEach((weight, k) =>
        cell(margin + 18 * k, margin + 18 * q, 18, 18, weight, weight / scale, `${queries.labels[q]} → ${keys.labels[k]}`, k),
      ),
    );
    const at = (i) => margin + 18 * i + 13;
    words =
      `<g font-family="sans-serif" font-size="12" fill="#555" text-anchor="end">` +
      queries.labels.map((t, q) => `<text x="${margin - 6}" y="${at(q)}">${escaped(t)}</text>`).join("") +
      keys.labels.map((t, k) => `<text transform="translate(${at(k)} ${margin - 6}) rotate(90)">${escaped(t)}</text>`).join("") +
      `</g>`;
  }
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" role="img"><title>${escaped(title)}</title>` +
    `${under}<g fill="#c93e0e">${cells.join("")}</g>${words}</svg>`
  );
}

// --- the page ---------------------------------------------------------------------

const find = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

/** Colors of a map, one pixel a cell; `shares` are between 0 and 1. */
function paint(canvas, shares, color) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const [red, green, blue] = color;
  const { data } = image;
  for (let i = 0, at = 0; i < shares.length; i++, at += 4) {
    data[at] = red;
    data[at + 1] = green;
    data[at + 2] = blue;
    data[at + 3] = 217 * Math.min(1, shares[i]);
  }
  context.putImageData(image, 0, 0);
}

/** The image without its colors, so that only weights are colored. */
async function grayOf(address) {
  const image = make("img", { src: address });
  await image.decode();
  const canvas = make("canvas", { width: image.naturalWidth, height: image.naturalHeight });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  const { data } = pixels;
  for (let i = 0; i < data.length; i += 4) {
    data[i] = data[i + 1] = data[i + 2] = 0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2];
  }
  context.putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}

/** A place to choose a token: patches of an image, or words. */
function picker(axis, name, { hover, select, color, image }) {
  const root = make("div");
  const count = axis.grid ? axis.lead : axis.labels.length;
  const words = make("div", { className: axis.grid ? "tokens lead" : "tokens" });
  words.setAttribute("role", "group");
  words.setAttribute("aria-label", `${name} tokens`);
  const buttons = axis.labels.slice(0, count).map((label, i) => {
    const button = make("button", { type: "button", className: "token", textContent: label });
    button.onpointerenter = (event) => event.pointerType === "mouse" && hover(i);
    button.onpointerleave = () => hover(null);
    button.onclick = () => select(i);
    return button;
  });
  words.append(...buttons);
  root.append(words);
  let current = 0;
  const onKeys = (moved) => (event) => {
    const to = step(axis, current, event.key);
    if (to === null || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    select(to);
    moved(to);
  };
  let picture, canvas, cursor;
  if (axis.grid) {
    const [rows, columns] = axis.grid;
    canvas = make("canvas", { width: columns, height: rows });
    cursor = make("div", { className: "cursor" });
    picture = make("div", { className: "picture", tabIndex: 0 }, make("img", { src: image, alt: "" }), canvas, cursor);
    picture.style.aspectRatio = `${axis.size[1]} / ${axis.size[0]}`;
    picture.classList.toggle("small-image", axis.size[1] < 300);
    picture.setAttribute("role", "application");
    picture.setAttribute("aria-roledescription", "patches of an image");
    const patchAt = (event) => {
      const box = picture.getBoundingClientRect();
      const along = (x, from, size, n) => Math.min(n - 1, Math.max(0, Math.floor(((x - from) / size) * n)));
      return axis.lead + along(event.clientY, box.top, box.height, rows) * columns + along(event.clientX, box.left, box.width, columns);
    };
    picture.onpointermove = (event) => event.pointerType === "mouse" && hover(patchAt(event));
    picture.onpointerleave = () => hover(null);
    picture.onclick = (event) => select(patchAt(event));
    picture.onkeydown = onKeys(() => {});
    root.append(picture);
  } else {
    words.onkeydown = onKeys((to) => buttons[to].focus());
  }
  return {
    root,
    mark(index) {
      current = index;
      buttons.forEach((button, i) => {
        button.setAttribute("aria-pressed", i === index);
        if (!axis.grid) button.tabIndex = i === index ? 0 : -1;
      });
      if (!picture) return;
      const patch = index - axis.lead;
      const [rows, columns] = axis.grid;
      cursor.hidden = patch < 0;
      Object.assign(cursor.style, {
        left: `${(100 * (patch % columns)) / columns}%`,
        top: `${(100 * Math.floor(patch / columns)) / rows}%`,
        width: `${100 / columns}%`,
        height: `${100 / rows}%`,
      });
      picture.setAttribute("aria-label", `${name}: ${axis.labels[index]}. Arrow keys move.`);
    },
    shade(row) {
      const scale = scaleOf(row, axis);
      buttons.forEach((button, k) => {
        const share = axis.grid ? row[k] : row[k] / scale;
        button.style.setProperty("--share", Math.min(1, share).toFixed(3));
        button.title = format(row[k]);
      });
      if (!picture) return;
      picture.classList.add("heated");
      paint(canvas, row.subarray(axis.lead).map((x) => x / scale), color());
    },
  };
}

async function start() {
  const data = JSON.parse(find("data").textContent);
  const queries = data.queries;
  const keys = data.keys ?? queries;
  const gray = keys.grid && (await grayOf(keys.image));
  const cache = new Map();
  const layerAt = (i) => {
    if (!cache.has(i)) {
      const { maps } = data.layers[i];
      cache.set(i, decode(find(`layer-${i}`).textContent, maps.length, queries.labels.length, keys.labels.length, data.bits));
    }
    return cache.get(i);
  };
  const state = { layer: data.layers.length - 1, map: 0, query: data.query, key: null, hoverQuery: null, hoverKey: null };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const readColor = () => getComputedStyle(document.documentElement).getPropertyValue("--heat").trim().split(" ").map(Number);
  let heat = readColor();
  const color = () => heat;
  let waiting = false;
  const update = (change) => {
    Object.assign(state, change);
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      render();
    });
  };

  const queryPicker = picker(queries, "Query", {
    hover: (i) => update({ hoverQuery: i }),
    select: (i) => update({ query: i, hoverQuery: null }),
    image: queries.image,
    color,
  });
  const keyPicker = picker(keys, "Key", {
    hover: (i) => update({ hoverKey: i }),
    select: (i) => update({ key: i, hoverKey: null }),
    image: gray,
    color,
  });
  find("query").append(queryPicker.root);
  find("key").append(keyPicker.root);

  let matrix = null;
  if (!keys.grid) {
    const canvas = make("canvas", { width: keys.labels.length, height: queries.labels.length });
    const cursor = make("div", { className: "cursor" });
    matrix = make("div", { className: "matrix" }, canvas, cursor);
    matrix.setAttribute("role", "img");
    const cellAt = (event) => {
      const box = canvas.getBoundingClientRect();
      const along = (x, from, size, n) => Math.min(n - 1, Math.max(0, Math.floor(((x - from) / size) * n)));
      return [along(event.clientY, box.top, box.height, canvas.height), along(event.clientX, box.left, box.width, canvas.width)];
    };
    matrix.onpointermove = (event) => {
      if (event.pointerType !== "mouse") return;
      const [hoverQuery, hoverKey] = cellAt(event);
      update({ hoverQuery, hoverKey });
    };
    matrix.onpointerleave = () => update({ hoverQuery: null, hoverKey: null });
    matrix.onclick = (event) => {
      const [query, key] = cellAt(event);
      update({ query, key, hoverQuery: null, hoverKey: null });
    };
    find("key").append(matrix);
  }

  const layerChoice = find("layer");
  const mapChoice = find("map");
  layerChoice.append(...data.layers.map((layer, i) => make("option", { value: i, textContent: layer.name })));
  layerChoice.value = state.layer;
  layerChoice.onchange = () => {
    const name = data.layers[state.layer].maps[state.map].name;
    const layer = Number(layerChoice.value);
    const map = data.layers[layer].maps.findIndex((one) => one.name === name);
    update({ layer, map: Math.max(0, map), key: null });
  };
  mapChoice.onchange = () => update({ map: Number(mapChoice.value), key: null });
  dark.onchange = () => {
    heat = readColor();
    update({});
  };

  let tiles = [];
  let built = -1;
  let drawn = "";
  const matrixShares = (map) => {
    const layer = layerAt(state.layer);
    const rows = queries.labels.map((_, q) => rowOf(layer, map, q));
    const scale = Math.max(...rows.map((row) => scaleOf(row, keys)));
    const shares = new Float64Array(queries.labels.length * keys.labels.length);
    rows.forEach((row, q) => shares.set(row.map((x) => x / scale), q * keys.labels.length));
    return shares;
  };
  function buildTiles() {
    const { maps } = data.layers[state.layer];
    mapChoice.replaceChildren(...maps.map((map, i) => make("option", { value: i, textContent: map.name })));
    tiles = maps.map((map, i) => {
      const canvas = keys.grid
        ? make("canvas", { width: keys.grid[1], height: keys.grid[0] })
        : make("canvas", { width: keys.labels.length, height: queries.labels.length });
      const frame = make("span", { className: "map" });
      if (keys.grid) {
        const under = make("span", { className: "under" });
        under.style.backgroundImage = `url("${gray}")`;
        frame.classList.toggle("small-image", keys.size[1] < 300);
        frame.append(under);
        frame.style.aspectRatio = `${keys.size[1]} / ${keys.size[0]}`;
      } else {
        frame.style.aspectRatio = `${canvas.width} / ${canvas.height}`;
      }
      frame.append(canvas);
      const tile = make("button", { type: "button", className: "tile" }, frame, map.name);
      if (map.distance !== null) {
        const number = make("span", { className: "number", textContent: `${map.distance} px` });
        number.title = "attention distance";
        number.setAttribute("aria-label", `attention distance ${map.distance} pixels`);
        tile.append(number);
      }
      tile.onclick = () => update({ map: i, key: null });
      if (!keys.grid) paint(canvas, matrixShares(i), color());
      return { tile, canvas };
    });
    find("tiles").replaceChildren(...tiles.map(({ tile }) => tile));
  }

  function render() {
    const layer = layerAt(state.layer);
    const { name, maps } = data.layers[state.layer];
    const now = `${state.layer} ${dark.matches}`;
    if (built !== now) {
      built = now;
      buildTiles();
    }
    const query = state.hoverQuery ?? state.query;
    const row = rowOf(layer, state.map, query);
    const best = largest(row, 5);
    const key = state.hoverKey ?? state.key ?? best[0];
    mapChoice.value = state.map;
    queryPicker.mark(query);
    keyPicker.mark(key);
    keyPicker.shade(row);
    tiles.forEach(({ tile, canvas }, i) => {
      tile.setAttribute("aria-pressed", i === state.map);
      if (!keys.grid) return;
      const own = rowOf(layer, i, query);
      const scale = scaleOf(own, keys);
      paint(canvas, own.subarray(keys.lead).map((x) => x / scale), color());
    });
    if (matrix) {
      const wanted = `${now} ${state.map}`;
      const [canvas, cursor] = matrix.children;
      if (drawn !== wanted) {
        drawn = wanted;
        paint(canvas, matrixShares(state.map), color());
      }
      Object.assign(cursor.style, {
        left: 0,
        width: "100%",
        top: `${(100 * query) / canvas.height}%`,
        height: `${100 / canvas.height}%`,
      });
      matrix.setAttribute("aria-label", `Weights of ${maps[state.map].name}: a row for each query, a column for each key.`);
    }
    find("readout").value = `${nameOf(queries, query)} → ${nameOf(keys, key)}: ${format(row[key])}`;
    find("largest").replaceChildren(...best.map((k) => make("li", { textContent: `${nameOf(keys, k)}: ${format(row[k])}` })));
    find("legend").textContent = `${name}, ${maps[state.map].name}. Full color is ${format(scaleOf(row, keys))}, the largest weight of this query${keys.grid && keys.lead ? " among patches" : ""}.`;
  }

  find("save").onclick = () => {
    const layer = layerAt(state.layer);
    const { name, maps } = data.layers[state.layer];
    const title = `${name}, ${maps[state.map].name}` + (keys.grid ? `, query ${queries.labels[state.query]}` : "");
    const text = svgOf({ title, queries, keys, query: state.query, rowFor: (q) => rowOf(layer, state.map, q) });
    const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    const link = make("a", { href: url, download: "attention.svg" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  };
  render();
}

if (globalThis.document?.getElementById("data")) start();
