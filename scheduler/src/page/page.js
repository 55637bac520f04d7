// The page's life: asks /status about once a second while somebody looks, and shows the answer. What comes from the cluster
// is hostile: it gets into the document as text only, never as markup, and never as an address.

import { bytes, count, duration, name, names, number, percent, rate } from "./words.js";

const LOOK_MS = 1000;
/** An answer may take this long. */
const ANSWER_MS = 5000;
/** A single look that fails is no news: connections end after a minute. */
const MISSED_MS = 2500;
/** Points of a sparkline. */
const POINTS = 120;
/** Rows of a table; there may be thousands of members. */
const ROWS = 100;

const byId = (id) => document.getElementById(id);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Only what has changed is touched, so that a selection and a reader's place stay. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setClass(node, className) {
  if (node.className !== className) node.className = className;
}

// --- Tables --------------------------------------------------------------------------------------------------------------

/** A table with rows that are kept by key. A cell is a text, or { text, kind, part } with a bar that is full at part 1. */
function makeTable(home, caption, columns) {
  const box = element("div", "rows");
  const table = element("table");
  const head = element("thead");
  const titles = element("tr");
  const body = element("tbody");
  const empty = element("p", "empty");
  const cut = element("p", "cut");
  const roles = [[table, "table"], [head, "rowgroup"], [body, "rowgroup"], [titles, "row"]];
  // Said aloud because on a narrow screen rows are shown as cards, and then browsers forget that this is a table.
  roles.forEach(([node, role]) => node.setAttribute("role", role));
  table.setAttribute("aria-label", caption);
  for (const column of columns) {
    const title = element("th", column.number ? "number" : "", column.title);
    title.setAttribute("role", "columnheader");
    title.scope = "col";
    titles.append(title);
  }
  head.append(titles);
  table.append(head, body);
  box.append(table, empty, cut);
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", caption);
  byId(home).append(box);
  const kept = new Map();

  function makeRow() {
    const row = element("tr");
    row.setAttribute("role", "row");
    const cells = columns.map((column, at) => {
      const cell = element(at === 0 ? "th" : "td");
      cell.setAttribute("role", at === 0 ? "rowheader" : "cell");
      if (at === 0) cell.scope = "row";
      cell.dataset.label = column.title;
      const text = element("span", "text");
      cell.append(text);
      row.append(cell);
      return { cell, text, bar: null };
    });
    return { row, cells };
  }

  function fill(slot, column, shown) {
    const { text, kind = "", part } = typeof shown === "string" ? { text: shown } : shown;
    setText(slot.text, text);
    const classes = [column.number ? "number" : "", column.long ? "long" : "", column.short ? "short" : "", kind, text === "" ? "none" : ""];
    setClass(slot.cell, classes.filter(Boolean).join(" "));
    if (part === undefined) {
      slot.bar?.remove();
      slot.bar = null;
      return;
    }
    if (!slot.bar) {
      slot.bar = element("span", "bar");
      slot.bar.setAttribute("aria-hidden", "true");
      slot.bar.append(element("span"));
      slot.cell.append(slot.bar);
    }
    slot.bar.firstChild.style.width = `${Math.min(100, Math.max(0, 100 * part))}%`;
  }

  return function show(rows, key, nothing) {
    const shown = rows.slice(0, ROWS);
    const gone = new Set(kept.keys());
    shown.forEach((value, at) => {
      const id = key(value);
      gone.delete(id);
      if (!kept.has(id)) kept.set(id, makeRow());
      const { row, cells } = kept.get(id);
      columns.forEach((column, index) => fill(cells[index], column, column.cell(value)));
      if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
    });
    for (const id of gone) {
      kept.get(id).row.remove();
      kept.delete(id);
    }
    table.hidden = rows.length === 0;
    empty.hidden = rows.length > 0;
    setText(empty, nothing);
    cut.hidden = rows.length <= ROWS;
    setText(cut, `The first ${ROWS} of ${count(rows.length)}; all of them: gradwire status --json`);
  };
}

