// Held, active and idle GPU-hours of each user, for today and the last days.
import { html, classes } from '../html.js';
import { Absent, Bar, Choice, Hidden, isHidden, Section, swatches } from '../parts.js';
import { hours, kilowattHours, mass, money, percent } from '../format.js';
import { ownersByAccount } from '../owners.js';

export const PERIODS = [
  ['today', 'Today'],
  ['7d', '7 days'],
  ['30d', '30 days'],
];

export function Accounts({ document, period, lit, onPick, onFocus }) {
  const { accounts } = document;
  const hidden = isHidden(document, 'accounts');
  if (!accounts || !accounts[period]) {
    return html`<${Section} id="accounts" title="Accounts">
      ${
        hidden
          ? html`<${Hidden} document=${document} section="accounts" />`
          : accounts
            ? html`<p class="quiet">The ledger is empty.</p>`
            : html`<${Absent} document=${document} source="accounts" otherwise="No ledger is kept on this node." />`
      }
    </${Section}>`;
  }
  const shown = accounts[period];
  // The user with most idle time comes first.
  const users = Object.keys(shown.users).sort(
    (a, b) => shown.users[b].idle_gpu_hours - shown.users[a].idle_gpu_hours || (a < b ? -1 : 1),
  );
  const owners = ownersByAccount(document);
  const most = Math.max(...users.map((user) => shown.users[user].idle_gpu_hours), 0);
  return html`<${Section}
    id="accounts"
    title="Accounts"
    note="GPU-hours by user, most idle first"
    word="held"
    tools=${html`<${Choice} label="period" options=${PERIODS} value=${period} onPick=${onPick} />`}
  >
    <div class="scroll rolled" tabindex="0" role="region" aria-label="GPU-hours by user">
      <table class="rows accounts">
        <caption class="hidden">GPU-hours, energy and cost by user, ${period}</caption>
        <thead>
          <tr>
            <th scope="col">User</th>
            <th scope="col" class="number">Held</th>
            <th scope="col" class="number spare">Active</th>
            <th scope="col" class="number">Idle</th>
            <th scope="col" class="number">Used</th>
            <th scope="col" class="wide">Idle share</th>
            ${
              'cost' in shown.total &&
              html`<th scope="col" class="number">Cost${shown.currency ? ' ' + shown.currency : ''}</th>`
            }
            <th scope="col" class="number">Whole GPUs</th>
            <th scope="col" class="number">Energy</th>
            ${'co2_g' in shown.total && html`<th scope="col" class="number">CO₂</th>`}
          </tr>
        </thead>
        <tbody>
          ${users.map(
            (user) =>
              html`<${User}
                key=${user}
                name=${user}
                row=${shown.users[user]}
                most=${most}
                owners=${owners.get(user) || [user]}
                lit=${lit}
                onFocus=${onFocus}
              />`,
          )}
        </tbody>
        <tfoot><${User} name=${hidden ? 'your total' : 'total'} row=${shown.total} total=${true} /></tfoot>
      </table>
    </div>
    ${!('cost' in shown.total) && html`<p class="quiet">No price is set (accounts.price_per_gpu_hour), so no cost is shown.</p>`}
    ${shown.total.unpriced_gpu_hours > 0 && html`<p class="quiet">Without a price: ${hours(shown.total.unpriced_gpu_hours)}.</p>`}
    <${Hidden} document=${document} section="accounts" />
    ${
      !users.length &&
      html`<p class="quiet">${hidden ? 'You held no GPU in this period.' : 'No GPU was held in this period.'}</p>`
    }
  </${Section}>`;
}

function User({ name, row, most, total, owners, lit, onFocus }) {
  const used = row.held_gpu_hours ? row.active_gpu_hours / row.held_gpu_hours : null;
  const bright = lit && !total && lit.accounts.has(name);
  const focus = () => onFocus({ by: 'user', id: name, label: name });
  return html`<tr
    class=${classes(bright && 'lit', lit && !bright && 'dim')}
    data-user=${total ? undefined : name}
    data-total=${total ? 'yes' : undefined}
  >
    <th scope="row" class="name">
      ${
        total
          ? html`<bdi>${name}</bdi>`
          : html`<div>${swatches(owners)}<button type="button" onClick=${focus}><bdi>${name}</bdi></button></div>`
      }
    </th>
    <td class="number" data-f="held_gpu_hours">${hours(row.held_gpu_hours)}</td>
    <td class="number spare" data-f="active_gpu_hours">${hours(row.active_gpu_hours)}</td>
    <td class="number" data-f="idle_gpu_hours">${hours(row.idle_gpu_hours)}</td>
    <td class="number">${percent(used)}</td>
    <td class="wide">
      ${!total && html`<${Bar} ratio=${most ? row.idle_gpu_hours / most : 0} level="warn" />`}
    </td>
    ${'cost' in row && html`<td class="number" data-f="cost">${money(row.cost)}</td>`}
    <td class="number" data-f="gpu_equivalent_hours">${hours(row.gpu_equivalent_hours)}</td>
    <td class="number" data-f="energy_kwh">${kilowattHours(row.energy_kwh)}</td>
    ${'co2_g' in row && html`<td class="number" data-f="co2_g">${mass(row.co2_g)}</td>`}
  </tr>`;
}
