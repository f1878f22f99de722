"use strict";

const interval = 2000; // ms between two requests
const mostNodesAsTiles = 20; // more are shown as a map, unless the reader chose
const mostListed = 200; // lines of a list

// Sizes in px, as in page.css.
const sizes = {
  map: { cell: 13, row: 13, head: 13, pad: 2, gap: 3, least: 90 },
  tiles: { cell: 134, row: 70, head: 22, pad: 8, gap: 10, least: 160 },
};

const by = (id) => document.getElementById(id);
const form = by("filters");
const fields = [...form.elements].map((e) => e.name);

let fleet = null;
let filter = {}; // by the name of a field of the form
// The object whose details are shown: a GPU by NODE/INDEX, a node by NAME, or a pod by
// NAMESPACE/NAME. The URL has it as ?gpu=, ?node= or ?pod=.
let chosen = { kind: "", name: "" };
const kinds = ["gpu", "node", "pod"];
let shown = []; // nodes that pass the filter, sorted, each with the GPUs that pass
let places = []; // of each of them: its left, top, width and height

// make returns an element. Text is never parsed as HTML: names come from other people's objects.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== undefined && value !== false && value !== "") element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((c) => c !== undefined && c !== ""));
  return element;
}

// ---- What follows from the fleet

const number = (n) => n.toLocaleString("en");
const gib = (mib) => `${number(Math.floor(mib / 1024))} GiB`;
const amount = (mib) => (mib % 1024 === 0 ? gib(mib) : `${number(mib)} MiB`);
const percent = (part, whole) => (whole > 0 ? Math.floor((100 * part) / whole) : 0);
const count = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
// free returns MiB.
const free = (gpu) => Math.max(0, gpu.capacity.MiB - gpu.requested.MiB);

// closed says why a GPU takes no new pods, or nothing.
const closed = (node, gpu) => (!gpu.healthy && gpu.unhealthy) || node.closed;
const takesPods = (node, gpu) => !closed(node, gpu) && !gpu.exclusive;

// short is the part of a model's name that tells it from others: T4, A100, L40S.
const short = (model) => /\b[A-Z]{1,3}\d+[A-Za-z]*\b/.exec(model)?.[0] ?? model.replace(/^(NVIDIA|Tesla) /, "");
const models = (node) => [...new Set(node.gpus.map((g) => g.model))];

function age(since) {
  const s = Math.max(0, Math.floor((Date.now() - Date.parse(since)) / 1000));
  if (s < 120) return `${s}s`;
  if (s < 7200) return `${Math.floor(s / 60)}m`;
  return s < 172800 ? `${Math.floor(s / 3600)}h` : `${Math.floor(s / 86400)}d`;
}

function condition(node, gpu) {
  const why = closed(node, gpu);
  if (why) return `takes no new pods: ${why}`;
  const whose = node.taint ? `, for pods that tolerate taint ${node.taint}` : "";
  return (gpu.exclusive ? "healthy, one pod has it alone" : "healthy") + whose;
}

// describe is a GPU in a line: its tooltip, and what a screen reader says.
function describe(node, gpu) {
  const used = gpu.usedMiB === undefined ? "" : `, ${gib(gpu.usedMiB)} used`;
  return `${node.name} GPU ${gpu.index}, ${gpu.model}, ${amount(gpu.requested.MiB)} of ${amount(gpu.capacity.MiB)} allocated${used}, ${count(gpu.pods.length, "pod")}, ${condition(node, gpu)}`;
}

// heat is the level of a GPU's colour: 0 for nothing, 5 for all of it; nothing where it is not known.
function heat(gpu) {
  const part = filter.by === "used" ? gpu.usedMiB : gpu.requested.MiB;
  if (part === undefined) return "unknown";
  const share = percent(part, gpu.capacity.MiB);
  return part === 0 ? 0 : share >= 100 ? 5 : 1 + Math.floor(share / 25);
}

const words = (text) => (text ?? "").toLowerCase().split(/\s+/).filter(Boolean);

