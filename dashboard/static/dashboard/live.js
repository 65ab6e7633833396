// Keeps an open page up to date. The stream only hints; what is shown always comes from the same
// partials that polling fetches, so a lost hint delays and never loses. One scheduler, one stream
// per tab, and neither while the tab is hidden.
//
// A region says data-live="address" and, if it wants, data-live-every and data-live-gap (seconds
// between polls, and at least between two fetches), data-live-rows (whose unfinished rows to ask
// for), data-live-after (the list whose last number to ask from), data-live-stream (a run, or ""
// for all). An answer's elements with data-patch replace those with the same id; rows of a
// data-append list are added at its end, each once.
import { readNow, tick } from "./clock.js";
import { follow } from "./follow.js";

const STALE_POLLS = 3;
const HIDDEN_STREAM_MS = 5000;
const FETCH_TIMEOUT_MS = 15000;
const chip = document.getElementById("live");
const chipText = document.getElementById("live-text");
const states = new WeakMap();
const sent = new Map();
let source = null;
let sourceOf = null;
let streamWorks = false;
let closing = null;
let leaving = false;

function regions() {
  return [...document.querySelectorAll("[data-live]")];
}

function stateOf(region) {
  if (!states.has(region)) {
    states.set(region, { at: performance.now(), tried: performance.now(), failures: 0, busy: false, wanted: false, timer: null });
  }
  return states.get(region);
}

function addressOf(region) {
  const address = new URL(region.dataset.live, location.href);
  if (region.dataset.liveRows) {
    for (const row of document.querySelectorAll(`${region.dataset.liveRows} > tr[data-key]`)) {
      address.searchParams.append("key", row.dataset.key);
    }
  }
  const list = region.dataset.liveAfter && document.querySelector(region.dataset.liveAfter);
  if (list?.hasAttribute("data-follow")) address.searchParams.set("after", list.dataset.last);
  return address;
}

async function refresh(region) {
  const state = stateOf(region);
  if (state.busy || document.hidden || leaving) { state.wanted = true; return; }
  state.busy = true;
  state.wanted = false;
  state.tried = performance.now();
  try {
    const answer = await fetch(addressOf(region), {
      headers: { "HX-Request": "true", "HX-Target": region.dataset.liveAs ?? "", "HX-Current-URL": location.href },
      signal: AbortSignal.timeout(FETCH_TIMEOUT_MS),
    });
    const login = answer.headers.get("HX-Redirect");
    if (login) { leaving = true; location.assign(login); return; }
    if (!answer.ok) throw new Error(String(answer.status));
    const text = answer.status === 204 ? "" : await answer.text();
    if (region.isConnected) {
      if (apply(text) === "more") state.wanted = true;
      state.at = performance.now();
      state.failures = 0;
    }
  } catch {
    state.failures += 1;
  } finally {
    state.busy = false;
  }
  if (region.isConnected) {
    show();
    if (state.wanted) soon(region);
  } else {
    arrange();
  }
}

// The pause between two fetches: polls, or at least the gap after a hint; longer after failures.
function pause(region, hinted) {
  const every = Number(region.dataset.liveEvery ?? 5) * 1000;
  const gap = Number(region.dataset.liveGap ?? 1) * 1000;
  const failures = stateOf(region).failures;
  if (failures) return Math.min(30000, 1000 * 2 ** Math.min(failures, 5)) * (0.8 + 0.4 * Math.random());
  return hinted ? gap : every * (0.9 + 0.2 * Math.random());
}

function soon(region) {
  const state = stateOf(region);
  state.wanted = true;
  if (state.busy || state.timer !== null) return;
  const wait = Math.max(0, state.tried + pause(region, true) - performance.now());
  state.timer = setTimeout(() => {
    state.timer = null;
    if (region.isConnected) refresh(region);
  }, wait);
}

function apply(text) {
  if (!text) return "";
  const answer = new DOMParser().parseFromString(text, "text/html");
  readNow(answer.body);
  let outcome = "";
  for (const fresh of answer.querySelectorAll("[data-patch]")) {
    if (!fresh.parentElement.closest("[data-patch]")) patch(fresh);
  }
  for (const row of answer.querySelectorAll("tr[id][data-key], tr[id][data-seq]")) {
    if (!row.closest("[data-append], [data-patch]")) patch(row);
  }
  for (const list of answer.querySelectorAll("[data-append]")) {
    append(list);
    if (list.dataset.more) outcome = "more";
  }
  for (const place of document.querySelectorAll("[data-as-of]")) {
    const at = answer.querySelector("[data-now]");
    if (at) place.textContent = new Date(Number(at.dataset.now)).toISOString().slice(11, 19);
  }
  tick();
  return outcome;
}

// What is selected, focused, opened or under the pointer is not taken away from under the reader.
function inUse(element) {
  if (element.contains(document.activeElement) && document.activeElement !== element) return true;
  if (element.querySelector("details[open]")) return true;
  const chosen = getSelection();
  return !chosen.isCollapsed && (element.contains(chosen.anchorNode) || element.contains(chosen.focusNode));
}

