// The windows of one browser share six connections (HTTP/1.1), and a stream keeps one for itself.
// So only the STREAMS windows that were opened or touched last have one, and the others poll. They
// tell one another; nothing is stored, and one that died without a word does no harm: whoever is
// touched has a stream again.
const STREAMS = 3;
const me = Math.random();
const younger = new Set();
const channel = new BroadcastChannel("agentstate-streams");
let since = 0;

export const windows = {
  crowded: () => younger.size >= STREAMS,
  first: () => younger.clear(),
  opened() {
    since = Date.now();
    younger.clear();
    channel.postMessage({ of: me, since });
  },
  closed: () => channel.postMessage({ of: me }),
  whenCrowded(close) {
    channel.onmessage = ({ data }) => {
      if (!data.since) younger.delete(data.of);
      else if (data.since > since || (data.since === since && data.of > me)) younger.add(data.of);
      if (windows.crowded()) close();
    };
  },
};