function passes(node, gpu) {
  if (filter.model && gpu.model !== filter.model) return false;
  if (filter.trouble && !closed(node, gpu)) return false;
  if (filter.free > 0 && (!takesPods(node, gpu) || free(gpu) < filter.free * 1024)) return false;
  if (filter.namespace && !gpu.pods.some((p) => p.namespace === filter.namespace)) return false;
  const texts = [node.name, gpu.uuid, gpu.model, ...gpu.pods.map((p) => `${p.namespace}/${p.name}`)].map((t) => t.toLowerCase());
  return words(filter.search).every((word) => texts.some((t) => t.includes(word)));
}

const orders = {
  trouble: (a, b) => b.gpus.filter((g) => closed(b, g)).length - a.gpus.filter((g) => closed(a, g)).length,
  free: (a, b) => largest(b) - largest(a),
  model: (a, b) => models(a).join().localeCompare(models(b).join()),
};

const largest = (node) => Math.max(0, ...node.gpus.filter((g) => takesPods(node, g)).map((g) => free(g)));

function select() {
  const passed = fleet.nodes.map((node) => ({ ...node, gpus: node.gpus.filter((gpu) => passes(node, gpu)) }));
  shown = passed.filter((node) => node.gpus.length > 0);
  const order = orders[filter.sort];
  if (order) shown.sort(order); // stable: equals stay sorted by name
}

// byNamespace returns what each namespace has of the fleet in MiB, the largest first.
function byNamespace(nodes) {
  const sums = new Map();
  for (const node of nodes) {
    for (const pod of [...node.gpus.flatMap((g) => g.pods), ...node.unattributed]) {
      sums.set(pod.namespace, (sums.get(pod.namespace) ?? 0) + pod.memory.MiB);
    }
  }
  return [...sums].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]));
}

// The largest namespaces have a colour each, which they keep; all others share one.
const colours = 8;
const colourOf = new Map();
const colour = (namespace) => `share c${colourOf.get(namespace) ?? "x"}`;

// ---- What is shown

function text(id, title, lines) {
  const [summary, list] = by(id).children;
  summary.textContent = title;
  list.replaceChildren(...lines.slice(0, mostListed), ...(lines.length > mostListed ? [make("li", {}, `and ${lines.length - mostListed} more`)] : []));
}

function command(line) {
  const copy = async (event) => {
    await navigator.clipboard.writeText(line);
    event.target.textContent = "Copied";
    setTimeout(() => (event.target.textContent = "Copy"), 2000);
  };
  return make("p", { class: "command" }, make("code", {}, line), make("button", { type: "button", "aria-label": `Copy ${line}`, click: copy }, "Copy"));
}

function showSums() {
  const gpus = shown.flatMap((node) => node.gpus.map((gpu) => ({ node, gpu })));
  const sum = (f) => gpus.reduce((total, { gpu }) => total + f(gpu), 0);
  const most = (tainted) => Math.max(0, ...shown.filter((n) => Boolean(n.taint) === tainted).map(largest));
  const capacity = sum((g) => g.capacity.MiB);
  const allocated = sum((g) => g.requested.MiB);
  const out = gpus.filter(({ node, gpu }) => closed(node, gpu)).length;
  const lines = [["Nodes", number(shown.length)], ["GPUs", number(gpus.length)]];
  if (filter.namespace) {
    const its = byNamespace(shown).find(([name]) => name === filter.namespace)?.[1] ?? 0;
    lines.push([`Allocated to ${filter.namespace}`, `${gib(its)} (${percent(its, capacity)}%)`], ["Allocated of these GPUs, to all", `${gib(allocated)} of ${gib(capacity)} (${percent(allocated, capacity)}%)`]);
  } else {
    lines.push(["Allocated", `${gib(allocated)} of ${gib(capacity)} (${percent(allocated, capacity)}%)`]);
  }
  if (gpus.some(({ gpu }) => gpu.usedMiB !== undefined)) {
    const used = sum((g) => g.usedMiB ?? 0);
    lines.push(["Used", `${gib(used)} (${percent(used, capacity)}%)`]);
  }
  lines.push(["Largest free on one GPU", gib(most(false))]);
  if (most(true) > 0) lines.push(["Largest free behind a taint", gib(most(true))]);
  lines.push(["GPUs that take no new pods", `${number(out)} (${percent(out, gpus.length)}%)`]);
  by("sums").replaceChildren(...lines.map(([name, value]) => make("div", { class: name.startsWith("GPUs that") && out > 0 ? "bad" : "" }, make("dt", {}, name), make("dd", {}, value))));
}

