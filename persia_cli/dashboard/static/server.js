// What the server answers: objects, and the stream of events.

export async function load(path, values = {}) {
  const answer = await fetch(`api/${path}?${new URLSearchParams(values)}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

// Calls handlers[kind] for each event. A hidden page has no stream, since browsers allow few; when it is shown again,
// the stream goes on after the last event. The handler `gone` ends it.
export function follow(path, values, handlers) {
  const link = document.getElementById("link");
  let source = null, last = "", ended = false;
  function close(text) {
    source?.close();
    source = null;
    link.textContent = text;
  }
  function open() {
    if (source || ended || document.hidden) return;
    source = new EventSource(`api/${path}?${new URLSearchParams([...values, ["since", last]])}`);
    source.onopen = () => { link.textContent = "live"; };
    source.onerror = () => {
      link.textContent = "not connected";
      if (source?.readyState !== EventSource.CLOSED) return;
      close("not connected");
      setTimeout(open, 3000);
    };
    for (const [kind, take] of Object.entries(handlers)) {
      source.addEventListener(kind, (event) => {
        last = event.lastEventId || last;
        ended = kind === "gone";
        if (ended) close("ended");
        take(JSON.parse(event.data));
      });
    }
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? close("paused") : open()));
  open();
}

// Returns a function that asks for `refresh` soon: at most every 3 seconds, and 100 times as long as it took, so that
// training is not slowed.
export function paced(refresh, failed) {
  let waiting = false, next = 0;
  return () => {
    if (waiting) return;
    waiting = true;
    setTimeout(async () => {
      const begin = performance.now();
      waiting = false;
      await refresh().catch(failed);
      next = performance.now() + Math.max(3000, 100 * (performance.now() - begin));
    }, Math.max(0, next - performance.now()));
  };
}
