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
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/decisions"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
	"github.com/gpumem/gpumem/pkg/scheduler/waker"
)

// Decider decides about the pods that ask for GPU memory. Its fields are not changed once it is
// in use.
type Decider struct {
	Policies ranking.Policies // of pods that name none
	Binder   *binder.Binder

	index  ranking.Index
	agreed agreements
	waker  waker.Waker
}

// Node is a node as kube-scheduler has it.
type Node struct {
	Name       string
	Generation int64             // is another whenever the pods are others; 0: not known
	Pods       iter.Seq[*v1.Pod] // on it, reserved for it, and in preemption not those that would go
}

// Cycle is what is known of the pod that is being scheduled.
type Cycle struct {
	question cache.Question
	changes  uint64 // of the cache, before it was asked
	on       string // the node that the pod is on as far as is known; empty: none
	refused  atomic.Int64
	many     bool             // nodes are there, so that few are described
	brief    sync.Map         // what is said of the others, by placement.Reason
	scores   map[string]int64 // by node
	said     bool             // on how many nodes it fits
	equal    bool             // the nodes being scored are equal for this package
	reserved time.Time
}

// On returns the node to which alone the pod can go, since its binding may have landed there;
// empty: it is not on any.
func (c *Cycle) On() string { return c.on }

// Begin reads what a pod asks for; nodes is how many there are. It returns nothing where that is
// no GPU memory, a refusal where it cannot be read or is of no use without GPU memory, and an error
// where nothing can be decided yet.
func (d *Decider) Begin(pod *v1.Pod, nodes int) (*Cycle, *decide.Refusal, error) {
	req, err := d.Binder.Names.Request(pod)
	if err == nil && req.Empty() {
		return nil, nil, nil
	}
	d.Binder.NoteRequest()
	if problem := d.Binder.NotReady(); problem != "" {
		return nil, nil, errors.New(problem)
	}
	d.Binder.Cache.Expire(d.Binder.Now())
	ref := api.Ref(pod)
	if err != nil {
		d.Binder.Record(ref, decisions.Decision{Verb: decisions.Filter, Result: decisions.Unfit, Reason: decisions.Unreadable, Message: err.Error()})
		return nil, &decide.Refusal{Reason: decisions.Unreadable, Message: err.Error(), Unresolvable: true}, nil
	}
	c := &Cycle{question: cache.NewQuestion(ref, req, d.Policies.GPU), many: nodes > decisions.MaxNodes}
	c.changes, _ = d.Binder.Cache.Changes()
	if on, _, known := d.Binder.Cache.Where(ref.UID); known {
		c.on = on
	}
	return c, nil, nil
}

// Refuses says why the pod cannot go to a node, with the pods that kube-scheduler has on it; nil:
// it can. It may be called by several goroutines.
func (d *Decider) Refuses(c *Cycle, node Node) *decide.Refusal {
	refusal := d.refuses(c, node)
	c.count(refusal)
	return refusal
}

// Answers is Refuses for a node whose pods kube-scheduler and the cache are known to agree on; not
// ok: ask Refuses. kube-scheduler looks at hundreds of nodes for one pod, and few have changed.
func (d *Decider) Answers(c *Cycle, name string, generation int64) (refusal *decide.Refusal, ok bool) {
	if c.on != "" {
		return nil, false
	}
	known, refusal := d.Binder.Cache.Answer(name, c.question)
	if known != nil && !d.agreed.on(name, generation, known) {
		return nil, false
	}
	c.count(refusal)
	return refusal, true
}

// count counts the nodes that are refused.
func (c *Cycle) count(refusal *decide.Refusal) {
	if refusal != nil {
		c.refused.Add(1)
	}
}

// Why says why a node is refused. kube-scheduler writes that into a condition of the pod, once for
// each text: of many nodes it is the same where the same is missing, and Unfit describes some.
func (c *Cycle) Why(refusal *decide.Refusal) string {
	if !c.many || refusal.Verdict == nil {
		return reasons.Refusal(refusal)
	}
	text, ok := c.brief.Load(refusal.Verdict.Reason)
	if !ok {
		text, _ = c.brief.LoadOrStore(refusal.Verdict.Reason, reasons.Brief(*refusal.Verdict))
	}
	return text.(string)
}

func (d *Decider) refuses(c *Cycle, node Node) *decide.Refusal {
	if c.on != "" {
		if c.on == node.Name {
			return nil // what it has there already is enough for it
		}
		return &decide.Refusal{Reason: decide.Elsewhere, Node: c.on, Assumed: true}
	}
	known, refusal := d.Binder.Cache.Answer(node.Name, c.question)
	if state, differs := d.differing(node, known); differs {
		return c.question.Ask(state)
	}
	return refusal
}

// Rank ranks all nodes on which the pod fits at once, for Score.
func (d *Decider) Rank(c *Cycle, names []string) {
	among := make(map[string]bool, len(names))
	for _, name := range names {
		among[name] = true
	}
	order := d.index.Rank(d.Binder.Cache, d.question(c), len(names), among)
	c.scores = make(map[string]int64, len(names))
	for _, one := range order.Best {
		c.scores[one.Node.Name] = one.Score
	}
	d.tellFits(c, len(names)+int(c.refused.Load()), len(names))
	d.Binder.Record(c.question.Pod, decisions.Ranked(order, len(names)))
}

// question is the pod's about the best nodes.
func (d *Decider) question(c *Cycle) ranking.Question {
	return ranking.Question{Request: c.question.Request, Defaults: d.Policies, View: c.question.View}
}

// Score returns a node's rank, up to ranking.MaxScore.
func (c *Cycle) Score(name string) int64 { return c.scores[name] }

// Reserve chooses the pod's GPUs and reserves them, in one critical section.
func (d *Decider) Reserve(c *Cycle, node Node) error {
	if !c.said {
		d.tellFits(c, 1+int(c.refused.Load()), 1) // kube-scheduler ranks no node that is alone
	}
	if err := d.catchUp(node); err != nil {
		return err
	}
	reserved, err := d.Binder.Reserve(c.question.Pod, node.Name, c.question.Request)
	if err != nil {
		return err
	}
	c.reserved = reserved
	return nil
}

// Unreserve takes the reservation back, unless a binding may still land.
func (d *Decider) Unreserve(c *Cycle) {
	if !c.reserved.IsZero() {
		d.Binder.Release(c.question.Pod, c.reserved)
	}
}

// Bind writes the binding and with it the assignment.
func (d *Decider) Bind(ctx context.Context, c *Cycle, node string) error {
	d.waker.Answered(c.question.Pod.UID)
	return d.Binder.Bind(ctx, c.question.Pod, node)
}

// Wake has kube-scheduler try those waiting pods again that fit by now: see waker.Wake.
func (d *Decider) Wake(ctx context.Context, queue waker.Queue) { d.waker.Wake(ctx, d.Binder, queue) }
