package metrics

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// Fleet supplies the scheduler's state of nodes and pods.
type Fleet struct {
	Nodes   func() []placement.Node
	Facts   func([]placement.Node) inspect.Facts
	Assumed func(before time.Time) []cache.Assumed
	Waiting func() []*v1.Pod // pods that request GPU memory and have no node
	Pods    bool             // create a series for each pod too
}

// gauge is a metric of the fleet.
type gauge struct {
	name, help string
	samples    []*dto.Metric
}

func (g gauge) family() *dto.MetricFamily {
	return &dto.MetricFamily{Name: new(prometheus.BuildFQName(namespace, "extender", g.name)), Help: &g.help, Type: dto.MetricType_GAUGE.Enum(), Metric: g.samples}
}

// Series yields the metrics of the scheduler's state at the time of the scrape, so a removed GPU leaves no series
// behind. It yields metrics of nodes, GPUs and pods in parts, one for each node. A part is valid until the caller
// requests the next part.
func (f Fleet) Series(yield func(*dto.MetricFamily) bool) {
	nodes := slices.DeleteFunc(slices.Clone(f.Nodes()), func(n placement.Node) bool { return len(n.Devices) == 0 })
	facts := f.Facts(nodes).Nodes
	sum := fleetSum{namespaces: make(map[string]float64)}
	for _, n := range nodes {
		sum.add(n, facts[n.Name])
	}
	emit := func(g gauge) (more bool) { return len(g.samples) == 0 || yield(g.family()) }
	for _, g := range append(sum.gauges(), f.podGauges()...) {
		if !emit(g) {
			return
		}
	}
	for _, metric := range []struct {
		name, help string
		samples    func(placement.Node, inspect.NodeFacts) []*dto.Metric
	}{
		{"node_schedulable", "Whether a node takes new pods with GPU memory: 1, or 0 while it is cordoned, NotReady, or its kubelet offers none. The label taint is the key of a taint that they must tolerate, other than nvidia.com/gpu and gpumem's resources.", schedulable},
		{"gpu_capacity_bytes", "Memory that a GPU offers to pods.", perGPU(func(d placement.Device, n placement.Node) float64 { return deviceBytes(d, d.Allocatable, n) })},
		{"gpu_allocated_bytes", "Memory of a GPU that is allocated to pods.", perGPU(func(d placement.Device, n placement.Node) float64 { return deviceBytes(d, d.Requested, n) })},
		{"gpu_healthy", "Whether a GPU takes new pods: 1, or 0 while it is not healthy or cordoned.", perGPU(func(d placement.Device, _ placement.Node) float64 { return oneIf(d.Status.Open()) })},
		{"pod_allocated_bytes", "Memory that is allocated to a pod, on all GPUs of its node.", f.pods},
	} {
		for _, n := range nodes {
			if !emit(gauge{metric.name, metric.help, metric.samples(n, facts[n.Name])}) {
				return
			}
		}
	}
}

// gauges returns the metrics of the sums over all nodes.
func (s *fleetSum) gauges() []gauge {
	var namespaces []*dto.Metric
	for namespace, bytes := range s.largestNamespaces() {
		namespaces = append(namespaces, sample(bytes, label("namespace", namespace)))
	}
	return []gauge{
		{"free_bytes", "Unallocated memory of GPUs that take new pods, on nodes that are schedulable.", singleSample(s.free)},
		{"tainted_free_bytes", "Part of free_bytes on nodes with a taint that pods must tolerate: see node_schedulable.", singleSample(s.tainted)},
		{"largest_free_bytes", "Largest amount that a pod could get on one GPU now, on nodes that are schedulable.", singleSample(s.largest)},
		{"stranded_bytes", "Unallocated memory that no pod can get: on GPUs that take no new pods or that one pod has alone, and on nodes that are cordoned or NotReady, have no free CPU, or have a kubelet that offers none.", singleSample(s.stranded)},
		{"fragmentation_ratio", "Share of the free memory on partly allocated GPUs: 0 if all free memory is on empty GPUs.", singleSample(s.broken / max(1, s.free))},
		{"nodes", "Nodes that offer GPU memory.", singleSample(float64(s.nodes))},
		{"unattributed_pods", "Pods that are bound to a node and have no known GPU there.", singleSample(float64(s.unattributed))},
		{"namespace_allocated_bytes", "Memory allocated to the pods of a namespace, for the namespaces with the largest amounts; the namespace (others) is the sum over all others.", namespaces},
	}
}

