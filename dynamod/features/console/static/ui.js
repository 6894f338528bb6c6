// Building blocks. Whatever comes from outside becomes text nodes and attributes, never HTML.

import { h, Component, createRef, render } from './vendor/preact.mjs';
import htm from './vendor/htm.mjs';

const { uPlot } = window; // a script of its own in index.html: the package has modules only with comments

export const html = htm.bind(h);
export { Component, createRef, render };

export const NONE = '–';

export function number(value, digits = 1) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  return size >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(digits);
}

export function ms(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value >= 60000) return `${(value / 60000).toFixed(1)} min`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return `${value.toFixed(value >= 100 || value === 0 ? 0 : value >= 1 ? 1 : 2)} ms`;
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor(value / 60) % 60} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor(value / 3600) % 24} h`;
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 2 ** 30) return `${(value / 2 ** 30).toFixed(1)} GiB`;
  return `${(value / 2 ** 20).toFixed(value < 10 * 2 ** 20 ? 1 : 0)} MiB`;
}

export function clock(time) {
  return new Date(time * 1000).toLocaleTimeString([], { hour12: false });
}

// A name that may go on in the next line behind each slash.
export function broken(name) {
  return name.split('/').map((part, index) => html`${index ? html`/<wbr />` : ''}${part}`);
}

export function percent(value) {
  return value === null || value === undefined ? NONE : `${(value * 100).toFixed(0)} %`;
}

export function tone(word) {
  if (word === 'Ready' || word === 'ready' || word === 'completed') return 'good';
  if (['Draining', 'Starting', 'Ready?', 'loading', 'in_progress', 'validating'].includes(word)) return 'busy';
  return word === 'Stopped' || word === 'unloaded' ? 'idle' : 'bad';
}

export function State({ word }) {
  return html`<span class=${`state ${tone(word)}`}>${word}</span>`;
}

export function Card({ title, children, wide, actions, id }) {
  return html`<section class=${wide ? 'card wide' : 'card'} id=${id}>
    <header><h2>${title}</h2>${actions}</header>${children}
  </section>`;
}

// A table: columns are {title, cell(row), right, rare}.
export function Table({ columns, rows, empty, label }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>${columns.map((one) => html`<th scope="col" class=${style(one)}>${one.title}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key} class=${row.mark || ''}>
      ${columns.map((one) => html`<td class=${style(one)}>${one.cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

function style(column) {
  return `${column.right ? 'right' : ''} ${column.rare ? 'rare' : ''}`;
}

// A list of any length whose visible rows alone are in the page. `row(item, index)` gives a line of HEIGHT pixels.
export class VirtualList extends Component {
  constructor() {
    super();
    this.state = { first: 0, shown: 30 };
    this.box = createRef();
    this.look = () => {
      const box = this.box.current;
      if (!box) return;
      const first = Math.max(0, Math.floor(box.scrollTop / VirtualList.HEIGHT) - 5);
      const shown = Math.ceil(box.clientHeight / VirtualList.HEIGHT) + 10;
      if (first !== this.state.first || shown !== this.state.shown) this.setState({ first, shown });
    };
  }

  componentDidMount() {
    this.look();
    this.sizes = new ResizeObserver(this.look);
    this.sizes.observe(this.box.current);
  }

  componentWillUnmount() {
    this.sizes.disconnect();
  }

  render({ items, row, head, label }, { first, shown }) {
    const start = Math.min(first, Math.max(0, items.length - shown));
    const visible = items.slice(start, start + shown);
    const below = items.length - start - visible.length;
    return html`<div class="listbox" tabindex="0" role="region" aria-label=${label} ref=${this.box} onScroll=${this.look}
      style=${{ height: `min(60vh, ${Math.min(items.length + 1, 17) * VirtualList.HEIGHT + 2}px)` }}>
      <div role="table" aria-label=${label} aria-rowcount=${items.length + 1}>
        <div role="rowgroup" class="listhead">${head}</div>
        <div role="rowgroup">
          <div style=${{ height: `${start * VirtualList.HEIGHT}px` }} aria-hidden="true"></div>
          ${visible.map((item, index) => row(item, start + index))}
          <div style=${{ height: `${below * VirtualList.HEIGHT}px` }} aria-hidden="true"></div>
        </div>
      </div>
    </div>`;
  }
}
VirtualList.HEIGHT = 32;

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600]; // between two times of an axis

function times(plot, ticks) {
  const short = plot.scales.x.max - plot.scales.x.min > 600;
  return ticks.map((one) => clock(one).slice(0, short ? 5 : 8));
}

// One chart over time. `data`: [times, values, ...]; `series`: [{label, color, dots}]; `text(value)`: of the axis.
export class Chart extends Component {
  constructor() {
    super();
    this.box = createRef();
  }

  componentDidMount() {
    this.draw = () => {
      if (this.plot) this.plot.destroy();
      const box = this.box.current;
      const look = getComputedStyle(document.documentElement);
      const color = (name) => look.getPropertyValue(name).trim();
      const axis = { stroke: color('--muted'), grid: { stroke: color('--line'), width: 1 }, ticks: { show: false },
        font: '11px system-ui, sans-serif' };
      this.plot = new uPlot({
        width: Math.max(80, box.clientWidth), height: this.props.height || 110, cursor: { y: false },
        legend: { show: false }, scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
        axes: [{ ...axis, size: 22, space: 70, values: times, incrs: STEPS_S }, { ...axis, size: 50, values: (_, found) => found.map((one) => (this.props.text || number)(one)) }],
        series: [{}, ...this.props.series.map((one) => ({
          label: one.label, stroke: color(one.color), width: 1.5, spanGaps: false,
          points: { show: Boolean(one.dots), size: 4, width: 1, fill: color(one.color) },
        }))],
      }, this.props.data, box);
    };
    this.draw();
    this.sizes = new ResizeObserver(() => {
      const width = Math.max(80, this.box.current.clientWidth);
      if (this.plot.width !== width) this.plot.setSize({ width, height: this.props.height || 110 });
    });
    this.sizes.observe(this.box.current);
    this.dark = matchMedia('(prefers-color-scheme: dark)');
    this.dark.addEventListener('change', this.draw);
  }

  componentDidUpdate() {
    this.plot.setData(this.props.data);
  }

  componentWillUnmount() {
    this.sizes.disconnect();
    this.dark.removeEventListener('change', this.draw);
    this.plot.destroy();
  }

  render({ label }) {
    return html`<div class="chart" role="img" aria-label=${label}><div ref=${this.box}></div></div>`;
  }
}

// Asks before something changes, and says how the change went.
export class Action extends Component {
  constructor() {
    super();
    this.state = { working: false, said: '', bad: false };
    this.dialog = createRef();
    this.begin = () => {
      if (this.props.confirm) this.dialog.current.showModal();
      else this.go();
    };
    this.go = async () => {
      this.setState({ working: true, said: '' });
      try {
        const said = await this.props.run();
        this.setState({ working: false, said: said || 'done', bad: false });
      } catch (error) {
        this.setState({ working: false, said: error.message, bad: true });
      }
    };
  }

  render({ label, confirm, disabled, title, name }, { working, said, bad }) {
    return html`<span class="action">
      <button type="button" disabled=${disabled || working} title=${title} aria-label=${name} onClick=${this.begin}>
        ${working ? `${label} …` : label}</button>
      ${said && html`<span role="status" class=${bad ? 'said bad' : 'said'}>${said}</span>`}
      ${confirm && html`<dialog ref=${this.dialog} aria-label=${label}><form method="dialog">
        <p>${confirm}</p><div class="buttons">
          <button value="no">Cancel</button>
          <button class="primary" value="yes" onClick=${() => this.go()}>${label}</button></div></form></dialog>`}
    </span>`;
  }
}

export function Copy({ text }) {
  return html`<pre class="code" tabindex="0">${text}</pre>`;
}