function showLegend(view) {
  const what = filter.by === "used" ? "used" : "allocated";
  form.elements.by.parentElement.hidden = view === "tiles";
  const key = (name, label) => make("li", {}, make("i", { class: `key ${name}`, "aria-hidden": "true" }), label);
  const heats = [["0", "nothing"], ["1", "to 24%"], ["2", "to 49%"], ["3", "to 74%"], ["4", "to 99%"], ["5", "all"]].map(([level, label]) => key(`heat${level}`, label));
  if (what === "used") heats.push(key("heatunknown", "not known"));
  const pods = [...colourOf].map(([namespace, c]) => key(`c${c}`, namespace));
  if (byNamespace(fleet.nodes).length > colours) pods.push(key("cx", "other namespaces"));
  const tiles = view === "tiles";
  by("legend").replaceChildren(make("li", {}, tiles ? "Bars: allocated to" : `Colour: ${what}`), ...(tiles ? [...pods, key("used", "used")] : heats),
    key("closed", "takes no new pods"), key("tainted", "only for pods that tolerate a taint"), key("exclusive", "one pod has it alone"));
}

function showLists() {
  const troubles = new Map(); // by why, the nodes and GPUs
  const trouble = (why, of, what) => troubles.set(why, { what, of: [...(troubles.get(why)?.of ?? []), of] });
  for (const node of fleet.nodes) {
    if (node.closed) trouble(node.closed, node.name, "node");
    else for (const gpu of node.gpus) if (!gpu.healthy) trouble(gpu.unhealthy, `${node.name} GPU ${gpu.index}`, "GPU");
  }
  const lines = [...troubles].sort((a, b) => b[1].of.length - a[1].of.length);
  const out = fleet.nodes.reduce((total, n) => total + n.gpus.filter((g) => closed(n, g)).length, 0);
  text("trouble", out > 0 ? `${count(out, "GPU")} in trouble` : "No trouble", lines.map(([why, { of, what }]) => make("li", {},
    make("b", {}, of.length === 1 ? of[0] : count(of.length, what)), `: ${why}`,
    make("small", {}, of.length > 1 ? of.slice(0, 5).join(", ") + (of.length > 5 ? ", …" : "") : ""))));

  const waiting = fleet.waiting.filter((w) => (!filter.namespace || w.namespace === filter.namespace) && words(filter.search).every((word) => `${w.namespace}/${w.name} ${w.owner ?? ""}`.toLowerCase().includes(word)));
  const pods = waiting.reduce((total, w) => total + w.count, 0);
  text("waiting", pods === 0 ? "No pod waits" : pods === 1 ? "1 pod waits" : `${number(pods)} pods wait`, waiting.map((w) => make("li", {},
    make("b", {}, w.count > 1 ? `${w.count} × ${w.namespace} ${w.owner}` : link("pod", `${w.namespace}/${w.name}`)),
    make("small", {}, [w.memoryMiB ? amount(w.memoryMiB) + (w.count > 1 ? " each" : "") : "", w.oldest ? `${w.count > 1 ? "the oldest " : ""}for ${age(w.oldest)}` : ""].filter(Boolean).join(", ")),
    make("span", {}, w.reason), explain(w.namespace, w.name))));

  const all = fleet.nodes.reduce((total, n) => total + n.gpus.reduce((t, g) => t + g.capacity.MiB, 0), 0);
  const sums = byNamespace(fleet.nodes);
  text("namespaces", `Namespaces (${sums.length})`, sums.map(([namespace, mib]) => make("li", { class: "namespace" },
    make("i", { class: colour(namespace), "aria-hidden": "true" }),
    make("button", { type: "button", "aria-label": `Show the GPUs of ${namespace}`, click: () => set("namespace", namespace) }, namespace),
    make("span", {}, `${gib(mib)}, ${percent(mib, all)}% of the fleet`))));
}

