// SPDX-License-Identifier: Apache-2.0
// host/page/page.js: asks consortd once a second what is new and shows it. No library, nothing from
// elsewhere. ASCII only.
//
// What the daemon gives (host/daemon/page.h): the state as it is, samples of device time by tenant
// and by device, and events. Rates of applications are differences of their counters over the last
// answers. Text of guests only ever becomes text nodes.
"use strict";

const POLL_MS = 1000;
const LOST_AFTER_MS = 5000;
const FINE_KEPT = 600;
const COARSE_KEPT = 1440;
const EVENTS_SHOWN = 60;
// Rates of applications are over so many answers.
const NOW_ANSWERS = 3;
const COLOURS = 7; // --t7 is for the tenants beyond
const MANY_DEVICES = 12;
// Rows of a table until a person wants more; of applications consortd gives the busiest 200.
const TENANTS_AT_FIRST = 12;
const SESSIONS_AT_FIRST = 20;
const EVENTS_AT_FIRST = 12;

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

const state = {
  started: null, // of the daemon whose data we have
  fine: [],
  coarse: [],
  events: [],
  event: 0,
  status: null,
  answers: [], // {at, sessions: Map of id to its counters}, the latest last
  open: 0, // applications
  found: 0, // of them, those that are looked for
  asked: 0,
  answered: 0,
  range: "fine",
  device: null, // applications of this one only
  find: "", // applications with this text only
  allTenants: false,
  allSessions: false,
  allEvents: false,
  sort: { key: "use", down: true },
  cursor: null, // sample under the cursor, counted from the latest; null: none
  colours: new Map(),
};

// --- Small tools

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function percent(share, digits = 0) {
  return (100 * share).toFixed(digits) + "\u2009%";
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(digits) + "\u2009" + units[unit];
}

function duration(seconds) {
  if (seconds < 60) return Math.max(0, Math.floor(seconds)) + "\u2009s";
  if (seconds < 3600) return Math.floor(seconds / 60) + "\u2009min";
  if (seconds < 172800) return Math.floor(seconds / 3600) + "\u2009h";
  return Math.floor(seconds / 86400) + "\u2009d";
}

function count(number, one, many) {
  return number + "\u00a0" + (number === 1 ? one : many);
}

function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

// A tenant keeps its colour while the page is open; those beyond COLOURS share one.
function colourIndex(tenant) {
  if (!state.colours.has(tenant)) state.colours.set(tenant, state.colours.size);
  return Math.min(state.colours.get(tenant), COLOURS);
}

function colour(tenant) {
  return `var(--t${colourIndex(tenant)})`;
}

function busiestFirst(tenants) {
  return [...tenants].sort((a, b) => b.device_seconds - a.device_seconds || (a.tenant < b.tenant ? -1 : 1));
}

// --- What is known

function take(answer) {
  const status = answer.status;
  if (state.started !== status.started + "/" + status.pid) {
    if (state.started !== null) {
      // Another daemon: its numbers begin anew.
      Object.assign(state, { started: null, fine: [], coarse: [], events: [], event: 0, answers: [] });
      return false;
    }
    state.started = status.started + "/" + status.pid;
  }
  state.status = status;
  state.open = answer.sessions_open;
  state.found = answer.sessions_found;
  state.fine = state.fine.concat(answer.fine).slice(-FINE_KEPT);
  state.coarse = state.coarse.concat(answer.coarse).slice(-COARSE_KEPT);
  if (answer.events.length > 0) {
    state.event = answer.events[answer.events.length - 1].number;
    // One that repeated comes again, with a new number.
    const again = new Set(answer.events.filter((event) => event.times > 1).map((event) => event.text));
    const newest = Date.now() / 1000 - 120;
    state.events = state.events
      .filter((event) => !(again.has(event.text) && event.time > newest))
      .concat(answer.events)
      .slice(-EVENTS_SHOWN);
  }
  state.answers.push({ at: answer.now_ms, sessions: new Map(status.sessions.map((session) => [session.id, session])) });
  if (state.answers.length > NOW_ANSWERS) state.answers.shift();
  for (const tenant of busiestFirst(status.tenants)) colour(tenant.tenant);
  return true;
}

