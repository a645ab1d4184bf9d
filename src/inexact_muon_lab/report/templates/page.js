"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();

  function look() {
    const ink = dark.matches ? "#d5d9e0" : "#343a40", line = dark.matches ? "#343941" : "#e9ecef";
    return {
      background: "transparent", font: "system-ui, sans-serif", view: { stroke: null },
      axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500 },
      legend: { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500, orient: "top", gradientLength: 140 },
    };
  }

  async function draw(place) {
    const panel = structuredClone(figures[place.dataset.figure][Number(place.dataset.panel)]);
    if (place.dataset.height) panel.height = Number(place.dataset.height);
    const options = { actions: false, renderer: "svg", config: look(), ast: false, tooltip: { theme: dark.matches ? "dark" : "light" } };
    views.get(place.id)?.finalize();
    const result = await window.vegaEmbed(place, panel, options);
    views.set(place.id, result.view);
    place.dataset.drawn = "yes";
  }

  const places = [...document.querySelectorAll(".chart")];
  const visible = (place) => place.checkVisibility();

  // Charts in closed sections have no width: they are drawn when their section is opened.
  async function drawn(which) {
    delete document.body.dataset.drawn;
    await Promise.all(places.filter((place) => visible(place) && which(place)).map(draw));
    document.body.dataset.drawn = "yes";
  }
  const waiting = (place) => place.dataset.drawn !== "yes";
  document.addEventListener("toggle", () => drawn(waiting), true);
  dark.addEventListener("change", () => { places.forEach((place) => delete place.dataset.drawn); drawn(waiting); });

  function reveal() {
    let place = location.hash && document.getElementById(location.hash.slice(1));
    if (!place) return;
    for (let part = place; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    place.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  document.addEventListener("click", (event) => { if (event.target.closest('a[href^="#"]')) setTimeout(reveal); });
  reveal();
  drawn(waiting);

  function csv(id) {
    const lines = new Set(figures[id].flatMap((panel) => panel.datasets.rows.map((row) => JSON.stringify(row))));
    const rows = [...lines].map((line) => JSON.parse(line));
    const names = [...new Set(rows.flatMap(Object.keys))];
    const cell = (v) => (v === null || v === undefined ? "" : /[",\n]/.test(String(v)) ? `"${String(v).replaceAll('"', '""')}"` : String(v));
    return [names.map(cell).join(","), ...rows.map((row) => names.map((n) => cell(row[n])).join(","))].join("\n") + "\n";
  }

  function save(name, url) {
    const link = document.createElement("a");
    link.href = url; link.download = name; link.click();
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-save]");
    if (!button) return;
    const { save: kind, of } = button.dataset;
    if (kind === "csv") return save(`${of}.csv`, URL.createObjectURL(new Blob([csv(of)], { type: "text/csv" })));
    for (const place of places.filter((p) => p.dataset.figure === of && p.id !== "first-chart"))
      save(`${place.id}.${kind}`, await views.get(place.id).toImageURL(kind, kind === "png" ? 2 : 1));
  });

  const refresh = Number(document.body.dataset.refresh || 0);
  if (refresh) setTimeout(() => location.reload(), 1000 * refresh);
})();