// link leads to the details of an object, by a URL that can be sent to others.
function link(kind, name, label = name) {
  const follow = (event) => {
    event.preventDefault();
    event.stopPropagation();
    choose(kind, name);
  };
  return make("a", { href: `?${new URLSearchParams({ [kind]: name })}`, click: follow }, label);
}

function choose(kind, name) {
  chosen = { kind, name };
  show();
  by("details").querySelector("h2")?.focus({ preventScroll: true });
}

const explain = (namespace, name) => command(`kubectl inspect gpumem explain -n ${namespace} ${name}`);
const part = (mib, all) => `${amount(mib)} of ${amount(all)} (${percent(mib, all)}%)`;

// podLines lists pods, with the memory of each: [[pod, MiB], ...].
const podLines = (pods) => [make("h3", {}, count(pods.length, "pod")), make("ul", { class: "pods" }, ...pods.map(([p, mib]) => make("li", {},
  make("i", { class: colour(p.namespace), "aria-hidden": "true" }), link("pod", `${p.namespace}/${p.name}`),
  make("small", {}, [amount(mib), p.started ? `for ${age(p.started)}` : "not running yet"].join(", ")), explain(p.namespace, p.name))))];

// details returns the title, facts and elements that describe an object, or nothing if there is none.
const details = {
  gpu(name) {
    const node = fleet.nodes.find((n) => n.gpus.some((g) => `${n.name}/${g.index}` === name));
    const gpu = node?.gpus.find((g) => `${node.name}/${g.index}` === name);
    if (!gpu) return undefined;
    const facts = { Node: link("node", node.name), Model: gpu.model, Allocated: part(gpu.requested.MiB, gpu.capacity.MiB) };
    if (gpu.usedMiB !== undefined) facts.Used = `${number(gpu.usedMiB)} MiB (${percent(gpu.usedMiB, gpu.capacity.MiB)}%)`;
    facts.Free = takesPods(node, gpu) ? amount(free(gpu)) : "nothing for new pods";
    facts.Health = condition(node, gpu);
    facts.UUID = gpu.uuid;
    const pods = gpu.pods.map((p) => [p, p.memory.MiB]);
    return { title: `${node.name} GPU ${gpu.index}`, facts, more: [command(`kubectl inspect gpumem nodes -d ${node.name}`), ...podLines(pods)] };
  },
  node(name) {
    const node = fleet.nodes.find((n) => n.name === name);
    if (!node) return undefined;
    const sum = (f) => node.gpus.reduce((total, g) => total + f(g), 0);
    const capacity = sum((g) => g.capacity.MiB);
    const facts = { Models: models(node).join(", "), Allocated: part(sum((g) => g.requested.MiB), capacity) };
    if (node.gpus.some((g) => g.usedMiB !== undefined)) {
      const used = sum((g) => g.usedMiB ?? 0);
      facts.Used = `${gib(used)} (${percent(used, capacity)}%)`;
    }
    facts["Largest free"] = amount(largest(node));
    if (node.closed) facts["New pods"] = `none: ${node.closed}`;
    else if (node.taint) facts["New pods"] = `only pods that tolerate taint ${node.taint}`;
    const gpus = make("ul", { class: "pods" }, ...node.gpus.map((g) => make("li", {}, link("gpu", `${node.name}/${g.index}`, `GPU ${g.index}`),
      make("small", {}, `${part(g.requested.MiB, g.capacity.MiB)}, ${condition(node, g)}`))));
    const pods = [...node.gpus.flatMap((g) => g.pods.map((p) => [p, p.memory.MiB])), ...node.unattributed.map((p) => [p, p.memory.MiB])];
    return { title: node.name, facts, more: [command(`kubectl inspect gpumem nodes -d ${node.name}`), make("h3", {}, count(node.gpus.length, "GPU")), gpus, ...podLines(pods)] };
  },
  pod(name) {
    const is = (p) => `${p.namespace}/${p.name}` === name;
    const [namespace, pod] = name.split("/");
    const waits = fleet.waiting.find(is);
    if (waits) return { title: name, facts: { State: `waiting, ${waits.reason}` }, more: [explain(namespace, pod)] };
    const node = fleet.nodes.find((n) => n.gpus.some((g) => g.pods.some(is)) || n.unattributed?.some(is));
    if (!node) return undefined;
    const gpus = node.gpus.filter((g) => g.pods.some(is));
    const of = [...gpus.flatMap((g) => g.pods), ...node.unattributed].find(is);
    const facts = { Node: link("node", node.name), State: of.started ? `running for ${age(of.started)}` : "not running yet" };
    gpus.forEach((g) => (facts[`GPU ${g.index}`] = make("span", {}, link("gpu", `${node.name}/${g.index}`, g.model), `, ${amount(g.pods.find(is).memory.MiB)}`)));
    return { title: name, facts, more: [explain(namespace, pod)] };
  },
};

