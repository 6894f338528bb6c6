// Requests: those in work and the last 1,000; of one its times, its workers and why it went there.

import { Action, broken, Card, clock, Component, createRef, html, ms, NONE, number, Table, VirtualList } from './ui.js';
import { askJson, state } from './state.js';

export class Requests extends Component {
  constructor() {
    super();
    this.state = { text: '', wrong: false };
    // without a key: a line of the page shows another request after a scroll, which is faster than a new line
    this.row = (one) => html`<${Row} one=${one} chosen=${one.id === this.props.detail} />`;
  }

  render({ detail }, { text, wrong }) {
    const all = [...state.open.map((one) => ({ ...one, open: true })).reverse(), ...state.ended];
    const word = text.toLowerCase();
    const shown = all.filter((one) => (!wrong || one.error || one.status >= 400)
      && (!word || [one.id, one.model, one.key, one.endpoint, one.error].some((part) => part && part.toLowerCase().includes(word))));
    if (state.hello && !state.hello.serves_models) {
      return html`<${Card} title="Requests" wide=${true}><p class="empty">A frontend keeps its requests: open the console
        at the address of a frontend.</p><//>`;
    }
    return html`<div class="grid">
      <${Card} title="Requests" wide=${true} actions=${html`<span class="muted">${state.open.length} open, ${state.ended.length} ended</span>`}>
        <div class="filters">
          <label>Find <input type="search" value=${text} placeholder="id, model, key, error"
            onInput=${(event) => this.setState({ text: event.target.value })} /></label>
          <label><input type="checkbox" checked=${wrong} onChange=${(event) => this.setState({ wrong: event.target.checked })} /> failed only</label>
        </div>
        ${shown.length ? html`<${VirtualList} label="Requests" items=${shown} row=${this.row} head=${html`<${Head} />`} />`
          : html`<p class="empty">${all.length ? 'no request matches' : 'no request since this console was opened first'}</p>`}
      <//>
      ${detail && html`<${Detail} id=${detail} key=${detail} />`}
      <${WhatIf} />
    </div>`;
  }
}

function Head() {
  return html`<div class="line head" role="row">
    <span role="columnheader">Time</span><span role="columnheader">Request</span><span role="columnheader" class="rare">Model</span>
    <span role="columnheader">Status</span><span role="columnheader" class="right rare">Prompt</span>
    <span role="columnheader" class="right rare">Cached</span><span role="columnheader" class="right tokens">Tokens</span>
    <span role="columnheader" class="right">TTFT</span><span role="columnheader" class="right">Total</span>
    <span role="columnheader" class="right rare">Tokens/s</span></div>`;
}

function Row({ one, chosen }) {
  const failed = one.error || one.status >= 400;
  const speed = rate(one);
  return html`<div class=${`line ${chosen ? 'chosen' : ''}`} role="row">
    <span role="cell">${clock(one.time)}</span>
    <span role="cell"><a href=${`#/requests/${encodeURIComponent(one.id)}`}>${one.id}</a></span>
    <span role="cell" class="rare">${one.model}</span>
    <span role="cell" class=${one.open ? 'busy' : failed ? 'bad' : 'good'}>${one.open ? 'open' : failed ? one.error || one.status : one.finish || one.status}</span>
    <span role="cell" class="right rare">${number(one.prompt_tokens || 0)}</span>
    <span role="cell" class="right rare">${one.cached_tokens === undefined ? NONE : number(one.cached_tokens)}</span>
    <span role="cell" class="right tokens">${number(one.completion_tokens || 0)}</span>
    <span role="cell" class="right">${ms(one.first_ms)}</span>
    <span role="cell" class="right">${ms(one.duration_ms)}</span>
    <span role="cell" class="right rare">${number(speed)}</span></div>`;
}

function rate(one) {
  const took = one.duration_ms - one.first_ms;
  return one.completion_tokens > 1 && took > 0 ? (one.completion_tokens - 1) / took * 1000 : null;
}

class Detail extends Component {
  constructor(props) {
    super(props);
    this.state = { found: null, why: '' };
    this.box = createRef();
  }

  async componentDidMount() {
    try {
      this.setState({ found: await askJson(`/v1/console/requests/${encodeURIComponent(this.props.id)}`) });
    } catch (error) {
      this.setState({ why: error.message });
    }
    if (this.box.current) this.box.current.scrollIntoView({ block: 'nearest' });
  }

  render({ id }, { found, why }) {
    const record = found && found.record;
    const close = html`<a class="button" href="#/requests">Close</a>`;
    return html`<div class="wide" ref=${this.box}><${Card} title=${`Request ${id}`} wide=${true} actions=${close}>
      ${why && html`<p class="bad">${why}</p>`}
      ${!found && !why && html`<p class="empty">asking …</p>`}
      ${found && !record && html`<p class="muted">Only the routing decision is known: the request ended before this
        console was opened, or is open still.</p>`}
      ${record && html`<${Timeline} one=${record} /><${Facts} one=${record} />`}
      ${found && found.decisions.map((one, index) => html`<${Decision} one=${one} key=${index} />`)}
      ${found && !found.decisions.length && html`<p class="muted">No routing decision is known for it.</p>`}
    <//></div>`;
  }
}

