// Workers: every process with its numbers, actions on its component, and its log.

import { Action, broken, bytes, Card, Component, createRef, html, ms, NONE, number, percent, seconds, State, Table } from './ui.js';
import { ask, change, events, state } from './state.js';
import { rowOf } from './overview.js';

const LINES = 2000;

export class Workers extends Component {
  render({ detail }) {
    const processes = state.top ? state.top.processes : [];
    const chosen = processes.find((one) => one.process === detail);
    const columns = [
      { title: 'Process', cell: (one) => html`<a href=${`#/workers/${encodeURIComponent(one.process)}`}>${broken(one.process)}</a>` },
      { title: 'State', cell: (one) => html`<${State} word=${one.answers || one.state !== 'Ready' ? one.state : 'Ready?'} />` },
      { title: 'Role', rare: true, cell: (one) => (one.ingress ? 'frontend' : rowOf(one).role || (one.worker && one.worker.pool) || NONE) },
      { title: 'Running', right: true, cell: (one) => (one.worker ? one.worker.running : one.ingress ? one.ingress.in_flight : NONE) },
      { title: 'Waiting', right: true, cell: (one) => (one.worker ? one.worker.waiting : one.ingress ? one.ingress.queued : NONE) },
      { title: 'Tokens/s', right: true, cell: (one) => number(one.worker && one.worker.tokens_per_second) },
      { title: 'KV cache', right: true, rare: true, cell: (one) => used(one.worker) },
      { title: 'Hit rate', right: true, rare: true, cell: (one) => percent(one.worker && one.worker.hit_rate) },
      { title: 'Progress', right: true, rare: true, cell: (one) => age(rowOf(one)) },
      { title: 'CPU', right: true, rare: true, cell: (one) => (one.cpu === null ? NONE : `${number(one.cpu)} %`) },
      { title: 'Memory', right: true, rare: true, cell: (one) => bytes(one.rss) },
      { title: 'Restarts', right: true, rare: true, cell: (one) => one.restarts },
      { title: 'Uptime', right: true, rare: true, cell: (one) => seconds(one.uptime) },
    ];
    return html`<div class="grid">
      <${Card} title="Processes" wide=${true}>
        <${Table} label="Processes" empty=${state.top ? 'no process runs' : 'not known yet'} columns=${columns}
          rows=${processes.map((one) => ({ ...one, key: one.process, mark: one.process === detail ? 'chosen' : '' }))} />
      <//>
      ${chosen && html`<${One} process=${chosen} key=${detail} />`}
      ${detail && !chosen && state.top && html`<${Card} title=${detail} wide=${true}><p class="empty">There is no such process now.</p><//>`}
    </div>`;
  }
}

function used(worker) {
  return worker && worker.total_blocks ? `${worker.active_blocks} / ${worker.total_blocks}` : NONE;
}

function age(row) {
  return row.running ? seconds(row.progress_age) : NONE;
}

// Finished steps, and the one that runs now beside what such a step usually takes.
function steps(facts) {
  if (!facts) return '';
  const now = facts.running_for === null ? 'none runs now' : `now ${facts.tokens} tokens for ${ms(facts.running_for * 1000)}`;
  return `${number(facts.per_second)} per second, ${now}${facts.usual ? `, usually ${ms(facts.usual * 1000)}` : ''}`;
}

function tier(facts) {
  return facts ? `${facts.blocks} blocks, ${bytes(facts.bytes)}, ${facts.hits} loaded` : '';
}

class One extends Component {
  constructor() {
    super();
    this.state = { count: null }; // what the user has typed; null: as many as there are
  }

  render({ process }, { count }) {
    const row = rowOf(process);
    const worker = process.worker;
    const component = `${process.graph}/${process.components[0]}`;
    const admin = state.hello && state.hello.admin;
    const facts = [
      ['Components', process.components.join(', ')], ['Process id', process.pid], ['Instance', process.instance],
      ['Does', row.doing || row.detail], ['Requests wait', process.waits.join(', ')], ['Slow', row.slow ? 'the current step takes far longer than usual' : ''],
      ['Steps', steps(worker && worker.steps)], ['GPUs', (row.gpus || []).join(', ')], ['Start', Object.entries(row.phases || {}).map(([name, took]) => `${name} ${seconds(took)}`).join(', ')],
      ['Host tier', tier(worker && worker.host)], ['Disk tier', tier(worker && worker.disk)], ['Last error', process.last_error],
    ];
    const act = (name, more = {}) => async () => {
      await change(name, { component, ...more });
      return 'done';
    };
    return html`<${Card} title=${process.process} wide=${true} actions=${html`<a class="button" href="#/workers">Close</a>`}>
      <dl class="facts">${facts.filter(([, value]) => value).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${String(value)}</dd></div>`)}</dl>
      ${admin ? html`<div class="filters">
        <${Action} label="Restart" confirm=${`Replace all processes of ${component}? Open requests finish first.`} run=${act('restart')} />
        <${Action} label="Drain" confirm=${`Take ${component} out of service? It takes nothing new, finishes what is open, and ends.`} run=${act('drain')} />
        <label>Processes <input type="number" min="0" max="256" value=${count === null ? state.top.processes.filter((one) => one.graph === process.graph && one.components[0] === process.components[0]).length : count}
          onInput=${(event) => this.setState({ count: event.target.value })} /></label>
        <${Action} label="Scale" confirm=${`Change the number of processes of ${component}?`} disabled=${count === null || count === ''} run=${async () => {
          await act('scale', { replicas: Number(count) })();
          this.setState({ count: null });
          return 'done';
        }} />
        ${['prefill', 'decode'].includes(row.role) && html`<${Action} label=${`Switch to ${row.role === 'prefill' ? 'decode' : 'prefill'}`}
          confirm=${`Change the role of ${process.process}?`} run=${async () => {
            await change('switch', { component: process.process, role: row.role === 'prefill' ? 'decode' : 'prefill' });
            return 'done';
          }} />`}
      </div><${Log} component=${process.process} />`
        : html`<p class="muted">Logs and changes need ${state.hello ? state.hello.needs : 'more rights'}, or the command dynamo console.</p>`}
    <//>`;
  }
}

// The log as it grows; stays at its end until the user scrolls up.
class Log extends Component {
  constructor() {
    super();
    this.lines = [];
    this.state = { why: '', follow: true };
    this.box = createRef();
  }

  componentDidMount() {
    this.controller = new AbortController();
    this.read();
  }

  componentWillUnmount() {
    this.controller.abort();
  }

  componentDidUpdate() {
    const box = this.box.current;
    if (box && this.state.follow) box.scrollTop = box.scrollHeight;
  }

  async read() {
    try {
      const response = await ask(`/v1/console/logs?component=${encodeURIComponent(this.props.component)}`, { signal: this.controller.signal });
      for await (const [name, data] of events(response)) {
        if (name !== 'line') continue;
        this.lines.push(JSON.parse(data));
        if (this.lines.length > LINES) this.lines.splice(0, this.lines.length - LINES);
        this.plan();
      }
      this.setState({ why: 'the log has ended' });
    } catch (error) {
      if (error.name !== 'AbortError') this.setState({ why: error.message });
    }
  }

  plan() {
    if (this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => {
      this.planned = false;
      this.setState({});
    });
  }

  render(_, { why, follow }) {
    const scrolled = (event) => {
      const box = event.target;
      const end = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
      if (end !== follow) this.setState({ follow: end });
    };
    return html`<h3>Log</h3>
      <pre class="log" tabindex="0" role="log" aria-label="Log lines" ref=${this.box} onScroll=${scrolled}>${this.lines.join('\n')}</pre>
      ${why && html`<p class="bad">${why}</p>`}`;
  }
}
