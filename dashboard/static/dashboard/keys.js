// Single keys, unless they are switched off, a field has the focus, or a modifier is pressed. A link
// or field says data-hot="its key": in a table it answers while its row is chosen, else always.
import { follow } from "./follow.js";

const OFF = "agentstate-keys-off";
const PLACES = { h: "/now", r: "/runs", l: "/leases", w: "/workers", c: "/contention", b: "/budgets", u: "/bulk", n: "/alerts", a: "/audit", s: "/system" };
const sheet = document.getElementById("keys");
const box = document.getElementById("keys-on");
let after = "";
let timer = null;

const stored = () => { try { return localStorage.getItem(OFF); } catch { return null; } };
const rows = () => [...document.querySelectorAll("main .table tbody tr")].filter((row) => row.querySelector("a[href]") && row.offsetParent);

function move(step) {
  const all = rows();
  if (!all.length) return;
  const from = all.findIndex((row) => row.classList.contains("is-chosen") || row.contains(document.activeElement));
  const to = all[Math.min(all.length - 1, Math.max(0, from < 0 ? (step > 0 ? 0 : all.length - 1) : from + step))];
  document.querySelectorAll(".is-chosen").forEach((row) => row.classList.remove("is-chosen"));
  to.classList.add("is-chosen");
  const link = to.querySelector("a[href]");
  link.focus({ preventScroll: true });
  to.scrollIntoView({ block: "nearest" });
}

function close() {
  const open = document.querySelectorAll("details.menu[open], details.help[open]");
  open.forEach((menu) => { menu.open = false; menu.querySelector("summary").focus(); });
  if (!open.length) document.querySelector("[data-close-pane], main .form-end > a.button")?.click();
}

function hot(key) {
  const named = `[data-hot="${CSS.escape(key)}"]`;
  return document.querySelector(`.is-chosen ${named}`) ?? document.querySelector(`main ${named}:not(tbody *)`);
}

const deeds = {
  "/": () => { const jump = document.getElementById("jump"); jump?.focus(); jump?.select(); },
  "?": () => sheet?.showModal(),
  j: () => move(1),
  k: () => move(-1),
  o: () => document.querySelector(".is-chosen a[href]")?.click(),
  "[": () => document.querySelector('main a[rel="prev"]')?.click(),
  "]": () => document.querySelector('main a[rel="next"]')?.click(),
  f: () => follow.toggle(),
  b: () => document.querySelector("#selection button")?.focus(),
  X: () => document.querySelector('.is-chosen [data-hot="x"]')?.dispatchEvent(new MouseEvent("click", { bubbles: true, shiftKey: true })),
};

document.addEventListener("keydown", (event) => {
  if (document.documentElement.dataset.keys) return; // switched off in the person's settings
  if (event.key === "Escape" && !sheet?.open) { event.target.closest(".top") ? event.target.blur() : close(); return; }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    const form = event.target.closest("main form") ?? document.querySelector("main form:has([data-once])");
    form?.requestSubmit(form.querySelector("[data-once]"));
  }
  if (event.key === "k" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); deeds["/"](); }
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || sheet?.open) return;
  if (event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]")) return;
  if (event.key !== "?" && stored()) return;
  if (after === "g" && PLACES[event.key]) { event.preventDefault(); location.assign(PLACES[event.key]); return; }
  const found = hot(after + event.key) ?? hot(event.key);
  after = event.key;
  clearTimeout(timer);
  timer = setTimeout(() => { after = ""; }, 1200);
  const deed = found ? () => { found.focus(); if (!found.matches("input:not([type=checkbox]), textarea")) found.click(); } : deeds[event.key];
  if (deed) { event.preventDefault(); deed(); }
});

if (box) box.checked = !stored();
box?.addEventListener("change", () => {
  try { box.checked ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "1"); } catch { /* kept for this page only */ }
});
