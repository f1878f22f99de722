import { render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { amount, choices, closed, describe, free, health, hue, select, sums } from "./fleet.js";

const interval = 2000; // ms between two looks
const rowHeight = 76; // px of a node, as in page.css
const margin = 6; // rows that are drawn beyond what is seen

// useFleet asks for the fleet again and again. What has not changed is not sent.
function useFleet() {
  const [state, setState] = useState({ fleet: null, error: "", at: 0 });
  useEffect(() => {
    let timer;
    let ended = false;
    let tag = "";
    const look = async () => {
      try {
        const answer = await fetch("fleet", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
        if (answer.status === 304) {
          setState((s) => (s.error ? { ...s, error: "" } : s));
        } else if (answer.ok) {
          tag = answer.headers.get("ETag") ?? "";
          const fleet = await answer.json();
          setState({ fleet, error: fleet.missing ?? "", at: Date.now() });
        } else {
          throw new Error(`the extender answers ${answer.status}`);
        }
      } catch (error) {
        setState((s) => ({ ...s, error: `not up to date: ${error.message}` }));
      }
      if (!ended) timer = setTimeout(look, document.hidden ? 5 * interval : interval);
    };
    look();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, []);
  return state;
}

function caption(node, gpu) {
  if (closed(node, gpu)) return "✕ no new pods";
  if (gpu.exclusive) return "held alone";
  return `${amount(free(gpu), node.unitMiB)}${node.taint ? ", tainted" : " free"}`;
}

function Tile({ node, gpu, chosen, onChoose }) {
  const full = gpu.capacity > 0 ? gpu.capacity : 1;
  const classes = ["tile", closed(node, gpu) && "closed", node.taint && "tainted", chosen && "chosen"].filter(Boolean).join(" ");
  return (
    <li>
      <button type="button" class={classes} aria-label={describe(node, gpu)} aria-pressed={chosen} data-gpu={`${node.name}/${gpu.index}`} onClick={() => onChoose(node.name, gpu.uuid)}>
        <span class="bar" aria-hidden="true">
          {gpu.pods.map((p) => (
            <span key={p.namespace + "/" + p.name} class="share" title={`${p.namespace}/${p.name}`} style={{ flexBasis: `${Math.min(100, (100 * p.units) / full)}%`, "--hue": hue(p.namespace) }} />
          ))}
        </span>
        <span class="caption" aria-hidden="true">
          <b>GPU{gpu.index}</b> {caption(node, gpu)}
        </span>
      </button>
    </li>
  );
}

function Node({ node, top, position, total, chosen, onChoose }) {
  return (
    <div class="node" role="listitem" aria-setsize={total} aria-posinset={position} style={{ top: `${top}px` }}>
      <h3>
        {node.name}
        <small>
          {[...new Set(node.gpus.map((gpu) => gpu.model))].join(", ")}
          {node.pending > 0 && ` · ${amount(node.pending, node.unitMiB)} on no known GPU`}
          {node.taint && ` · for pods that tolerate taint ${node.taint}`}
        </small>
        {node.closed && <small class="bad">{node.closed}</small>}
      </h3>
      <ul class="gpus" aria-label={`GPUs of ${node.name}`}>
        {node.gpus.map((gpu) => (
          <Tile key={gpu.uuid} node={node} gpu={gpu} chosen={chosen === gpu.uuid} onChoose={onChoose} />
        ))}
      </ul>
    </div>
  );
}

// Fleet draws the nodes that are seen, however many there are.
function Fleet({ nodes, chosen, onChoose }) {
  const view = useRef(null);
  const [seen, setSeen] = useState({ top: 0, height: 800 });
  useEffect(() => {
    const element = view.current;
    const measure = () => setSeen({ top: element.scrollTop, height: element.clientHeight });
    measure();
    element.addEventListener("scroll", measure, { passive: true });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", measure);
      observer.disconnect();
    };
  }, []);
  const first = Math.max(0, Math.floor(seen.top / rowHeight) - margin);
  const last = Math.min(nodes.length, Math.ceil((seen.top + seen.height) / rowHeight) + margin);
  // Arrow keys go from tile to tile, and page through the nodes.
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const row = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step && !row) return;
    const tiles = [...view.current.querySelectorAll(".tile")];
    const at = tiles.indexOf(document.activeElement);
    if (at < 0) return;
    let next = tiles[at + (step ?? 0)];
    if (row) {
      const rows = [...view.current.querySelectorAll(".node")];
      const here = rows.indexOf(tiles[at].closest(".node"));
      const column = [...rows[here].querySelectorAll(".tile")].indexOf(tiles[at]);
      const there = rows[here + row]?.querySelectorAll(".tile") ?? [];
      next = there[Math.min(column, there.length - 1)];
    }
    if (next) {
      event.preventDefault();
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    }
  };
  return (
    <div class="fleet" ref={view} onKeyDown={move} tabIndex={-1}>
      <div class="rows" role="list" aria-label="Nodes" style={{ height: `${nodes.length * rowHeight}px` }}>
        {nodes.slice(first, last).map((node, i) => (
          <Node key={node.name} node={node} top={(first + i) * rowHeight} position={first + i + 1} total={nodes.length} chosen={chosen} onChoose={onChoose} />
        ))}
      </div>
      {nodes.length === 0 && <p class="nothing">No GPU matches.</p>}
    </div>
  );
}