const PHASES = {
  receive: 'receive', queue: 'queue', preprocess: 'preprocess', route: 'route', handoff: 'prefill elsewhere, hand-off', transport: 'to the worker',
  prefill: 'prefill', first_token: 'first token', decode: 'decode', migrations: 'migrations', write: 'end of the answer',
};
const COLORS = { queue: 'part0', route: 'part0', handoff: 'part1', prefill: 'part1', migrations: 'part2' };

// Parts of a request in the order of time: [name, from, to] in milliseconds, and a color.
export function stages(one) {
  if (one.phases) {
    let at = 0;
    return one.phases.map(([name, took]) => [PHASES[name] || name, at, at += took, COLORS[name] || '']);
  }
  const end = one.duration_ms;
  const workers = one.workers || [];
  const prefill = workers.find((place) => place.prefill);
  const decode = workers.find((place) => !place.prefill);
  const marks = [['queue and routing', 0]];
  if (prefill) marks.push(['prefill on a worker of its own', prefill.at_ms || 0]);
  if (decode) marks.push([prefill ? 'hand-off and first token' : 'prefill', decode.at_ms || 0]);
  if (one.first_ms !== undefined) marks.push(['decode', one.first_ms]);
  return marks.map(([name, from], index) => [name, from, index + 1 < marks.length ? Math.max(from, marks[index + 1][1]) : end, `part${index}`]);
}

function Timeline({ one }) {
  const parts = stages(one);
  const whole = Math.max(one.duration_ms, parts.length ? parts[parts.length - 1][2] : 0, 0.001);
  return html`<h3>Timeline</h3><ol class="timeline">${parts.map(([name, from, to, color], index) => html`<li key=${index}>
    <span class="what">${name}</span>
    <span class="bar" aria-hidden="true"><i class=${color} style=${{ marginLeft: `${from / whole * 100}%`, width: `max(2px, ${(to - from) / whole * 100}%)` }}></i></span>
    <span class="long">${ms(to - from)}</span></li>`)}</ol>
    ${(one.workers || []).length > 0 && html`<${Table} label="Workers of the request" empty="" rows=${one.workers} columns=${[
      { title: 'Worker', cell: (place) => broken(place.process || place.instance) },
      { title: 'Node', cell: (place) => place.node || NONE, rare: true },
      { title: 'For', cell: (place) => (place.prefill ? 'the prompt' : `choice ${place.choice || 0}`) },
      { title: 'After', right: true, cell: (place) => ms(place.at_ms || 0) },
    ]} />`}
    ${one.migrations > 0 && html`<p class="busy">Continued at another worker ${one.migrations === 1 ? 'once' : `${one.migrations} times`}.</p>`}`;
}

function Facts({ one }) {
  const notes = Object.entries(one.notes || {});
  const found = [['Model', one.model], ['Endpoint', one.endpoint], ['Status', one.status], ['Error', one.error], ['Finish', one.finish],
    ['Client', one.client], ['Key', one.key], ['Process', one.process], ['Prompt tokens', one.prompt_tokens || 0],
    ['Cached tokens', one.cached_tokens], ['Completion tokens', one.completion_tokens || 0], ['Streamed', one.stream ? 'yes' : 'no'], ...notes];
  return html`<dl class="facts">${found.filter(([, value]) => value !== undefined && value !== null && value !== '').map(([name, value]) => html`
    <div key=${name}><dt>${name}</dt><dd>${String(value)}</dd></div>`)}</dl>`;
}