// [used, target] of each tenant over the last second, in device seconds a second.
function tenantsNow() {
  const busy = devicesNow();
  const sums = new Map();
  for (const share of state.status.shares) {
    const [used, target] = sums.get(share.tenant) || [0, 0];
    sums.set(share.tenant, [used + share.busy, target + (share.target || 0) * busy[share.device]]);
  }
  return sums;
}

// The part of each device's last second in which it was used.
function devicesNow() {
  const busy = state.status.devices.map(() => 0);
  for (const share of state.status.shares) busy[share.device] += share.busy;
  return busy.map((part) => Math.min(1, part));
}

// What a session did lately, a second.
function rates(session) {
  const before = state.answers.find((answer) => answer.sessions.has(session.id));
  const now = state.answers[state.answers.length - 1];
  const zero = { device: 0, queued: 0, into: 0, out: 0, kernels: 0, calls: 0 };
  if (!before || before === now || now.at <= before.at) return zero;
  const old = before.sessions.get(session.id);
  const seconds = (now.at - before.at) / 1000;
  const rate = (key) => Math.max(0, session[key] - old[key]) / seconds;
  return {
    device: Math.min(1, rate("device_seconds")),
    queued: rate("queued_seconds"),
    into: rate("bytes_to_device"),
    out: rate("bytes_to_host"),
    kernels: rate("kernel_launches"),
    calls: rate("calls"),
  };
}

function phase(rate) {
  if (rate.queued > rate.device && rate.queued > 0.05) return "waiting";
  if (rate.kernels > 0 || rate.device > 0.5) return "computing";
  if (rate.into > 0 && rate.into >= rate.out) return "copying in";
  if (rate.out > 0) return "copying out";
  return rate.calls > 0 || rate.device > 0.01 ? "calling" : "idle";
}

// --- Summary

function showSummary() {
  const status = state.status;
  const busy = devicesNow();
  const ready = status.devices.filter((device) => device.state === "ready").length;
  const mean = busy.reduce((a, b) => a + b, 0) / (busy.length || 1);
  const held = status.devices.reduce((sum, device) => sum + device.memory_used_bytes, 0);
  const all = status.devices.reduce((sum, device) => sum + (device.memory_total_bytes || 0), 0);
  setText($("node"), status.node);
  const title = "Consort on " + status.node;
  if (document.title !== title) document.title = title;
  setText($("sum-busy"), percent(mean));
  setText($("sum-devices"), `${ready} of ${count(status.devices.length, "device", "devices")} ready`);
  setText($("sum-memory"), bytes(held));
  setText($("sum-memory-total"), "of " + bytes(all));
  setText($("sum-applications"), String(state.open));
  const tenants = status.tenants.filter((tenant) => tenant.sessions > 0).length;
  setText($("sum-tenants"), "of " + count(tenants, "tenant", "tenants"));
  setText($("sum-vms"), String(status.vms.length));
  setText($("sum-windows"), `${status.windows_used} of ${status.windows_max} windows used`);
  setText($("foot"), `consortd ${status.version}, policy ${status.policy}, up ` +
    duration(state.answers[state.answers.length - 1].at / 1000 - status.started));
}

// --- Devices

