package decider

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/kube/template"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
)

// Decider decides about the pods that request GPU memory. Its exported fields must not change after the first
// call.
type Decider struct {
	*binder.Binder

	index   ranking.Index
	agreed  agreements
	waiters waiters

	fruitless atomic.Int32 // number of fruitless walks in a row (see leastTried)
}

// Node is a node as kube-scheduler sees it.
type Node struct {
	Name       string
	Generation int64 // changes with the node's pods; 0 means unknown
	// Pods yields the node's bound, reserved and nominated pods. During preemption, it leaves out the victims.
	// If Pods is nil, the cached pods are used.
	Pods iter.Seq[*v1.Pod]
}

// Cycle is one scheduling attempt of kube-scheduler for a pod, or one HTTP request about it.
type Cycle struct {
	cache.Question
	Sampled bool // kube-scheduler asked about a sample of the nodes
	// Templates maps node names to Node objects. They describe nodes that the cache lacks, because these may
	// not exist yet.
	Templates map[string]*v1.Node

	asked   int    // number of nodes
	changes uint64 // number of the cache's last change before the first decision
	// elsewhere is the refusal by all other nodes if the pod is, or may be, bound to a node.
	elsewhere   *decide.Refusal
	refused     atomic.Int64
	brief       sync.Map         // short messages by placement.Reason
	scores      map[string]int64 // by node name
	fitRecorded bool             // the number of feasible nodes has been recorded
	equal       bool             // the nodes that are being scored have equal ranks
	reserved    time.Time
}

// BoundNode returns the only node to which the pod can go, because its binding may have succeeded there. It returns
// an empty name if there is no such node.
func (c *Cycle) BoundNode() string {
	if c.elsewhere == nil {
		return ""
	}
	return c.elsewhere.Node
}

// Refused returns the number of times that Refuse has refused the pod.
func (c *Cycle) Refused() int { return int(c.refused.Load()) }

// Begin reads a pod's request and starts a cycle. Parameter verb is a verb of package history, and nodes is
// the number of nodes in question. Begin returns three nils for a pod that requests no GPU memory. It returns
// a refusal, which applies to all nodes, if the request is unreadable, and an error if the process is not
// ready.
func (d *Decider) Begin(verb string, pod *v1.Pod, nodes int) (*Cycle, *decide.Refusal, error) {
	req, err := d.Names.Request(pod)
	if err == nil && req.Empty() {
		return nil, nil, nil
	}
	d.RecordRequest()
	ref := api.Ref(pod)
	if problem := d.NotReady(); problem != "" {
		d.Record(ref, history.Decision{Verb: verb, Result: history.Failed, Reason: history.Error, Message: problem})
		return nil, nil, errors.New(problem)
	}
	d.Cache.Expire(d.Now())
	if err != nil {
		d.waiters.remove(ref.UID)
		d.Record(ref, history.Decision{Verb: verb, Result: history.Unfit, Reason: history.Unreadable, Message: err.Error(), Asked: nodes})
		return nil, unreadable(err), nil
	}
	c := &Cycle{Question: cache.NewQuestion(ref, req, d.Policies.GPU), asked: nodes}
	c.changes, _ = d.Cache.Changes()
	if on, assumed, known := d.Cache.PodNode(ref.UID); known {
		c.elsewhere = &decide.Refusal{Reason: decide.Elsewhere, Node: on, Assumed: assumed}
	}
	return c, nil, nil
}

// unreadable returns the refusal for a pod or node that cannot be read. No eviction resolves it.
func unreadable(err error) *decide.Refusal {
	return &decide.Refusal{Reason: history.Unreadable, Message: err.Error(), Unresolvable: true}
}

// Refuse returns the reason why the pod cannot go to a node, or nil if the pod fits. It evaluates the pods
// that kube-scheduler has on the node. It is safe for concurrent use.
func (d *Decider) Refuse(c *Cycle, node Node) *decide.Refusal {
	refusal := d.refuse(c, node)
	if refusal != nil {
		c.refused.Add(1)
	}
	return refusal
}

