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

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/closest"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// Fleet is what the extender knows of nodes and pods.
type Fleet struct {
	Nodes   func() []placement.Node
	Facts   func(placement.Node) inspect.NodeFacts
	Assumed func(before time.Time) []cache.Assumed
	Waiting func() (pods int, oldest time.Time) // pods that are on no node yet
	Pods    bool                                // each pod has a series too
}

// fleetCollector collects what the extender knows at the moment of the scrape, so
// that a GPU that is gone leaves no series behind.
type fleetCollector struct {
	Fleet
	all []*prometheus.Desc

	free, tainted, largest, stranded, fragmentation *prometheus.Desc
	nodes                                           *prometheus.Desc
	assumed, assumedAge, unattributed               *prometheus.Desc
	waiting, waitingAge, namespaces                 *prometheus.Desc
}

// RegisterFleet registers what the extender knows of the fleet, and returns the series of each node,
// GPU and pod, which are too many for a registry. It panics when that is registered already.
func RegisterFleet(to prometheus.Registerer, f Fleet) Series {
	c := &fleetCollector{Fleet: f}
	of := func(name, help string, labels ...string) *prometheus.Desc {
		c.all = append(c.all, prometheus.NewDesc(extenders(name), help, labels, nil))
		return c.all[len(c.all)-1]
	}
	c.free = of("free_bytes", "Memory that no pod holds, of GPUs that take new pods, on nodes that are schedulable.")
	c.tainted = of("tainted_free_bytes", "Of free_bytes, what is on nodes with a taint that pods must tolerate: see node_schedulable.")
	c.largest = of("largest_free_bytes", "The most that a pod could get of one GPU now, on nodes that are schedulable.")
	c.stranded = of("stranded_bytes", "Memory that no pod holds and none can get: of GPUs that take no new pods or that a pod holds alone, and of nodes that are cordoned or NotReady, whose kubelet offers none, or that have no free CPU.")
	c.fragmentation = of("fragmentation_ratio", "Share of the free memory that is on GPUs which pods use in part: 0 when all that is free are whole GPUs.")
	c.nodes = of("nodes", "Nodes that offer GPU memory.")
	c.assumed = of("assumed_pods", "Pods whose binding is on its way, or has not been heard of yet.")
	c.assumedAge = of("assumed_oldest_seconds", "Age of the oldest of them.")
	c.unattributed = of("unattributed_pods", "Pods that are bound to a node and on no known GPU of it.")
	c.waiting = of("waiting_pods", "Pods that ask for GPU memory and are on no node.")
	c.waitingAge = of("waiting_oldest_seconds", "Age of the oldest pod that asks for GPU memory and is on no node; 0: there is none.")
	c.namespaces = of("namespace_allocated_bytes", "Memory that the pods of a namespace are allocated, of the namespaces with the most; the sum of all others has the namespace (others).", "namespace")
	to.MustRegister(c)
	return f.series
}

func extenders(name string) string { return prometheus.BuildFQName(namespace, "extender", name) }