function patch(fresh) {
  const old = document.getElementById(fresh.id);
  if (!old || sent.get(fresh.id) === fresh.outerHTML) return;
  if (fresh.dataset.patch === "hold" && old.querySelector(":scope table:hover, :scope svg:hover")) {
    patchRows(old, fresh);
    return;
  }
  if (inUse(old)) {
    if (fresh.dataset.patch === "hold") patchRows(old, fresh);
    return;
  }
  sent.set(fresh.id, fresh.outerHTML);
  const scroll = old.scrollLeft;
  const node = document.importNode(fresh, true);
  if (states.has(old)) states.set(node, states.get(old));
  if (old.matches("tr") && old.dataset.seq !== node.dataset.seq) node.classList.add("is-new");
  // What is below does not jump when a part becomes lower.
  if (node.hasAttribute("data-keep-height")) node.style.minHeight = `${old.offsetHeight}px`;
  old.replaceWith(node);
  node.scrollLeft = scroll;
  window.htmx?.process(node);
}

// While the pointer is over a list its rows change in place, but none comes, goes or moves.
function patchRows(old, fresh) {
  for (const row of old.querySelectorAll("tr[id]")) {
    const next = [...fresh.querySelectorAll("tr[id]")].find((one) => one.id === row.id);
    if (!next) row.classList.add("is-gone");
    else if (!inUse(row)) row.replaceWith(document.importNode(next, true));
  }
  sent.delete(fresh.id);
}

function append(fresh) {
  const list = document.querySelector(fresh.dataset.append);
  if (!list?.hasAttribute("data-follow")) return;
  const added = [];
  for (const row of [...fresh.children]) {
    if (Number(row.dataset.seq) <= Number(list.dataset.last)) continue;
    list.dataset.last = row.dataset.seq;
    const node = document.importNode(row, true);
    node.classList.add("is-new");
    added.push(node);
  }
  list.append(...added);
  for (const node of added) window.htmx?.process(node);
  follow.grown(list, added.length);
}

function hinted(hint) {
  for (const region of regions()) {
    const of = region.dataset.liveStream;
    if (of === undefined) continue;
    if (of === "" || !hint?.runs || of in hint.runs) soon(region);
  }
}

function wantedStream() {
  const asked = regions().map((region) => region.dataset.liveStream).filter((of) => of !== undefined);
  if (!asked.length) return null;
  const one = asked.every((of) => of === asked[0]) ? asked[0] : "";
  // Being open is the page's sign of life for the others who look at it.
  const here = document.querySelector("[data-presence]")?.dataset.presence;
  return `/live/console?${[one && `run=${encodeURIComponent(one)}`, here].filter(Boolean).join("&")}`;
}

function connect() {
  const wanted = document.hidden || leaving ? null : wantedStream();
  if (source && sourceOf === wanted && source.readyState !== EventSource.CLOSED) return;
  disconnect();
  if (!wanted) return;
  sourceOf = wanted;
  source = new EventSource(wanted);
  source.addEventListener("open", () => {
    streamWorks = true;
    // Whatever happened while there was no stream is asked for at once.
    regions().forEach(soon);
    show();
  });
  source.addEventListener("hint", (event) => {
    try { hinted(JSON.parse(event.data)); } catch { hinted(null); }
  });
  source.addEventListener("presence", (event) => apply(JSON.parse(event.data).html));
  source.addEventListener("resync", () => hinted(null));
  source.addEventListener("error", () => { streamWorks = false; show(); });
}

function disconnect() {
  source?.close();
  source = null;
  sourceOf = null;
  streamWorks = false;
}

// The clockwork: looks once a second which region is due, and mends the stream.
function arrange() {
  if (document.hidden || leaving) return;
  const at = performance.now();
  for (const region of regions()) {
    const state = stateOf(region);
    state.next ??= state.tried + pause(region, false);
    if (!state.busy && at >= state.next) {
      state.next = null;
      refresh(region);
    }
  }
  if (!source || source.readyState === EventSource.CLOSED) connect();
  show();
}

function show() {
  const live = regions();
  if (!chip) return;
  if (!live.length) {
    chip.dataset.state = "idle";
    return;
  }
  const oldest = Math.max(...live.map((region) => performance.now() - stateOf(region).at - Number(region.dataset.liveEvery ?? 5) * 1000));
  const failing = live.some((region) => stateOf(region).failures > 0);
  const limit = (STALE_POLLS - 1) * 5000;
  const seconds = Math.round(Math.max(...live.map((region) => performance.now() - stateOf(region).at)) / 1000);
  let state = "live";
  let text = "Live";
  if (failing && oldest > limit) [state, text] = ["off", `Reconnecting, ${seconds} s old`];
  else if (failing || oldest > limit) [state, text] = ["stale", `Stale, ${seconds} s`];
  else if (live.some(inUse) && !getSelection().isCollapsed) [state, text] = ["frozen", "Frozen: text selected"];
  else if (!streamWorks && wantedStream()) [state, text] = ["live", "Live, polling"];
  if (chip.dataset.state !== state) chip.dataset.state = state;
  if (chipText.textContent !== text) chipText.textContent = text;
  for (const region of live) region.classList.toggle("is-stale", state === "off");
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(closing);
  if (document.hidden) {
    closing = setTimeout(disconnect, HIDDEN_STREAM_MS);
  } else {
    connect();
    regions().forEach(soon);
  }
});
// Back from the browser's own cache, and after a part of the page was exchanged.
addEventListener("pageshow", (event) => { if (event.persisted) { leaving = false; connect(); regions().forEach(soon); } });
addEventListener("pagehide", () => { leaving = true; disconnect(); });
document.addEventListener("htmx:afterSettle", () => { sent.clear(); readNow(document.body); follow.begin(); connect(); show(); });

readNow(document.body);
follow.begin();
connect();
arrange();
setInterval(arrange, 1000);