func (d *Decider) refuse(c *Cycle, node Node) *decide.Refusal {
	if c.elsewhere != nil {
		if c.BoundNode() == node.Name {
			return nil // the pod already has its GPUs there
		}
		return c.elsewhere
	}
	known, refusal := d.Cache.EvaluateNode(node.Name, c.Question)
	if object := c.Templates[node.Name]; known == nil && object != nil {
		state, err := d.template(object)
		if err != nil {
			return unreadable(err)
		}
		return c.Evaluate(*state)
	}
	if node.Pods != nil {
		if state, differs := d.differing(node, known); differs {
			return c.Evaluate(state)
		}
	}
	return refusal
}

// template derives the state of a node that the cache lacks from its Node object.
func (d *Decider) template(object *v1.Node) (*placement.Node, error) {
	inv, err := template.Inventory(d.Names, object)
	if err != nil {
		return nil, err
	}
	state := placement.NewNode(object.Name, inv, nil)
	return &state, nil
}

// Message returns the message of a refusal. kube-scheduler writes each distinct message once into a condition of
// the pod. So in a request about many nodes, all nodes with the same reason share one short message. The method
// Unfit describes a few nodes in full.
func (c *Cycle) Message(refusal *decide.Refusal) string {
	if !c.many() || refusal.Verdict == nil {
		return reasons.Counted(refusal, reasons.Refusal(refusal))
	}
	text, ok := c.brief.Load(refusal.Verdict.Reason)
	if !ok {
		text, _ = c.brief.LoadOrStore(refusal.Verdict.Reason, reasons.Counted(refusal, reasons.Brief(*refusal.Verdict)))
	}
	return text.(string)
}

// many reports whether the request has more nodes than the method Unfit describes.
func (c *Cycle) many() bool { return c.asked > history.MaxNodes }

// Rank ranks the feasible nodes, and returns at most limit of them, the best first. Memory that expected pods
// will get, or that is reserved for nominated pods, is not free for Rank.
func (d *Decider) Rank(c *Cycle, names []string, limit int) ranking.Ranking {
	order := d.rank(c, names, limit)
	c.scores = make(map[string]int64, len(order.Best))
	for _, one := range order.Best {
		c.scores[one.Node.Name] = one.Score
	}
	d.Record(c.Pod, history.Ranked(order, len(names)))
	return order
}

func (d *Decider) rank(c *Cycle, names []string, limit int) ranking.Ranking {
	if c.Templates == nil {
		return d.index.Rank(d.Cache, d.question(c.Question), limit, setOf(names))
	}
	nodes := make([]*placement.Node, 0, len(names))
	for _, name := range names {
		if node := d.Cache.GetNode(name); node != nil {
			nodes = append(nodes, c.View(node))
		} else if node, err := d.template(c.Templates[name]); err == nil {
			nodes = append(nodes, node)
		}
	}
	return ranking.Rank(limit, d.Policies, c.Request, nodes, d.Cache.Prices())
}

// setOf returns the names as a set.
func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// question returns the pod's question to package ranking.
func (d *Decider) question(q cache.Question) ranking.Question {
	return ranking.Question{Request: q.Request, Defaults: d.Policies, View: q.View}
}

// Score returns the score of a node, from 0 to ranking.MaxScore.
func (c *Cycle) Score(name string) int64 { return c.scores[name] }

// Reserve picks the pod's GPUs and reserves them, in one critical section.
func (d *Decider) Reserve(c *Cycle, node Node) error {
	if !c.fitRecorded {
		d.Fits(c, 1+c.Refused(), 1, nil) // kube-scheduler does not rank a single feasible node
	}
	if err := d.catchUp(node); err != nil {
		return err
	}
	reserved, err := d.Binder.Reserve(c.Pod, node.Name, c.Request)
	if err != nil {
		return err
	}
	c.reserved = reserved
	return nil
}

// Unreserve releases the reservation, unless a binding may still succeed.
func (d *Decider) Unreserve(c *Cycle) {
	if !c.reserved.IsZero() {
		d.Binder.Release(c.Pod, c.reserved)
	}
}

// Bind sends the binding with the assignment.
func (d *Decider) Bind(ctx context.Context, pod placement.PodRef, node string) error {
	d.waiters.remove(pod.UID)
	return d.Binder.Bind(ctx, pod, node)
}