function Details({ node, gpu, onClose }) {
  const heading = useRef(null);
  useEffect(() => heading.current?.focus(), [gpu.uuid]);
  return (
    <section class="details" aria-label="GPU">
      <header>
        <h2 tabIndex={-1} ref={heading}>
          {node.name} GPU {gpu.index}
        </h2>
        <button type="button" onClick={onClose} aria-label="Close">
          ✕
        </button>
      </header>
      <dl>
        <dt>Model</dt>
        <dd>{gpu.model}</dd>
        <dt>Allocated</dt>
        <dd>
          {amount(gpu.requested, node.unitMiB)} of {amount(gpu.capacity, node.unitMiB)}
        </dd>
        <dt>Health</dt>
        <dd>{health(node, gpu)}</dd>
        <dt>UUID</dt>
        <dd class="mono">{gpu.uuid}</dd>
      </dl>
      <h3>Pods</h3>
      {gpu.pods.length === 0 ? (
        <p class="nothing">None.</p>
      ) : (
        <ul class="pods">
          {gpu.pods.map((p) => (
            <li key={p.namespace + "/" + p.name}>
              <i class="share" style={{ "--hue": hue(p.namespace) }} aria-hidden="true" />
              <span>
                {p.namespace}/{p.name}
              </span>
              <span>{amount(p.units, node.unitMiB)}</span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Waiting({ pods }) {
  return (
    <section class="waiting" aria-label="Pods that wait">
      <h2>{pods.length === 0 ? "No pod waits" : pods.length === 1 ? "1 pod waits" : `${pods.length} pods wait`}</h2>
      <ul>
        {pods.slice(0, 200).map((p) => (
          <li key={p.namespace + "/" + p.name}>
            <b>
              {p.namespace}/{p.name}
            </b>
            <span>{p.reason}</span>
          </li>
        ))}
        {pods.length > 200 && <li>and {pods.length - 200} more</li>}
      </ul>
    </section>
  );
}

const gib = (mib) => `${Math.floor(mib / 1024).toLocaleString("en")} GiB`;

function App() {
  const { fleet, error } = useFleet();
  const [filter, setFilter] = useState({ search: "", model: "", namespace: "", free: 0 });
  const [chosen, setChosen] = useState("");
  const set = (key) => (event) => setFilter({ ...filter, [key]: key === "free" ? Number(event.target.value) : event.target.value });
  const nodes = useMemo(() => (fleet ? select(fleet.nodes, filter) : []), [fleet, filter]);
  const by = useMemo(() => (fleet ? choices(fleet) : { models: [], namespaces: [] }), [fleet]);
  const sum = useMemo(() => sums(nodes), [nodes]);
  const waiting = useMemo(() => {
    const words = filter.search.toLowerCase().split(/\s+/).filter(Boolean);
    return (fleet?.waiting ?? []).filter(
      (p) => (!filter.namespace || p.namespace === filter.namespace) && (words.length === 0 || words.every((w) => `${p.namespace}/${p.name}`.toLowerCase().includes(w))),
    );
  }, [fleet, filter]);
  let shown = null;
  for (const node of fleet?.nodes ?? []) {
    const gpu = chosen && node.gpus.find((g) => g.uuid === chosen);
    if (gpu) shown = { node, gpu };
  }
  const close = () => {
    const back = shown && document.querySelector(`[data-gpu="${CSS.escape(`${shown.node.name}/${shown.gpu.index}`)}"]`);
    setChosen("");
    back?.focus();
  };
  return (
    <div class="page" onKeyDown={(e) => e.key === "Escape" && chosen && close()}>
      <header class="top">
        <h1>GPU memory</h1>
        <p class={error ? "state late" : "state"} role="status">
          {error || (fleet ? "live" : "loading…")}
        </p>
        <form class="filters" role="search" onSubmit={(e) => e.preventDefault()}>
          <label>
            Search
            <input type="search" name="search" placeholder="node, pod, model or UUID" value={filter.search} onInput={set("search")} />
          </label>
          <label>
            Model
            <select name="model" value={filter.model} onChange={set("model")}>
              <option value="">all</option>
              {by.models.map((m) => (
                <option key={m}>{m}</option>
              ))}
            </select>
          </label>
          <label>
            Namespace
            <select name="namespace" value={filter.namespace} onChange={set("namespace")}>
              <option value="">all</option>
              {by.namespaces.map((n) => (
                <option key={n}>{n}</option>
              ))}
            </select>
          </label>
          <label>
            Free at least (GiB)
            <input type="number" name="free" min="0" step="1" value={filter.free || ""} onInput={set("free")} />
          </label>
        </form>
        <dl class="sums" aria-live="polite">
          <div>
            <dt>Nodes</dt>
            <dd>{sum.nodes.toLocaleString("en")}</dd>
          </div>
          <div>
            <dt>GPUs</dt>
            <dd>{sum.gpus.toLocaleString("en")}</dd>
          </div>
          <div>
            <dt>Allocated</dt>
            <dd>
              {gib(sum.requestedMiB)} of {gib(sum.capacityMiB)} ({sum.capacityMiB ? Math.floor((100 * sum.requestedMiB) / sum.capacityMiB) : 0}%)
            </dd>
          </div>
          <div>
            <dt>Largest free on one GPU</dt>
            <dd>{gib(sum.largestMiB)}</dd>
          </div>
          {sum.taintedMiB > 0 && (
            <div>
              <dt>Largest free behind a taint</dt>
              <dd>{gib(sum.taintedMiB)}</dd>
            </div>
          )}
          <div class={sum.closed ? "bad" : ""}>
            <dt>Take no new pods</dt>
            <dd>{sum.closed}</dd>
          </div>
        </dl>
      </header>
      <main>
        <Fleet nodes={nodes} chosen={chosen} onChoose={(_, uuid) => setChosen(uuid)} />
        <aside>
          {shown && <Details node={shown.node} gpu={shown.gpu} onClose={close} />}
          <Waiting pods={waiting} />
        </aside>
      </main>
    </div>
  );
}

render(<App />, document.getElementById("app"));
