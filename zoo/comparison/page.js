// Point at a run, in a table or in a chart, and it stands out everywhere; a click on its row keeps it so. A click on
// a heading sorts by it, and words in the box leave the runs that have them. Without this the page reads as well.
"use strict";

const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
tip.hidden = true;

for (const section of document.querySelectorAll("section")) {
  section.classList.add("scripted");
  const marks = [...section.querySelectorAll("[data-runs]")];
  const runsOf = (mark) => mark.dataset.runs.split(" ");
  const kept = new Set();

  function stress(runs) {
    const all = new Set([...kept, ...runs]);
    section.classList.toggle("choosing", all.size > 0);
    for (const mark of marks) mark.classList.toggle("stressed", runsOf(mark).some((run) => all.has(run)));
  }

  for (const row of section.querySelectorAll("tbody tr")) {
    row.addEventListener("mouseenter", () => stress(runsOf(row)));
    row.addEventListener("mouseleave", () => stress([]));
    row.addEventListener("click", () => {
      const drop = runsOf(row).every((run) => kept.has(run));
      for (const run of runsOf(row)) drop ? kept.delete(run) : kept.add(run);
      stress([]);
    });
  }

  for (const chart of section.querySelectorAll(".charts svg")) {
    chart.querySelectorAll("title").forEach((title) => title.remove()); // the tip says more
    const hide = () => { tip.hidden = true; stress([]); };
    chart.addEventListener("mouseleave", hide);
    chart.addEventListener("mousemove", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
      const found = nearest(chart, at);
      if (found === null) return hide();
      const [epoch, value] = found.curve.dataset.values.split(" ")[found.place].split(":");
      const run = found.curve.parentNode;
      stress(runsOf(run));
      tip.textContent = `${run.dataset.name}, epoch ${epoch}: ${value}`;
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 320)}px`;
      tip.style.top = `${event.clientY + 14}px`;
      tip.hidden = false;
    });
  }

  for (const table of section.querySelectorAll("table")) {
    table.tHead.addEventListener("click", ({ target }) => sort(table, target.closest("th")));
  }

  const box = document.createElement("input");
  box.type = "search";
  box.placeholder = "only runs with these words";
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of section.querySelectorAll(".runs tbody tr")) {
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      for (const curve of section.querySelectorAll(`g[data-runs="${row.dataset.runs}"]`)) {
        curve.style.display = row.hidden ? "none" : "";
      }
    }
  });
  section.querySelector(".runs").before(box);
}

// The point of a chart's curves that lies nearest to a place; null where none is near.
function nearest(chart, at) {
  let found = null, least = 40 ** 2;
  for (const curve of chart.querySelectorAll("polyline")) {
    if (curve.parentNode.style.display === "none") continue;
    for (let place = 0; place < curve.points.length; place++) {
      const point = curve.points[place];
      const distance = (point.x - at.x) ** 2 + (point.y - at.y) ** 2;
      if (distance < least) [found, least] = [{ curve, place }, distance];
    }
  }
  return found;
}

// Numbers by their size, other cells by their words; empty cells come last, whichever way.
function sort(table, head) {
  const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
  const text = (row) => row.cells[head.cellIndex].textContent.trim();
  const number = (row) => parseFloat(text(row).replaceAll(",", ""));
  const compare = (a, b) => {
    if (!text(a) || !text(b)) return !text(a) - !text(b);
    const difference = number(a) - number(b);
    return way * (Number.isNaN(difference) ? text(a).localeCompare(text(b)) : difference);
  };
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
}
