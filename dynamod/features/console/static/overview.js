// Overview: four figures over an hour, what is wrong, and the processes as a picture.

import { Card, Chart, Component, html, ms, NONE, number, percent, seconds, Table, tone } from './ui.js';
import { state } from './state.js';

const TILE = { width: 140, height: 46, gap: 8 };
const HEAD = 40;
const SLOW_S = 5;

export class Overview extends Component {
  render() {
    return html`<div class="grid">
      <${Figures} />
      <${Wrong} />
      <${Picture} />
      ${state.nodes.length > 1 && html`<${Nodes} />`}
    </div>`;
  }
}

function Figures() {
  const times = state.points.map((one) => one[0]);
  const column = (place, scale = 1) => state.points.map((one) => (one[place] === null ? null : one[place] * scale));
  const last = state.points.length ? state.points[state.points.length - 1] : [];
  const milli = (value) => (value === null || value === undefined ? NONE : ms(value * 1000));
  const found = [
    ['Requests per second', number(last[1]), [times, column(1)], ['--blue']],
    ['First token: median, p99', `${milli(last[3])} / ${milli(last[4])}`, [times, column(3, 1000), column(4, 1000)], ['--blue', '--orange']],
    ['Tokens per second', number(last[5]), [times, column(5)], ['--green']],
    ['Errors per second', number(last[2], 2), [times, column(2)], ['--red']],
  ];
  return found.map(([title, value, data, colors]) => html`<${Card} title=${title} key=${title}>
    <p class="figure">${value}</p>
    ${times.length > 1 ? html`<${Chart} data=${data} label=${`${title}, the last hour`} text=${title.startsWith('First') ? ms : number}
        series=${colors.map((color) => ({ label: title, color, dots: title.startsWith('First') }))} />`
      : html`<p class="empty chartless">the line begins after 10 seconds</p>`}
  <//>`);
}

function Wrong() {
  if (!state.status) return html`<${Card} title="What is wrong" wide=${true}><p class="empty">not known yet</p><//>`;
  const waits = (state.top ? state.top.processes : []).filter((one) => one.waits.length);
  const problems = [...silent().map((one) => ({ found: `node ${one.node}: ${one.why || one.state}.`,
    mend: 'Look at its daemon and its network; its processes may still answer requests.' })), ...state.status.problems];
  return html`<${Card} title="What is wrong" wide=${true}>
    ${problems.length ? html`<ul class="problems">${problems.map((one) => html`
      <li><strong>${one.found}</strong>${one.mend && html`<span> ${one.mend}</span>`}</li>`)}</ul>`
      : html`<p class="good">Nothing: ${state.status.components} components run${models()}.</p>`}
    ${waits.map((one) => html`<p class="busy" key=${one.process}>Requests wait at ${one.process}: ${one.waits.join(', ')}.</p>`)}
  <//>`;
}

function silent() {
  return state.nodes.filter((one) => one.state !== 'answers');
}

function Nodes() {
  const facts = (one, value) => (one.facts ? value(one.facts) : NONE);
  return html`<${Card} title="Nodes" wide=${true}>
    <${Table} label="Nodes" empty="" rows=${state.nodes.map((one) => ({ ...one, key: `${one.node} ${one.machine}` }))} columns=${[
      { title: 'Node', cell: (one) => html`${one.node}${one.own ? html` <span class="muted">this one</span>` : ''}` },
      { title: 'State', cell: (one) => html`<span class=${one.state === 'answers' ? 'good' : 'bad'}>${one.state}</span>` },
      { title: 'Processes', right: true, cell: (one) => facts(one, (found) => `${found.ready} of ${found.processes} ready`) },
      { title: 'Running', right: true, cell: (one) => facts(one, (found) => found.running) },
      { title: 'Models', rare: true, cell: (one) => facts(one, (found) => found.models.join(', ') || NONE) },
      { title: 'Release', rare: true, cell: (one) => one.version || NONE },
      { title: 'Clock', right: true, rare: true, cell: (one) => (one.own || one.clock_ms === null ? NONE : `${one.clock_ms >= 0 ? '+' : ''}${number(one.clock_ms)} ms`) },
      { title: 'Why', cell: (one) => one.why || NONE },
    ]} /><//>`;
}

