package decisions

import (
	"cmp"
	"container/list"
	"encoding/json"
	"iter"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gpumem/gpumem/pkg/core/closest"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// The verbs that are decided.
const (
	Filter     = "filter"
	Prioritize = "prioritize"
	Preempt    = "preempt"
	Bind       = "bind"
)

// The results. What is not one of the first two is a refusal.
const (
	Fits    = "fits"    // it fits on some node, or one is better than another
	Bound   = "bound"   // to the node, with the GPUs that are chosen
	Unfit   = "unfit"   // it fits on no node, and no eviction helps
	Refused = "refused" // the binding
	Failed  = "failed"  // the question could not be answered
)

// Reasons next to those of placement and cache.
const (
	Unreadable = "Unreadable" // an annotation of the pod, or a node
	Error      = "Error"      // not ready, or the API server refused
)

// InsufficientCores is why a GPU would not do that has enough memory free, and no
// cores to go with it.
const InsufficientCores = "InsufficientCores"

// Decision is one answer.
type Decision struct {
	Time    time.Time `json:"time"`
	Verb    string    `json:"verb"`
	Result  string    `json:"result"`
	Reason  string    `json:"reason,omitempty"`  // in a word, of what came closest; empty where it fits
	Message string    `json:"message,omitempty"` // the same for people
	Node    string    `json:"node,omitempty"`    // that it is about, or is best
	Asked   int       `json:"asked"`             // how many nodes were looked at
	Fit     int       `json:"fit"`               // on how many of them the pod fits
	Why     string    `json:"why,omitempty"`     // the best node is not that of the policy alone, for people
	Sampled bool      `json:"sampled,omitempty"` // kube-scheduler has left out nodes, as it does where it looks for some that fit alone

	// Nodes are some of them, those that tell most first.
	Nodes []Node `json:"nodes,omitempty"`
}

// Node is one node that was looked at.
type Node struct {
	Name    string `json:"name"`
	Score   *int64 `json:"score,omitempty"`  // by prioritize, 0 to 10
	Reason  string `json:"reason,omitempty"` // empty where it fits
	Message string `json:"message,omitempty"`
	UnitMiB int64  `json:"unitMiB,omitempty"`
	GPUs    []GPU  `json:"gpus,omitempty"` // by index
}

// GPU is one GPU as it was looked at, before the pod got anything of it.
type GPU struct {
	Index     int       `json:"index"`
	UUID      gpu.UUID  `json:"uuid"`
	Model     string    `json:"model,omitempty"`
	Capacity  gpu.Units `json:"capacity"`
	Free      gpu.Units `json:"free"`
	FreeCores *int      `json:"freeCores,omitempty"` // per cent; nil when not known
	Reason    string    `json:"reason,omitempty"`    // why it would not do
	Unhealthy string    `json:"unhealthy,omitempty"` // why it takes no new pods, for people
	Chosen    bool      `json:"chosen,omitempty"`

	Status gpu.Status `json:"status,omitzero"` // the same, for programs; an extender of before does not tell
}

// Pod is what is remembered of one pod.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Tries     int       `json:"tries"` // how often it was to be placed: calls of filter, and those of preempt that follow none
	First     time.Time `json:"first"`

	// Decisions are the last of each verb, the latest first.
	Decisions []Decision `json:"decisions"`
}

// Log remembers decisions. It is safe for use by several goroutines.
type Log struct {
	limit int

	mu     sync.Mutex
	pods   map[string]*list.Element // by UID
	recent *list.List               // of *Pod, the latest first
}

// NewLog returns a log of at most so many pods.
func NewLog(limit int) *Log {
	return &Log{limit: limit, pods: make(map[string]*list.Element), recent: list.New()}
}

// Add remembers a decision about a pod. The decision is not to be changed any
// more.
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
	// kube-scheduler asks at once which evictions would help where it has ruled out all nodes itself.
	filtered := len(pod.Decisions) > 0 && pod.Decisions[0].Verb == Filter
	if d.Verb == Filter || d.Verb == Preempt && !filtered {
		pod.Tries++
	}
	// Made again: readers have the old one.
	kept := []Decision{d}
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

// Pods returns what is remembered of the pods of a namespace and a name, the
// latest first; empty: of all.
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

// List is the answer of the route.
type List struct {
	Pods []Pod `json:"pods"`
}

// Path is where the extender serves its decisions.
const Path = "/api/v1/decisions"

// ServeHTTP answers GET with a List, of the pods that the parameters
// "namespace" and "pod" name.
func (l *Log) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	// An error means that the client is gone.
	_ = json.NewEncoder(w).Encode(List{Pods: l.Pods(query.Get("namespace"), query.Get("pod"))})
}

// Look describes a node as it is for a request. Chosen are the GPUs that the pod
// has got, if any.
func Look(req placement.Request, n placement.Node, chosen placement.Assignment) Node {
	out := Node{Name: n.Name, UnitMiB: n.UnitMiB}
	for _, d := range n.Devices {
		left := n.Left(d)
		cores := left.Cores
		g := GPU{Index: d.Index, UUID: d.UUID, Model: d.Model, Capacity: d.Allocatable, Free: left.Units, FreeCores: &cores, Unhealthy: reasons.Causes(d.Status), Status: d.Status}
		switch reason := n.Check(req, d); {
		case reason == placement.Insufficient && n.Check(memoryOf(req), d) == placement.Fits:
			g.Reason = InsufficientCores
		case reason != placement.Fits:
			g.Reason = reason.String()
		}
		g.Chosen = slices.Contains(chosen.Devices(), d.UUID)
		out.GPUs = append(out.GPUs, g)
	}
	return out
}

// Ranked is the decision where so many nodes were ranked that the pod fits.
func Ranked(order ranking.Ranking, nodes int) Decision {
	d := Decision{Verb: Prioritize, Result: Fits, Asked: nodes, Fit: nodes, Why: reasons.Why(order)}
	for i := range order.Best[:min(len(order.Best), MaxNodes)] {
		one := order.Best[i]
		d.Nodes = append(d.Nodes, Node{Name: one.Node.Name, Score: &one.Score})
	}
	if len(d.Nodes) > 0 {
		d.Node = d.Nodes[0].Name
	}
	return d
}

// memoryOf is the request for memory alone.
func memoryOf(req placement.Request) placement.Request {
	req.Containers = req.Containers.Each(func(c *placement.Container) { c.Cores = 0 })
	return req
}

// MaxNodes is how many nodes a decision lists.
const MaxNodes = 16

// Closest keeps, of the verdicts that it is given, those that came closest: the
// zero value is ready for use.
type Closest struct{ kept []candidate }

type candidate struct {
	*placement.Verdict
	gap closest.Gap
}

// Add takes one more verdict, and its gap. Most are not among the closest, and cost little.
func (c *Closest) Add(v *placement.Verdict, gap closest.Gap) {
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

// Names yields the names of their nodes, the closest first.
func (c *Closest) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range c.kept {
			if !yield(v.Node.Name) {
				return
			}
		}
	}
}

// Nodes describes them, the closest first.
func (c *Closest) Nodes() []Node {
	var out []Node
	for _, v := range c.kept {
		n := Look(v.Request, v.Node, placement.Assignment{})
		n.Reason, n.Message = v.Reason.String(), reasons.Verdict(*v.Verdict)
		out = append(out, n)
	}
	return out
}
