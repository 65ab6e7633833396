// The list of events follows the newest one, until the reader scrolls up to inspect; then new ones
// are only counted, and a button goes back to following.
import "./brush.js";

const [NEAR_PX, ROWS_MAX] = [48, 600];
let [log, button, following, unseen, moving] = [null, null, true, 0, 0];

function toEnd() {
  moving = performance.now();
  log.scrollTop = log.scrollHeight;
}

function write(follows = following) {
  following = follows;
  if (following) unseen = 0;
  button.setAttribute("aria-pressed", String(following));
  button.classList.toggle("has-new", unseen > 0);
  document.getElementById("follow-text").textContent = following ? "Following" : unseen ? `${unseen} new` : "Follow";
}

function begin() {
  const found = document.getElementById("log");
  if (!found || found === log) return;
  [log, button, unseen] = [found, document.getElementById("follow"), 0];
  const list = log.querySelector("tbody[data-rows]");
  const opened = list?.querySelector('[aria-current="true"]');
  button.hidden = !list?.hasAttribute("data-follow");
  if (opened) log.scrollTop += opened.getBoundingClientRect().top - log.getBoundingClientRect().top - log.clientHeight / 2;
  else if (list && !new URL(location.href).searchParams.has("after")) toEnd();
  button.addEventListener("click", () => { if (!following) toEnd(); write(!following); });
  log.addEventListener("scroll", () => {
    const near = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PX;
    if (performance.now() - moving >= 150 && near !== following) write(near);
  }, { passive: true });
  write(!opened);
}

function grown(list, count) {
  if (!log || !count) return;
  if (!following) unseen += count;
  // A page holds a few hundred rows at most; the earlier ones are a link away.
  while (following && list.children.length > ROWS_MAX) list.firstElementChild.remove();
  if (following) toEnd();
  write();
}

export const follow = { begin, grown, toggle: () => button && !button.hidden && button.click() };