function makeDevice(index) {
  const svg = shape("svg", { viewBox: "0 0 100 34", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(shape("path", { class: "spark" }), shape("path", { class: "sparkline" }));
  const tile = element("button", { type: "button", class: "device", "aria-pressed": "false", tabindex: index === 0 ? "0" : "-1" },
    element("span", { class: "name" }, element("b", {}, String(index)), element("span", { class: "model" }), element("span", { class: "dot" })),
    element("span", { class: "busy" }), svg, element("span", { class: "stack" }),
    element("span", { class: "memory" }, element("span", { class: "held" }), element("span", { class: "count" })));
  tile.addEventListener("click", () => {
    state.device = state.device === index ? null : index;
    show();
    poll();
  });
  return tile;
}

function sparkPath(values, width, height, top) {
  const step = width / Math.max(1, values.length - 1);
  return values.map((value, i) =>
    `${i === 0 ? "M" : "L"}${(i * step).toFixed(2)},${(height - Math.min(1, value / top) * height).toFixed(2)}`).join("");
}

function showDevices() {
  const box = $("devices");
  const devices = state.status.devices;
  const busy = devicesNow();
  while (box.children.length > devices.length) box.lastChild.remove();
  while (box.children.length < devices.length) box.append(makeDevice(box.children.length));
  box.classList.toggle("many", devices.length > MANY_DEVICES);
  const users = devices.map(() => new Array(COLOURS + 1).fill(0)); // by colour, how busy they keep it
  for (const share of state.status.shares) users[share.device][colourIndex(share.tenant)] += share.busy;
  const minute = state.fine.slice(-60);
  devices.forEach((device, i) => {
    const tile = box.children[i];
    tile.dataset.state = device.state;
    tile.setAttribute("aria-pressed", String(state.device === i));
    setText(tile.querySelector(".model"), device.model || device.state);
    const number = tile.querySelector(".busy");
    const text = device.state === "ready" ? percent(busy[i]) : device.state;
    if (number.dataset.text !== text) {
      number.dataset.text = text;
      number.replaceChildren(text, ...(device.state === "ready" ? [element("small", {}, " busy")] : []));
    }
    const line = sparkPath(minute.map((sample) => sample.devices[i] || 0), 100, 32, 1);
    tile.querySelector(".sparkline").setAttribute("d", line);
    tile.querySelector(".spark").setAttribute("d", line ? line + "L100,34L0,34Z" : "");
    fillStack(tile.querySelector(".stack"), users[i]);
    setText(tile.querySelector(".held"), `${bytes(device.memory_used_bytes)} held`);
    setText(tile.querySelector(".count"), count(device.sessions, "application", "applications"));
    const label = `Device ${i}, ${device.model || "no model yet"}, ${device.state}, ${percent(busy[i])} busy, ` +
      `${bytes(device.memory_used_bytes)} held, ${count(device.sessions, "application", "applications")}`;
    if (tile.getAttribute("aria-label") !== label) tile.setAttribute("aria-label", label);
  });
}

function fillStack(stack, users) {
  if (stack.children.length === 0) {
    for (let i = 0; i <= COLOURS; ++i) {
      stack.append(element("i"));
      stack.lastChild.style.background = `var(--t${i})`;
    }
  }
  users.forEach((busy, i) => {
    const width = (100 * Math.min(1, busy)).toFixed(1) + "%";
    if (stack.children[i].style.width !== width) stack.children[i].style.width = width;
  });
}

function moveInDevices(event) {
  const tiles = [...$("devices").children];
  const here = tiles.indexOf(document.activeElement);
  if (here < 0) return;
  const perRow = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length;
  const to = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: here + perRow, ArrowUp: here - perRow, Home: 0, End: tiles.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const next = tiles[Math.max(0, Math.min(tiles.length - 1, to))];
  for (const tile of tiles) tile.tabIndex = tile === next ? 0 : -1;
  next.focus();
}

// --- Device time by tenant

function samples() {
  return state.range === "fine" ? state.fine : state.coarse;
}

function showPlot() {
  const box = $("plot");
  const width = box.clientWidth;
  const height = box.clientHeight;
  const left = 38;
  const bottom = 20;
  const right = 4;
  const top = 6;
  const kept = state.range === "fine" ? FINE_KEPT : COARSE_KEPT;
  const shown = samples();
  const devices = state.status.devices.length;
  const x = (fromLast) => width - right - (fromLast / (kept - 1)) * (width - left - right);
  const y = (share) => top + (1 - Math.min(1, share)) * (height - top - bottom);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(shape("line", { class: "rule", x1: left, x2: width - right, y1: y(share), y2: y(share) }));
    if (share * 2 === Math.floor(share * 2)) {
      const text = shape("text", { x: left - 8, y: y(share) + 4, "text-anchor": "end" });
      text.textContent = percent(share);
      svg.append(text);
    }
  }
  const ends = state.range === "fine" ? ["10 min ago", "5 min", "now"] : ["24 h ago", "12 h", "now"];
  ends.forEach((label, i) => {
    const text = shape("text", { x: i === 0 ? left : i === 1 ? x((kept - 1) / 2) : width - right, y: height - 3, "text-anchor": ["start", "middle", "end"][i] });
    text.textContent = label;
    svg.append(text);
  });
  // An area a colour: of what each sample has, the sums.
  const used = shown.map((sample) => {
    const sums = new Array(COLOURS + 1).fill(0);
    for (const [name, [share]] of Object.entries(sample.tenants)) sums[colourIndex(name)] += share / devices;
    return sums;
  });
  const base = shown.map(() => 0);
  for (let index = 0; index <= COLOURS; ++index) {
    if (!used.some((sums) => sums[index] > 0)) continue;
    const upper = [];
    const lower = [];
    used.forEach((sums, i) => {
      const at = x(shown.length - 1 - i).toFixed(1);
      lower.push(`L${at},${y(base[i]).toFixed(1)}`);
      base[i] += sums[index];
      upper.push(`${i === 0 ? "M" : "L"}${at},${y(base[i]).toFixed(1)}`);
    });
    const area = shape("path", { class: "area", d: upper.join("") + lower.reverse().join("") + "Z" });
    area.style.fill = `var(--t${index})`;
    svg.append(area);
  }
  if (state.cursor !== null && state.cursor < shown.length) {
    svg.append(shape("line", { class: "cursor", x1: x(state.cursor), x2: x(state.cursor), y1: top, y2: height - bottom }));
  }
  box.replaceChildren(svg);
  box.setAttribute("aria-label", `Device time by tenant over the last ${state.range === "fine" ? "10 minutes" : "24 hours"}, ` +
    "as a share of all devices. Arrow keys read single moments.");
  sayPlot(shown, devices);
}

function sayPlot(shown, devices) {
  const say = $("plot-say");
  const at = state.cursor !== null && state.cursor < shown.length ? shown[shown.length - 1 - state.cursor] : null;
  const parts = [];
  if (at !== null) {
    parts.push(clock(at.time_ms));
    const used = Object.entries(at.tenants).sort((a, b) => b[1][0] - a[1][0]);
    for (const [name, [share, target]] of used.slice(0, 8)) {
      parts.push(`${name} ${percent(share / devices, 1)} (target ${percent(target / devices, 1)})`);
    }
    if (used.length === 0) parts.push("no device time");
  }
  setText(say, at === null ? "Point at the plot, or choose it and use the arrow keys, to read a moment." : parts.join(" \u00b7 "));
}

function pointAtPlot(event) {
  const box = $("plot").getBoundingClientRect();
  const kept = state.range === "fine" ? FINE_KEPT : COARSE_KEPT;
  const fromLast = Math.round(((box.right - 4 - event.clientX) / (box.width - 42)) * (kept - 1));
  state.cursor = fromLast >= 0 && fromLast < samples().length ? fromLast : null;
  showPlot();
}

function moveInPlot(event) {
  const last = samples().length - 1;
  if (last < 0) return;
  const here = state.cursor === null ? -1 : state.cursor;
  const to = { ArrowLeft: here + 1, ArrowRight: here - 1, PageUp: here + 60, PageDown: here - 60, Home: last, End: 0, Escape: -1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  state.cursor = event.key === "Escape" ? null : Math.max(0, Math.min(last, to));
  showPlot();
}

function choose(range) {
  state.range = range;
  state.cursor = null;
  for (const name of ["fine", "coarse"]) $("range-" + name).setAttribute("aria-pressed", String(name === range));
  show();
}

// --- Tenants

function makeTenant(name) {
  const svg = shape("svg", { class: "line", viewBox: "0 0 130 30", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(shape("path", { class: "target" }), shape("path", { class: "used" }));
  const cell = (kind, ...children) => element("td", { class: kind, role: "cell" }, ...children);
  const row = element("tr", { role: "row" },
    cell("name", element("span", { class: "who" }, element("span", { class: "swatch" }), element("span", {}, name))),
    cell("weight n"), cell("share", element("div", { class: "bar", "aria-hidden": "true" }, element("i"), element("u"))),
    cell("now n"), cell("target n"), cell("over", svg), cell("held n"), cell("count n"));
  row.dataset.name = name;
  row.querySelector(".swatch").style.background = colour(name);
  row.querySelector(".bar i").style.background = colour(name);
  row.querySelector(".line .used").style.stroke = colour(name);
  return row;
}

// Puts rows in this order, keeping those that are there.
function arrange(body, names, make) {
  const rows = new Map([...body.children].map((row) => [row.dataset.name, row]));
  names.forEach((name, i) => {
    const row = rows.get(name) || make(name);
    rows.delete(name);
    if (body.children[i] !== row) body.insertBefore(row, body.children[i] || null);
  });
  for (const row of rows.values()) row.remove();
}

function showTenants() {
  const now = tenantsNow();
  const all = [...now.values()].reduce((sum, [used]) => sum + used, 0);
  const every = state.status.tenants;
  const few = every.length <= TENANTS_AT_FIRST;
  const tenants = few || state.allTenants ? [...every] : busiestFirst(every).slice(0, TENANTS_AT_FIRST);
  tenants.sort((a, b) => a.tenant < b.tenant ? -1 : 1);
  $("more-tenants").hidden = few;
  setText($("more-tenants"), state.allTenants ? `Show the busiest ${TENANTS_AT_FIRST}` : `Show all ${every.length}`);
  $("no-tenants").hidden = tenants.length > 0;
  $("tenants").hidden = tenants.length === 0;
  const body = $("tenants").tBodies[0];
  arrange(body, tenants.map((tenant) => tenant.tenant), makeTenant);
  const shown = samples().slice(state.range === "fine" ? -180 : -COARSE_KEPT);
  const sums = shown.map((sample) => Object.values(sample.tenants).reduce((sum, [used]) => sum + used, 0));
  tenants.forEach((tenant, i) => {
    const row = body.children[i];
    const [used, target] = now.get(tenant.tenant) || [0, 0];
    const share = all > 0 ? used / all : 0;
    const promised = all > 0 ? target / all : 0;
    setText(row.querySelector(".weight"), tenant.weight === undefined ? "-" : String(tenant.weight));
    setText(row.querySelector(".now"), percent(share, 1));
    setText(row.querySelector(".target"), promised > 0 ? percent(promised, 1) : "-");
    setText(row.querySelector(".held"), bytes(tenant.memory_bytes));
    setText(row.querySelector(".count"), String(tenant.sessions));
    row.querySelector(".bar i").style.width = 100 * share + "%";
    const mark = row.querySelector(".bar u");
    mark.hidden = promised === 0;
    mark.style.left = 100 * promised + "%";
    const series = (which) => shown.map((sample, k) => {
      const mine = sample.tenants[tenant.tenant];
      return mine && sums[k] > 0 ? mine[which] / sums[k] : 0;
    });
    row.querySelector(".line .used").setAttribute("d", sparkPath(series(0), 130, 29, 1.02));
    row.querySelector(".line .target").setAttribute("d", sparkPath(series(1), 130, 29, 1.02));
  });
}

// --- Applications

const COLUMNS = [
  { key: "application", title: "Application", kind: "app", text: (s) => s.application },
  { key: "tenant", title: "Tenant", kind: "tenant", text: (s) => s.tenant },
  { key: "vm", title: "Machine", kind: "vm", label: "on", text: (s) => s.vm },
  { key: "device", title: "Device", kind: "n", label: "device", text: (s) => String(s.device) },
  { key: "phase", title: "Phase", kind: "phase", text: (s) => s.phase },
  { key: "memory_bytes", title: "Memory", kind: "n", text: (s) => bytes(s.memory_bytes) },
  { key: "use", title: "Device time", kind: "n use", text: (s) => percent(s.use) },
  { key: "queued", title: "Waiting", kind: "n", label: "waiting", text: (s) => percent(s.queued) },
  { key: "age", title: "Open for", kind: "n", label: "open for", text: (s) => duration(s.age) },
];

function makeHeadings() {
  const row = $("sessions").tHead.rows[0];
  for (const column of COLUMNS) {
    const button = element("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      const numbers = column.kind.startsWith("n");
      const same = state.sort.key === column.key;
      state.sort = { key: column.key, down: same ? !state.sort.down : numbers };
      show();
    });
    row.append(element("th", { scope: "col", role: "columnheader", class: column.kind.startsWith("n") ? "n" : "" }, button));
  }
}

function makeSession(id) {
  const row = element("tr", { role: "row" });
  for (const column of COLUMNS) {
    const cell = element("td", { role: "cell", class: `c-${column.key} ${column.kind === "phase" ? "" : column.kind}` });
    if (column.label) cell.dataset.label = column.label;
    if (column.kind === "phase") cell.append(element("span", { class: "phase" }));
    if (column.kind === "tenant") cell.append(element("span", { class: "who" }, element("span", { class: "swatch" }), element("span", {})));
    row.append(cell);
  }
  row.dataset.name = id;
  return row;
}

function showSessions() {
  const now = state.answers[state.answers.length - 1].at / 1000;
  const { key, down } = state.sort;
  const sessions = state.status.sessions
    .filter((session) => state.device === null || session.device === state.device)
    .map((session) => {
      const rate = rates(session);
      return { ...session, use: rate.device, queued: Math.min(1, rate.queued), phase: phase(rate), age: now - session.started };
    })
    .sort((a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : b.id - a.id) * (down ? -1 : 1));
  const listed = sessions.length;
  if (!state.allSessions) sessions.splice(SESSIONS_AT_FIRST);
  $("more-sessions").hidden = listed <= SESSIONS_AT_FIRST;
  setText($("more-sessions"), state.allSessions ? `Show ${SESSIONS_AT_FIRST}` : `Show ${listed}`);
  [...$("sessions").tHead.rows[0].cells].forEach((cell, i) => {
    if (COLUMNS[i].key === key) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
  const body = $("sessions").tBodies[0];
  arrange(body, sessions.map((session) => String(session.id)), makeSession);
  sessions.forEach((session, i) => {
    COLUMNS.forEach((column, k) => {
      const cell = body.children[i].cells[k];
      if (column.kind === "phase") {
        cell.firstChild.dataset.phase = session.phase;
        setText(cell.firstChild, session.phase);
      } else if (column.kind === "tenant") {
        cell.firstChild.firstChild.style.background = colour(session.tenant);
        setText(cell.firstChild.lastChild, session.tenant);
      } else if (column.kind === "app") {
        const text = session.application + "\u2002pid " + session.pid;
        if (cell.textContent !== text) cell.replaceChildren(session.application, "\u2002", element("small", {}, "pid " + session.pid));
      } else {
        setText(cell, column.text(session));
      }
    });
  });
  $("no-sessions").hidden = sessions.length > 0;
  $("sessions").hidden = sessions.length === 0;
  setText($("no-sessions"), state.find !== "" && state.open > 0 ? "No such application is open." :
    state.device === null ? "No application is open." : `No application is open on device ${state.device}.`);
  setText($("filter"), [state.device === null ? "" : `of device ${state.device} only`,
    state.find !== "" ? `${state.found} found` : "",
    listed < state.found ? `the busiest ${listed} of ${state.found}` : ""].filter(Boolean).join(", "));
}

// --- Events

function showEvents() {
  const list = $("events");
  const latest = state.events.length > 0 ? state.events[state.events.length - 1].number : 0;
  const shown = state.allEvents ? state.events : state.events.slice(-EVENTS_AT_FIRST);
  $("more-events").hidden = state.events.length <= EVENTS_AT_FIRST;
  setText($("more-events"), `Show ${state.allEvents ? EVENTS_AT_FIRST : state.events.length}`);
  const known = latest + "/" + shown.length;
  if (list.dataset.known === known) return;
  list.dataset.known = known;
  const today = new Date().toDateString();
  list.replaceChildren(...[...shown].reverse().map((event) => {
    const at = new Date(event.time * 1000);
    const text = at.toDateString() === today ? clock(at) : at.toLocaleDateString([], { month: "short", day: "numeric" });
    const words = element("p", {}, event.text);
    if (event.level !== "info") words.prepend(element("span", { class: "sr" }, event.level + ": "));
    if (event.times > 1) words.append(" ", element("small", {}, event.times + " times"));
    return element("li", { "data-level": event.level }, element("time", { datetime: at.toISOString(), title: at.toLocaleString() }, text), element("span", { class: "dot" }), words);
  }));
}

// --- The whole

function show() {
  if (state.status === null) return;
  showSummary();
  showDevices();
  showPlot();
  showTenants();
  showSessions();
  showEvents();
  document.body.dataset.answers = String(state.answered);
}

function say(kind, text) {
  const live = $("live");
  live.dataset.state = kind;
  setText(live, text);
}

async function poll() {
  const fine = state.fine.length > 0 ? state.fine[state.fine.length - 1].number : 0;
  const coarse = state.coarse.length > 0 ? state.coarse[state.coarse.length - 1].number : 0;
  const number = ++state.asked;
  const asked = [fine, coarse, state.event, state.device === null ? "all" : state.device, encodeURIComponent(state.find)];
  try {
    const answer = await fetch("/api/v1/page/" + asked.join("/"), { cache: "no-store", signal: AbortSignal.timeout(LOST_AFTER_MS) });
    if (!answer.ok) throw new Error("status " + answer.status);
    const known = await answer.json();
    // Something else was asked meanwhile, and that answer has what this one had.
    if (number !== state.asked) return undefined;
    if (take(known)) {
      state.answered += 1;
      state.latest = Date.now();
      say("live", "live");
      show();
    } else {
      return poll();
    }
  } catch (error) {
    if (state.latest === undefined) say("lost", "no answer from consortd");
    else if (Date.now() - state.latest > LOST_AFTER_MS) say("lost", "no answer for " + duration((Date.now() - state.latest) / 1000));
  }
  return undefined;
}

async function run() {
  for (;;) {
    const begun = Date.now();
    if (!document.hidden) await poll();
    await new Promise((done) => setTimeout(done, Math.max(100, POLL_MS - (Date.now() - begun))));
  }
}

function theme(choice) {
  const root = document.documentElement;
  if (choice === "auto") root.removeAttribute("data-theme");
  else root.dataset.theme = choice;
  setText($("theme"), choice);
  $("theme").setAttribute("aria-label", { auto: "Colours: as the system says", light: "Colours: light", dark: "Colours: dark" }[choice]);
  try {
    localStorage.setItem("theme", choice);
  } catch (error) {
    // Storage may be off; the choice then lasts as long as the page.
  }
}

function storedTheme() {
  try {
    return localStorage.getItem("theme");
  } catch (error) {
    return null;
  }
}

makeHeadings();
theme(["light", "dark"].includes(storedTheme()) ? storedTheme() : "auto");
$("theme").addEventListener("click", () => theme({ auto: "light", light: "dark", dark: "auto" }[$("theme").textContent]));
$("range-fine").addEventListener("click", () => choose("fine"));
$("range-coarse").addEventListener("click", () => choose("coarse"));
for (const [id, what] of [["more-tenants", "allTenants"], ["more-sessions", "allSessions"], ["more-events", "allEvents"]]) {
  $(id).addEventListener("click", () => {
    state[what] = !state[what];
    show();
  });
}
$("find").addEventListener("input", () => {
  state.find = $("find").value.trim();
  poll();
});
$("devices").addEventListener("keydown", moveInDevices);
$("plot").addEventListener("keydown", moveInPlot);
$("plot").addEventListener("pointermove", pointAtPlot);
$("plot").addEventListener("pointerleave", () => {
  state.cursor = null;
  if (state.status !== null) showPlot();
});
new ResizeObserver(() => {
  if (state.status !== null) showPlot();
}).observe($("plot"));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) poll();
});
run();
