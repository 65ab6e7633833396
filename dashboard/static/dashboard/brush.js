// Dragging over a timeline or a chart looks at that part closely: the address that links write, too.
let drag = null;

function when(x, knots) {
  const at = Math.min(knots.length - 1, Math.max(1, knots.findIndex(([end]) => end >= x)));
  const [[x0, t0], [x1, t1]] = knots.slice(at - 1, at + 1);
  return new Date(x1 > x0 ? t0 + ((t1 - t0) * (x - x0)) / (x1 - x0) : t1).toISOString();
}

for (const kind of ["pointerdown", "pointermove", "pointerup"]) document.addEventListener(kind, (event) => {
  const begins = kind === "pointerdown" && event.button === 0 && event.pointerType === "mouse";
  const svg = drag?.svg ?? (begins && !event.target.closest("a") && event.target.closest("svg[data-knots]"));
  if (!svg) return;
  const [knots, box] = [svg.dataset.knots.split(" ").map((one) => one.split(":").map(Number)), svg.getBoundingClientRect()];
  const x = Math.min(knots.at(-1)[0], Math.max(knots[0][0], ((event.clientX - box.left) * svg.viewBox.baseVal.width) / box.width));
  drag ??= { svg, x };
  const [from, to] = [drag.x, x].sort((a, b) => a - b);
  for (const [name, value] of [["x", from], ["width", to - from]]) svg.querySelector(".brush").setAttribute(name, value);
  if (begins) event.preventDefault();
  if (kind !== "pointerup") return;
  const address = new URL(`${location.pathname}${location.search}#${svg.closest("section").getAttribute("aria-labelledby")}`, location.href);
  for (const [name, value] of [["from", from], ["to", to]]) address.searchParams.set(name, when(value, knots));
  if (to - from > 6) location.assign(address);
  drag = null;
});
