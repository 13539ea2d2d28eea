// What a web application does: it calls the backend through
// @connectrpc/connect-web, from another origin, and follows topics. The Go test
// calls the functions of window.backend; messages go in and out as JSON.
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { createFileRegistry, fromBinary, fromJson, toJson } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";

const prefix = "xmtp.backend.v1.";

// The headers that the published clients send make every call need a preflight.
const headers = {
  authorization: "Bearer of-the-future",
  "x-app-version": "browser-test/1.0.0",
  "x-libxmtp-version": "1.2.3",
};

let registry;
let baseUrl;

// start learns the API from its descriptors, so that nothing generated can be old.
async function start(url) {
  baseUrl = url;
  const descriptors = await (await fetch("/descriptors")).arrayBuffer();
  registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, new Uint8Array(descriptors)));
}

function client(service) {
  return createClient(registry.getService(prefix + service), createGrpcWebTransport({ baseUrl }));
}

function method(service, name) {
  return registry.getService(prefix + service).method[name];
}

// failure is an error as a page can see it. A browser hides why a fetch failed:
// that is a TypeError, and what must not be seen while the backend is away.
function failure(error) {
  const known = ConnectError.from(error);
  const details = known.details.map((detail) => {
    const schema = registry.getMessage(detail.type);
    return { type: detail.type, value: toJson(schema, fromBinary(schema, detail.value)) };
  });
  return { code: Code[known.code], message: known.rawMessage, details, network: known.cause instanceof TypeError };
}

// call makes one unary call and returns {response, requestId} or {error}.
async function call(service, name, request) {
  const { input, output } = method(service, name);
  let requestId = "";
  try {
    const response = await client(service)[name](fromJson(input, request), {
      headers,
      onHeader: (answered) => { requestId = answered.get("x-request-id") ?? ""; },
    });
    return { response: toJson(output, response), requestId };
  } catch (error) {
    return { error: failure(error), requestId };
  }
}

// Followers by number. Each keeps one static subscription open on one topic, and
// after an error opens it again from where it was.
const followers = [];

function follow(topic) {
  const follower = { started: 0, sequenceIds: [], errors: [], stopped: new AbortController() };
  follower.done = keepFollowing(follower, topic);
  return followers.push(follower) - 1;
}

async function keepFollowing(follower, topic) {
  const { input } = method("SubscriptionService", "subscribeStatic");
  const cursor = () => follower.sequenceIds.at(-1) ?? "0";
  while (!follower.stopped.signal.aborted) {
    const request = fromJson(input, { topics: [{ topic: { topic }, cursor: { sequenceId: cursor() } }] });
    try {
      const stream = client("SubscriptionService").subscribeStatic(request, { headers, signal: follower.stopped.signal });
      for await (const { response } of stream) {
        if (response.case === "started") follower.started++;
        if (response.case !== "messages") continue;
        for (const { meta } of response.value.envelopes) follower.sequenceIds.push(String(meta.cursor.sequenceId));
      }
    } catch (error) {
      if (follower.stopped.signal.aborted) return;
      follower.errors.push(failure(error));
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// followed is what a follower has seen so far.
function followed(number) {
  const { started, sequenceIds, errors } = followers[number];
  return { started, sequenceIds, errors };
}

async function unfollow(number) {
  followers[number].stopped.abort();
  await followers[number].done;
}

window.backend = { start, call, follow, followed, unfollow };
