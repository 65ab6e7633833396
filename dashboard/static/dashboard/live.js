// Keeps an open page up to date. The stream only hints; what is shown always comes from the same
// partials that polling fetches, so a lost hint delays and never loses. One scheduler, one stream
// per tab (and of many windows only a few have one: windows.js), and neither while the tab is hidden
// or nobody has touched it for an hour.
//
// A region says data-live="address" and, if it wants, data-live-every and data-live-gap (seconds
// between polls, and on the average at least between two fetches), data-live-rows (whose unfinished rows to ask
// for), data-live-after (the list whose last number to ask from), data-live-stream (a run, or ""
// for all), data-live-kind (lease: only of hints that holders may have changed). An answer's elements with data-patch replace those with the same id; rows of a
// data-append list are added at its end, each once.
import { readNow, tick } from "./clock.js";
import { follow } from "./follow.js";
import { windows } from "./windows.js";

const STALE_POLLS = 3;
const IDLE_MS = 3600000;
const ASLEEP_MS = 20000;
const HIDDEN_STREAM_MS = 5000;
const REFUSED_STREAM_MS = 6000;
const FETCH_TIMEOUT_MS = 15000;
const chip = document.getElementById("live");
const chipText = document.getElementById("live-text");
const states = new WeakMap();
const sent = new Map();
const kept = new Map();
let [touched, looked] = [performance.now(), Date.now()];
let [source, sourceOf] = [null, null];
let [refused, retryAt] = [0, 0];
let [streamWorks, closing, leaving] = [false, null, false];

const regions = () => [...document.querySelectorAll("[data-live]")];
const forget = () => regions().forEach((region) => { stateOf(region).tag = null; });

