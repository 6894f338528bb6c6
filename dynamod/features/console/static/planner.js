// Planner: what each pool should have and has, over time, and why.

import { Action, Card, Chart, clock, Component, html, NONE, number, Table } from './ui.js';
import { askJson, change, state } from './state.js';

const EVERY_MS = 3000;

export class Planner extends Component {
  constructor() {
    super();
    this.state = { pools: null, why: '' };
    this.look = async () => {
      try {
        this.setState({ pools: await askJson('/v1/console/ask/planner'), why: '' });
      } catch (error) {
        this.setState({ why: error.message });
      }
    };
  }

  componentDidMount() {
    this.look();
    this.timer = setInterval(this.look, EVERY_MS);
  }

  componentWillUnmount() {
    clearInterval(this.timer);
  }

  render(_, { pools, why }) {
    const admin = state.hello && state.hello.admin;
    return html`<div class="grid">
      ${why && html`<p class="banner wide" role="alert">${why}</p>`}
      ${pools && !pools.length && html`<${Card} title="Planner" wide=${true}><p class="empty">No planner runs. A graph with
        one scales its workers with the load, for example graphs.agg_planner:Frontend.</p><//>`}
      ${(pools || []).map((pool) => html`<${Pool} pool=${pool} key=${pool.process + pool.component} admin=${admin} look=${this.look} />`)}
    </div>`;
  }
}

function Pool({ pool, admin, look }) {
  const records = pool.records || [];
  const data = [records.map((one) => one.at), records.map((one) => (one.tick ? one.tick.target : null)), records.map((one) => one.ready)];
  const steer = (action) => async () => {
    await change('plan', { action, component: pool.component });
    await look();
    return 'done';
  };
  const actions = admin && html`<span class="buttons">
    <${Action} label="Pause" run=${steer('pause')} /><${Action} label="Resume" run=${steer('resume')} /></span>`;
  const rows = records.slice(-20).reverse().map((one, index) => ({ ...one, key: index }));
  return html`<${Card} title=${`${pool.component} of ${pool.process}`} wide=${true} actions=${actions}>
    <p>State <b>${pool.state}</b>, ${pool.min} to ${pool.max} workers${pool.in_progress ? ', a change is in progress' : ''}.</p>
    ${records.length > 1 && html`<${Chart} height=${150} label="Workers wanted and ready over time" data=${data}
      series=${[{ label: 'wanted', color: '--orange' }, { label: 'ready', color: '--blue' }]} />
      <p class="legend"><i class="orange"></i> wanted <i class="blue"></i> ready</p>`}
    <${Table} label="Last decisions" empty="no tick yet" rows=${rows} columns=${[
      { title: 'Time', cell: (one) => clock(one.at) },
      { title: 'Ready', right: true, cell: (one) => one.ready },
      { title: 'Starting', right: true, rare: true, cell: (one) => one.starting },
      { title: 'Wanted', right: true, cell: (one) => (one.tick ? one.tick.target : NONE) },
      { title: 'Forecast', right: true, rare: true, cell: (one) => (one.tick ? one.tick.forecast : NONE) },
      { title: 'Arrived', right: true, rare: true, cell: (one) => number(one.arrived) },
      { title: 'Queued tokens', right: true, rare: true, cell: (one) => number(one.queued) },
      { title: 'Why', cell: (one) => why(one) },
    ]} />
  <//>`;
}

function why(one) {
  const done = one.replicas === null || one.replicas === undefined ? '' : `now ${one.replicas} processes`;
  return [one.tick && one.tick.reason, one.switched, one.refused, done, one.last_error].filter(Boolean).join(', ') || NONE;
}