export function Decision({ one }) {
  const terms = [...new Set(one.candidates.flatMap((found) => Object.keys(found.terms || {})))];
  const columns = [
    { title: 'Worker', cell: (row) => html`${broken(row.process || row.instance)}${row.instance === one.chosen ? html` <b>chosen</b>` : ''}` },
    { title: 'Blocks it had', right: true, cell: (row) => row.overlap },
    { title: 'To load', right: true, rare: true, cell: (row) => row.fetched || 0 },
    { title: 'Requests', right: true, cell: (row) => row.requests },
    ...terms.map((term) => ({ title: term.replaceAll('_', ' '), right: true, rare: true, cell: (row) => number(row.terms && row.terms[term], 3) })),
    { title: 'Cost', right: true, cell: (row) => number(row.total, 3) },
  ];
  const rows = one.candidates.map((row) => ({ ...row, mark: row.instance === one.chosen ? 'chosen' : '' }));
  const blocks = Math.ceil(one.tokens / Math.max(1, one.block_size));
  return html`<h3>Routing decision${one.pool ? ` · ${one.pool}` : ''}</h3>
    <p>Policy <b>${one.mode}</b>, decided by <b>${one.rule}</b>. The prompt has ${one.tokens} tokens in ${blocks} blocks. The
      chosen worker had ${one.overlap || 0} of them${one.regret ? `, ${one.regret} fewer than another` : ''}.</p>
    <${Table} label="Candidates" empty="no candidate is known" columns=${columns} rows=${rows} />
    ${one.left_out > 0 && html`<p class="muted">${one.left_out} further candidates are not kept.</p>`}
    ${one.shadow && html`<p>The policy ${one.shadow_mode} would have chosen ${one.shadow === one.chosen ? 'the same worker' : one.shadow}.</p>`}
    ${one.excluded.length > 0 && html`<ul class="muted">${one.excluded.map(([instance, why]) => html`<li>${instance} could not take it: ${why}</li>`)}</ul>`}`;
}

const MODES = ['kv', 'least-loaded', 'power-of-two', 'round-robin', 'random'];

// The kept decisions made again by another policy, with the workers as they were.
class WhatIf extends Component {
  constructor() {
    super();
    this.state = { mode: 'kv', found: [] };
  }

  async run() {
    const found = await askJson(`/v1/console/whatif?mode=${this.state.mode}`);
    this.setState({ found: [found, ...this.state.found.filter((one) => one.mode !== found.mode)] });
    return `${found.decisions} decisions`;
  }

  render(_, { mode, found }) {
    const share = (one, part) => (one.blocks ? `${(part / one.blocks * 100).toFixed(1)} %` : NONE);
    return html`<${Card} title="What if" wide=${true}>
      <div class="filters"><label>Policy <select value=${mode} onChange=${(event) => this.setState({ mode: event.target.value })}>
        ${MODES.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
        <${Action} label="Replay" run=${() => this.run()} /></div>
      <p class="muted">The last decisions are made again by another policy, each with the workers as they were then. The time to
        the first token is estimated from the tokens to compute and the requests at the worker.</p>
      ${found.length > 0 && html`<${Table} label="Policies" empty="" rows=${found.map((one) => ({ ...one, key: one.mode }))} columns=${[
        { title: 'Policy', cell: (one) => one.mode },
        { title: 'Other worker', right: true, rare: true, cell: (one) => `${one.changed} of ${one.decisions}` },
        { title: 'Reuse now', right: true, cell: (one) => share(one, one.reused) },
        { title: 'Reuse then', right: true, cell: (one) => share(one, one.reused_then) },
        { title: 'TTFT now', right: true, cell: (one) => ms(one.ttft_ms) },
        { title: 'TTFT then', right: true, cell: (one) => ms(one.ttft_ms_then) },
      ]} />`}
    <//>`;
  }
}