function models() {
  const names = state.status.models;
  return names.length ? `, and ${names.length === 1 ? names[0] : `${names.length} models`} can be asked` : ', and no model can be asked';
}

// Frontends on the left, pools of workers on the right, an arrow to each pool.
class Picture extends Component {
  constructor() {
    super();
    this.state = { width: 900 };
    this.measure = (element) => {
      if (!element || this.sizes) return;
      this.sizes = new ResizeObserver(() => {
        const width = Math.max(300, element.clientWidth);
        if (Math.abs(width - this.state.width) > 4) this.setState({ width });
      });
      this.sizes.observe(element);
    };
  }

  componentWillUnmount() {
    if (this.sizes) this.sizes.disconnect();
  }

  render(_, { width }) {
    const { drawing, height, words } = draw(state.top ? state.top.processes : [], width);
    return html`<${Card} title="Fleet" wide=${true}>
      <div class="picture" ref=${this.measure} tabindex="0" role="region" aria-label="Picture of the fleet">
        ${state.top ? html`<svg width=${width} height=${height} role="group" aria-label=${words}>
          <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path class="head" d="M0 0 8 4 0 8Z" /></marker></defs>${drawing}</svg>`
          : html`<p class="empty">not known yet</p>`}
      </div><//>`;
  }
}

function draw(processes, width) {
  const frontends = processes.filter((one) => one.ingress);
  const workers = processes.filter((one) => one.worker);
  const others = processes.filter((one) => !one.ingress && !one.worker);
  const pools = new Map();
  for (const one of workers) {
    const row = rowOf(one);
    const name = `${one.graph} · ${one.components.join(', ')}`;
    const more = [row.role || one.worker.pool, ...(state.served[one.process] || [])].filter(Boolean);
    const key = [name, ...more].join(' · ');
    if (!pools.has(key)) pools.set(key, { title: (count) => [name, count, ...more].join(' · '), found: [] });
    pools.get(key).found.push(one);
  }
  if (others.length) pools.set('other processes', { title: (count) => `other processes · ${count}`, found: others });
  const narrow = width < 640;
  const left = narrow || !frontends.length ? 0 : TILE.width + 170;
  const drawing = [];
  const room = width - left - 2;
  const across = Math.max(1, Math.floor((room - TILE.gap) / (TILE.width + TILE.gap)));
  let y = narrow && frontends.length ? frontends.length * (TILE.height + TILE.gap) + 40 : 0;
  const middle = frontends.length * (TILE.height + TILE.gap) / 2;
  for (const [name, { title, found }] of pools) {
    const height = HEAD + Math.ceil(found.length / across) * (TILE.height + TILE.gap) + TILE.gap;
    const tokens = sum(found, (one) => one.worker && one.worker.tokens_per_second);
    const running = sum(found, (one) => one.worker && one.worker.running);
    const waiting = sum(found, (one) => one.worker && one.worker.waiting);
    drawing.push(html`<g key=${`pool ${name}`}>
      <rect class="pool" x=${left + 1} y=${y + 1} width=${room} height=${height - 2} rx="8" />
      <text class="title" x=${left + 14} y=${y + 25}>${short(title(found.length), room - 28)}</text></g>`);
    if (found[0].worker && frontends.length) {
      const to = y + Math.min(height / 2, 60);
      const ages = found.filter((one) => one.worker.running).map((one) => rowOf(one).progress_age || 0);
      const words = [`${number(tokens)} tokens/s`, `${running} running, ${waiting} waiting`,
        ages.length ? `progress ${seconds(Math.max(...ages))} ago` : ''].filter(Boolean);
      drawing.push(narrow ? html`<g key=${`way ${name}`}><text class="label" x="14" y=${y - 10}>${words.join(' · ')}</text></g>`
        : html`<g key=${`way ${name}`}>
          <path class=${tokens > 0 ? 'way busy' : 'way'} marker-end="url(#arrow)"
            d=${`M${TILE.width + 2} ${middle} C${TILE.width + 40} ${middle} ${TILE.width + 20} ${to} ${left - 2} ${to}`} />
          ${words.map((text, line) => html`<text class="label" text-anchor="end" x=${left - 16} y=${to + [-8, 17, 32][line]}>${text}</text>`)}</g>`);
    }
    found.forEach((one, index) => drawing.push(tile(one, left + TILE.gap + (index % across) * (TILE.width + TILE.gap),
      y + HEAD + Math.floor(index / across) * (TILE.height + TILE.gap))));
    y += height + (narrow ? 34 : 12);
  }
  for (const one of processes.length ? silent() : []) {
    drawing.push(html`<g key=${`silent ${one.node}`} class="silent">
      <rect class="pool" x=${left + 1} y=${y + 1} width=${room} height="38" rx="8" />
      <text class="title" x=${left + 14} y=${y + 25}>${short(`${one.node} · ${one.why || one.state}`, room - 28)}</text></g>`);
    y += 50;
  }
  frontends.forEach((one, index) => drawing.push(tile(one, 1, 1 + index * (TILE.height + TILE.gap))));
  if (!processes.length) drawing.push(html`<text class="label" x="10" y="30">no process runs</text>`);
  const height = Math.max(y, frontends.length * (TILE.height + TILE.gap), 60);
  const words = `${frontends.length} frontends, ${workers.length} workers in ${pools.size} groups; the page Workers has a table`;
  return { drawing, height, words };
}