function showList(home, entries) {
  const list = byId(home);
  while (list.children.length > 2 * entries.length) list.lastChild.remove();
  entries.forEach(([term, text, kind = ""], at) => {
    if (!list.children[2 * at]) list.append(element("dt"), element("dd"));
    setText(list.children[2 * at], term);
    setText(list.children[2 * at + 1], text);
    setClass(list.children[2 * at + 1], kind);
  });
}

// --- Tiles ---------------------------------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";

function makeTile(id, title) {
  const tile = element("div", "tile");
  tile.id = `tile-${id}`;
  const [value, more] = [element("span", "value", "–"), element("p", "more")];
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", `0 0 ${POINTS - 1} 30`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  const area = document.createElementNS(SVG, "polygon");
  const line = document.createElementNS(SVG, "polyline");
  drawing.append(area, line);
  const heading = element("h2", "", title);
  tile.append(heading, value, more, drawing);
  byId("tiles").append(tile);
  const history = [];

  function draw(fromZero) {
    const [low, high] = [fromZero ? 0 : Math.min(...history), Math.max(...history)];
    const span = high - low || 1;
    const first = POINTS - history.length;
    const points = history.map((value, at) => `${first + at},${(29 - (28 * (value - low)) / span).toFixed(2)}`);
    line.setAttribute("points", points.join(" "));
    area.setAttribute("points", `${first},30 ${points.join(" ")} ${POINTS - 1},30`);
  }

  return {
    tile,
    forget: () => history.splice(0),
    /** `point` goes on the line; the line begins at zero unless it may not. */
    show(text, { beside = "", kind = "", point, fromZero = true, title: now } = {}) {
      setText(value, text);
      setClass(value, ["value", text.length > 14 ? "long" : "", kind].filter(Boolean).join(" "));
      setText(more, beside);
      if (now) setText(heading, now);
      drawing.toggleAttribute("hidden", point === undefined);
      if (point === undefined) return;
      history.push(point);
      if (history.length > POINTS) history.shift();
      draw(fromZero);
    },
  };
}

const tiles = {
  pace: makeTile("pace", "Rounds per second"),
  metric: makeTile("metric", "Loss"),
  data: makeTile("data", "Data moved"),
  round: makeTile("round", "Round"),
  late: makeTile("late", "Stragglers"),
  wait: makeTile("wait", "Oldest waiting operation"),
};

// --- What is shown -------------------------------------------------------------------------------------------------------

const isWorker = (member) => member.role === "worker";
const isThere = (member) => !member.left;

/** Never by colour alone: a sign and a word. */
function stateOf(member, status) {
  if (member.left) return { text: "○ left", kind: "soft" };
  // Half of the way to being declared dead.
  if (member.silent_ms > status.silence_ms / 2) return { text: "▲ silent", kind: "bad" };
  if (isWorker(member) && !member.links_ready) return { text: "… linking", kind: "warn" };
  return { text: "● up", kind: "good" };
}

const heard = (member) => (member.left ? "" : `${duration(member.silent_ms)} ago`);

function oldestOf(member) {
  if (!member.oldest) return { text: "none", kind: "soft" };
  const { what, waited_ms: waited } = member.oldest;
  return { text: `${duration(waited)}: ${what}`, kind: waited >= 5000 ? "warn" : "" };
}

const memory = (member) => (member.resident_bytes ? bytes(member.resident_bytes) : "–");

const stragglerOf = (status, rank) => status.stragglers.find((late) => late.worker === rank);

function waitedFor({ status, member }) {
  const late = stragglerOf(status, member.rank);
  const text = `${late ? "▲ " : ""}${member.waited_for_percent} %`;
  return { text, kind: late ? "warn" : "", part: member.waited_for_percent / 100 };
}

