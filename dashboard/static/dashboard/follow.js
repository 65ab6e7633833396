// The list of events follows the newest one, until the reader scrolls up to inspect; then new ones
// are only counted, and a button goes back to following.
const NEAR_PX = 48;
const ROWS_MAX = 600;
let log = null;
let button = null;
let text = null;
let following = true;
let unseen = 0;
let moving = 0;

function atEnd() {
  return log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PX;
}

function toEnd() {
  moving = performance.now();
  log.scrollTop = log.scrollHeight;
}

function write() {
  button.setAttribute("aria-pressed", String(following));
  button.classList.toggle("has-new", unseen > 0);
  text.textContent = following ? "Following" : unseen ? `${unseen} new` : "Follow";
}

function resume() {
  following = true;
  unseen = 0;
  toEnd();
  write();
}

function begin() {
  const found = document.getElementById("log");
  if (!found || found === log) return;
  log = found;
  button = document.getElementById("follow");
  text = document.getElementById("follow-text");
  const list = log.querySelector("tbody[data-rows]");
  const opened = list?.querySelector('[aria-current="true"]');
  button.hidden = !list?.hasAttribute("data-follow");
  following = !opened;
  unseen = 0;
  if (opened) log.scrollTop += opened.getBoundingClientRect().top - log.getBoundingClientRect().top - log.clientHeight / 2;
  else if (list && !new URL(location.href).searchParams.has("after")) toEnd();
  button.addEventListener("click", () => (following ? ((following = false), write()) : resume()));
  log.addEventListener("scroll", () => {
    if (performance.now() - moving < 150) return;
    const near = atEnd();
    if (near !== following) { following = near; if (near) unseen = 0; write(); }
  }, { passive: true });
  write();
}

function grown(list, count) {
  if (!log || !count) return;
  if (following) {
    // A page holds a few hundred rows at most; the earlier ones are a link away.
    while (list.children.length > ROWS_MAX) list.firstElementChild.remove();
    toEnd();
  } else {
    unseen += count;
  }
  write();
}

export const follow = { begin, grown, toggle: () => button && !button.hidden && (following ? button.click() : resume()) };
