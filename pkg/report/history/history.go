package history

import (
	"cmp"
	"container/list"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// Verbs of decisions, named after the requests to an extender. gpumem-scheduler records the same verbs.
const (
	Filter     = "filter"
	Prioritize = "prioritize"
	Preempt    = "preempt"
	Bind       = "bind"
)

// Results. All except Fits and Bound are refusals.
const (
	Fits    = "fits"    // the pod fits some node; for prioritize, the nodes are scored
	Bound   = "bound"   // bind bound the pod to the node and the chosen GPUs
	Unfit   = "unfit"   // the pod fits no node, and no eviction helps
	Refused = "refused" // bind did not bind the pod
	Failed  = "failed"  // the scheduler could not decide
)

// Reasons in addition to the reasons of packages placement and decide.
const (
	Unreadable = "Unreadable" // an annotation of the pod, or a node, could not be read
	Error      = "Error"      // the scheduler was not ready, or the API server refused
)

// InsufficientCores is the reason of a GPU with enough free memory, but too few free cores.
const InsufficientCores = "InsufficientCores"

// Decision is the scheduler's decision about a pod, for one verb.
type Decision struct {
	Time    time.Time `json:"time"`
	Verb    string    `json:"verb"`
	Result  string    `json:"result"`
	Reason  string    `json:"reason,omitempty"`  // one word, from the closest node; empty if the pod fits
	Message string    `json:"message,omitempty"` // the reason, for people
	Node    string    `json:"node,omitempty"`    // the node of the binding, or the best one
	Asked   int       `json:"asked"`             // number of nodes that kube-scheduler asked about
	Fit     int       `json:"fit"`               // number of nodes that the pod fits
	Why     string    `json:"why,omitempty"`     // for people, if the best node is not the policy's choice: the reason
	Sampled bool      `json:"sampled,omitempty"` // kube-scheduler asked about a sample of the nodes (percentageOfNodesToScore)

	// Nodes has at most MaxNodes nodes, the most informative first.
	Nodes []Node `json:"nodes,omitempty"`
}

// Node is a node that the scheduler considered.
type Node struct {
	Name    string `json:"name"`
	Score   *int64 `json:"score,omitempty"`  // from prioritize, 0 to 10
	Reason  string `json:"reason,omitempty"` // empty if the pod fits
	Message string `json:"message,omitempty"`
	UnitMiB int64  `json:"unitMiB,omitempty"`
	GPUs    []GPU  `json:"gpus,omitempty"` // by index
}

// GPU is a GPU that the scheduler considered, in its state before the decision.
type GPU struct {
	Index     int       `json:"index"`
	UUID      gpu.UUID  `json:"uuid"`
	Model     string    `json:"model,omitempty"`
	Capacity  gpu.Units `json:"capacity"`
	Free      gpu.Units `json:"free"`
	FreeCores *int      `json:"freeCores,omitempty"` // per cent; nil if unknown
	Reason    string    `json:"reason,omitempty"`    // why the pod does not fit this GPU
	Unhealthy string    `json:"unhealthy,omitempty"` // why it takes no new pods, for people
	Chosen    bool      `json:"chosen,omitempty"`

	Status gpu.Status `json:"status,omitzero"` // why it takes no new pods, for programs; older schedulers do not set it
}

// Pod has the recorded decisions about one pod.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Tries     int       `json:"tries"` // number of scheduling attempts: calls of filter, and of preempt without a preceding filter
	First     time.Time `json:"first"`

	// Decisions has the last decision of each verb, the latest first.
	Decisions []Decision `json:"decisions"`
}

// Log records decisions. It is safe for concurrent use.
type Log struct {
	limit int

	mu     sync.Mutex
	pods   map[string]*list.Element // by UID
	recent *list.List               // of *Pod, the latest first
}

// NewLog returns a log of at most limit pods.
func NewLog(limit int) *Log {
	return &Log{limit: limit, pods: make(map[string]*list.Element), recent: list.New()}
}

// Add records a decision about a pod. The caller must not change the decision afterwards.
func (l *Log) Add(ref placement.PodRef, d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	element, ok := l.pods[ref.UID]
	if !ok {
		element = l.recent.PushFront(&Pod{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID, First: d.Time})
		l.pods[ref.UID] = element
	}
	l.recent.MoveToFront(element)
	pod := element.Value.(*Pod)
	// If kube-scheduler itself has rejected all nodes, it calls preempt without filter.
	filtered := len(pod.Decisions) > 0 && pod.Decisions[0].Verb == Filter
	if d.Verb == Filter || d.Verb == Preempt && !filtered {
		pod.Tries++
	}
	// Copy the slice, because callers of Pods may still read the old one.
	kept := append(make([]Decision, 0, 1+len(pod.Decisions)), d)
	for _, old := range pod.Decisions {
		if old.Verb != d.Verb {
			kept = append(kept, old)
		}
	}
	pod.Decisions = kept
	for l.recent.Len() > l.limit {
		last := l.recent.Back()
		delete(l.pods, l.recent.Remove(last).(*Pod).UID)
	}
}

