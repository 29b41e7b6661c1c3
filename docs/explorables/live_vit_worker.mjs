// A Vision Transformer in plain arrays: reads the file that `save_model` of the Python
// package writes, and computes every layer, every attention map, and what the chapter reads
// from them. Weights are 32-bit numbers as stored, all arithmetic is in 64 bits.

// Weights and settings of a safetensors file: eight bytes with the length of a JSON header,
// the header, then the numbers.
export function parse(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true)), start = 8 + length;
  const { __metadata__: about, ...tensors } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const { model, config } = JSON.parse(about.transformers_hw);
  const wanted = { pool: "mean", class_token: false, pooler: null, positions: "learned", norm: "pre", activation: "gelu" };
  const other = Object.keys(wanted).filter(name => config[name] !== wanted[name]);
  if (model !== "VisionTransformer" || other.length) throw new Error(`cannot compute such a model: ${model} ${other}`);
  const weights = {};
  for (const [name, { dtype, data_offsets: [from, to] }] of Object.entries(tensors)) {
    if (dtype !== "F32") throw new Error(`${name} must be of 32-bit numbers, got ${dtype}`);
    weights[name] = new Float32Array(buffer.slice(start + from, start + to));
  }
  return { config, weights };
}

// Bytes of red, green, blue and opacity, pixel by pixel, as three normalized images.
export function normalize(pixels, mean, std) {
  const count = pixels.length / 4, image = new Float64Array(3 * count);
  for (let c = 0; c < 3; c++)
    for (let i = 0; i < count; i++) image[c * count + i] = (pixels[4 * i + c] / 255 - mean[c]) / std[c];
  return image;
}

// One row for each patch, in the order (channel, row, column).
export function cut(image, { channels, image_size: [height, width], patch_size: [h, w] }) {
  const rows = [];
  for (let top = 0; top < height; top += h)
    for (let left = 0; left < width; left += w)
      for (let c = 0; c < channels; c++)
        for (let i = 0; i < h; i++)
          for (let j = 0; j < w; j++) rows.push(image[(c * height + top + i) * width + left + j]);
  return Float64Array.from(rows);
}

// x Wᵀ + b for each of n rows, four rows at a time, which is three times as fast as one.
export function linear(x, n, weight, bias) {
  const outputs = bias.length, inputs = weight.length / outputs, y = new Float64Array(n * outputs);
  for (let row = 0; row < n; row += 4) {
    // Rows beyond the last are the last one again.
    const a = row * inputs, b = Math.min(row + 1, n - 1) * inputs, c = Math.min(row + 2, n - 1) * inputs, d = Math.min(row + 3, n - 1) * inputs;
    for (let o = 0; o < outputs; o++) {
      let s = bias[o], t = s, u = s, v = s;
      for (let i = 0, at = o * inputs; i < inputs; i++, at++) {
        const w = weight[at];
        s += w * x[a + i];
        t += w * x[b + i];
        u += w * x[c + i];
        v += w * x[d + i];
      }
      y[row * outputs + o] = s;
      if (row + 1 < n) y[(row + 1) * outputs + o] = t;
      if (row + 2 < n) y[(row + 2) * outputs + o] = u;
      if (row + 3 < n) y[(row + 3) * outputs + o] = v;
    }
  }
  return y;
}

export function layerNorm(x, n, weight, bias, eps) {
  const d = weight.length, y = new Float64Array(n * d);
  for (let row = 0; row < n * d; row += d) {
    let mean = 0, variance = 0;
    for (let i = 0; i < d; i++) mean += x[row + i] / d;
    for (let i = 0; i < d; i++) variance += (x[row + i] - mean) ** 2 / d;
    const scale = 1 / Math.sqrt(variance + eps);
    for (let i = 0; i < d; i++) y[row + i] = (x[row + i] - mean) * scale * weight[i] + bias[i];
  }
  return y;
}

// x Φ(x). With φ the normal density, Φ(x) = 1/2 + φ(x) (x + x³/3 + x⁵/(3·5) + …).
export function gelu(x) {
  const size = Math.abs(x);
  if (size > 9) return x > 0 ? x : 0;
  let term = size, sum = size;
  for (let k = 3; term > sum * 1e-17; k += 2) sum += term *= (size * size) / k;
  const half = (Math.exp(-0.5 * size * size) / Math.sqrt(2 * Math.PI)) * sum;
  return x * (x > 0 ? 0.5 + half : 0.5 - half);
}

export const softmax = x => normalizeRow(Float64Array.from(x), 0, x.length);

// Replace n numbers by their softmax.
function normalizeRow(x, start, n) {
  let most = -Infinity, sum = 0;
  for (let i = start; i < start + n; i++) most = Math.max(most, x[i]);
  for (let i = start; i < start + n; i++) sum += x[i] = Math.exp(x[i] - most);
  for (let i = start; i < start + n; i++) x[i] /= sum;
  return x;
}

