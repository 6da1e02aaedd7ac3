// Curves, copied commands, logs that stay at their end, times of the reader, and nothing else: the page is whole without it.
(() => {
  "use strict";
  const COLOURS = ["#2f81f7", "#e5534b", "#2da44e", "#bf8700", "#a475f9", "#1b9e9e", "#d4679a", "#7b8794"];
  const holder = document.getElementById("charts");
  const source = document.getElementById("data");
  const plots = new Map();
  let charts = source ? JSON.parse(source.textContent) : [], printing = false;

  document.querySelectorAll("[data-copy]").forEach((button) => { button.hidden = !navigator.clipboard; });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) navigator.clipboard.writeText(button.dataset.copy).then(() => { button.textContent = "copied"; });
  });

  const two = (number) => String(number).padStart(2, "0");
  function local() {
    document.querySelectorAll("time[datetime]").forEach((each) => {
      const at = new Date(each.dateTime);
      if (isNaN(at)) return;
      const seconds = each.className === "short" ? "" : `:${two(at.getSeconds())}`;
      const text = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}${seconds}`;
      if (each.textContent !== text) each.textContent = text;
    });
    document.querySelectorAll(".zone").forEach((each) => {
      const text = `Times are in ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`;
      if (each.textContent !== text) each.textContent = text;
    });
    // The icon has the colour of the state, also while the page is open.
    const live = document.querySelector("[data-state]"), icon = document.getElementById("icon");
    if (live && icon && icon.href !== live.dataset.state) icon.href = live.dataset.state;
  }
  local();
  new MutationObserver(local).observe(document.body, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["data-state", "datetime"] });

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

  // On paper, all parts are open.
  const closed = [];
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not([open])").forEach((each) => { closed.push(each); each.open = true; });
    printing = true;
    again();
  });
  addEventListener("afterprint", () => {
    closed.splice(0).forEach((each) => { each.open = false; });
    printing = false;
    again();
  });

  // A run has one colour in all charts and in the list above them.
  const colours = new Map();
  function colour(run) {
    if (!colours.has(run)) colours.set(run, COLOURS[colours.size % COLOURS.length]);
    return colours.get(run);
  }
  document.querySelectorAll("[data-run]").forEach((each) => { each.style.background = colour(each.dataset.run); });

  const axis = document.getElementById("axis"), smoothing = document.getElementById("smoothing"), log = document.getElementById("log");

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
      const x = series[axis.value][at], y = log.checked && values[at] <= 0 ? null : values[at];
      if (xs.length && xs[xs.length - 1] === x) ys[ys.length - 1] = y;
      else { xs.push(x); ys.push(y); }
    }
    return [xs, ys];
  }

  const short = (value) => (value === null || value === undefined ? "" : String(Number(value.toPrecision(4))));
  const style = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

  // The axis is as wide as its longest number.
  function wide(plot, values) {
    const longest = (values || []).reduce((most, value) => (String(value).length > most.length ? String(value) : most), "");
    plot.ctx.save();
    plot.ctx.font = plot.axes[1].font[0];
    const width = plot.ctx.measureText(longest).width / devicePixelRatio;
    plot.ctx.restore();
    return Math.ceil(width) + 18;
  }

  // A value of a part of an epoch is a ring.
  function rings(plot, chart) {
    chart.series.forEach((each, at) => each.partial.forEach((index) => {
      const x = each[axis.value][index], place = plot.data[0].indexOf(x), y = plot.data[at + 1][place];
      if (y === null || y === undefined) return;
      const ctx = plot.ctx;
      ctx.save();
      ctx.beginPath();
      ctx.arc(plot.valToPos(x, "x", true), plot.valToPos(y, "y", true), 4.5 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.fillStyle = printing ? "#fff" : style("--card");
      ctx.strokeStyle = colour(each.run);
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.fill();
      ctx.stroke();
      ctx.restore();
    }));
  }

  function caption(figure, chart) {
    const head = document.createElement("figcaption");
    head.append(chart.name);
    chart.series.forEach((each) => {
      const value = document.createElement("small"), line = document.createElement("i");
      line.style.background = colour(each.run);
      if (chart.series.length > 1) { value.append(line); value.title = each.run; }
      value.append(short(each.value[each.value.length - 1]));
      head.append(value);
    });
    return head;
  }

  function draw(chart) {
    const data = uPlot.join(chart.series.map(table)), known = plots.get(chart.name);
    if (known && known.plot.series.length === data.length) {
      known.chart = chart;
      known.plot.setData(data);
      known.figure.replaceChild(caption(known.figure, chart), known.figure.firstChild);
      say(known.plot, chart);
      return;
    }
    const figure = known ? known.figure : document.createElement("figure"), held = { chart, figure };
    figure.replaceChildren(caption(figure, chart));
    if (!known) holder.append(figure);
    const ink = printing ? "#444" : style("--quiet"), font = "12px system-ui, sans-serif";
    const line = { stroke: ink, font, labelFont: font, labelSize: 20, labelGap: 0, grid: { stroke: "#80808022", width: 1 }, ticks: { stroke: "#80808044", size: 5, width: 1 } };
    held.plot = new uPlot({
      width: Math.max(figure.clientWidth - 28, 200), height: 230, padding: [12, 16, 0, 0],
      scales: { x: { time: false }, y: { distr: log.checked ? 3 : 1 } },
      axes: [{ ...line, label: axis.selectedOptions[0].text, size: 34 }, { ...line, label: chart.name.slice(0, 40), size: wide, values: (plot, values) => values.map(short) }],
      cursor: { points: { size: 7 } },
      series: [{ label: axis.value }, ...chart.series.map((each) => ({
        label: chart.series.length > 1 ? each.run : chart.name, stroke: colour(each.run), width: 1.8, spanGaps: chart.series.length > 1,
        points: { show: each.value.length < 60, size: 5, fill: colour(each.run) }, value: (plot, value) => short(value),
      }))],
      hooks: { draw: [(plot) => rings(plot, held.chart)] },
    }, data, figure);
    held.plot.root.setAttribute("role", "img");
    say(held.plot, chart);
    plots.set(chart.name, held);
  }

  function say(plot, chart) {
    const last = chart.series.map((each) => `${each.run}: ${each.value[each.value.length - 1]}`);
    plot.root.setAttribute("aria-label", `Curve of ${chart.name}. Last values: ${last.join(", ")}`);
  }

  // As many in a row as leave no hole: three, two or one.
  function all() {
    if (!holder) return;
    const count = charts.length;
    holder.className = count === 1 ? "one" : count % 3 === 0 || (count > 4 && count % 2) ? "thirds" : "";
    charts.forEach(draw);
  }

  function again() {
    plots.forEach(({ plot, figure }) => { plot.destroy(); figure.remove(); });
    plots.clear();
    all();
  }
  if (!holder) return;

  async function refresh() {
    if (document.hidden) return;
    try {
      const answer = await fetch(holder.dataset.url, { credentials: "same-origin" });
      if (answer.ok) { charts = await answer.json(); all(); }
    } catch (error) { /* The server has gone or comes back: the page says so by itself. */ }
  }

  document.getElementById("controls").hidden = !charts.length && !holder.dataset.live;
  axis.addEventListener("change", again);
  log.addEventListener("change", again);
  smoothing.addEventListener("input", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  new ResizeObserver(() => plots.forEach(({ plot, figure }) => {
    const width = Math.max(figure.clientWidth - 28, 200);
    if (Math.abs(plot.width - width) > 2) plot.setSize({ width, height: 230 });
  })).observe(holder);
  all();
  if (holder.dataset.live) {
    const timer = setInterval(() => {
      // A run that has ended is read once more, and then no longer asked for.
      if (!document.querySelector("#live[hx-trigger]")) clearInterval(timer);
      refresh();
    }, 3000);
  }
})();