function stateOf(region) {
  if (!states.has(region)) {
    states.set(region, { at: performance.now(), tried: performance.now(), due: 0, next: null, failures: 0, cut: false, busy: false, wanted: false, timer: null });
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
  const beside = region.dataset.liveBeside && document.querySelector(region.dataset.liveBeside)?.closest("[data-live]");
  // One that fails takes only every other refresh with it.
  if (beside && !stateOf(region).failures && performance.now() - stateOf(beside).at > region.dataset.liveBesideEvery * 1000) address.searchParams.set("drawn", "1");
  return address;
}

async function refresh(region) {
  const state = stateOf(region);
  if (state.busy || resting()) { state.wanted = true; return; }
  state.busy = true;
  state.wanted = false;
  state.tried = performance.now();
  state.due = Math.max(state.due, state.tried) + gapOf(region);
  try {
    const answer = await fetch(addressOf(region), {
      headers: { "HX-Request": "true", "HX-Target": region.dataset.liveAs ?? "", "HX-Current-URL": location.href, ...(state.tag && { "If-None-Match": state.tag }) },
      signal: AbortSignal.timeout(FETCH_TIMEOUT_MS),
    });
    const login = answer.headers.get("HX-Redirect");
    if (login) { leaving = true; location.assign(login); return; }
    const same = answer.status === 304;
    if (!answer.ok && !same) throw new Error(String(answer.status));
    const text = same ? `<i data-now="${Number(answer.headers.get("Agentstate-Now"))}"></i>` : await answer.text();
    if (region.isConnected) {
      Object.assign(state, { at: performance.now(), failures: 0, cut: false });
      if (apply(text, region) === "more") state.wanted = true;
      // Only who shows all of an answer may be told next time that it is the same still.
      state.tag = kept.size ? null : answer.headers.get("ETag");
    }
  } catch (error) {
    state.failures += 1;
    // An answer that is an error is the panel's own; none at all means that the server is away.
    state.cut = !/^\d+$/.test(error.message);
  } finally {
    Object.assign(state, { busy: false, next: null });
  }
  if (!region.isConnected) { arrange(); return; }
  show();
  if (state.wanted) soon(region);
}

const gapOf = (region) => Number(region.dataset.liveGap ?? 1) * 1000;

// The pause until the next poll, from the last fetch on, whatever it was for; longer after failures.
// While hints of everything come, a poll is only for what time does by itself.
function pause(region) {
  const { liveEvery: seconds = 5, liveStream: of, liveKind: kind } = region.dataset;
  const every = seconds * (streamWorks && of !== undefined && !kind ? 2000 : 1000);
  const failures = stateOf(region).failures;
  if (failures) return Math.min(30000, 1000 * 2 ** Math.min(failures, 5)) * (0.8 + 0.4 * Math.random());
  return every * (0.9 + 0.2 * Math.random());
}

// After a hint: at once, if on the average there is a gap between two fetches; one may be early.
function soon(region) {
  const state = stateOf(region);
  state.wanted = true;
  if (state.busy || state.timer !== null) return;
  const from = state.failures ? state.tried + pause(region) : state.due - gapOf(region);
  const wait = Math.max(0, from - performance.now());
  state.timer = setTimeout(() => {
    state.timer = null;
    if (region.isConnected) refresh(region);
  }, wait);
}

function resting() {
  return document.hidden || leaving || performance.now() - touched > IDLE_MS;
}

function apply(text, region) {
  if (!text) return "";
  const answer = new DOMParser().parseFromString(text, "text/html");
  readNow(answer.body);
  let outcome = "";
  const done = new Set([region]);
  for (const fresh of answer.querySelectorAll("[data-patch], tr[id][data-key], tr[id][data-seq]")) {
    if (!fresh.parentElement.closest("[data-append], [data-patch]")) patch(fresh);
    // What came along with another region's answer need not be asked for by itself for a while.
    const beside = region && document.getElementById(fresh.id)?.closest("[data-live]");
    if (beside && beside !== region) Object.assign(stateOf(done.add(beside) && beside), { at: performance.now(), tried: performance.now(), next: null });
  }
  for (const list of answer.querySelectorAll("[data-append]")) {
    append(list);
    if (list.dataset.more) outcome = "more";
  }
  // Each region says how old it is itself; one that was kept as it is stays as old as it was.
  const at = region && answer.querySelector("[data-now]");
  for (const place of at ? document.querySelectorAll("[data-as-of]") : []) {
    const of = regionOf(place);
    if (done.has(of) && ![...kept.values()].some((one) => of.contains(one))) place.textContent = new Date(Number(at.dataset.now)).toLocaleTimeString("en-GB", { timeZone: document.documentElement.dataset.zone });
  }
  tick();
  return outcome;
}

// What is selected, focused, opened, pressed or pointed at is not taken away from under the reader.
function inUse(element) {
  const chosen = getSelection();
  if (!chosen.isCollapsed && chosen.containsNode(element, true)) return "text selected";
  if (element.matches(":active")) return "pressed";
  if (element.contains(document.activeElement) && document.activeElement !== element) return "in focus";
  if (element.querySelector("details[open]")) return "opened";
  return element.dataset.patch === "hold" && element.querySelector(":scope table:hover, :scope svg:hover") ? "pointed at" : "";
}

function patch(fresh) {
  const old = document.getElementById(fresh.id);
  if (!old || sent.get(fresh.id) === fresh.outerHTML) return;
  if (inUse(old)) {
    kept.set(old.id, old);
    if (fresh.dataset.patch === "hold") patchRows(old, fresh);
    return;
  }
  kept.delete(old.id);
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

// While a list is in use its other rows change in place, but none comes, goes or moves.
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
  let added = 0;
  for (const row of [...fresh.children]) {
    if (Number(row.dataset.seq) <= Number(list.dataset.last)) continue;
    list.dataset.last = row.dataset.seq;
    const node = document.importNode(row, true);
    node.classList.add("is-new");
    list.append(node);
    window.htmx?.process(node);
    added += 1;
  }
  follow.grown(list, added);
}

function hinted(hint) {
  for (const region of regions()) {
    const { liveStream: of, liveKind: kind } = region.dataset;
    if (kind && hint?.kinds && !hint.kinds.includes(kind)) continue;
    if (of === "" || (of !== undefined && (!hint?.runs || of in hint.runs))) soon(region);
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
  const wanted = document.hidden || leaving || windows.crowded() ? null : wantedStream();
  const waits = refused && sourceOf === wanted && performance.now() < retryAt;
  if (source && sourceOf === wanted && (waits || source.readyState !== EventSource.CLOSED)) return;
  disconnect();
  if (!wanted) return;
  sourceOf = wanted;
  source = new EventSource(wanted);
  windows.opened();
  // Whatever happened while there was no stream is asked for at once: the server is there again,
  // so the pauses that grew while it was away are over.
  source.addEventListener("open", () => {
    [streamWorks, refused] = [true, 0];
    for (const region of regions()) { stateOf(region).failures = 0; soon(region); }
    show();
  });
  source.addEventListener("hint", (event) => {
    try { hinted(JSON.parse(event.data)); } catch { hinted(null); }
  });
  source.addEventListener("presence", (event) => { apply(JSON.parse(event.data).html); forget(); });
  source.addEventListener("resync", () => hinted(null));
  source.addEventListener("error", ({ target }) => {
    streamWorks = false;
    // Refused, the browser leaves it to us: every page would ask again each second, for hours.
    if (target === source && target.readyState === EventSource.CLOSED) {
      refused = Math.min(refused + 1, 5);
      retryAt = performance.now() + Math.min(REFUSED_STREAM_MS, 500 * 2 ** refused) * (0.8 + 0.4 * Math.random());
    }
    show();
  });
}

function disconnect() {
  if (source) windows.closed();
  source?.close();
  source = sourceOf = null;
  streamWorks = false;
}

// The clockwork: looks once a second which region is due, and mends the stream.
function arrange() {
  const asleep = Date.now() - looked > ASLEEP_MS;
  looked = Date.now();
  if (resting()) {
    if (!document.hidden) { disconnect(); show(); }
    return;
  }
  // After a laptop's sleep the stream may be dead without anybody having been told.
  if (asleep) disconnect();
  const freed = [...kept].filter(([id, one]) => (!one.isConnected || !inUse(one)) && kept.delete(id));
  const at = performance.now();
  for (const region of regions()) {
    const state = stateOf(region);
    state.next ??= state.tried + pause(region);
    if (freed.length || asleep) soon(region);
    if (!state.busy && at >= state.next) refresh(region);
  }
  if (!source || source.readyState === EventSource.CLOSED) connect();
  show();
}

// What refreshes a place that says how old it is: the region around it, or that of its panel.
const regionOf = (place) => place.closest("[data-live]") ?? place.closest(".panel")?.querySelector("[data-live]") ?? regions()[0];

// How many refreshes a region has missed: three make it late; when no answer comes at all, it is cut.
function freshness(region) {
  const { at, cut } = stateOf(region);
  const missed = (performance.now() - at) / Math.max(3000, Number(region.dataset.liveEvery ?? 5) * 1000) - 1;
  return missed < 1 ? "live" : cut ? "off" : missed < STALE_POLLS ? "live" : "stale";
}

function show() {
  const live = regions();
  if (!chip) return;
  const found = live.map((region) => [region, freshness(region)]);
  for (const [region, word] of found) region.classList.toggle("is-stale", word === "off");
  for (const place of live.length ? document.querySelectorAll("[data-as-of]") : []) {
    place.parentElement.dataset.fresh = freshness(regionOf(place));
  }
  const seconds = Math.round(Math.max(...live.map((region) => performance.now() - stateOf(region).at)) / 1000);
  const held = [...kept.values()].map(inUse).find(Boolean);
  let state = live.length ? "live" : "idle";
  let text = streamWorks || !wantedStream() ? "Live" : "Live, polling";
  if (performance.now() - touched > IDLE_MS) [state, text] = ["frozen", "Paused: nobody here"];
  else if (found.some(([, word]) => word === "off")) [state, text] = ["off", `Reconnecting, ${seconds} s old`];
  else if (found.some(([, word]) => word === "stale")) [state, text] = ["stale", `Stale, ${seconds} s`];
  else if (held) [state, text] = ["frozen", `Frozen: ${held}`];
  if (chip.dataset.state !== state) chip.dataset.state = state;
  if (chipText.textContent !== text) chipText.textContent = text;
}

function touch() {
  const rested = resting();
  touched = performance.now();
  if (windows.crowded()) windows.first();
  else if (!rested) return;
  arrange();
}
for (const sign of ["pointermove", "pointerdown", "keydown", "wheel", "touchstart"]) addEventListener(sign, touch, { passive: true, capture: true });

document.addEventListener("visibilitychange", () => {
  clearTimeout(closing);
  if (document.hidden) closing = setTimeout(disconnect, HIDDEN_STREAM_MS);
  else { windows.first(); connect(); regions().forEach(soon); }
});
windows.whenCrowded(() => { disconnect(); show(); });
// Back from the browser's own cache, and after a part of the page was exchanged.
addEventListener("pageshow", (event) => { if (event.persisted) { leaving = false; connect(); regions().forEach(soon); } });
addEventListener("pagehide", () => { leaving = true; disconnect(); });
document.addEventListener("htmx:afterSettle", () => { sent.clear(); forget(); readNow(document.body); follow.begin(); connect(); show(); });

readNow(document.body);
follow.begin();
connect();
arrange();
setInterval(arrange, 1000);