// Pods returns the recorded pods with this namespace and name, the pod with the latest decision first.
// An empty string matches all.
func (l *Log) Pods(namespace, name string) []Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []Pod{}
	for e := l.recent.Front(); e != nil; e = e.Next() {
		pod := *e.Value.(*Pod)
		if (namespace == "" || pod.Namespace == namespace) && (name == "" || pod.Name == name) {
			out = append(out, pod)
		}
	}
	return out
}

// List is the response at Path.
type List struct {
	Pods []Pod `json:"pods"`
}

// Path is the URL path of the scheduler's decisions.
const Path = "/api/v1/decisions"

// ServeHTTP responds with a List of the pods that the parameters "namespace" and "pod" select.
func (l *Log) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	// An error means that the client is gone.
	_ = json.NewEncoder(w).Encode(List{Pods: l.Pods(query.Get("namespace"), query.Get("pod"))})
}

// DescribeNode describes a node for a request. Parameter chosen has the GPUs assigned to the pod, if any.
func DescribeNode(req placement.Request, n placement.Node, chosen placement.Assignment) Node {
	out := Node{Name: n.Name, UnitMiB: n.UnitMiB, GPUs: make([]GPU, 0, len(n.Devices))}
	for _, d := range n.Devices {
		left := n.FreeOn(d)
		cores := left.Cores
		g := GPU{Index: d.Index, UUID: d.UUID, Model: d.Model, Capacity: d.Allocatable, Free: left.Units, FreeCores: &cores, Unhealthy: reasons.Causes(d.Status), Status: d.Status}
		switch reason := n.Check(req, d); {
		case reason == placement.Insufficient && n.Check(memoryOnly(req), d) == placement.Fits:
			g.Reason = InsufficientCores
		case reason != placement.Fits:
			g.Reason = reason.String()
		}
		g.Chosen = slices.Contains(chosen.Devices(), d.UUID)
		out.GPUs = append(out.GPUs, g)
	}
	return out
}

// Ranked returns the decision for a ranking. Parameter nodes is the number of ranked nodes; the pod fits
// all of them.
func Ranked(order ranking.Ranking, nodes int) Decision {
	d := Decision{Verb: Prioritize, Result: Fits, Asked: nodes, Fit: nodes, Why: reasons.ExplainRanking(order)}
	best := order.Best[:min(len(order.Best), MaxNodes)]
	d.Nodes = make([]Node, len(best))
	for i, one := range best {
		// A pointer into best would keep the nodes and the pods on them in memory.
		d.Nodes[i] = Node{Name: one.Node.Name, Score: &scores[one.Score]}
	}
	if len(d.Nodes) > 0 {
		d.Node = d.Nodes[0].Name
	}
	return d
}

// scores has all possible scores. Node.Score points to its elements.
var scores = func() (all [ranking.MaxScore + 1]int64) {
	for i := range all {
		all[i] = int64(i)
	}
	return all
}()

// memoryOnly returns the request without cores.
func memoryOnly(req placement.Request) placement.Request {
	req.Containers = req.Containers.Each(func(c *placement.Container) { c.Cores = 0 })
	return req
}

// MaxNodes is the maximum number of nodes in a decision.
const MaxNodes = 16

// Closest collects the verdicts of the nodes that are closest to a fit. The zero value is empty and
// ready for use.
type Closest struct{ kept []candidate }

type candidate struct {
	*placement.Verdict
	gap nearmiss.Gap
}

// Add adds a verdict if it is among the MaxNodes closest so far. Parameter gap is the node's distance from a fit.
// Rejecting other verdicts is cheap, so callers may add the verdicts of all nodes.
func (c *Closest) Add(v *placement.Verdict, gap nearmiss.Gap) {
	one := candidate{v, gap}
	at, _ := slices.BinarySearchFunc(c.kept, one, compare)
	if at == MaxNodes {
		return
	}
	c.kept = slices.Insert(c.kept[:min(len(c.kept), MaxNodes-1)], at, one)
}

func compare(a, b candidate) int {
	return cmp.Or(a.gap.Compare(b.gap), cmp.Compare(a.Node.Name, b.Node.Name))
}

// Nodes describes the nodes of the collected verdicts, the closest first.
func (c *Closest) Nodes() []Node {
	var out []Node
	for _, v := range c.kept {
		n := DescribeNode(v.Request, v.Node, placement.Assignment{})
		n.Reason, n.Message = v.Reason.String(), reasons.Verdict(*v.Verdict)
		out = append(out, n)
	}
	return out
}
