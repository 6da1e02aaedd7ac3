// Curves, copied commands, logs that stay at their end, and nothing else: the page is whole without it.
(() => {
  "use strict";
  const COLOURS = ["#2f81f7", "#e5534b", "#2da44e", "#bf8700", "#a475f9", "#1b9e9e", "#d4679a", "#7b8794"];
  const holder = document.getElementById("charts");
  const source = document.getElementById("data");
  const plots = new Map();
  let charts = source ? JSON.parse(source.textContent) : [];

  document.querySelectorAll("[data-copy]").forEach((button) => { button.hidden = !navigator.clipboard; });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) navigator.clipboard.writeText(button.dataset.copy).then(() => { button.textContent = "copied"; });
  });
  const PARTS = 5000;
  document.querySelectorAll("pre.log").forEach((log) => {
    // A reader who has scrolled back stays there.
    let atEnd = true;
    const toEnd = () => { if (atEnd) log.scrollTop = log.scrollHeight; };
    log.addEventListener("scroll", () => { atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 30; });
    toEnd();
    new MutationObserver(() => {
      while (atEnd && log.children.length > PARTS) log.firstChild.remove();
      toEnd();
    }).observe(log, { childList: true });
  });
  if (!holder) return;
  const axis = document.getElementById("axis"), smoothing = document.getElementById("smoothing");

  function smoothed(values, weight) {
    let last = null;
    return values.map((value) => {
      if (value === null) return null;
      last = last === null ? value : weight * last + (1 - weight) * value;
      return last;
    });
  }

  function table(series) {
    // One x value for each point, in order: an attempt that began again may repeat times or epochs.
    const order = series[axis.value].map((x, at) => at).sort((a, b) => series[axis.value][a] - series[axis.value][b]);
    const xs = [], ys = [], values = smoothed(series.value, Number(smoothing.value));
    for (const at of order) {
      const x = series[axis.value][at];
      if (xs.length && xs[xs.length - 1] === x) ys[ys.length - 1] = values[at];
      else { xs.push(x); ys.push(values[at]); }
    }
    return [xs, ys];
  }

  function draw(chart) {
    const data = uPlot.join(chart.series.map(table)), known = plots.get(chart.name);
    if (known && known.plot.series.length === data.length) { known.plot.setData(data); say(known.plot, chart); return; }
    const figure = known ? known.figure : document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.textContent = chart.name;
    figure.replaceChildren(caption);
    if (!known) holder.append(figure);
    const ink = getComputedStyle(document.body).color;
    const line = { stroke: ink, grid: { stroke: "#80808033" }, ticks: { stroke: "#80808055" } };
    const plot = new uPlot({
      width: Math.max(figure.clientWidth, 200), height: 220,
      scales: { x: { time: false } }, axes: [line, { ...line, size: 62 }],
      series: [{ label: axis.value }, ...chart.series.map((each, at) => ({
        label: each.run, stroke: COLOURS[at % COLOURS.length], width: 1.5, spanGaps: chart.series.length > 1,
        points: { show: each.value.length < 60 },
      }))],
    }, data, figure);
    plot.root.setAttribute("role", "img");
    say(plot, chart);
    plots.set(chart.name, { plot, figure });
  }

  function say(plot, chart) {
    const last = chart.series.map((each) => `${each.run}: ${each.value[each.value.length - 1]}`);
    plot.root.setAttribute("aria-label", `Curve of ${chart.name}. Last values: ${last.join(", ")}`);
  }

  function again() {
    plots.forEach(({ plot, figure }) => { plot.destroy(); figure.remove(); });
    plots.clear();
    charts.forEach(draw);
  }

  async function refresh() {
    if (document.hidden) return;
    try {
      const answer = await fetch(holder.dataset.url, { credentials: "same-origin" });
      if (answer.ok) { charts = await answer.json(); charts.forEach(draw); }
    } catch (error) { /* The server has gone or comes back: the page says so by itself. */ }
  }

  document.getElementById("controls").hidden = !charts.length && !holder.dataset.live;
  axis.addEventListener("change", again);
  smoothing.addEventListener("input", () => charts.forEach(draw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  new ResizeObserver(() => plots.forEach(({ plot, figure }) => {
    const width = Math.max(figure.clientWidth, 200);
    if (Math.abs(plot.width - width) > 2) plot.setSize({ width, height: 220 });
  })).observe(holder);
  charts.forEach(draw);
  if (holder.dataset.live) {
    const timer = setInterval(() => {
      // What has ended is read once more, and then no longer asked for.
      if (!document.querySelector("#live[hx-trigger]")) clearInterval(timer);
      refresh();
    }, 3000);
  }
})();
