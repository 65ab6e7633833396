// What every page can do with a script; all of it works without, only with more loading.
import "./keys.js";
import "./live.js";
import "./select.js";

document.documentElement.dataset.script = "";

document.addEventListener("submit", (event) => {
  // A double click sends once; the server would act once all the same.
  const once = event.target.querySelector("[data-once]");
  if (!once) return;
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "1";
  once.setAttribute("aria-disabled", "true");
});
addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    form.querySelector("[data-once]").removeAttribute("aria-disabled");
  }
});

document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open], details.help[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
  const copy = event.target.closest("[data-copy], [data-copy-from]");
  if (copy) copyText(copy);
});

async function copyText(button) {
  const { copy, copyFrom } = button.dataset;
  try {
    const text = copyFrom ? await (await fetch(copyFrom)).text() : copy;
    await navigator.clipboard.writeText(text);
    button.classList.add("is-done");
    setTimeout(() => button.classList.remove("is-done"), 1500);
  } catch {
    button.classList.add("bad");
  }
}

// The open event is marked in its list, also when the pane was filled by a part of the page.
document.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.id !== "pane") return;
  const opened = event.target.querySelector("[data-event]");
  for (const row of document.querySelectorAll('#events [aria-current="true"]')) row.removeAttribute("aria-current");
  if (opened) document.getElementById(`e-${opened.dataset.event}`)?.setAttribute("aria-current", "true");
});
document.addEventListener("click", (event) => {
  const close = event.target.closest("[data-close-pane]");
  if (!close || !window.htmx) return;
  event.preventDefault();
  const back = new URL(close.href);
  const row = document.querySelector('#events [aria-current="true"]');
  row?.removeAttribute("aria-current");
  document.getElementById("pane").replaceChildren();
  history.pushState({ htmx: true }, "", back);
  row?.querySelector("a")?.focus();
});
