// Chat: one prompt to one or two models or settings, streamed. Nothing is kept on the server.

import { Card, Component, createRef, html, ms, NONE, number } from './ui.js';
import { askJson, events, post, state } from './state.js';

const DEFAULTS = { model: '', temperature: '0.7', max_tokens: '256', schema: '', tools: '', system: '' };
let kept = { panes: [{ ...DEFAULTS }], messages: [[]] }; // of this tab, while it is open

export class Chat extends Component {
  constructor(props) {
    super(props);
    this.state = { models: [], why: '', working: false, drafts: [] };
    if (props.detail) kept.panes[0] = { ...kept.panes[0], model: props.detail };
    this.box = createRef();
    this.end = createRef();
    this.stop = () => this.controller && this.controller.abort();
  }

  async componentDidMount() {
    if (state.hello && !state.hello.serves_models) return;
    try {
      const models = (await askJson('/v1/models')).data.map((one) => one.id);
      kept.panes = kept.panes.map((pane) => ({ ...pane, model: pane.model || models[0] || '' }));
      this.setState({ models });
    } catch (error) {
      this.setState({ why: error.message });
    }
  }

  componentWillUnmount() {
    this.stop();
  }

  async send(event) {
    event.preventDefault();
    const text = this.box.current.value;
    if (!text.trim() || this.state.working) return;
    this.box.current.value = '';
    this.controller = new AbortController();
    kept.messages = kept.messages.map((found) => [...found, { role: 'user', content: text }]);
    const drafts = kept.panes.map(() => newDraft());
    this.setState({ working: true, drafts });
    await Promise.all(kept.panes.map((pane, index) => this.answer(pane, index, drafts[index])));
    this.setState({ working: false, drafts: [] });
    if (this.box.current) this.box.current.focus();
  }

  async answer(pane, index, draft) {
    const begun = performance.now();
    try {
      const body = request(pane, kept.messages[index]);
      const response = await post('/v1/chat/completions', body, this.controller.signal);
      draft.id = response.headers.get('x-request-id') || '';
      for await (const [name, data] of events(response)) {
        if (data === '[DONE]') break;
        const chunk = JSON.parse(data);
        if (name === 'error' || chunk.error) throw new Error((chunk.error && chunk.error.message) || 'the answer failed');
        take(draft, chunk, performance.now() - begun);
        this.redraw();
      }
    } catch (error) {
      draft.error = error.name === 'AbortError' ? 'stopped' : error.message;
    }
    draft.total = performance.now() - begun;
    kept.messages[index] = [...kept.messages[index], { role: 'assistant', content: draft.text, draft }];
    if (draft.id) this.explain(draft);
    this.redraw();
  }

  // The worker is in the record of the request, which is there when the answer has ended.
  async explain(draft) {
    try {
      const found = await askJson(`/v1/console/requests/${encodeURIComponent(draft.id)}`);
      const record = found.record;
      if (record) {
        draft.worker = (record.workers || []).map((one) => one.process || one.instance).join(' → ');
        if (record.cached_tokens !== undefined) draft.cached = record.cached_tokens;
      }
      const decision = found.decisions[found.decisions.length - 1];
      if (!draft.worker && decision) {
        const chosen = decision.candidates.find((one) => one.instance === decision.chosen);
        draft.worker = chosen ? chosen.process || chosen.instance : decision.chosen;
      }
      this.setState({});
    } catch { /* the record is for information */ }
  }

  redraw() {
    if (this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => {
      this.planned = false;
      this.setState({});
    });
  }

  panes(count) {
    kept.panes = count === 2 ? [kept.panes[0], { ...kept.panes[0] }] : [kept.panes[0]];
    kept.messages = count === 2 ? [kept.messages[0], [...kept.messages[0]]] : [kept.messages[0]];
    this.setState({});
  }

  clear() {
    kept.messages = kept.panes.map(() => []);
    this.setState({});
  }

  render(_, { models, why, working, drafts }) {
    if (state.hello && !state.hello.serves_models) {
      return html`<${Card} title="Chat" wide=${true}><p class="empty">Models answer at a frontend: open the console there.</p><//>`;
    }
    const two = kept.panes.length === 2;
    const tools = html`<span class="buttons">
      <button onClick=${() => this.panes(two ? 1 : 2)} disabled=${working}>${two ? 'One model' : 'Two side by side'}</button>
      <button onClick=${() => this.clear()} disabled=${working}>Clear</button></span>`;
    return html`<div class="grid"><${Card} title="Chat" wide=${true} actions=${tools}>
      ${why && html`<p class="bad">${why}</p>`}
      <div class=${two ? 'panes two' : 'panes'}>${kept.panes.map((pane, index) => html`<div class="pane" key=${index}>
        <${Settings} pane=${pane} models=${models} number=${index} change=${(more) => {
          kept.panes[index] = { ...kept.panes[index], ...more };
          this.setState({});
        }} />
        <div class="talk" aria-live="polite" tabindex="0" role="log" aria-label=${`Conversation ${index + 1}`}>
          ${kept.messages[index].map((one, place) => html`<${Message} one=${one} key=${place} />`)}
          ${drafts[index] && !ended(index) && html`<${Answer} draft=${drafts[index]} />`}
        </div></div>`)}</div>
      <form class="say" onSubmit=${(event) => this.send(event)}>
        <label class="hidden" for="prompt">Message</label>
        <textarea id="prompt" rows="2" ref=${this.box} placeholder="Message; Enter sends, Shift+Enter breaks the line"
          onKeyDown=${(event) => { if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) this.send(event); }}></textarea>
        ${working ? html`<button type="button" onClick=${this.stop}>Stop</button>` : html`<button class="primary">Send</button>`}
      </form><//></div>`;
  }
}

