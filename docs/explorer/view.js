/* The page: a state, a link that holds it, a plot and a table that show it. */
const explorer = (() => {
  const $ = (id) => document.getElementById(`x-${id}`);
  const MOST = 8; // colours
  const LOW = -5; // log10 of the left end
  const BINS = 60;
  const LONGEST = 4096; // values of a spectrum that is made up
  const SAMPLES = 2400; // of a curve: five steps of degree 5 have hundreds of waves
  const DEFAULTS = {
    oracles: ["torch", "polar-express:5", "zolotarev:3"], reference: "torch", spectrum: "gpt-late", layer: "", parameter: null,
    rows: 768, columns: 3072, lr: 0.02, norm: "own", s: 1e-3, own: "", file: null,
  };
  const known = new Map(DATA.oracles.map((oracle) => [oracle.id, oracle]));
  const recorded = DATA.layers.map(Maps.unpack);
  let state = { ...DEFAULTS };

  const text = (x, digits = 3) => (Math.abs(x) >= 5e-4 || x === 0 ? x.toFixed(digits) : x.toExponential(0)).replace("-", "−");
  const percent = (x) => `${(100 * x).toFixed(Math.abs(x) < 0.0995 ? 1 : 0)} %`.replace("-0.0 ", "0.0 ").replace("-", "−");
  const power = (k) => (k === 0 ? "1" : k === -1 ? "0.1" : `10⁻${"⁰¹²³⁴⁵⁶⁷⁸⁹"[-k]}`);
  const short = (label) => label.split(":")[0];
  const say = (words) => { $("status").textContent = words; };
  const element = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
    node.append(...children);
    return node;
  };

  // ---- state ----
  const oracles = () => state.oracles.map((id) => (id === "own" ? Maps.custom(state.own) : known.get(id)));
  const all = () => {
    if (state.spectrum === "file") return state.file;
    const synthetic = Maps.SYNTHETIC[state.spectrum];
    if (!synthetic) return recorded.filter((l) => l.name.startsWith(`${state.spectrum}/`));
    const n = Math.min(state.rows, state.columns, LONGEST);
    return [{ name: state.spectrum, shape: [n, n], values: synthetic.values(n, state.parameter ?? synthetic.value) }];
  };
  const layers = () => (state.layer ? all().filter((l) => l.name === state.layer) : all());
  const judged = () => {
    const chosen = layers();
    return oracles().map((oracle) => ({ oracle, ...Maps.judge(oracle, chosen, state.norm === "own" ? oracle.norm : "spectral") }));
  };
  /** The layer whose norms the curves are drawn with: of several the one with the median Frobenius norm over sigma_1. */
  const typical = () => {
    const ratio = (l) => Maps.normaliser(l.values, "frobenius") / l.values[0];
    const sorted = [...layers()].sort((a, b) => ratio(a) - ratio(b));
    return sorted[Math.floor(sorted.length / 2)];
  };
  const curve = (oracle, { values }) => {
    const scale = values[0] / Maps.normaliser(values, state.norm === "own" ? oracle.norm : "spectral");
    return (s) => Maps.evaluate(oracle.map, s * scale);
  };

  function link() {
    const words = new URLSearchParams();
    state.oracles.forEach((id) => words.append("o", id));
    for (const key of ["reference", "spectrum", "layer", "parameter", "rows", "columns", "lr", "norm", "own"]) {
      if (state[key] !== null && state[key] !== "") words.set(key, state[key]);
    }
    words.set("s", Number(state.s.toPrecision(4)));
    if (state.spectrum === "file") words.set("file", Maps.encode(state.file));
    return `#${words}`;
  }

  /** The state of a link; what it does not say, or says wrongly, is as at first. */
  function read(hash) {
    const words = new URLSearchParams(hash.slice(1)), next = { ...DEFAULTS };
    for (const key of ["reference", "layer", "own"]) next[key] = words.get(key) ?? next[key];
    const number = (key, low, high) => {
      const value = Number(words.get(key));
      if (words.get(key) && value >= low && value <= high) next[key] = value;
    };
    number("rows", 1, 1e6);
    number("columns", 1, 1e6);
    number("lr", 0, 1e6);
    number("s", 10 ** LOW, 1);
    if (words.get("norm") === "spectral") next.norm = "spectral";
    try {
      if (words.get("file")) next.file = Maps.decode(words.get("file"));
    } catch { say("The spectrum in this link is damaged."); }
    const spectrum = words.get("spectrum");
    if (spectrum === "file" ? next.file : spectra().some(([id]) => id === spectrum)) next.spectrum = spectrum;
    const range = Maps.SYNTHETIC[next.spectrum]?.range;
    if (range) number("parameter", ...range);
    try { Maps.custom(next.own); } catch { next.own = ""; }
    const ids = [...new Set(words.getAll("o"))].filter((id) => known.has(id) || (id === "own" && next.own));
    if (ids.length) next.oracles = ids.slice(0, MOST);
    return next;
  }

  let waiting;
  function writeLink() {
    clearTimeout(waiting); // browsers limit how often an address changes
    waiting = setTimeout(() => history.replaceState(null, "", link()), 200);
  }

  /** Moves to a valid state nearby, shows it and writes the link. */
  function update(change) {
    Object.assign(state, change);
    if (!state.oracles.includes(state.reference)) [state.reference] = state.oracles;
    if (!all().some((l) => l.name === state.layer)) state.layer = "";
    show();
    writeLink();
  }

  // ---- controls ----
  /** [id, label, group] of every spectrum. */
  function spectra() {
    const rows = state.file ? [["file", "Your file", "Your own"]] : [];
    DATA.recorded.forEach(({ id, label }) => {
      const parts = new Set(DATA.layers.filter((l) => l.name.startsWith(`${id}/`)).map((l) => l.name.split("/")[1]));
      const group = "Recorded momentum";
      rows.push([id, label, group]);
      if (parts.size > 1) parts.forEach((part) => rows.push([`${id}/${part}`, `${label}: ${part}`, group]));
    });
    return [...rows, ...Object.entries(Maps.SYNTHETIC).map(([id, { label }]) => [id, label, "Made up"])];
  }

  function fill(select, rows, value) {
    const groups = new Map();
    select.replaceChildren();
    rows.forEach(([id, label, group]) => {
      if (group && !groups.has(group)) groups.set(group, select.appendChild(element("optgroup", { label: group })));
      (groups.get(group) || select).append(element("option", { value: id }, label));
    });
    select.value = value;
  }

  function showControls() {
    const chosen = oracles(), several = all(), synthetic = Maps.SYNTHETIC[state.spectrum];
    fill($("spectrum"), spectra(), state.spectrum);
    fill($("layer"), [["", `all ${several.length} together`], ...several.map((l) => [l.name, l.name.split("/").pop()])], state.layer);
    $("layer-label").hidden = several.length < 2;
    $("parameter-label").hidden = !synthetic?.parameter;
    $("parameter-name").textContent = synthetic?.parameter ?? "";
    const rest = DATA.oracles.filter(({ id }) => !state.oracles.includes(id));
    const groups = rest.map((o) => [o.id, o.label, o.library ? "What other libraries run" : "This package"]);
    fill($("add"), [["", chosen.length < MOST ? "choose one ..." : `at most ${MOST} at once`], ...(chosen.length < MOST ? groups : [])], "");
    fill($("reference"), chosen.map((o) => [o.id, short(o.label)]), state.reference);
    const fields = { parameter: state.parameter ?? synthetic?.value ?? "", rows: state.rows, columns: state.columns, lr: state.lr };
    Object.entries(fields).forEach(([key, value]) => { if (document.activeElement !== $(key)) $(key).value = value; });
    $("norm").value = state.norm;
    if (document.activeElement !== $("own")) $("own").value = state.own;
    $("sources").replaceChildren(...chosen.flatMap((o) => [
      element("dt", {}, o.label),
      element("dd", {}, [o.source, o.note, `Divides by: ${o.norm}.`].filter(Boolean).join(". ").replace("..", ".")),
    ]));
  }

  // ---- table ----
  function amount(x) {
    const k = Math.max(0, Math.floor(Math.log10(x) / 3));
    return `${(x / 1000 ** k).toPrecision(3)} ${["", "k", "M", "G", "T", "P", "E"][k]}`;
  }

  function showTable(rows) {
    const from = rows.find((row) => row.oracle.id === state.reference);
    const side = Math.min(state.rows, state.columns);
    const body = rows.map((row, k) => {
      const cost = Maps.flops(row.oracle, state.rows, state.columns), rate = Maps.rate(from, row);
      const lr = rate === null ? "does not descend" : `${Number((state.lr * rate).toPrecision(3))} (×${rate.toFixed(2)})`;
      const cells = {
        gap: percent(row.gap), delta: text(row.delta), overshoot: text(row.overshoot),
        "lifted to ½": percent(row.lifted), products: String(Number((cost / (2 * side ** 3)).toPrecision(3))), flops: amount(cost),
        lr: row === from ? `${state.lr} (reference)` : lr,
      };
      const drop = element("button", { type: "button", "aria-label": `remove ${row.oracle.label}`, title: "remove" }, "×");
      drop.disabled = rows.length === 1;
      drop.addEventListener("click", () => {
        update({ oracles: state.oracles.filter((id) => id !== row.oracle.id) });
        $("add").focus();
      });
      return element("tr", { class: `c${k}` },
        element("th", { scope: "row" }, element("i", { "aria-hidden": "true" }), row.oracle.label),
        ...Object.entries(cells).map(([name, value]) => element("td", { "data-name": name }, value)),
        element("td", { class: "drop" }, drop));
    });
    $("table").tBodies[0].replaceChildren(...body);
  }

  function showFinding(rows) {
    const from = rows.find((row) => row.oracle.id === state.reference);
    const best = rows.reduce((a, b) => (b.lifted > a.lifted ? b : a));
    const descent = (gap) => (gap >= 0.0005 ? `loses ${percent(gap)} of the descent` : "loses no descent");
    const words = ({ oracle, gap, lifted }) => [
      element("b", {}, short(oracle.label)), ` ${descent(gap)} and leaves ${lifted < 1 ? percent(1 - lifted) : "none"} of the directions below a half`,
    ];
    const more = best === from ? [] : ["; ", ...words(best)];
    $("finding").replaceChildren("On this spectrum ", ...words(from), ...more, ".");
  }

  // ---- plot ----
  const svg = (name, attributes, words = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
    node.textContent = words;
    return node;
  };
  let frame = null;
  const shown = { rows: [], curves: [] };

  function showPlot(curves) {
    const plot = $("plot"), width = plot.clientWidth || 800, tall = width > 560 ? 310 : 260, strip = 56;
    const left = 46, right = width - 14, top = 14, bottom = top + tall, base = bottom + 12 + strip;
    const grid = Array.from({ length: SAMPLES + 1 }, (_, k) => 10 ** (LOW - (LOW * k) / SAMPLES));
    const values = curves.map((f) => grid.map(f));
    const high = Math.min(5, Math.max(1.25, 1.05 * Math.max(...values.flat())));
    const low = Math.max(-1.5, Math.min(0, 1.05 * Math.min(...values.flat())));
    const x = (s) => left + ((right - left) * (Math.log10(s) - LOW)) / -LOW;
    const y = (f) => bottom - (tall * (Math.min(Math.max(f, low), high) - low)) / (high - low);
    const line = (name, x1, y1, x2, y2) => svg("line", { class: name, x1, y1, x2, y2 });
    const parts = [];
    for (let k = LOW; k <= 0; k += 1) {
      parts.push(line("grid", x(10 ** k), top, x(10 ** k), base));
      parts.push(svg("text", { x: x(10 ** k), y: base + 16, "text-anchor": "middle" }, power(k)));
    }
    for (let f = Math.ceil(2 * low) / 2; f <= high; f += 0.5) {
      parts.push(line(f === 1 ? "exact" : "grid", left, y(f), right, y(f)));
      parts.push(svg("text", { x: left - 6, y: y(f) + 4, "text-anchor": "end" }, String(f).replace("-", "−")));
    }
    parts.push(svg("text", { class: "soft", x: left + 4, y: y(1) - 5 }, "exact"));
    parts.push(svg("text", { class: "soft", x: left + 4, y: y(0.5) - 5 }, "a half"));
    parts.push(svg("text", { class: "title", x: 12, y: (top + bottom) / 2, transform: `rotate(-90 12 ${(top + bottom) / 2})`, "text-anchor": "middle" }, "f(s): what the oracle makes of it"));
    const wide = width > 560 ? "s: a singular value relative to the largest" : "s: relative to the largest";
    parts.push(svg("text", { class: "title", x: (left + right) / 2, y: base + 36, "text-anchor": "middle" }, wide));

    const counts = Array(BINS).fill(0);
    let below = 0, count = 0;
    layers().forEach((l) => l.values.forEach((value) => {
      const at = Math.floor(BINS * (1 - Math.log10(value / l.values[0]) / LOW));
      if (at < 0) below += 1; else counts[Math.min(at, BINS - 1)] += 1;
      count += 1;
    }));
    const tallest = Math.max(...counts), step = (right - left) / BINS;
    const outline = counts.map((c, k) => `V${base - (strip * c) / tallest}H${left + (k + 1) * step}`).join("");
    parts.push(svg("path", { class: "density", d: `M${left},${base}${outline}V${base}Z` }));
    const rest = below ? `; ${percent(below / count)} below 10⁻⁵` : "";
    parts.push(svg("text", { class: "soft", x: left + 4, y: bottom + 24 }, `singular values${rest}`));
    values.forEach((row, k) => {
      const points = row.map((f, j) => `${x(grid[j]).toFixed(1)},${y(f).toFixed(1)}`);
      parts.push(svg("polyline", { class: `curve c${k}`, points: points.join(" ") }));
    });
    plot.replaceChildren(...parts, svg("g", { class: "cursor" }));
    plot.setAttribute("height", base + 44);
    plot.setAttribute("viewBox", `0 0 ${width} ${base + 44}`);
    frame = { x, y, left, right, top, bottom, base, width };
  }

  function showCursor({ rows, curves }) {
    const { x, y, top, bottom, base, left, right } = frame, s = Number(state.s.toPrecision(2)), at = x(state.s);
    const end = at > (left + right) / 2;
    $("plot").querySelector(".cursor").replaceChildren(
      svg("line", { x1: at, x2: at, y1: top, y2: base }),
      ...curves.map((f, k) => svg("circle", { class: `c${k}`, cx: at, cy: y(f(state.s)), r: 4.5 })),
      svg("text", { x: at + (end ? -6 : 6), y: bottom - 6, "text-anchor": end ? "end" : "start" }, `s = ${s}`));
    $("plot").setAttribute("aria-valuenow", Math.log10(state.s).toFixed(3));
    const words = rows.map((row, k) => `${short(row.oracle.label)} ${text(curves[k](state.s))}`);
    $("legend").replaceChildren(element("span", {}, `f at s = ${s}:`), ...rows.map((row, k) => element("span", { class: `c${k}` },
      element("i", { "aria-hidden": "true" }), short(row.oracle.label), " ", element("b", {}, text(curves[k](state.s))))));
    $("plot").setAttribute("aria-valuetext", `s = ${s}: ${words.join(", ")}`);
  }

  function show() {
    const layer = typical(), several = layers().length > 1;
    shown.rows = judged();
    shown.curves = shown.rows.map((row) => curve(row.oracle, layer));
    showControls();
    showFinding(shown.rows);
    showPlot(shown.curves);
    showCursor(shown);
    showTable(shown.rows);
    const short = Maps.SYNTHETIC[state.spectrum] && Math.min(state.rows, state.columns) > LONGEST;
    $("drawn").textContent = several ? `Curves are drawn with the norms of a typical layer, ${layer.name.split("/").pop()}.`
      : short ? `The spectrum has ${LONGEST} values, not more.` : "";
    document.body.dataset.drawn = "yes";
  }

  /** Moves the cursor alone: nothing else depends on it. */
  function move(s) {
    state.s = Math.min(1, Math.max(10 ** LOW, s));
    showCursor(shown);
    writeLink();
  }

  // ---- events ----
  async function open(file) {
    try {
      if (file.size > 5e7) throw new Error(`${file.name} has more than 50 MB: keep its singular values only`);
      update({ file: Maps.read(await file.text(), file.name), spectrum: "file", layer: "", parameter: null });
      say(`${file.name}: ${state.file.length} ${state.file.length === 1 ? "spectrum" : "spectra"}`);
    } catch (error) { say(error.message); }
  }

  const change = (id, apply) => $(id).addEventListener("change", () => apply($(id).value));
  change("spectrum", (spectrum) => update({ spectrum, layer: "", parameter: null }));
  change("layer", (layer) => update({ layer }));
  change("norm", (norm) => update({ norm }));
  change("reference", (reference) => update({ reference }));
  $("add-this").addEventListener("click", () => {
    if ($("add").value) update({ oracles: [...state.oracles, $("add").value] });
  });
  const number = (id, low, high) => $(id).addEventListener("input", () => {
    const value = Number($(id).value), [least, most] = id === "parameter" ? Maps.SYNTHETIC[state.spectrum].range : [low, high];
    const good = $(id).value !== "" && value >= least && value <= most && (id === "lr" || id === "parameter" || Number.isInteger(value));
    say(good ? "" : `This must lie between ${least} and ${most}.`);
    if (good) update({ [id]: value });
  });
  number("parameter");
  number("rows", 1, 1e6);
  number("columns", 1, 1e6);
  number("lr", 0, 1e6);
  $("file").addEventListener("change", () => $("file").files.length && open($("file").files[0]));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) open(event.dataTransfer.files[0]);
  });
  $("own-add").addEventListener("click", () => {
    const own = $("own").value;
    try { Maps.custom(own); } catch (error) { say(error.message); return; }
    update({ own, oracles: [...state.oracles.filter((id) => id !== "own").slice(0, MOST - 1), "own"] });
  });
  $("reset").addEventListener("click", () => update({ ...DEFAULTS, file: state.file }));
  $("copy").addEventListener("click", async () => {
    history.replaceState(null, "", link());
    try {
      await navigator.clipboard.writeText(location.href);
      say("Copied.");
    } catch { say("Copy the address of this page: it holds everything you chose."); }
  });
  $("plot").addEventListener("pointermove", (event) => {
    const at = event.clientX - $("plot").getBoundingClientRect().left;
    move(10 ** (LOW - (LOW * (at - frame.left)) / (frame.right - frame.left)));
  });
  $("plot").addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -0.05, ArrowDown: -0.05, ArrowRight: 0.05, ArrowUp: 0.05, PageDown: -0.5, PageUp: 0.5, Home: -9, End: 9 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    move(state.s * 10 ** by);
  });
  addEventListener("hashchange", () => { state = read(location.hash); update({}); });
  new ResizeObserver(() => { if (frame && $("plot").clientWidth !== frame.width) show(); }).observe($("plot").parentElement);

  state = read(location.hash);
  update({});
  return { state: () => state, link, judged, layers, curve, known };
})();