// podGauges returns the metrics of pods without a node, and of assumed pods (their binding is not confirmed yet).
func (f Fleet) podGauges() []gauge {
	now := time.Now()
	waiting := f.Waiting()
	slices.SortFunc(waiting, func(a, b *v1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	age := func(pod *v1.Pod) float64 { return max(0, now.Sub(pod.CreationTimestamp.Time).Seconds()) }
	var longest []*dto.Metric
	for _, pod := range waiting[:min(maxWaiting, len(waiting))] {
		longest = append(longest, sample(age(pod), label("namespace", pod.Namespace), label("pod", pod.Name)))
	}
	eldest := 0.0
	if len(waiting) > 0 {
		eldest = age(waiting[0])
	}
	assumed, oldest := f.Assumed(now), 0.0
	if len(assumed) > 0 {
		oldest = now.Sub(assumed[0].Since).Seconds()
	}
	return []gauge{
		{"waiting_pods", "Pods that request GPU memory and have no node.", singleSample(float64(len(waiting)))},
		{"waiting_oldest_seconds", "Age of the oldest pod that requests GPU memory and has no node; 0: no such pod.", singleSample(eldest)},
		{"pod_waiting_seconds", "Age of a pod that requests GPU memory and has no node, for the 100 oldest.", longest},
		{"assumed_pods", "Pods whose binding is in progress, or not confirmed by the watch yet.", singleSample(float64(len(assumed)))},
		{"assumed_oldest_seconds", "Age of the oldest assumed pod.", singleSample(oldest)},
	}
}

func singleSample(value float64) []*dto.Metric { return []*dto.Metric{sample(value)} }

// sample returns a gauge's sample. The labels must be sorted by name.
func sample(value float64, labels ...*dto.LabelPair) *dto.Metric {
	return &dto.Metric{Label: labels, Gauge: &dto.Gauge{Value: &value}}
}

func label(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

func schedulable(n placement.Node, facts inspect.NodeFacts) []*dto.Metric {
	return []*dto.Metric{sample(oneIf(facts.Refuses == nil), label("node", n.Name), label("taint", facts.Taint))}
}

// perGPU returns a function that returns one sample for each GPU of a node. The function reuses the
// samples' memory for the next node, because a large fleet has several samples for each of tens of
// thousands of GPUs. Callers of Series must read a part before they request the next part.
func perGPU(value func(placement.Device, placement.Node) float64) func(placement.Node, inspect.NodeFacts) []*dto.Metric {
	var samples []*dto.Metric
	return func(n placement.Node, _ inspect.NodeFacts) []*dto.Metric {
		for i, d := range n.Devices {
			if i == len(samples) {
				samples = append(samples, sample(0, label("gpu", ""), label("model", ""), label("node", ""), label("uuid", "")))
			}
			*samples[i].Gauge.Value = value(d, n)
			for k, text := range []string{strconv.Itoa(d.Index), d.Model, n.Name, string(d.UUID)} {
				*samples[i].Label[k].Value = text
			}
		}
		return samples[:len(n.Devices)]
	}
}

// pods returns the allocation of each pod of a node; nil unless f.Pods is set. A pod and its terminating
// predecessor of the same name share a series.
func (f Fleet) pods(n placement.Node, _ inspect.NodeFacts) (out []*dto.Metric) {
	if !f.Pods {
		return nil
	}
	known := make(map[placement.PodRef]*dto.Metric)
	for h, has := range allocated(n) {
		ref := placement.PodRef{Namespace: h.Pod.Namespace, Name: h.Pod.Name}
		if m := known[ref]; m != nil {
			*m.Gauge.Value += has
			continue
		}
		known[ref] = sample(has, label("namespace", ref.Namespace), label("node", n.Name), label("pod", ref.Name))
		out = append(out, known[ref])
	}
	return out
}

// allocated yields the pods of a node that have GPU memory, each with its bytes.
func allocated(n placement.Node) iter.Seq2[placement.Holding, float64] {
	return func(yield func(placement.Holding, float64) bool) {
		for _, h := range n.Holdings() {
			if has := podBytes(h, n); !h.Nominated && has > 0 && !yield(h, has) {
				return
			}
		}
	}
}

// fleetSum has sums over all nodes, and the largest free amount. Amounts of memory are in bytes.
type fleetSum struct {
	free, largest, stranded float64
	tainted, broken         float64 // parts of free: on tainted nodes, and on partly allocated GPUs
	nodes, unattributed     int
	namespaces              map[string]float64
}

const (
	// maxNamespaces bounds the series of namespace_allocated_bytes.
	maxNamespaces = 200
	// maxWaiting bounds the series of pod_waiting_seconds.
	maxWaiting = 100
	// otherNamespaces labels the sum over all other namespaces. It is not a valid name of a namespace.
	otherNamespaces = "(others)"
)

// largestNamespaces returns the largest allocations by namespace, at most maxNamespaces, and the sum of
// the others.
func (s *fleetSum) largestNamespaces() map[string]float64 {
	if len(s.namespaces) <= maxNamespaces {
		return s.namespaces
	}
	names := slices.SortedFunc(maps.Keys(s.namespaces), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.namespaces[b], s.namespaces[a]), cmp.Compare(a, b))
	})
	out := make(map[string]float64, maxNamespaces+1)
	for i, name := range names {
		if i >= maxNamespaces {
			name = otherNamespaces
		}
		out[name] += s.namespaces[names[i]]
	}
	return out
}