function roundOf({ status, member }) {
  const behind = stragglerOf(status, member.rank)?.behind ?? 0;
  if (behind === 0) return count(member.round);
  return { text: `${count(member.round)}, ▲ ${count(behind)} behind`, kind: "warn" };
}

/** How much of something bounded is used. */
function use(used, whole, unit) {
  if (!whole) return { text: "–", kind: "soft" };
  const text = `${count(used)} of ${count(whole)}${unit}`;
  return { text, kind: used >= whole ? "warn" : "", part: used / whole };
}

const showWorkers = makeTable("workers", "Workers", [
  { title: "Worker", cell: ({ member }) => name(member) },
  { title: "State", short: true, cell: ({ member, status }) => stateOf(member, status) },
  { title: "Round", number: true, cell: roundOf },
  { title: "Rounds/s", number: true, cell: ({ member }) => rate(member.rounds_per_second) },
  { title: "Waited for", number: true, cell: waitedFor },
  { title: "In flight", number: true, cell: ({ member }) => count(member.in_flight) },
  { title: "Reports", cell: ({ member }) => member.metrics.map((m) => `${m.name} ${number(m.value)}`).join(", ") },
  { title: "Oldest operation", long: true, cell: ({ member }) => oldestOf(member) },
  { title: "Memory", number: true, cell: ({ member }) => memory(member) },
  { title: "Heard", number: true, cell: ({ member }) => heard(member) },
]);

const ofLoad = (show) => ({ member }) => (member.load ? show(member.load) : "–");

const showServers = makeTable("servers", "Servers", [
  { title: "Server", cell: ({ member }) => name(member) },
  { title: "State", short: true, cell: ({ member, status }) => stateOf(member, status) },
  { title: "Round", number: true, cell: ({ member }) => count(member.round) },
  { title: "Rounds/s", number: true, cell: ({ member }) => rate(member.rounds_per_second) },
  { title: "Stored", number: true, cell: ofLoad((load) => bytes(load.stored_bytes)) },
  { title: "Credits granted", number: true, cell: ofLoad((load) => use(load.credits - load.credits_free, load.credits, "")) },
  { title: "Spill in use", number: true, cell: ofLoad((load) => use(load.spill_blocks_used, load.spill_blocks, " chunks")) },
  { title: "In flight", number: true, cell: ({ member }) => count(member.in_flight) },
  { title: "Oldest operation", long: true, cell: ({ member }) => oldestOf(member) },
  { title: "Memory", number: true, cell: ({ member }) => memory(member) },
  { title: "Heard", number: true, cell: ({ member }) => heard(member) },
]);

const showLinks = makeTable("links", "Links", [
  { title: "Link", cell: ({ worker, link }) => `worker ${worker} – server ${link.server}` },
  { title: "Driver", cell: ({ link }) => link.driver },
  {
    title: "Rate", number: true,
    cell: ({ link, most }) => ({ text: `${bytes(link.bytes_per_second)}/s`, part: link.bytes_per_second / most }),
  },
  { title: "Sent", number: true, cell: ({ link }) => bytes(link.sent_bytes) },
  { title: "Received", number: true, cell: ({ link }) => bytes(link.received_bytes) },
  { title: "Why this driver", long: true, cell: ({ link }) => link.why },
]);

const showBarriers = makeTable("barriers", "Barriers", [
  { title: "Barrier", cell: (barrier) => barrier.name },
  { title: "Waits", number: true, cell: (barrier) => duration(barrier.waited_ms) },
  { title: "There", cell: (barrier) => names(barrier.arrived.map(name)) },
  { title: "Missing", cell: (barrier) => ({ text: names(barrier.missing.map(name)), kind: "warn" }) },
]);

