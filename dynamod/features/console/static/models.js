// Models: which can be asked, how they are asked, loading and unloading.

import { Action, bytes, Card, Component, Copy, html, NONE, percent, seconds, State, Table } from './ui.js';
import { askJson, changed, lines, post, state } from './state.js';

const EVERY_MS = 2000;

export class Models extends Component {
  constructor() {
    super();
    this.state = { models: null, running: null, why: '', form: 'curl', chosen: '' };
    this.look = async () => {
      try {
        const models = (await askJson('/v1/models')).data;
        this.setState({ models, why: '' });
      } catch (error) {
        this.setState({ why: error.message });
      }
      if (!state.hello || !state.hello.on_demand) return;
      try {
        this.setState({ running: (await askJson('/running')).running });
      } catch (error) {
        this.setState({ why: error.message });
      }
    };
  }

  componentDidMount() {
    if (state.hello && !state.hello.serves_models) return;
    this.look();
    this.timer = setInterval(this.look, EVERY_MS);
  }

  componentWillUnmount() {
    clearInterval(this.timer);
  }

  render(_, { models, running, why, form, chosen }) {
    const unloaded = (state.top ? state.top.rows : []).filter((row) => row.state !== 'Ready' || row.last_error);
    const adapters = (models || []).filter((one) => one.parent);
    const loads = state.hello && state.hello.adapters;
    const name = chosen || (models && models.length ? models[0].id : 'MODEL');
    return html`<div class="grid">
      <${Card} title="Models" wide=${true}>
        ${why && html`<p class="bad">${why}</p>`}
        <${Table} label="Models" empty=${models ? 'no model can be asked' : this.unknown()} rows=${(models || []).map((one) => ({ ...one, key: one.id }))} columns=${[
          { title: 'Model', cell: (one) => html`<button class="link" aria-pressed=${one.id === name} onClick=${() => this.setState({ chosen: one.id })}>${one.id}</button>` },
          { title: 'Base model', cell: (one) => one.parent || NONE, rare: true },
          { title: 'Context', right: true, cell: (one) => one.max_model_len || one.context_length || NONE },
          { title: 'Owned by', cell: (one) => one.owned_by || NONE, rare: true },
          { title: 'Try', cell: (one) => html`<a class="button" href=${`#/chat/${encodeURIComponent(one.id)}`}>Chat</a>` },
        ]} />
      <//>
      ${running && html`<${Card} title="On demand" wide=${true}>
        <${Table} label="Models on demand" empty="no model is loaded" rows=${running.map((one) => ({ ...one, key: one.model }))} columns=${[
          { title: 'Model', cell: (one) => one.model },
          { title: 'State', cell: (one) => html`<${State} word=${one.state} />` },
          { title: 'For', right: true, cell: (one) => seconds(one.seconds) },
          { title: 'Requests', right: true, cell: (one) => `${one.running} + ${one.waiting}` },
          { title: 'Memory', right: true, rare: true, cell: (one) => bytes(one.memory) },
          { title: 'Last error', cell: (one) => one.error || NONE },
          { title: 'Change', cell: (one) => html`<${Action} label="Unload" name=${`Unload ${one.model}`} confirm=${`Unload ${one.model}? Open requests finish first.`}
            run=${() => this.load('unload', one.model)} />` },
        ]} />
        <${NameForm} label="Load" hint="name of a model" run=${(model) => this.load('load', model)} />
      <//>`}
      ${(adapters.length > 0 || loads) && html`<${Card} title="Adapters" wide=${true}>
        <${Table} label="Adapters" empty="no adapter is loaded" rows=${adapters.map((one) => ({ ...one, key: one.id }))} columns=${[
          { title: 'Adapter', cell: (one) => one.id },
          { title: 'Base model', cell: (one) => one.parent },
          { title: 'Path on the workers', rare: true, cell: (one) => one.root || NONE },
          ...(loads ? [{ title: 'Change', cell: (one) => html`<${Action} label="Unload" name=${`Unload ${one.id}`} confirm=${`Unload the adapter ${one.id}? Later requests for it are refused.`}
            run=${() => this.adapter('unload', { lora_name: one.id })} />` }] : []),
        ]} />
        ${loads ? html`<${AdapterForm} bases=${(models || []).filter((one) => !one.parent).map((one) => one.id)} run=${(asked) => this.adapter('load', asked)} />`
          : html`<p class="muted">Loading needs the setting allow_runtime_lora_updating of the frontend.</p>`}
      <//>`}
      ${state.hello && state.hello.pull && html`<${Card} title="Download" wide=${true}>
        <${Pull} />
      <//>`}
      <${Card} title="Starting or failed" wide=${true}>
        <${Table} label="Processes that start or have failed" empty="no process starts or has failed" rows=${unloaded.map((one) => ({ ...one, key: one.process + one.component }))} columns=${[
          { title: 'Process', cell: (row) => `${row.process} · ${row.component}` },
          { title: 'State', cell: (row) => html`<${State} word=${row.state} />` },
          { title: 'Does', cell: (row) => row.detail || row.doing || NONE },
          { title: 'Phases', rare: true, cell: (row) => phases(row) },
          { title: 'Last error', cell: (row) => row.last_error || NONE },
        ]} />
      <//>
      <${Card} title="How to ask" wide=${true}>
        <div class="tabs" role="group" aria-label="Language">${['curl', 'Python', 'Node'].map((one) => html`
          <button aria-pressed=${one === form} onClick=${() => this.setState({ form: one })}>${one}</button>`)}</div>
        <${Copy} text=${example(form, name)} />
      <//>
    </div>`;
  }

  unknown() {
    return state.hello && !state.hello.serves_models ? 'models are asked at a frontend: open the console there' : 'asking …';
  }

  async load(what, model) {
    await (await post(`/models/${what}`, { model })).json();
    this.look();
    return `${model}: ${what === 'load' ? 'loaded' : 'unloaded'}`;
  }

  async adapter(what, asked) {
    await (await post(`/v1/${what}_lora_adapter`, asked)).text();
    this.look();
    return `${asked.lora_name}: ${what}ed`;
  }
}

// A name, a path below the frontend's lora_dir, and the model below, where there are several.
class AdapterForm extends Component {
  render({ bases, run }) {
    const field = (name, hint) => html`<label>${hint} <input ref=${(box) => { this[name] = box; }} /></label>`;
    return html`<div class="filters">${field('name', 'name')}${field('path', 'path')}
      ${bases.length > 1 && html`<label>model <select ref=${(box) => { this.base = box; }}>${bases.map((one) => html`<option>${one}</option>`)}</select></label>`}
      <${Action} label="Load adapter" run=${() => {
        const asked = { lora_name: this.name.value.trim(), lora_path: this.path.value.trim() };
        if (!asked.lora_name || !asked.lora_path) throw new Error('give a name and a path');
        return run(bases.length > 1 ? { ...asked, model: this.base.value } : asked);
      }} /></div>`;
  }
}

function phases(row) {
  return Object.entries(row.phases || {}).map(([name, took]) => `${name} ${seconds(took)}`).join(', ') || NONE;
}

class NameForm extends Component {
  render({ label, hint, run }) {
    return html`<div class="filters"><label>${hint} <input ref=${(box) => { this.box = box; }} /></label>
      <${Action} label=${label} run=${() => {
        if (!this.box.value.trim()) throw new Error('give a name');
        return run(this.box.value.trim());
      }} /></div>`;
  }
}

// A download by Ollama's route, which the frontend allows with ollama_manage_models. It goes on while another page is
// shown, and ends with the tab, or when the user stops it.
let pulled = null;

async function pull(model) {
  const now = pulled = { model, working: true, done: 0, total: 0, said: '', bad: false, controller: new AbortController() };
  changed();
  try {
    let last = '';
    for await (const line of lines(await post('/api/pull', { model, stream: true }, now.controller.signal))) {
      if (!line) continue;
      const found = JSON.parse(line);
      if (found.error) throw new Error(found.error);
      Object.assign(now, { done: found.completed || now.done, total: found.total || now.total });
      last = found.status;
      changed();
    }
    if (last !== 'success') throw new Error('the frontend has ended the download');
    now.said = `${model} is on this machine`;
  } catch (error) {
    Object.assign(now, { bad: true, said: error.name === 'AbortError' ? `stopped; what has come of ${model} is kept` : error.message });
  }
  now.working = false;
  changed();
}

function Pull() {
  const now = pulled || { working: false };
  const send = (event) => {
    event.preventDefault();
    const model = new FormData(event.target).get('model').trim();
    if (model && !now.working) pull(model);
  };
  return html`<form class="filters" onSubmit=${send}>
      <label>repository of a model <input name="model" required placeholder="org/name" spellcheck="false" /></label>
      ${now.working ? html`<button type="button" onClick=${() => now.controller.abort()}>Stop</button>` : html`<button>Pull</button>`}
    </form>
    ${now.working && html`<p class="pull" role="status">${now.model}
      <progress max=${now.total || undefined} value=${now.total ? now.done : undefined} aria-label=${`Download of ${now.model}`}></progress>
      ${now.total ? `${bytes(now.done)} of ${bytes(now.total)}, ${percent(now.done / now.total)}` : 'asking the hub …'}</p>`}
    ${now.said && html`<p role="status" class=${now.bad ? 'bad' : 'good'}>${now.said}</p>`}`;
}

export function example(form, model) {
  const url = `${location.origin}/v1`;
  const keys = state.hello && state.hello.keys;
  const text = JSON.stringify(model);
  if (form === 'Python') {
    return `from openai import OpenAI\n\nclient = OpenAI(base_url="${url}", api_key="${keys ? 'KEY' : 'none'}")\nanswer = client.chat.completions.create(\n    model=${text},\n    messages=[{"role": "user", "content": "Hello"}],\n)\nprint(answer.choices[0].message.content)`;
  }
  if (form === 'Node') {
    return `import OpenAI from 'openai';\n\nconst client = new OpenAI({ baseURL: '${url}', apiKey: '${keys ? 'KEY' : 'none'}' });\nconst answer = await client.chat.completions.create({\n  model: ${text},\n  messages: [{ role: 'user', content: 'Hello' }],\n});\nconsole.log(answer.choices[0].message.content);`;
  }
  const body = JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }] }).replaceAll("'", "'\\''");
  return `curl ${url}/chat/completions \\\n  -H 'Content-Type: application/json' \\\n${keys ? "  -H 'Authorization: Bearer KEY' \\\n" : ''}  -d '${body}'`;
}