function showDetails() {
  const box = by("details");
  const found = details[chosen.kind]?.(chosen.name);
  box.hidden = !found;
  if (!found) return box.replaceChildren();
  const focused = box.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
  box.replaceChildren(
    make("div", { class: "title" }, make("h2", { tabindex: -1 }, found.title), make("button", { type: "button", "aria-label": "Close", click: close }, "✕")),
    make("dl", {}, ...Object.entries(found.facts).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    ...found.more,
  );
  if (focused) (box.querySelector(`[aria-label="${CSS.escape(focused)}"]`) ?? box.querySelector("h2")).focus();
}

function close() {
  const back = chosen;
  chosen = { kind: "", name: "" };
  show();
  if (back.kind === "gpu") document.querySelector(`[data-gpu="${CSS.escape(back.name)}"]`)?.focus();
}

// ---- The nodes: only what is seen of them is drawn, however many there are

const view = () => filter.view || (shown.length > mostNodesAsTiles ? "map" : "tiles");

// lay works out where each node is. A map is as large as fits on the screen.
function lay() {
  const list = by("cards");
  const height = innerHeight - list.getBoundingClientRect().top - scrollY;
  const scales = view() === "map" ? [2, 1.5, 1] : [1];
  const scale = scales.find((s) => layAt(s) <= height) ?? 1;
  list.style.height = `${layAt(scale)}px`;
  list.style.setProperty("--scale", scale);
  list.className = `cards ${view()}`;
}

// layAt lays the nodes in a grid of columns of one width, each row as high as its highest, and returns
// the height of all.
function layAt(scale) {
  const size = Object.fromEntries(Object.entries(sizes[view()]).map(([name, px]) => [name, px * scale]));
  const width = by("cards").clientWidth;
  const most = Math.max(1, ...shown.map((n) => n.gpus.length));
  const columns = Math.max(1, Math.floor((width + size.gap) / (Math.max(size.least, Math.min(most * size.cell + 2 * size.pad, width)) + size.gap)));
  const each = Math.floor((width + size.gap) / columns) - size.gap;
  const across = Math.max(1, Math.floor((each - 2 * size.pad) / size.cell));
  places = [];
  let top = 0;
  for (let i = 0; i < shown.length; i += columns) {
    const row = shown.slice(i, i + columns);
    const height = size.head + 2 * size.pad + size.row * Math.max(...row.map((n) => Math.ceil(n.gpus.length / across)));
    row.forEach((_, column) => places.push({ left: column * (each + size.gap), top, width: each, height }));
    top += height + size.gap;
  }
  return top;
}

function caption(node, gpu) {
  if (closed(node, gpu)) return "✕ no new pods";
  if (gpu.exclusive) return "one pod alone";
  return `${gib(free(gpu))} free`;
}

function cell(node, gpu) {
  const name = `${node.name}/${gpu.index}`;
  const isChosen = chosen.kind === "gpu" && chosen.name === name;
  const classes = ["gpu", `heat${heat(gpu)}`, closed(node, gpu) ? "closed" : "", node.taint ? "tainted" : "", gpu.exclusive ? "exclusive" : "", isChosen ? "chosen" : ""];
  const button = make("button", {
    type: "button", class: classes.filter(Boolean).join(" "), "data-gpu": name, title: describe(node, gpu), "aria-label": describe(node, gpu), "aria-pressed": String(isChosen), tabindex: -1,
    click: () => choose("gpu", name),
  });
  if (view() === "map") return button;
  const bar = make("span", { class: "bar" });
  const section = (classes, property, mib) => {
    const element = make("span", { class: classes });
    element.style[property] = `${Math.min(100, (100 * mib) / (gpu.capacity.MiB || 1))}%`;
    bar.append(element);
  };
  gpu.pods.forEach((p) => section(colour(p.namespace), "flexBasis", p.memory.MiB));
  if (gpu.usedMiB > 0) section("used", "width", gpu.usedMiB);
  const used = gpu.usedMiB === undefined ? "" : `, ${number(Math.floor(gpu.usedMiB / 1024))} used`;
  button.append(make("b", {}, `GPU${gpu.index} ${short(gpu.model)}`), make("span", {}, caption(node, gpu)), bar,
    make("small", {}, `${Math.floor(gpu.requested.MiB / 1024)}/${gib(gpu.capacity.MiB)}${used}`));
  return button;
}

function card(node) {
  const pending = node.unattributed.reduce((total, p) => total + p.memory.MiB, 0);
  const notes = [models(node).map(short).join("/")];
  if (view() === "tiles" && pending > 0) notes.push(`${amount(pending)} on no known GPU`);
  if (view() === "tiles" && node.taint) notes.push(`taint ${node.taint}`);
  return make("div", { class: "node", role: "listitem", "data-node": node.name },
    make("div", { class: "head", title: [node.name, ...models(node), node.closed ?? ""].filter(Boolean).join(", ") }, make("b", {}, link("node", node.name)), make("small", {}, notes.join(" · ")), node.closed ? make("small", { class: "bad" }, node.closed) : ""),
    make("div", { class: "gpus" }, ...node.gpus.map((gpu) => cell(node, gpu))));
}

const drawn = new Map(); // the element of each node that is drawn, and what it was made of

function draw() {
  if (!fleet) return;
  const list = by("cards");
  const offset = -list.getBoundingClientRect().top;
  const focus = document.activeElement?.dataset.gpu;
  const seen = new Map();
  shown.forEach((node, i) => {
    const { top, height } = places[i];
    if (top + height > offset - 300 && top < offset + innerHeight + 300) seen.set(node.name, i);
  });
  for (const [name, { element }] of drawn) {
    if (seen.has(name)) continue;
    element.remove();
    drawn.delete(name);
  }
  let next = list.firstElementChild;
  for (const [name, i] of seen) {
    const of = JSON.stringify([shown[i], view(), filter.by, chosen.name.startsWith(`${name}/`) && chosen.name]);
    let element = drawn.get(name)?.element;
    if (drawn.get(name)?.of !== of) {
      const made = card(shown[i]);
      if (element === next) next = made;
      element ? element.replaceWith(made) : list.insertBefore(made, next);
      element = made;
      drawn.set(name, { element, of });
    }
    if (element !== next) list.insertBefore(element, next);
    next = element.nextElementSibling;
    const { left, top, width, height } = places[i];
    Object.assign(element.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    element.setAttribute("aria-setsize", shown.length);
    element.setAttribute("aria-posinset", i + 1);
  }
  const again = focus && list.querySelector(`[data-gpu="${CSS.escape(focus)}"]`);
  if (again && again !== document.activeElement) again.focus({ preventScroll: true });
  // One GPU can be reached with the Tab key; from there the arrow keys lead to the others.
  list.querySelectorAll('[tabindex="0"]').forEach((e) => (e.tabIndex = -1));
  const first = again || list.querySelector(".gpu");
  if (first) first.tabIndex = 0;
}

by("cards").addEventListener("keydown", (event) => {
  const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] ?? [0, 0];
  const from = event.target.closest(".gpu");
  if ((!dx && !dy) || !from) return;
  event.preventDefault();
  const centre = (e) => {
    const r = e.getBoundingClientRect();
    return [r.left + r.width / 2, r.top + r.height / 2];
  };
  const [x, y] = centre(from);
  let best = null;
  let least = Infinity;
  for (const e of document.querySelectorAll(".gpu")) {
    const [ex, ey] = centre(e);
    const along = (ex - x) * dx + (ey - y) * dy;
    const across = Math.abs((ex - x) * dy) + Math.abs((ey - y) * dx);
    if (along > 1 && along + 3 * across < least) [best, least] = [e, along + 3 * across];
  }
  if (!best) return;
  best.focus({ preventScroll: true });
  best.scrollIntoView({ block: "nearest" });
  draw();
});

// options fills a choice, and keeps what is chosen though nothing has it now.
function options(name, values) {
  const field = form.elements[name];
  const want = ["", ...new Set([...values, filter[name]].filter(Boolean))];
  if ([...field.options].map((o) => o.value).join("\n") !== want.join("\n")) {
    field.replaceChildren(...want.map((v) => make("option", { value: v || undefined }, v || "all")));
    field.options[0].value = "";
  }
  field.value = filter[name] ?? "";
}

function show() {
  if (!fleet) return;
  remember();
  const sums = byNamespace(fleet.nodes);
  for (const [namespace] of sums) if (colourOf.size < colours && !colourOf.has(namespace)) colourOf.set(namespace, colourOf.size);
  options("model", fleet.nodes.flatMap(models).sort());
  options("namespace", sums.map(([name]) => name).sort());
  select();
  by("nothing").hidden = shown.length > 0;
  showSums();
  showLegend(view());
  showLists();
  showDetails();
  lay();
  draw();
}

// ---- Filters are in the URL, so that it can be sent to others

function remember() {
  const query = new URLSearchParams(Object.entries({ ...filter, [chosen.kind]: chosen.name }).filter(([, value]) => value));
  history.replaceState(null, "", query.size > 0 ? `?${query}` : location.pathname);
}

function recall() {
  const query = new URLSearchParams(location.search);
  for (const name of fields) {
    filter[name] = query.get(name) ?? "";
    form.elements[name].value = filter[name];
  }
  const kind = kinds.find((name) => query.get(name));
  if (kind) chosen = { kind, name: query.get(kind) };
}

function set(name, value) {
  filter[name] = value;
  form.elements[name].value = value;
  show();
}

form.addEventListener("input", (event) => set(event.target.name, event.target.value));
form.addEventListener("submit", (event) => event.preventDefault());
addEventListener("keydown", (event) => event.key === "Escape" && chosen.kind && close());
addEventListener("scroll", draw, { passive: true });
new ResizeObserver(() => fleet && (lay(), draw())).observe(by("cards").parentElement);
// On a narrow screen the lists are above the nodes, and closed.
const narrow = matchMedia("(max-width: 900px)");
const fold = () => document.querySelectorAll("details").forEach((e) => (e.open = !narrow.matches));
narrow.addEventListener("change", fold);
fold();

// read adds to each GPU of a fleet its use, and a word for a model without a name.
function read(answer) {
  for (const gpu of answer.nodes.flatMap((node) => node.gpus)) {
    gpu.usedMiB = answer.usedMiB?.[gpu.uuid];
    gpu.model ??= "unknown model";
  }
  return answer;
}

// look asks for the fleet again and again. What has not changed is not sent.
async function look(tag = "") {
  const state = by("state");
  try {
    const answer = await fetch("fleet", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(`the extender answers ${answer.status}`);
      fleet = read(await answer.json());
      tag = answer.headers.get("ETag") ?? "";
      show();
    }
    by("release").textContent = [fleet.cluster, `gpumem ${fleet.version}`].filter(Boolean).join(", ");
    document.title = [fleet.cluster, "GPU memory"].filter(Boolean).join(": ");
    state.textContent = fleet.missing || "live";
    state.classList.toggle("late", Boolean(fleet.missing));
  } catch (error) {
    state.textContent = `not up to date: ${error.message}`;
    state.classList.add("late");
  }
  setTimeout(() => look(tag), document.hidden ? 5 * interval : interval);
}

recall();
look();
setInterval(() => fleet && (showLists(), showDetails()), 30000); // ages go on