func (s *fleetSum) add(n placement.Node, facts inspect.NodeFacts) {
	s.nodes++
	s.unattributed += len(n.Unattributed)
	for h, has := range allocated(n) {
		s.namespaces[h.Pod.Namespace] += has
	}
	closed := facts.Refuses != nil || n.CPU > 0 && n.RequestedCPU >= n.CPU
	if !closed {
		s.largest = math.Max(s.largest, largestFreeBytes(n))
	}
	for _, d := range n.Devices {
		free := deviceBytes(d, d.Free(), n)
		if !d.Status.Open() || closed || n.IsExclusive(d) {
			s.stranded += free
			continue
		}
		s.free += free
		if d.Requested > 0 {
			s.broken += free
		}
		if facts.Taint != "" {
			s.tainted += free
		}
	}
}

const mib = 1 << 20

// deviceBytes converts units of a device to bytes.
func deviceBytes(d placement.Device, u gpu.Units, n placement.Node) float64 {
	return float64(d.MiB(u, n.UnitMiB)) * mib
}

// podBytes returns the bytes that a pod requests or, if it requests none, has been allocated by claims.
// A share has a tenth of the memory of its GPU.
func podBytes(h placement.Holding, n placement.Node) (sum float64) {
	units := h.Request.Units()
	if h.Request.Empty() {
		for _, share := range h.Allocated {
			units += share.Units
		}
	}
	if !n.InShares() {
		return float64(units) * float64(n.UnitMiB) * mib
	}
	each, _ := h.Request.Share()
	for _, d := range n.Devices {
		if slices.Contains(h.Assignment.Devices(), d.UUID) {
			sum += deviceBytes(d, each, n)
		}
	}
	return sum
}

// largestFreeBytes returns the largest amount that a new pod could get on one GPU, in bytes.
func largestFreeBytes(n placement.Node) float64 {
	units := nearmiss.LargestFree(n)
	if !n.InShares() {
		return float64(units) * float64(n.UnitMiB) * mib
	}
	most := 0.0
	for _, d := range n.Devices {
		if d.Status.Open() && n.FreeOn(d).Units >= units {
			most = math.Max(most, deviceBytes(d, units, n))
		}
	}
	return most
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
