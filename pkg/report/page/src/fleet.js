// What is worked out of the fleet, apart from how it is shown.

// amount prints units of a node in GiB, or in MiB where a unit is no whole GiB.
export function amount(units, unitMiB) {
  return unitMiB % 1024 === 0 ? `${(units * unitMiB) / 1024} GiB` : `${units * unitMiB} MiB`;
}

export const free = (gpu) => Math.max(0, gpu.capacity - gpu.requested);

// closed says why a GPU takes no new pods, or nothing: for its own sake, or its node's.
export const closed = (node, gpu) => gpu.unhealthy || node.closed;

// takesPods says whether a GPU takes new pods, were there room.
const takesPods = (node, gpu) => !closed(node, gpu) && !gpu.exclusive;

// health says whether a GPU is well, and for whom it is.
export function health(node, gpu) {
  const why = closed(node, gpu);
  if (why) return `takes no new pods: ${why}`;
  const whose = node.taint ? `, for pods that tolerate taint ${node.taint}` : "";
  return (gpu.exclusive ? "healthy, held alone" : "healthy") + whose;
}

// matches says whether a GPU of a node passes the filters.
export function matches(node, gpu, filter) {
  if (filter.model && gpu.model !== filter.model) return false;
  if (filter.free && (!takesPods(node, gpu) || (free(gpu) * node.unitMiB) / 1024 < filter.free)) return false;
  if (filter.namespace && !gpu.pods.some((p) => p.namespace === filter.namespace)) return false;
  const words = filter.search.toLowerCase().split(/\s+/).filter(Boolean);
  return words.every(
    (word) =>
      node.name.toLowerCase().includes(word) ||
      gpu.uuid.toLowerCase().includes(word) ||
      gpu.model.toLowerCase().includes(word) ||
      gpu.pods.some((p) => `${p.namespace}/${p.name}`.toLowerCase().includes(word)),
  );
}

// select returns the nodes that have a GPU which passes the filters, each with
// those alone. Without filters it is all of them.
export function select(nodes, filter) {
  if (!filter.search && !filter.model && !filter.namespace && !filter.free) return nodes;
  const out = [];
  for (const node of nodes) {
    const gpus = node.gpus.filter((gpu) => matches(node, gpu, filter));
    if (gpus.length > 0) out.push({ ...node, gpus });
  }
  return out;
}

// choices are what there is to filter by.
export function choices(fleet) {
  const models = new Set();
  const namespaces = new Set();
  for (const node of fleet.nodes) {
    for (const gpu of node.gpus) {
      models.add(gpu.model);
      for (const pod of gpu.pods) namespaces.add(pod.namespace);
    }
  }
  return { models: [...models].sort(), namespaces: [...namespaces].sort() };
}

// sums are over nodes as they are shown. What is free on nodes with a taint is apart.
export function sums(nodes) {
  const sum = { nodes: nodes.length, gpus: 0, capacityMiB: 0, requestedMiB: 0, closed: 0, largestMiB: 0, taintedMiB: 0 };
  for (const node of nodes) {
    for (const gpu of node.gpus) {
      sum.gpus++;
      sum.capacityMiB += gpu.capacity * node.unitMiB;
      sum.requestedMiB += gpu.requested * node.unitMiB;
      if (closed(node, gpu)) sum.closed++;
      const largest = node.taint ? "taintedMiB" : "largestMiB";
      if (takesPods(node, gpu)) sum[largest] = Math.max(sum[largest], free(gpu) * node.unitMiB);
    }
  }
  return sum;
}

// hue gives each namespace a colour of its own that stays the same (FNV-1a,
// spread over the circle by the golden ratio).
export function hue(namespace) {
  let hash = 0x811c9dc5;
  for (const c of namespace) hash = Math.imul(hash ^ c.codePointAt(0), 0x01000193) >>> 0;
  return Math.floor(((hash * 0.6180339887) % 1) * 360);
}

// describe is a GPU in words: what a screen reader says of its tile.
export function describe(node, gpu) {
  const pods = gpu.pods.length === 1 ? "1 pod" : `${gpu.pods.length} pods`;
  return `${node.name} GPU ${gpu.index}, ${gpu.model}, ${amount(gpu.requested, node.unitMiB)} of ${amount(gpu.capacity, node.unitMiB)} allocated, ${pods}, ${health(node, gpu)}`;
}
