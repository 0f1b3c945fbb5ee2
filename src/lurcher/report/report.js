(() => {
  "use strict";
  const token = /^--c-[a-z]+$/;
  const themed = (value, css) => {
    if (typeof value === "string") return token.test(value) ? css.getPropertyValue(value).trim() : value;
    if (Array.isArray(value)) return value.map((item) => themed(item, css));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item, css)]));
    return value;
  };
  const options = { responsive: true, displayModeBar: false };
  const draw = () => {
    const css = getComputedStyle(document.documentElement);
    for (const place of document.querySelectorAll("[data-figure]")) {
      const figure = JSON.parse(document.getElementById("figure-" + place.dataset.figure).textContent);
      const { data, layout } = themed(figure, css);
      if (innerWidth < 600) layout.dragmode = false;
      Plotly.react(place, data, layout, options);
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  const search = document.getElementById("decision-search");
  const kinds = document.getElementById("decision-kind");
  const filter = () => {
    const words = search.value.toLowerCase();
    let shown = 0;
    for (const row of document.querySelectorAll("#decisions tbody tr")) {
      const fits = (!kinds.value || row.dataset.kind === kinds.value) && row.textContent.toLowerCase().includes(words);
      row.hidden = !fits;
      shown += fits;
    }
    document.getElementById("decision-count").textContent = shown;
  };
  if (search) {
    search.addEventListener("input", filter);
    kinds.addEventListener("input", filter);
  }
})();
