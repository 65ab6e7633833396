// Ages and what is left of leases run on between refreshes: by the server's instant plus the time
// that has passed here, never by this machine's own clock.
let origin = null;

export function setNow(milliseconds) {
  const measured = milliseconds - performance.now();
  // A later answer may have been longer on its way; the highest reading is the nearest to the truth.
  if (origin === null || measured > origin || origin - measured > 5000) origin = measured;
  tick();
}

export function now() {
  return origin === null ? null : origin + performance.now();
}

export function readNow(root) {
  const place = root.matches?.("[data-now]") ? root : root.querySelector("[data-now]");
  if (place) setNow(Number(place.dataset.now));
}

export function duration(milliseconds) {
  const whole = Math.max(0, Math.floor(milliseconds / 1000));
  const two = (large, unit, small, part) => (small ? `${large}${unit} ${small}${part}` : `${large}${unit}`);
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return two(Math.floor(whole / 60), "m", whole % 60, "s");
  if (whole < 86400) return two(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "m");
  return two(Math.floor(whole / 86400), "d", Math.floor((whole % 86400) / 3600), "h");
}

export function tick(root = document) {
  const at = now();
  if (at === null) return;
  for (const time of root.querySelectorAll("time[data-at]")) {
    write(time, duration(at - Number(time.dataset.at)));
  }
  for (const time of root.querySelectorAll("time[data-until]")) {
    write(time, duration(Number(time.dataset.until) - at));
  }
}

function write(time, text) {
  if (time.textContent !== text) time.textContent = text;
}

setInterval(() => { if (!document.hidden) tick(); }, 1000);
document.addEventListener("pointerover", ({ target }) => { // a tooltip says how long ago, too: as it is when somebody looks
  const time = target.closest?.("time[title][datetime]:not([data-until])");
  const ago = time && now() !== null ? now() - Date.parse(time.dateTime) : -1;
  if (ago >= 0) time.title = `${time.title.replace(/ · [^·]* ago$/, "")} · ${duration(ago)} ago`;
});