const showProcesses = makeTable("processes", "Processes", [
  { title: "Member", cell: ({ member }) => name(member) },
  { title: "State", short: true, cell: ({ member, status }) => stateOf(member, status) },
  { title: "Process", number: true, cell: ({ member }) => String(member.pid) },
  { title: "Build", cell: ({ member }) => member.build },
  { title: "Data address", cell: ({ member }) => member.data_address ?? "–" },
  { title: "HTTP address", cell: ({ member }) => member.http_address ?? "–" },
  { title: "Heard", number: true, cell: ({ member }) => heard(member) },
]);

function showTiles(status) {
  const workers = status.members.filter((member) => isWorker(member) && isThere(member));
  const pace = status.rounds_per_second;
  const each = pace > 0 ? `${duration(1000 / pace)} each` : "no round finished recently";
  tiles.pace.show(rate(pace), { beside: each, point: pace });
  const rounds = workers.map((member) => member.round);
  const [last, first] = [Math.min(...rounds), Math.max(...rounds)];
  const beside = `${status.tensors === 1 ? "1 tensor" : `${count(status.tensors)} tensors`}, ${bytes(status.tensor_bytes)}`;
  const shown = last === first ? count(first) : `${count(last)} to ${count(first)}`;
  tiles.round.show(rounds.length ? shown : "–", { beside });
  showMetric(workers);
  const links = workers.flatMap((member) => member.links);
  const moved = links.reduce((sum, link) => sum + link.bytes_per_second, 0);
  tiles.data.show(`${bytes(moved)}/s`, { beside: `over ${count(links.length)} links, both ways`, point: moved });
  const late = status.stragglers;
  const why = ({ behind, waited_for_percent: waited }) =>
    behind ? `${count(behind)} rounds behind` : `others wait for it in ${waited}\u00a0% of samples`;
  const most = late.length ? names(late.map((one) => `worker ${one.worker}`), 3) : "none";
  const reason = late.length === 1 ? why(late[0]) : late.length ? `first: ${why(late[0])}` : "no worker delays the others";
  tiles.late.show(late.length ? `▲ ${most}` : most, { beside: reason, kind: late.length ? "warn" : "" });
  const waiting = status.members.filter((member) => member.oldest && isThere(member));
  const oldest = waiting.reduce((a, b) => (a && a.oldest.waited_ms >= b.oldest.waited_ms ? a : b), null);
  const waited = oldest?.oldest.waited_ms ?? 0;
  const whose = oldest ? `of ${name(oldest)}` : "nothing waits";
  tiles.wait.show(oldest ? duration(waited) : "–", { beside: whose, kind: waited >= 5000 ? "warn" : "", point: waited });
}

/** What trainers report: the loss, if that is among it, else the first by name. */
let shownMetric = null;
function showMetric(workers) {
  const known = new Set(workers.flatMap((member) => member.metrics.map((metric) => metric.name)));
  const chosen = known.has("loss") ? "loss" : ([...known].sort()[0] ?? null);
  tiles.metric.tile.hidden = chosen === null;
  if (chosen !== shownMetric) tiles.metric.forget();
  shownMetric = chosen;
  if (chosen === null) return;
  const values = workers.flatMap((member) => member.metrics.filter((metric) => metric.name === chosen)).map((m) => m.value);
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const beside = values.length > 1 ? `mean over ${values.length} workers` : "as its trainer reports it";
  tiles.metric.show(number(mean), { title: chosen, beside, point: mean, fromZero: false });
}

