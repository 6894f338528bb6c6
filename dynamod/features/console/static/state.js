// State of the console: one stream of events from the server, and questions with the user's key.

const KEY = 'dynamod.key';
const REQUESTS = 10000;
const POINTS = 720;
const AGAIN_MS = 1000;
const SILENT_MS = 15000;

export const state = {
  connection: 'connecting', // connecting, live, lost, key, refused
  why: '',
  hello: null,
  top: null,
  status: null,
  served: {}, // models that can be asked through a process, by its name
  nodes: [],
  points: [],
  ended: [], // requests, the newest first
  open: [],
  at: 0, // when the last look came, by the clock of this browser
};

const listeners = new Set();
let planned = false;

export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function changed() {
  if (planned) return;
  planned = true;
  setTimeout(() => {
    planned = false;
    for (const listener of listeners) listener();
  }, 0);
}

export function key() {
  return sessionStorage.getItem(KEY) || '';
}

export function setKey(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
  reconnect();
}

// The address that `dynamo console` prints has the token after #, which browsers send to no server.
export function takeToken() {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(KEY, found[1]);
  history.replaceState(null, '', '#/overview');
}

export class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function headers(more = {}) {
  const found = { ...more };
  if (key()) found.Authorization = `Bearer ${key()}`;
  return found;
}

async function refusal(response) {
  let message = `${response.status} ${response.statusText}`;
  let code = '';
  try {
    const error = (await response.json()).error;
    message = typeof error === 'string' ? error : String(error.message || message);
    code = String(error.code || '');
  } catch { /* the body is no JSON */ }
  return new Refused(response.status, message, code);
}

export async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers(options.headers), cache: 'no-store' });
  if (!response.ok) throw await refusal(response);
  return response;
}

export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

export async function post(path, body, signal) {
  return ask(path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', 'x-dynamod-console': '1' },
    body: JSON.stringify(body),
    signal,
  });
}

export async function change(name, body) {
  return (await post(`/v1/console/do/${name}`, body)).json();
}

// The lines of a body as they come.
export async function* lines(response, alive = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    alive();
    const parts = (rest + value).split('\n');
    rest = parts.pop();
    yield* parts;
  }
  if (rest) yield rest;
}

// Server-sent events as they come: [name, data].
export async function* events(response, alive) {
  let name = 'message';
  for await (const line of lines(response, alive)) {
    const text = line.endsWith('\r') ? line.slice(0, -1) : line;
    if (text.startsWith('event: ')) name = text.slice(7);
    else if (text.startsWith('data: ')) yield [name, text.slice(6)];
    else if (text === '') name = 'message';
  }
}

let current = null;

function reconnect() {
  if (current) current.abort();
}

const takes = {
  hello(data) {
    Object.assign(state, { hello: data, ended: [], open: [], connection: 'live', why: '' });
  },
  history(data) { state.points = data; },
  point(data) { state.points = [...state.points.slice(-POINTS + 1), data]; },
  top(data) { Object.assign(state, { top: data, at: Date.now(), connection: 'live', why: '' }); },
  status(data) { state.status = data; },
  served(data) { state.served = data; },
  nodes(data) { state.nodes = data; },
  lost(data) { Object.assign(state, { connection: 'lost', why: String(data.why) }); },
  requests(data) {
    state.ended = [...data.ended.reverse(), ...state.ended].slice(0, REQUESTS);
    state.open = data.open;
  },
};

async function follow() {
  const controller = current = new AbortController();
  let timer = 0;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => controller.abort(), SILENT_MS);
  };
  alive();
  try {
    const response = await ask('/v1/console/events', { signal: controller.signal });
    for await (const [name, data] of events(response, alive)) {
      if (takes[name]) takes[name](JSON.parse(data));
      changed();
    }
    throw new Error('the server has ended the connection');
  } finally {
    clearTimeout(timer);
  }
}

export async function run() {
  for (;;) {
    try {
      await follow();
    } catch (error) {
      if (error.status === 401) Object.assign(state, { connection: 'key', why: error.message });
      else if (error.status === 403) Object.assign(state, { connection: 'refused', why: error.message });
      else Object.assign(state, { connection: 'lost', why: error.name === 'AbortError' ? 'no answer' : error.message });
      changed();
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}
