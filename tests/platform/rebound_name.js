// What a page tries whose name was rebound to the server: for the browser they are one site.
async ([create, called, call]) => {
  const read = async answer => answer.ok ? `${answer.status} ` + await answer.text() : null;
  const ways = {
    "read of settings": () => fetch("/api/admin/settings").then(read),
    "POST that starts a run": () => fetch(create, {method: "POST", body: "{}",
      headers: {"Content-Type": "application/json"}}).then(read),
    "read of the explorer": () => fetch("/_dash-layout").then(read),
    "question to the explorer": () => fetch(called, {method: "POST", body: call,
      headers: {"Content-Type": "application/json"}}).then(read),
    "WebSocket of events out": () => new Promise(done => {
      const opened = new WebSocket(`ws://${location.host}/api/events/out`, "prefect");
      opened.onopen = () => done("it opened"); opened.onerror = () => done(null);
    }),
  };
  const found = {};
  for (const [name, way] of Object.entries(ways)) {
    found[name] = await way().catch(() => null);
  }
  return found;
}
