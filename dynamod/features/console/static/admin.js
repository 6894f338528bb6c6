// Keys and batches, for admins.

import { Card, clock, Component, html, NONE, number, State, Table } from './ui.js';
import { askJson, state } from './state.js';

const EVERY_MS = 3000;

export class Admin extends Component {
  constructor() {
    super();
    this.state = { keys: null, batches: null, why: '', lacks: '' };
    this.look = async () => {
      const admin = state.hello && state.hello.admin;
      if (!admin) return;
      try {
        this.setState({ keys: (await askJson('/v1/console/keys')).keys, why: '' });
      } catch (error) {
        this.setState({ why: error.message });
      }
      if (!state.hello.batches) return this.setState({ lacks: 'files and batches are off: `batches_dir` of the frontend names a folder for them' });
      try {
        this.setState({ batches: (await askJson('/v1/batches?limit=100')).data, lacks: '' });
      } catch (error) {
        this.setState({ lacks: error.message });
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

  render(_, { keys, batches, why, lacks }) {
    if (state.hello && !state.hello.admin) {
      return html`<${Card} title="Keys and batches" wide=${true}><p class="empty">This page needs ${state.hello.needs}.</p><//>`;
    }
    return html`<div class="grid">
      <${Card} title="Keys" wide=${true}>
        ${why && html`<p class="bad">${why}</p>`}
        <${Table} label="Keys" empty=${keys ? 'this frontend has no keys with names (client_keys_file)' : 'asking …'} rows=${(keys || []).map((one) => ({ ...one, key: one.name }))} columns=${[
          { title: 'Name', cell: (one) => one.name },
          { title: 'Admin', rare: true, cell: (one) => (one.admin ? 'yes' : 'no') },
          { title: 'Open', right: true, cell: (one) => of(one.open, one.inflight) },
          { title: 'Requests/min', right: true, cell: (one) => minute(one.minute.requests) },
          { title: 'Tokens/min', right: true, cell: (one) => minute(one.minute.tokens) },
          { title: 'Requests', right: true, rare: true, cell: (one) => number(one.requests) },
          { title: 'Prompt tokens', right: true, rare: true, cell: (one) => number(one.prompt_tokens) },
          { title: 'Answer tokens', right: true, rare: true, cell: (one) => number(one.completion_tokens) },
          { title: 'Refused', right: true, rare: true, cell: (one) => Object.values(one.refused).reduce((whole, count) => whole + count, 0) },
          { title: 'Models', rare: true, cell: (one) => (one.models ? one.models.join(', ') : 'all') },
        ]} />
      <//>
      <${Card} title="Batches" wide=${true}>
        ${lacks && html`<p class="muted">${lacks}</p>`}
        <${Table} label="Batches" empty=${batches ? 'no batch' : lacks ? '' : 'asking …'} rows=${(batches || []).map((one) => ({ ...one, key: one.id }))} columns=${[
          { title: 'Batch', cell: (one) => html`<span title=${one.id}>${one.id.slice(0, 14)}</span>` },
          { title: 'State', cell: (one) => html`<${State} word=${one.status} />` },
          { title: 'Created', rare: true, cell: (one) => clock(one.created_at) },
          { title: 'Progress', cell: (one) => html`<progress aria-label=${`Progress of ${one.id}`} max=${Math.max(1, one.request_counts.total)} value=${one.request_counts.completed + one.request_counts.failed}></progress>` },
          { title: 'Done', right: true, cell: (one) => `${one.request_counts.completed} / ${one.request_counts.total}` },
          { title: 'Failed', right: true, rare: true, cell: (one) => one.request_counts.failed },
          { title: 'Endpoint', rare: true, cell: (one) => one.endpoint },
        ]} />
      <//>
    </div>`;
  }
}

// What is used of a limit; it becomes free again with time.
function minute(found) {
  return found ? `${number(found.used)} / ${number(found.limit)}` : NONE;
}

function of(used, limit) {
  return limit ? `${used} / ${limit}` : used;
}