function recoveryOf({ recovery: r, uncopied_chunks: uncopied, tensor_bytes: whole }) {
  const kept = `${bytes(r.copied_bytes)} of ${bytes(whole)} (${percent(r.copied_bytes, whole)} %)`;
  const none = "none: with cluster.replicas = 0 the failure of a server ends the job";
  const hasCopies = r.copied_bytes > 0 || r.seeding_bytes > 0 || uncopied > 0;
  const entries = [["Replicas up to date", hasCopies ? kept : whole ? none : "no tensors yet"]];
  if (uncopied) entries.push(["Chunks without a replica", count(uncopied), "warn"]);
  if (r.seeding_bytes) entries.push(["Being copied", bytes(r.seeding_bytes)]);
  if (r.awaited.length) entries.push(["Failed, waiting to rejoin", names(r.awaited.map((rank) => `worker ${rank}`)), "warn"]);
  if (r.draining.length) entries.push(["Leaving", names(r.draining.map((rank) => `server ${rank}`))]);
  entries.push(["Members lost", count(r.lost), r.lost ? "warn" : ""], ["Joined during the job", count(r.joined)]);
  const took = r.promotions ? `${count(r.promotions)} ranges, the last within ${duration(r.promotion_ms)}` : "0 ranges";
  entries.push(["Taken over by replicas", took], ["Scheduler restarts", count(r.rebuilt)]);
  entries.push(["Replicas created", count(r.copies_made)]);
  entries.push(["Ranges moved", `${count(r.moves_made)}, ${bytes(r.moved_bytes)} with copies`]);
  return entries;
}

function checkpointsOf({ checkpoints: c }) {
  const how = "none yet: set checkpoint.every_rounds, or run gradwire checkpoint save";
  const entries = [["Newest", c.newest ?? how]];
  if (c.writing !== null) {
    entries.push(["Being written", `round ${count(c.writing)}: ${c.parts} of ${c.parts_expected} parts`]);
    const missing = c.missing.map(([server, lane]) => `server ${server} lane ${lane}`);
    if (missing.length) entries.push(["Parts missing", names(missing)]);
  }
  entries.push(["Complete", count(c.completed)]);
  entries.push(["Abandoned", count(c.failed), c.failed ? "warn" : ""]);
  if (c.failure) entries.push(["Reason of the last failure", c.failure, "bad"]);
  entries.push(["Skipped while another was written", count(c.skipped)]);
  if (c.stopped) entries.push(["Why no checkpoint is started", c.stopped, "bad"]);
  return entries;
}

function noticesOf(status) {
  const found = [];
  if (status.ending) {
    found.push([status.phase === "ended" ? "" : "warn", `The job ${status.phase === "ended" ? "has ended" : "is ending"}: ${status.ending}`]);
  }
  const missing = names(status.missing.map(name), 12);
  if (status.phase === "assembling" && missing) {
    found.push(["", `Waiting for ${missing}. Start what is missing with this scheduler's address (gradwire launch starts all), or look into its log.`]);
  } else if (status.phase === "rebuilding") {
    found.push(["warn", `The previous scheduler failed. This one is waiting for the members of the job${missing ? `: ${missing}` : ""}. Training continues meanwhile.`]);
  } else if (missing && status.phase === "running") {
    found.push(["warn", `Missing: ${missing}. Whoever comes takes a free place.`]);
  }
  return found;
}

const PHASES = { assembling: "warn", rebuilding: "warn", running: "good", ending: "warn", ended: "" };

function showNotices(notices) {
  const home = byId("notices");
  while (home.children.length > notices.length) home.lastChild.remove();
  notices.forEach(([kind, text], at) => {
    if (!home.children[at]) home.append(element("p"));
    setClass(home.children[at], `notice ${kind}`.trim());
    setText(home.children[at], text);
  });
}

