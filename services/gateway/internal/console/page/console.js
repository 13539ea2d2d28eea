// The console uses the same API as every client, with JSON.
const api = "/xmtp.backend.v1.";
const byId = (id) => document.getElementById(id);

// element makes one with a class, a text and children. Texts are never HTML.
function element(name, className = "", ...children) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...children);
  return made;
}

// Problem is an error of the API or of the network.
class Problem extends Error {
  constructor(code, message) {
    super(message ? `${code}: ${message}` : code);
    this.code = code;
  }
}

async function post(method, contentType, body, signal) {
  try {
    return await fetch(api + method, { method: "POST", headers: { "content-type": contentType }, body, signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem("the gateway does not answer");
  }
}

async function call(method, request, signal) {
  const response = await post(method, "application/json", JSON.stringify(request), signal);
  const answer = await response.json();
  if (!response.ok) throw new Problem(answer.code, answer.message);
  return answer;
}

// stream yields the messages of a server stream: frames of a flag byte, a length
// and JSON, of which the last one says how the stream ended.
async function* stream(method, request, signal) {
  const encoded = new TextEncoder().encode(JSON.stringify(request));
  const frame = new Uint8Array(5 + encoded.length);
  new DataView(frame.buffer).setUint32(1, encoded.length);
  frame.set(encoded, 5);
  const response = await post(method, "application/connect+json", frame, signal);
  if (!response.ok) throw new Problem("unavailable", `HTTP ${response.status}`);
  const reader = response.body.getReader();
  let held = new Uint8Array();
  for (;;) {
    while (held.length >= 5) {
      const length = new DataView(held.buffer, held.byteOffset).getUint32(1);
      if (held.length < 5 + length) break;
      const message = JSON.parse(new TextDecoder().decode(held.subarray(5, 5 + length)));
      const last = held[0] & 2;
      held = held.slice(5 + length);
      if (!last) {
        yield message;
        continue;
      }
      if (message.error) throw new Problem(message.error.code, message.error.message);
      return;
    }
    const { done, value } = await reader.read();
    if (done) throw new Problem("unavailable", "the stream was cut");
    const joined = new Uint8Array(held.length + value.length);
    joined.set(held);
    joined.set(value, held.length);
    held = joined;
  }
}

const toBase64 = (bytes) => btoa(String.fromCharCode(...bytes));
const fromBase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const toHex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
const fromHex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
const milliseconds = (value) => (value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en")) + " ms";

// ---- Health: one call through the gateway to each role, again and again.

const probeEvery = 5000;

// A topic that nobody else has.
const nowhere = toBase64(new Uint8Array([0, ...crypto.getRandomValues(new Uint8Array(16))]));
const nothing = [{ topic: { topic: nowhere } }];

const probes = {
  gateway: ["answers itself", (signal) => call("ConfigurationService/GetConfiguration", {}, signal)],
  publisher: ["accepts an empty publish", (signal) => call("PublishService/Publish", {}, signal)],
  reader: ["queries the primary", (signal) => call("QueryService/Query", { queries: nothing }, signal)],
  streamer: ["opens a stream", async (signal) => {
    const ended = new AbortController();
    for await (const _ of stream("SubscriptionService/SubscribeStatic", { topics: nothing }, AbortSignal.any([signal, ended.signal]))) break;
    ended.abort();
  }],
};

function startProbes() {
  for (const [name, [meaning, probe]] of Object.entries(probes)) {
    const took = element("span", "took");
    const said = element("span", "said", meaning);
    const box = element("div", "probe", element("span", "light"), element("span", "name", name), took, said);
    box.id = "probe-" + name;
    byId("health").append(box);
    keepProbing(probe, meaning, box, took, said);
  }
}

async function keepProbing(probe, meaning, box, took, said) {
  for (;;) {
    const begun = performance.now();
    try {
      await probe(AbortSignal.timeout(15000));
      box.className = "probe good";
      took.textContent = milliseconds(performance.now() - begun);
      said.textContent = meaning;
    } catch (error) {
      box.className = "probe bad";
      took.textContent = "";
      said.textContent = error.message;
    }
    await new Promise((resolve) => setTimeout(resolve, probeEvery));
  }
}

// ---- Configuration

// words turns maxEnvelopeBytes into "max envelope bytes".
const words = (name) => name.replace(/[A-Z]/g, (letter) => " " + letter.toLowerCase());

function readable(name, value) {
  if (Array.isArray(value)) return value.join(", ") || "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  const number = Number(value);
  if (Number.isNaN(number)) return value;
  if (name.endsWith("Seconds") && number % 86400 === 0) return `${number / 86400} days`;
  if (name.endsWith("Bytes") && number % 1048576 === 0) return `${number / 1048576} MiB`;
  return number.toLocaleString("en");
}

function showConfiguration(configuration) {
  byId("identifier").textContent = configuration.identifier;
  document.title = configuration.identifier;
  const least = configuration.minLibxmtpVersion ? `, clients from ${configuration.minLibxmtpVersion}` : "";
  byId("versions").textContent = `XMTP backend ${configuration.serverVersion}${least}`;
  const retention = Object.entries(configuration.retention).map(([name, value]) => ["retentionOf" + name[0].toUpperCase() + name.slice(1), value]);
  const rows = Object.entries({
    ...Object.fromEntries(retention), ...configuration.mls,
    smartContractWalletChains: configuration.smartContractWalletChains ?? [], ...configuration.limits,
  });
  byId("configuration").replaceChildren(...rows.map(([name, value]) =>
    element("div", "", element("span", "", words(name.replace(/(Seconds|Bytes)$/, ""))), element("b", "", readable(name, value)))));
}

async function loadConfiguration() {
  for (;;) {
    try {
      return showConfiguration(await call("ConfigurationService/GetConfiguration", {}));
    } catch (error) {
      byId("configuration").replaceChildren(element("p", "", error.message));
      await new Promise((resolve) => setTimeout(resolve, probeEvery));
    }
  }
}

// ---- Live tail

const rowsKept = 500;
let following = null;

function show({ meta, envelope }, live) {
  const stored = Number(BigInt(meta.serverNs) / 1000n) / 1000; // milliseconds
  const hash = toHex(fromBase64(meta.messageHash.sha256));
  const row = element("tr", live ? "new" : "",
    element("td", "", new Date(stored).toISOString().replace("T", " ").replace("Z", "")),
    element("td", "number", meta.cursor.sequenceId),
    element("td", "number", contentOf(envelope)),
    element("td", "", element("code", "", hash.slice(0, 16) + "…")),
    element("td", "", ...(meta.isCommitOrProposal ? [element("span", "tag", "commit or proposal")] : [])),
    element("td", "number", live ? milliseconds(Math.max(0, Date.now() - stored)) : "history"));
  row.lastChild.title = "by the clocks of the database and of this machine";
  const body = byId("envelopes").tBodies[0];
  body.prepend(row);
  if (body.rows.length > rowsKept) body.lastChild.remove();
}

// contentOf says in a few words what an envelope carries.
function contentOf({ groupMessage, welcomeMessage, keyPackage, identityUpdate, commitLogEntry }) {
  if (identityUpdate) return `${identityUpdate.actions?.length ?? 0} actions`;
  if (welcomeMessage?.welcomePointer) return "pointer";
  const data = groupMessage?.data ?? welcomeMessage?.v1?.data ?? keyPackage?.keyPackageTlsSerialized ??
    commitLogEntry?.serializedCommitLogEntry ?? "";
  return fromBase64(data).length.toLocaleString("en") + " bytes";
}

// follow keeps one subscription open and, after an error, opens it again from
// where it was.
async function follow(topic, signal) {
  let cursor = "0";
  let head = 0n;
  const state = (text) => { byId("tail-state").textContent = text; };
  const request = () => ({ topics: [{ topic: { topic: toBase64(topic) }, cursor: { sequenceId: cursor } }] });
  while (!signal.aborted) {
    try {
      state("Connecting …");
      for await (const frame of stream("SubscriptionService/SubscribeStatic", request(), signal)) {
        if (frame.started) {
          head = BigInt(frame.started.targets?.[0]?.throughSequenceId ?? 0);
          state("Following. Newest first.");
        }
        for (const one of frame.messages?.envelopes ?? []) {
          cursor = one.meta.cursor.sequenceId;
          show(one, BigInt(cursor) > head);
        }
      }
    } catch (error) {
      if (signal.aborted) break;
      state(`${error.message}. Trying again …`);
      if (error.code === "invalid_argument") return;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  state("Stopped.");
}

function toggle() {
  if (following) {
    following.abort();
    following = null;
  } else {
    const topic = byId("kind").value + byId("topic").value.toLowerCase();
    location.hash = topic;
    byId("envelopes").tBodies[0].replaceChildren();
    following = new AbortController();
    follow(fromHex(topic), following.signal);
  }
  byId("toggle").textContent = following ? "Stop" : "Follow";
  byId("kind").disabled = byId("topic").disabled = following !== null;
}

byId("tail").addEventListener("submit", (event) => {
  event.preventDefault();
  toggle();
});

startProbes();
loadConfiguration();
// A link may name the topic: the kind and the identifier in hex after #.
const linked = location.hash.slice(1);
if (/^0[0-4]([0-9a-f]{2})+$/.test(linked)) {
  byId("kind").value = linked.slice(0, 2);
  byId("topic").value = linked.slice(2);
  toggle();
}
