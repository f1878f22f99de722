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
	"github.com/gpumem/gpumem/pkg/report/decisions"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
)

// Decider decides about the pods that request GPU memory. Its fields are not changed once it is
// in use.
type Decider struct {
	*binder.Binder

	index   ranking.Index
	agreed  agreements
	waiters waiters

	fruitless atomic.Int32 // walks of Best that found no node since the last one that did
}

// Node is a node of a question.
type Node struct {
	Name       string
	Generation int64             // changes with the pods; 0 means unknown
	Pods       iter.Seq[*v1.Pod] // on it, reserved for it, and in preemption not those that would go; nil: the cache's
}

// Cycle is one attempt to schedule a pod, or one request of kube-scheduler about it.
type Cycle struct {
	cache.Question
	Sampled   bool                // kube-scheduler has left out nodes
	Templates map[string]*v1.Node // nodes that may not exist yet, by name: they count where the cache does not know them

	asked       int             // nodes
	changes     uint64          // of the cache, before it was asked
	elsewhere   *decide.Refusal // of all nodes but the one that the pod is on as far as is known; nil: it is on none
	refused     atomic.Int64
	brief       sync.Map         // texts about nodes that are not described, by placement.Reason
	scores      map[string]int64 // by node
	fitRecorded bool             // the number of feasible nodes has been recorded
	equal       bool             // the nodes being scored are equal for this package
	reserved    time.Time
}

// On returns the node to which alone the pod can go, since its binding may have landed there;
// empty: it is not on any.
func (c *Cycle) On() string {
	if c.elsewhere == nil {
		return ""
	}
	return c.elsewhere.Node
}

// Refused returns how many nodes Refuse has refused.
func (c *Cycle) Refused() int { return int(c.refused.Load()) }

// Begin reads a pod's request for one of the verbs of package decisions; nodes is how many there are.
// It returns nothing for a pod that requests no GPU memory, a refusal by all nodes where the request
// cannot be read, and an error where nothing can be decided yet.
func (d *Decider) Begin(verb string, pod *v1.Pod, nodes int) (*Cycle, *decide.Refusal, error) {
	req, err := d.Names.Request(pod)
	if err == nil && req.Empty() {
		return nil, nil, nil
	}
	d.NoteRequest()
	ref := api.Ref(pod)
	if problem := d.NotReady(); problem != "" {
		d.Record(ref, decisions.Decision{Verb: verb, Result: decisions.Failed, Reason: decisions.Error, Message: problem})
		return nil, nil, errors.New(problem)
	}
	d.Cache.Expire(d.Now())
	if err != nil {
		d.waiters.remove(ref.UID)
		d.Record(ref, decisions.Decision{Verb: verb, Result: decisions.Unfit, Reason: decisions.Unreadable, Message: err.Error(), Asked: nodes})
		return nil, unreadable(err), nil
	}
	c := &Cycle{Question: cache.NewQuestion(ref, req, d.Policies.GPU), asked: nodes}
	c.changes, _ = d.Cache.Changes()
	if on, assumed, known := d.Cache.PodNode(ref.UID); known {
		c.elsewhere = &decide.Refusal{Reason: decide.Elsewhere, Node: on, Assumed: assumed}
	}
	return c, nil, nil
}

// unreadable refuses since something in a pod or a node cannot be read, on which no
// other pod has any influence.
func unreadable(err error) *decide.Refusal {
	return &decide.Refusal{Reason: decisions.Unreadable, Message: err.Error(), Unresolvable: true}
}

// Refuse returns why the pod cannot go to a node, with the pods that kube-scheduler has on it; nil:
// it can. It may be called by several goroutines.
func (d *Decider) Refuse(c *Cycle, node Node) *decide.Refusal {
	refusal := d.refuse(c, node)
	if refusal != nil {
		c.refused.Add(1)
	}
	return refusal
}

func (d *Decider) refuse(c *Cycle, node Node) *decide.Refusal {
	if c.elsewhere != nil {
		if c.On() == node.Name {
			return nil // its GPUs there are enough for it
		}
		return c.elsewhere
	}
	known, refusal := d.Cache.Answer(node.Name, c.Question)
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

// template returns the GPUs of a node that may not exist yet.
func (d *Decider) template(object *v1.Node) (*placement.Node, error) {
	inv, err := template.Inventory(d.Names, object)
	if err != nil {
		return nil, err
	}
	state := placement.NewNode(object.Name, inv, nil)
	return &state, nil
}

// Why says why a node is refused. kube-scheduler writes that into a condition of the pod, once for
// each text: of many nodes it is the same where the same is missing, and Unfit describes some.
func (c *Cycle) Why(refusal *decide.Refusal) string {
	if !c.many() || refusal.Verdict == nil {
		return reasons.Counted(refusal, reasons.Refusal(refusal))
	}
	text, ok := c.brief.Load(refusal.Verdict.Reason)
	if !ok {
		text, _ = c.brief.LoadOrStore(refusal.Verdict.Reason, reasons.Counted(refusal, reasons.Brief(*refusal.Verdict)))
	}
	return text.(string)
}

// many reports whether there are so many nodes that few are described.
func (c *Cycle) many() bool { return c.asked > decisions.MaxNodes }

// Rank ranks the nodes that the pod fits, and returns the best: at most so many. It counts pods that
// are expected on a node, and memory that is reserved for nominated pods.
func (d *Decider) Rank(c *Cycle, names []string, most int) ranking.Ranking {
	order := d.rank(c, names, most)
	c.scores = make(map[string]int64, len(order.Best))
	for _, one := range order.Best {
		c.scores[one.Node.Name] = one.Score
	}
	d.Record(c.Pod, decisions.Ranked(order, len(names)))
	return order
}

func (d *Decider) rank(c *Cycle, names []string, most int) ranking.Ranking {
	if c.Templates == nil {
		among := make(map[string]bool, len(names))
		for _, name := range names {
			among[name] = true
		}
		return d.index.Rank(d.Cache, d.question(c), most, among)
	}
	nodes := make([]*placement.Node, 0, len(names))
	for _, name := range names {
		if node := d.Cache.Look(name); node != nil {
			nodes = append(nodes, c.View(node))
		} else if node, err := d.template(c.Templates[name]); err == nil {
			nodes = append(nodes, node)
		}
	}
	return ranking.Rank(most, d.Policies, c.Request, nodes, d.Cache.Prices())
}

// question is the pod's about the best nodes.
func (d *Decider) question(c *Cycle) ranking.Question {
	return ranking.Question{Request: c.Request, Defaults: d.Policies, View: c.View}
}

// Score returns a node's rank, up to ranking.MaxScore.
func (c *Cycle) Score(name string) int64 { return c.scores[name] }

// Reserve chooses the pod's GPUs and reserves them, in one critical section.
func (d *Decider) Reserve(c *Cycle, node Node) error {
	if !c.fitRecorded {
		d.Fits(c, 1+c.Refused(), 1, nil) // kube-scheduler ranks no node that is alone
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

// Unreserve takes the reservation back, unless a binding may still land.
func (d *Decider) Unreserve(c *Cycle) {
	if !c.reserved.IsZero() {
		d.Binder.Release(c.Pod, c.reserved)
	}
}

// Bind writes the binding and with it the assignment.
func (d *Decider) Bind(ctx context.Context, pod placement.PodRef, node string) error {
	d.waiters.remove(pod.UID)
	return d.Binder.Bind(ctx, pod, node)
}