function ended(index) {
  const last = kept.messages[index][kept.messages[index].length - 1];
  return last && last.role === 'assistant';
}

function newDraft() {
  return { text: '', reasoning: '', calls: [], id: '', first: null, last: null, tokens: 0, cached: null, worker: '', error: '', finish: '' };
}

function parsed(text, name) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name} is no JSON: ${error.message}`);
  }
}

export function request(pane, messages) {
  const body = {
    model: pane.model,
    messages: [
      ...(pane.system ? [{ role: 'system', content: pane.system }] : []),
      ...messages.filter((one) => one.role === 'user' || one.content).map(({ role, content }) => ({ role, content })),
    ],
    stream: true,
    stream_options: { include_usage: true },
  };
  if (pane.temperature !== '') body.temperature = Number(pane.temperature);
  if (pane.max_tokens !== '') body.max_completion_tokens = Number(pane.max_tokens);
  if (pane.schema) body.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema: parsed(pane.schema, 'JSON Schema') } };
  if (pane.tools) body.tools = parsed(pane.tools, 'Tools');
  return body;
}

export function take(draft, chunk, at) {
  const choice = chunk.choices && chunk.choices[0];
  const delta = (choice && choice.delta) || {};
  const reasoning = delta.reasoning_content || delta.reasoning || '';
  if ((delta.content || reasoning || delta.tool_calls) && draft.first === null) draft.first = at;
  if (delta.content || reasoning || delta.tool_calls) draft.last = at;
  draft.text += delta.content || '';
  draft.reasoning += reasoning;
  for (const call of delta.tool_calls || []) {
    const known = draft.calls[call.index || 0] || (draft.calls[call.index || 0] = { name: '', arguments: '' });
    known.name += (call.function && call.function.name) || '';
    known.arguments += (call.function && call.function.arguments) || '';
  }
  if (choice && choice.finish_reason) draft.finish = choice.finish_reason;
  if (chunk.usage) {
    draft.tokens = chunk.usage.completion_tokens || 0;
    const details = chunk.usage.prompt_tokens_details;
    if (details && details.cached_tokens !== undefined) draft.cached = details.cached_tokens;
  }
}

function Message({ one }) {
  if (one.role === 'user') return html`<div class="said user"><p>${one.content}</p></div>`;
  return html`<${Answer} draft=${one.draft} />`;
}

function Answer({ draft }) {
  const took = draft.last - draft.first;
  const facts = [
    ['TTFT', ms(draft.first)],
    ['tokens/s', draft.tokens > 1 && took > 0 ? number((draft.tokens - 1) / took * 1000) : NONE],
    ['tokens', draft.tokens || NONE],
    ['cached', draft.cached === null ? NONE : number(draft.cached)],
    ['worker', draft.worker || NONE],
    ['finish', draft.finish || NONE],
  ];
  return html`<div class="said model">
    ${draft.reasoning && html`<details open=${!draft.text}><summary>Reasoning</summary><p>${draft.reasoning}</p></details>`}
    ${draft.text ? html`<p>${draft.text}</p>` : !draft.error && !draft.calls.length && html`<p class="muted">…</p>`}
    ${draft.calls.map((call, index) => html`<p class="call" key=${index}><b>${call.name}</b>(${call.arguments})</p>`)}
    ${draft.error && html`<p class="bad">${draft.error}</p>`}
    <dl class="meter">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
      ${draft.id && html`<div><dt>request</dt><dd><a href=${`#/requests/${encodeURIComponent(draft.id)}`}>${draft.id.slice(0, 8)}</a></dd></div>`}</dl>
  </div>`;
}

function Settings({ pane, models, change, number: which }) {
  const field = (name) => ({ value: pane[name], onInput: (event) => change({ [name]: event.target.value }) });
  return html`<div class="settings">
    <label>Model <select aria-label=${`Model ${which + 1}`} value=${pane.model} onChange=${(event) => change({ model: event.target.value })}>
      ${[...new Set([...models, pane.model])].filter(Boolean).map((one) => html`<option value=${one} selected=${one === pane.model}>${one}</option>`)}</select></label>
    <label>Temperature <input type="number" min="0" max="2" step="0.1" ...${field('temperature')} /></label>
    <label>Most tokens <input type="number" min="1" ...${field('max_tokens')} /></label>
    <details><summary>More</summary>
      <label>System <textarea rows="2" ...${field('system')}></textarea></label>
      <label>JSON Schema of the answer <textarea rows="3" spellcheck="false" ...${field('schema')}></textarea></label>
      <label>Tools (a list in OpenAI's form) <textarea rows="3" spellcheck="false" ...${field('tools')}></textarea></label>
    </details></div>`;
}
