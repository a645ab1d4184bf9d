/* Maps, spectra and what one makes of the other. No DOM here; tests call it beside the package's own functions. */
const Maps = (() => {
  const POINTS = 64; // order statistics that a recorded spectrum and a link hold, as inexact_muon_lab.tune.spectra
  const sum = (xs) => xs.reduce((a, b) => a + b, 0);
  const horner = (step, y) => step.reduceRight((value, c) => value * y + c, 0);

  /** f(s), with s relative to what the oracle divides by. */
  function evaluate(map, s) {
    if (map.exact) return Math.sign(s);
    if (map.poles) {
      let y = 1;
      map.poles.forEach((pole, j) => { y += map.residues[j] / (s * s + pole); });
      const x = map.scale * s * y;
      return map.polish ? x * horner(map.polish, x * x) : x;
    }
    const weights = map.weights && map.weights.length ? map.weights : null;
    let x = s, total = weights ? weights[0] * s : 0;
    map.steps.forEach((step, t) => {
      x *= horner(step, x * x);
      if (weights) total += weights[t + 1] * x;
    });
    return weights ? total : x;
  }

  /** What an oracle divides a matrix with these singular values (the largest first) by. */
  function normaliser(values, norm) {
    const p = { frobenius: 2, schatten4: 4 }[norm];
    return p ? values[0] * sum(values.map((v) => (v / values[0]) ** p)) ** (1 / p) : values[0];
  }

  /** delta, gap, overshoot and the share lifted to a half, over all layers as one point of the product of their balls. */
  function judge(oracle, layers, norm = oracle.norm) {
    let delta = 0, overshoot = 0, inner = 0, dual = 0, lifted = 0, count = 0;
    for (const { values } of layers) {
      const scale = normaliser(values, norm);
      for (const s of values) {
        const f = evaluate(oracle.map, s / scale);
        delta = Math.max(delta, Math.abs(1 - f));
        overshoot = Math.max(overshoot, Math.abs(f));
        inner += s * f;
        dual += s;
        lifted += f >= 0.5;
        count += 1;
      }
    }
    return { delta, gap: 1 - inner / dual, overshoot, lifted: lifted / count };
  }

  /** Rule `descent`: lr of `to` over lr of `from`; null where one of them does not descend. */
  const rate = (from, to) => (from.gap < 1 && to.gap < 1 ? (1 - from.gap) / (1 - to.gap) : null);

  const squares = (degree) => ({ 3: 0, 5: 1, 7: 2, 9: 2 })[degree] ?? Math.floor((degree + 1) / 4);

  /** Floating-point operations for one n x m matrix, as PolarMethod.flops counts them. */
  function flops(oracle, rows, columns) {
    const n = Math.min(rows, columns), m = Math.max(rows, columns), { map } = oracle;
    if (map.exact) return 6 * n * n * m + 20 * n ** 3 + 2 * n * n * m;
    if (map.poles) {
      return 4 * n * n * m + map.poles.length * n ** 3 + (map.polish ? 2 * n ** 3 * (2 + squares(2 * map.polish.length - 1)) : 0);
    }
    const steps = map.steps.length, tilted = map.weights && map.weights.length;
    const gram = oracle.form === "auto" && !tilted && m > 1.5 * n && steps > 1;
    const segments = gram ? 1 + Math.ceil(Math.max(0, steps - 2) / 3) : steps;
    const products = sum(map.steps.map((step) => squares(2 * step.length - 1))) + 3 * (steps - segments);
    return 4 * n * n * m * segments + 2 * n ** 3 * products;
  }

  function gaussian(n) {
    const grid = Array.from({ length: 20001 }, (_, k) => k / 20000);
    const share = grid.map((x) => (2 / Math.PI) * (Math.asin(x) + x * Math.sqrt(1 - x * x)));
    let k = grid.length - 1;
    return Array.from({ length: n }, (_, j) => {
      const at = (n - j - 0.5) / n;
      while (share[k - 1] > at) k -= 1;
      return grid[k - 1] + ((at - share[k - 1]) / (share[k] - share[k - 1])) * (grid[k] - grid[k - 1]);
    });
  }
  const between = (n, last) => Array.from({ length: n }, (_, j) => (n > 1 ? last ** (j / (n - 1)) : 1));

  /** Name -> label, one parameter with its default and range, and n singular values, the largest first. */
  const SYNTHETIC = {
    "log-uniform": {
      label: "Log-uniform: evenly spread in log s", parameter: "smallest s", value: 1e-3, range: [1e-8, 0.9],
      values: (n, p) => between(n, p),
    },
    "power-law": {
      label: "Power law: the j-th is j^-a", parameter: "exponent a", value: 1, range: [0.1, 5],
      values: (n, p) => Array.from({ length: n }, (_, j) => (j + 1) ** -p),
    },
    flat: { label: "Flat: all equal", values: (n) => Array(n).fill(1) },
    gaussian: { label: "Gaussian: a square random matrix", values: gaussian },
    "rank-deficient": {
      label: "Rank-deficient: the rest is rounding noise at 1e-7", parameter: "share of directions with signal",
      value: 0.25, range: [0.01, 1],
      values: (n, p) => {
        const rank = Math.max(1, Math.round(p * n));
        return [...between(rank, 1e-2), ...Array(n - rank).fill(1e-7)];
      },
    },
  };

  /** Indices of the stored order statistics of `count` values: all up to 64, else dense at both ends. */
  function positions(count) {
    if (count <= POINTS) return Array.from({ length: count }, (_, k) => k);
    const indices = new Set();
    for (let k = 0; k < POINTS / 2; k += 1) {
      const end = even(((count + 1) / 2) ** (k / (POINTS / 2 - 1))) - 1;
      indices.add(end).add(count - 1 - end);
    }
    return [...indices].sort((a, b) => a - b);
  }
  /** Rounds halves to even numbers, as numpy does. */
  const even = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));

  /** A layer from log10(sigma/sigma_1) at `positions`, linear in between. */
  function unpack({ name, shape, rank, top, logs }) {
    const at = positions(rank);
    let k = 0;
    const values = Array.from({ length: rank }, (_, j) => {
      while (k + 1 < at.length && at[k + 1] <= j) k += 1;
      const more = k + 1 < at.length ? ((j - at[k]) / (at[k + 1] - at[k])) * (logs[k + 1] - logs[k]) : 0;
      return top * 10 ** (logs[k] + more);
    });
    return { name, shape, values };
  }

  function layer(numbers, name, shape) {
    if (!Array.isArray(numbers) || !numbers.length || !numbers.every((x) => Number.isFinite(x) && x >= 0)) {
      throw new Error(`${name}: singular values are finite numbers, none of them negative`);
    }
    const values = numbers.filter((x) => x > 0).sort((a, b) => b - a);
    if (!values.length) throw new Error(`${name}: at least one singular value must be positive`);
    return { name, shape: shape || [values.length, values.length], values };
  }

  /** Layers of a file: JSON of `inexact-muon delta --json`, of lists, or of lists by name; or numbers as text. */
  function read(text, name) {
    if (!/^\s*[[{]/.test(text)) {
      const words = text.replace(/#.*/g, "").split(/[\s,;]+/).filter(Boolean);
      return [layer(words.map(Number), name)];
    }
    let content;
    try { content = JSON.parse(text); } catch { throw new Error(`${name} is not JSON: check its brackets and commas`); }
    if (Array.isArray(content)) {
      return Array.isArray(content[0]) ? content.map((row, k) => layer(row, `${name} ${k}`)) : [layer(content, name)];
    }
    if (Array.isArray(content.layers)) return content.layers.map((l) => layer(l.singular_values, String(l.name), l.shape));
    if (content.singular_values) return [layer(content.singular_values, name, content.shape)];
    return Object.entries(content).map(([key, row]) => layer(row, key));
  }

  /** Layers as text of a link: 64 order statistics each, in steps of 1/7000 of a decade. */
  function encode(layers) {
    return JSON.stringify(layers.map(({ name, shape, values }) => {
      const codes = positions(values.length).map((k) => Math.min(65535, Math.round(-7000 * Math.log10(values[k] / values[0]))));
      const bytes = codes.flatMap((code) => [code >> 8, code & 255]);
      return [name, shape, values.length, Number(values[0].toPrecision(6)), btoa(String.fromCharCode(...bytes))];
    }));
  }

  function decode(text) {
    return JSON.parse(text).map(([name, shape, rank, top, code]) => {
      const bytes = Uint8Array.from(atob(code), (c) => c.charCodeAt(0));
      const logs = Array.from({ length: bytes.length / 2 }, (_, k) => -(256 * bytes[2 * k] + bytes[2 * k + 1]) / 7000);
      if (!(rank > 0 && rank <= 1e5 && top > 0) || logs.length !== positions(rank).length) throw new Error("a damaged link");
      return unpack({ name: String(name), shape, rank, top, logs });
    });
  }

  /** Coefficients as typed, one step a line, as an oracle. */
  function custom(text) {
    const steps = text.split("\n").map((line) => line.split(/[\s,;()[\]]+/).filter(Boolean).map(Number)).filter((row) => row.length);
    if (!steps.length || steps.length > 64 || !steps.every((row) => row.length >= 2 && row.length <= 32 && row.every(Number.isFinite))) {
      throw new Error("one step a line, each two or more numbers: the coefficients of s, s^3, s^5, ...");
    }
    return { id: "own", label: "Your coefficients", map: { steps }, norm: "frobenius", form: "direct", source: "typed on this page" };
  }

  return { evaluate, normaliser, judge, rate, flops, SYNTHETIC, unpack, read, encode, decode, custom };
})();