// Attention of every head: n × d queries, keys and values, heads side by side in a row.
// Fills `maps` with the weights, (head, query, key), and returns the heads' outputs.
export function attend(query, key, value, n, heads, maps) {
  const d = query.length / n, width = d / heads, scale = 1 / Math.sqrt(width), y = new Float64Array(n * d);
  for (let head = 0; head < heads; head++)
    for (let q = 0; q < n; q++) {
      const from = q * d + head * width, row = (head * n + q) * n;
      for (let k = 0; k < n; k++) {
        let score = 0;
        for (let i = 0, at = k * d + head * width; i < width; i++, at++) score += query[from + i] * key[at];
        maps[row + k] = scale * score;
      }
      normalizeRow(maps, row, n);
      for (let k = 0; k < n; k++) {
        const weight = maps[row + k];
        for (let i = 0, at = k * d + head * width; i < width; i++, at++) y[from + i] += weight * value[at];
      }
    }
  return y;
}

// The whole model on a normalized image. `maps` are all attention weights, (layer, head,
// query, key). `lens` holds logits as if the model ended there: of the embedded patches, and
// after every layer; the last are the model's.
export function forward({ config, weights }, image, { positions = true } = {}) {
  const { depth, heads, eps } = config;
  const n = weights["positions.weight"].length / config.dim;
  const part = (name, x, rows = n) => linear(x, rows, weights[`${name}.weight`], weights[`${name}.bias`]);
  const norm = (name, x) => layerNorm(x, n, weights[`${name}.weight`], weights[`${name}.bias`], eps);
  const add = (x, y) => { for (let i = 0; i < x.length; i++) x[i] += y[i]; };
  const maps = new Float64Array(depth * heads * n * n), lens = [];
  const read = () => {
    const tokens = norm("encoder.final_norm", x), mean = new Float64Array(config.dim);
    for (let i = 0; i < tokens.length; i++) mean[i % config.dim] += tokens[i] / n;
    lens.push(part("head", mean, 1));
  };
  const x = part("patch_embedding.proj", cut(image, config));
  if (positions) add(x, weights["positions.weight"]);
  read();
  for (let layer = 0; layer < depth; layer++) {
    const name = `encoder.layers.${layer}`, attention = `${name}.attention`;
    const normed = norm(`${attention}_norm`, x);
    const [query, key, value] = ["query", "key", "value"].map(kind => part(`${attention}.${kind}_proj`, normed));
    const own = maps.subarray(layer * heads * n * n, (layer + 1) * heads * n * n);
    add(x, part(`${attention}.output_proj`, attend(query, key, value, n, heads, own)));
    const hidden = part(`${name}.feed_forward.hidden_proj`, norm(`${name}.feed_forward_norm`, x)).map(gelu);
    add(x, part(`${name}.feed_forward.output_proj`, hidden));
    read();
  }
  return { logits: lens[depth], lens, maps };
}

// Attention rollout, n × n: in each layer the mean over heads, plus the identity for the
// residual connection, with rows that sum to one; all layers multiplied.
export function rollout(maps, depth, heads, n) {
  let product = null;
  for (let layer = 0; layer < depth; layer++) {
    const next = new Float64Array(n * n);
    for (let q = 0; q < n; q++) {
      const row = new Float64Array(n);
      row[q] = 1;
      for (let head = 0; head < heads; head++)
        for (let k = 0; k < n; k++) row[k] += maps[((layer * heads + head) * n + q) * n + k] / heads;
      const sum = row.reduce((a, b) => a + b, 0);
      for (let m = 0; m < n; m++)
        if (!product) next[q * n + m] = row[m] / sum;
        else for (let k = 0; k < n; k++) next[q * n + k] += (row[m] / sum) * product[m * n + k];
    }
    product = next;
  }
  return product;
}

// What the head of a model with mean pooling reads: the mean over the rows of a rollout.
export function pooled(product) {
  const n = Math.sqrt(product.length), shares = new Float64Array(n);
  product.forEach((share, i) => { shares[i % n] += share / n; });
  return shares;
}

// Attention distance of each n × n map, in pixels, for patches of h × w in rows of `columns`.
export function distances(maps, n, columns, [h, w]) {
  const found = new Float64Array(maps.length / (n * n)), far = new Float64Array(n * n);
  for (let q = 0; q < n; q++)
    for (let k = 0; k < n; k++) {
      const down = h * (Math.floor(q / columns) - Math.floor(k / columns)), right = w * ((q % columns) - (k % columns));
      far[q * n + k] = Math.sqrt(down * down + right * right) / n;
    }
  for (let i = 0; i < maps.length; i++) found[Math.floor(i / (n * n))] += maps[i] * far[i % (n * n)];
  return found;
}

// Everything the page shows of one image.
export function look(model, pixels, { mean, std, positions }) {
  const { config } = model, [, width] = config.image_size, columns = width / config.patch_size[1];
  const { logits, lens, maps } = forward(model, normalize(pixels, mean, std), { positions });
  const n = Math.sqrt(maps.length / (config.depth * config.heads));
  const product = rollout(maps, config.depth, config.heads, n);
  return {
    logits, probabilities: softmax(logits), lens: lens.map(softmax), maps, rollout: product, pooled: pooled(product),
    distances: distances(maps, n, columns, config.patch_size),
  };
}

// In a Worker: { load: address } gives the settings; { id, pixels, … } what there is to see.
if (typeof WorkerGlobalScope !== "undefined") {
  let model;
  self.onmessage = async ({ data: { load, id, pixels, ...options } }) => {
    try {
      if (!load) return postMessage({ id, found: look(model, pixels, options) });
      const answer = await fetch(load);
      if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
      model = parse(await answer.arrayBuffer());
      postMessage({ id, found: model.config });
    } catch (error) {
      postMessage({ id, error: error.message });
    }
  };
}