function tile(one, x, y) {
  const state_ = one.answers || one.state !== 'Ready' ? one.state : 'Ready?';
  const worker = one.worker;
  const age = rowOf(one).progress_age;
  const own = one.process.split('/').pop();
  const name = one.node && one.ingress ? `${one.node}/${own}` : own;
  let line = state_;
  if (one.ingress && state_ === 'Ready') line = `${number(one.ingress.requests_per_second)} req/s · ${one.ingress.in_flight} open`;
  if (worker && state_ === 'Ready') line = `${worker.running} run · ${number(worker.tokens_per_second)} tok/s`;
  if (worker && worker.running && age > SLOW_S) line = `no progress for ${seconds(age)}`;
  const used = worker && worker.total_blocks ? worker.active_blocks / worker.total_blocks : null;
  const title = `${one.process}, ${state_}, pid ${one.pid}, up ${seconds(one.uptime)}, ${one.restarts} restarts`
    + (used === null ? '' : `, ${percent(used)} of the KV cache`) + (one.last_error ? `, ${one.last_error}` : '');
  return html`<a key=${one.process} href=${`#/workers/${encodeURIComponent(one.process)}`}>
    <g class=${`tile ${tone(state_)}`}><title>${title}</title>
      <rect x=${x} y=${y} width=${TILE.width} height=${TILE.height} rx="6" />
      <circle cx=${x + 12} cy=${y + 15} r="4" />
      <text class="name" x=${x + 22} y=${y + 19}>${short(name, TILE.width - 30)}</text>
      <text class="small" x=${x + 10} y=${y + 35}>${short(line, TILE.width - 14, 5.8)}</text>
      ${used !== null && html`<rect class="used" x=${x} y=${y + TILE.height - 4} width=${TILE.width * Math.min(1, used)} height="4" rx="2" />`}
    </g></a>`;
}

let known = { top: null, rows: new Map() };

// The row of `dynamo ps` of a process.
export function rowOf(process) {
  if (known.top !== state.top) {
    known = { top: state.top, rows: new Map(state.top.rows.map((row) => [row.process, row]).reverse()) }; // of several the first
  }
  return known.rows.get(process.process) || {};
}

function sum(found, value) {
  return found.reduce((whole, one) => whole + (value(one) || 0), 0);
}

function short(text, width, size = 6.6) {
  const most = Math.floor(width / size);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