// Describe implements prometheus.Collector.
func (c *fleetCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.all {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *fleetCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	sum := fleetSum{namespaces: make(map[string]float64)}
	for n := range c.withGPUs() {
		sum.add(n, c.Facts(n))
	}
	gauge(c.free, sum.free)
	gauge(c.tainted, sum.tainted)
	gauge(c.largest, sum.largest)
	gauge(c.stranded, sum.stranded)
	gauge(c.fragmentation, sum.broken/max(1, sum.free))
	gauge(c.nodes, float64(sum.nodes))
	gauge(c.unattributed, float64(sum.unattributed))
	for namespace, bytes := range sum.largestNamespaces() {
		gauge(c.namespaces, bytes, namespace)
	}
	now := time.Now()
	waiting, first := c.Waiting()
	gauge(c.waiting, float64(waiting))
	gauge(c.waitingAge, ageOf(waiting, now.Sub(first)))
	assumed, oldest := c.Assumed(now), 0.0
	if len(assumed) > 0 {
		oldest = now.Sub(assumed[0].Since).Seconds()
	}
	gauge(c.assumed, float64(len(assumed)))
	gauge(c.assumedAge, oldest)
}

// withGPUs are the nodes that have GPUs.
func (f Fleet) withGPUs() iter.Seq[placement.Node] {
	return func(yield func(placement.Node) bool) {
		for _, n := range f.Nodes() {
			if len(n.Devices) > 0 && !yield(n) {
				return
			}
		}
	}
}

// series are those of each node, GPU and pod, a part for each node.
func (f Fleet) series(yield func(*dto.MetricFamily) bool) {
	nodes := slices.Collect(f.withGPUs())
	for _, of := range []struct {
		name, help string
		samples    func(placement.Node) []*dto.Metric
	}{
		{"node_schedulable", "Whether a node takes new pods with GPU memory: 1, or 0 while it is cordoned, NotReady, or its kubelet offers none. The label taint is the key of one that they must tolerate, apart from nvidia.com/gpu and gpumem's resources.", f.schedulable},
		{"gpu_capacity_bytes", "Memory that a GPU offers to pods.", ofGPUs(func(d placement.Device, n placement.Node) float64 { return ofDevice(d, d.Allocatable, n) })},
		{"gpu_allocated_bytes", "Memory of a GPU that pods hold.", ofGPUs(func(d placement.Device, n placement.Node) float64 { return ofDevice(d, d.Requested, n) })},
		{"gpu_healthy", "Whether a GPU takes new pods: 1, or 0 while it is not healthy or cordoned.", ofGPUs(func(d placement.Device, _ placement.Node) float64 { return oneIf(d.Status.Open()) })},
		{"pod_allocated_bytes", "Memory that a pod is allocated, on all GPUs of its node.", f.pods},
	} {
		for _, n := range nodes {
			samples := of.samples(n)
			if len(samples) == 0 {
				continue
			}
			if !yield(&dto.MetricFamily{Name: new(extenders(of.name)), Help: &of.help, Type: dto.MetricType_GAUGE.Enum(), Metric: samples}) {
				return
			}
		}
	}
}

// sample is a gauge with labels, which are in the order of their names.
func sample(value float64, labels ...*dto.LabelPair) *dto.Metric {
	return &dto.Metric{Label: labels, Gauge: &dto.Gauge{Value: &value}}
}

func label(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

func (f Fleet) schedulable(n placement.Node) []*dto.Metric {
	facts := f.Facts(n)
	return []*dto.Metric{sample(oneIf(facts.Refuses == nil), label("node", n.Name), label("taint", facts.Taint))}
}

// ofGPUs returns a value for each GPU of a node.
func ofGPUs(value func(placement.Device, placement.Node) float64) func(placement.Node) []*dto.Metric {
	return func(n placement.Node) (out []*dto.Metric) {
		for _, d := range n.Devices {
			out = append(out, sample(value(d, n), label("gpu", strconv.Itoa(d.Index)), label("model", d.Model), label("node", n.Name), label("uuid", string(d.UUID))))
		}
		return out
	}
}

// pods returns what each pod of a node has, where pods have series. One that is made again, while the
// one before it ends, has the same labels: they have one.
func (f Fleet) pods(n placement.Node) (out []*dto.Metric) {
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

// allocated are the pods of a node that have GPU memory, with how many bytes.
func allocated(n placement.Node) iter.Seq2[placement.Holding, float64] {
	return func(yield func(placement.Holding, float64) bool) {
		for _, h := range n.Holdings() {
			if has := ofPod(h, n); !h.Nominated && has > 0 && !yield(h, has) {
				return
			}
		}
	}
}

// fleetSum is what is free on all nodes, in bytes.
type fleetSum struct {
	free, largest, stranded float64
	tainted, broken         float64 // of free, what is behind a taint, and what is on GPUs that pods use in part
	nodes, unattributed     int
	namespaces              map[string]float64
}

const (
	// maxNamespaces bounds the series of namespace_allocated_bytes.
	maxNamespaces = 200
	// others is no name of a namespace.
	others = "(others)"
)

// largestNamespaces returns what the namespaces with the most have, and the others together.
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
			name = others
		}
		out[name] += s.namespaces[names[i]]
	}
	return out
}

// ageOf is the age of the oldest of some pods in seconds; 0 where there are none.
func ageOf(pods int, age time.Duration) float64 {
	if pods == 0 {
		return 0
	}
	return max(0, age.Seconds())
}

func (s *fleetSum) add(n placement.Node, facts inspect.NodeFacts) {
	s.nodes++
	s.unattributed += len(n.Unattributed)
	for h, has := range allocated(n) {
		s.namespaces[h.Pod.Namespace] += has
	}
	closed := facts.Refuses != nil || n.CPU > 0 && n.RequestedCPU >= n.CPU
	if !closed {
		s.largest = math.Max(s.largest, largestOf(n))
	}
	for _, d := range n.Devices {
		free := ofDevice(d, d.Free(), n)
		if !d.Status.Open() || closed || n.HeldAlone(d) {
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

// ofDevice returns how many bytes units of a device are.
func ofDevice(d placement.Device, u gpu.Units, n placement.Node) float64 {
	return float64(d.MiB(u, n.UnitMiB)) * mib
}

// ofPod returns what a pod of a node asks for, or has by claims. Shares are as large as those of the GPUs
// that it has.
func ofPod(h placement.Holding, n placement.Node) (sum float64) {
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
			sum += ofDevice(d, each, n)
		}
	}
	return sum
}

// largestOf returns the most that a new pod could have of one GPU.
func largestOf(n placement.Node) float64 {
	units := closest.LargestFree(n)
	if !n.InShares() {
		return float64(units) * float64(n.UnitMiB) * mib
	}
	most := 0.0
	for _, d := range n.Devices {
		if d.Status.Open() && n.Left(d).Units >= units {
			most = math.Max(most, ofDevice(d, units, n))
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