function show(status) {
  document.title = `job ${status.job} ${status.phase} – Gradwire`;
  setText(byId("job"), `job ${status.job} · epoch ${status.epoch} · up ${duration(status.uptime_ms)}`);
  showNotices(noticesOf(status));
  showTiles(status);
  // Where not all can be shown, those in trouble are first.
  const trouble = (member) => (stragglerOf(status, member.rank) && isWorker(member) ? 2 : 0) + member.silent_ms / status.silence_ms;
  const crowded = status.members.length > ROWS;
  const members = crowded ? [...status.members].sort((a, b) => trouble(b) - trouble(a)) : status.members;
  const rows = members.map((member) => ({ member, status }));
  const of = (role) => rows.filter(({ member }) => member.role === role);
  const key = ({ member }) => name(member);
  showWorkers(of("worker"), key, `No workers yet, ${count(status.workers)} expected. Start them with gradwire-worker, or with a program that connects.`);
  showServers(of("server"), key, `No servers yet, ${count(status.servers)} expected. Start them with gradwire-server.`);
  const links = members.flatMap((member) => member.links.map((link) => ({ worker: member.rank, link })));
  const most = links.reduce((top, { link }) => Math.max(top, link.bytes_per_second), 1);
  setText(byId("h-links"), `Links (${count(links.length)})`);
  setText(byId("h-processes"), `Processes (${count(members.length)})`);
  showLinks(links.map((row) => ({ ...row, most })), ({ worker, link }) => `${worker}-${link.server}`,
    "No links yet: workers connect when all members have registered, and report links with their next heartbeat.");
  showBarriers(status.barriers, (barrier) => barrier.name, "No member waits at a barrier.");
  showList("recovery", recoveryOf(status));
  showList("checkpoints", checkpointsOf(status));
  showProcesses(rows, key, "No processes have registered yet.");
}

// --- Looking -------------------------------------------------------------------------------------------------------------

/** The last answer, and when it came; what went wrong since. */
let last = null;
let answeredAt = null;
let failure = null;
const opened = Date.now();
let timer = null;
let isLooking = false;

const clock = (at) => new Date(at).toLocaleTimeString();

function showAnswer() {
  const line = byId("answer");
  const since = answeredAt ?? opened;
  const silent = Date.now() - since;
  const isLost = failure !== null && silent > MISSED_MS;
  document.body.classList.toggle("stale", isLost);
  setClass(line, isLost ? "bad" : "");
  const phase = isLost ? "no answer" : (last?.phase ?? "asking");
  setText(byId("phase"), phase);
  setClass(byId("phase"), `chip ${isLost ? "bad" : (PHASES[phase] ?? "")}`.trim());
  if (!isLost) return setText(line, answeredAt === null ? "Asking the scheduler …" : `● live, ${clock(answeredAt)}`);
  const ended = last?.phase === "ending" || last?.phase === "ended";
  const why = ended ? "The job was ending" : failure;
  const from = answeredAt === null ? "" : " Showing the state of that time.";
  setText(line, `▲ The scheduler does not answer since ${clock(since)} (${duration(silent)}). ${why}.${from}`);
}

/** There was no answer. */
class Missed extends Error {}

async function ask() {
  const options = { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) };
  const answer = await fetch("status", options).catch(() => { throw new Missed("The scheduler does not answer"); });
  if (!answer.ok) throw new Missed(`It says HTTP ${answer.status}`);
  return answer.json().catch(() => { throw new Missed("The scheduler's answer is truncated"); });
}

async function look() {
  if (isLooking) return;
  isLooking = true;
  const began = performance.now();
  try {
    const status = await ask();
    // A scheduler that was started anew: lines do not go on from the one before.
    if (last && status.uptime_ms < last.uptime_ms) Object.values(tiles).forEach((tile) => tile.forget());
    show(status);
    [last, answeredAt, failure] = [status, Date.now(), null];
  } catch (error) {
    failure = String(error.message);
    // Whoever does not answer is no fault of the page's.
    if (!(error instanceof Missed)) console.error(error);
  }
  isLooking = false;
  showAnswer();
  // A large cluster's status takes long to make: it is asked for less often.
  const took = performance.now() - began;
  if (!document.hidden) timer = setTimeout(look, Math.max(LOOK_MS - took, 4 * took, 100));
}

// A phone shows long lists when they are asked for.
if (matchMedia("(max-width: 720px)").matches) {
  document.querySelectorAll("details").forEach((list) => { list.open = false; });
}
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) look();
});
look();
