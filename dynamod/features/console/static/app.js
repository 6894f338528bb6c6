// The page: navigation, connection, and one view at a time.

import { html, Component, render } from './ui.js';
import { key, run, setKey, state, subscribe, takeToken } from './state.js';
import { Overview } from './overview.js';
import { Requests } from './requests.js';
import { Models } from './models.js';
import { Chat } from './chat.js';
import { Workers } from './workers.js';
import { Planner } from './planner.js';
import { Admin } from './admin.js';

const VIEWS = [
  ['overview', 'Overview', Overview],
  ['requests', 'Requests', Requests],
  ['models', 'Models', Models],
  ['chat', 'Chat', Chat],
  ['workers', 'Workers', Workers],
  ['planner', 'Planner', Planner],
  ['admin', 'Keys and batches', Admin],
];

const WORDS = { connecting: 'connecting …', live: 'live', lost: 'connection lost', key: 'key needed', refused: 'refused' };

class App extends Component {
  constructor() {
    super();
    this.state = { place: place() };
  }

  componentDidMount() {
    subscribe(() => this.setState({}));
    addEventListener('hashchange', () => {
      this.setState({ place: place() });
      scrollTo(0, 0);
    });
    run();
  }

  render(_, { place: [name, detail] }) {
    const found = VIEWS.find((one) => one[0] === name) || VIEWS[0];
    const View = found[2];
    const blocked = state.connection === 'key' || state.connection === 'refused';
    return html`
      <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
      <header class="top">
        <strong>dynamod</strong>
        <nav aria-label="Pages">${VIEWS.map(([one, title]) => html`
          <a href=${`#/${one}`} aria-current=${one === found[0] ? 'page' : undefined}>${title}</a>`)}</nav>
        <span class="where">${state.top ? state.top.node : ''}</span>
        <span class=${`connection ${state.connection}`} role="status">${WORDS[state.connection]}</span>
        ${key() && !blocked && html`<button class="quiet" onClick=${() => setKey('')}>Forget key</button>`}
      </header>
      ${state.connection === 'lost' && html`<p class="banner" role="alert">The connection is lost: ${state.why}. What is
        shown is old. The console tries again every second.</p>`}
      <main id="main" tabindex="-1" class=${state.connection === 'lost' ? 'old' : ''}>
        <h1 class="hidden">${found[1]}</h1>
        ${blocked ? html`<${Entry} />` : html`<${View} detail=${detail} />`}
      </main>`;
  }
}

class Entry extends Component {
  render() {
    if (state.connection === 'refused') return html`<section class="card narrow"><h2>Not from here</h2><p>${state.why}</p></section>`;
    const send = (event) => {
      event.preventDefault();
      setKey(new FormData(event.target).get('key').trim());
    };
    return html`<section class="card narrow"><h2>API key</h2>
      <form class="entry" onSubmit=${send}>
        <label>Key <input name="key" type="password" autocomplete="off" required /></label>
        <button class="primary">Open</button>
      </form>
      <p class="muted">${key() ? state.why : 'The key stays in this tab. It is sent to this server only.'}</p></section>`;
  }
}

function place() {
  const parts = location.hash.replace(/^#\/?/, '').split('/');
  let detail = parts.slice(1).join('/');
  try {
    detail = decodeURIComponent(detail);
  } catch { /* somebody typed a % */ }
  return [parts[0] || 'overview', detail];
}

function skip(event) {
  event.preventDefault();
  document.getElementById('main').focus();
}

takeToken();
render(html`<${App} />`, document.getElementById('app'));
