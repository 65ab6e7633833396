// Ticked runs: kept for this tab through refreshes, pages and filters, until they are cleared.
const [MOST, KEPT, form] = [1000, "agentstate-picked", document.getElementById("selection")];
const boxes = () => [...document.querySelectorAll("#rows input[name=key]")];
let [picked, last] = [new Set(), null];
try { picked = new Set(JSON.parse(sessionStorage.getItem(KEPT))); } catch { /* kept for this page only */ }

function show() {
  for (const box of boxes()) box.checked = picked.has(box.value);
  for (const all of document.querySelectorAll("[data-pick-all]")) all.checked = boxes().every((box) => box.checked);
  form.dataset.count = picked.size;
  form.elements.keys.value = [...picked].join("\n");
  document.getElementById("picked").textContent = `${picked.size}${picked.size < MOST ? "" : ", the most"}`;
}

if (form) document.addEventListener("click", ({ target, shiftKey }) => {
  const all = boxes(), at = all.indexOf(target), from = shiftKey ? all.findIndex((box) => box.value === last) : -1;
  if (target.closest("[data-pick-none]")) picked.clear();
  else if (at < 0 && !target.matches("[data-pick-all]")) return;
  const some = at < 0 ? all : all.slice(Math.min(at, from < 0 ? at : from), Math.max(at, from) + 1);
  for (const { value } of some) if (!target.checked) picked.delete(value); else if (picked.size < MOST) picked.add(value);
  if (at >= 0) last = target.value;
  try { sessionStorage.setItem(KEPT, JSON.stringify([...picked])); } catch { /* as above */ }
  show();
});
if (form) show(new MutationObserver(show).observe(document.getElementById("results"), { childList: true, subtree: true }));
