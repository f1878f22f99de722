package extender

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/template"
	"github.com/gpumem/gpumem/pkg/report/decisions"
	"github.com/gpumem/gpumem/pkg/scheduler/waker"
)

// Filter says on which of the nodes the pod fits, and of each other one why not; of
// those where it fits it names the best alone if Alone is set. Before it says that
// the pod fits nowhere, it may wait for SecondLook.
func (e *Extender) Filter(ctx context.Context, args *extenderv1.ExtenderArgs) *extenderv1.ExtenderFilterResult {
	e.NoteRequest()
	changed := e.Cache.Changed()
	result := e.filter(args)
	if len(result.FailedNodes) == 0 || fitsSomewhere(result) || !e.looks.allow(e.Now()) {
		return result
	}
	ctx, cancel := context.WithTimeout(ctx, SecondLook)
	defer cancel()
	for !fitsSomewhere(result) {
		select {
		case <-ctx.Done():
			return result
		case <-changed:
			changed = e.Cache.Changed()
			result = e.filter(args)
		}
	}
	return result
}

func (e *Extender) filter(args *extenderv1.ExtenderArgs) *extenderv1.ExtenderFilterResult {
	if problem := e.unanswerable(args); problem != "" {
		e.tellFailure(decisions.Filter, args.Pod, problem)
		return &extenderv1.ExtenderFilterResult{Error: passedOn(problem)}
	}
	now := e.Now()
	changes, nodes := e.Cache.Changes()
	q := e.question(args.Pod)
	q.Expecting = e.Cache.Unexpect(q.Pod.UID, now)
	fit, refused := e.judge(q, args)
	if len(fit) == 0 && q.Expecting {
		// What is expected on a node is no reason to refuse it where that is all there is.
		q.Expecting = false
		fit, refused = e.judge(q, args)
	}
	d := refused.decision(len(fit))
	d.Sampled = e.sampled(d.Asked, nodes)
	e.Record(q.Pod, d)
	e.remember(q, d, refused, changes, now)
	e.Log.Debug("filter",
		zap.Stringer("pod", q.Pod), zap.String("uid", q.Pod.UID), zap.Int("asked", d.Asked), zap.Int("fit", d.Fit))
	result := &extenderv1.ExtenderFilterResult{}
	if len(fit) == 0 || !e.Alone {
		result.FailedNodes, result.FailedAndUnresolvableNodes = refused.answer(len(fit), d.Sampled, &e.said)
	}
	if len(api.Preferences(args.Pod)) == 0 || len(fit) == 1 {
		fit = e.choose(q, fit, now)
	}
	return fitting(result, args, fit)
}

// remember takes note of an answer, for the pod to be woken when it fits: where it is refused
// everywhere, and for want of GPU memory.
func (e *Extender) remember(q question, d decisions.Decision, refused refusals, changes uint64, now time.Time) {
	if d.Fit > 0 || q.unreadable != nil {
		e.waker.Answered(q.Pod.UID)
		return
	}
	e.waker.Refused(&waker.Refusal{
		Question: q.Question, At: now, Changes: changes, Count: d.Asked, Sampled: d.Sampled, Elsewhere: q.known,
		Asked: e.Cache.Set(refused.names()), Temporary: refused.temporary(),
	})
}

// fitting writes into an answer where the pod fits, in the form of the question.
func fitting(result *extenderv1.ExtenderFilterResult, args *extenderv1.ExtenderArgs, fit []asked) *extenderv1.ExtenderFilterResult {
	if args.NodeNames == nil {
		result.Nodes = &v1.NodeList{}
		for _, node := range fit {
			result.Nodes.Items = append(result.Nodes.Items, *node.given)
		}
		return result
	}
	names := make([]string, 0, len(fit))
	for _, node := range fit {
		names = append(names, node.name)
	}
	result.NodeNames = &names
	return result
}

// choose returns the nodes that kube-scheduler is to choose from, of those where the
// pod fits. Where it has no choice left, the pod is expected on that node.
func (e *Extender) choose(q question, fit []asked, now time.Time) []asked {
	if len(fit) == 0 || q.Request.Empty() || len(fit) > 1 && !e.Alone {
		return fit
	}
	if len(fit) > 1 {
		order := e.rank(q, decisions.MaxNodes, fit)
		if len(order.Best) == 0 {
			return fit
		}
		e.Record(q.Pod, decisions.Ranked(order, len(fit)))
		first := slices.IndexFunc(fit, func(a asked) bool { return a.name == order.First.Node.Name })
		fit = fit[first : first+1]
	}
	e.Cache.Expect(q.Pod, fit[0].name, q.Request, q.Fallback, now)
	return fit
}

// maxNodes bounds the nodes of a question: Kubernetes is made for 5,000 in a cluster, and an
// answer says something of each.
const maxNodes = 100_000

// unanswerable says why a question about nodes cannot be answered at all.
func (e *Extender) unanswerable(args *extenderv1.ExtenderArgs) string {
	switch {
	case args.Pod == nil:
		return "the request names no pod"
	case args.NodeNames == nil && args.Nodes == nil:
		return "the request names no nodes"
	case args.NodeNames != nil && len(*args.NodeNames) > maxNodes:
		return fmt.Sprintf("the request names %d nodes, and %d is the most", len(*args.NodeNames), maxNodes)
	}
	return e.NotReady()
}

// asked is a node of a question: its name, and the whole of it where that is given.
type asked struct {
	name  string
	given *v1.Node
}

// nodesOf returns the nodes of a question.
func nodesOf(args *extenderv1.ExtenderArgs) []asked {
	var out []asked
	switch {
	case args.NodeNames != nil:
		out = make([]asked, 0, len(*args.NodeNames))
		for _, name := range *args.NodeNames {
			out = append(out, asked{name: name})
		}
	case args.Nodes != nil:
		out = make([]asked, 0, len(args.Nodes.Items))
		for i := range args.Nodes.Items {
			node := &args.Nodes.Items[i]
			out = append(out, asked{name: node.Name, given: node})
		}
	}
	return out
}

// question is whether a pod fits on nodes.
type question struct {
	cache.Question
	unreadable *decide.Refusal // the pod's request is; nil: it is not

	known   bool // the pod is on a node already
	on      string
	refusal *decide.Refusal // of the other nodes, where it is known
}

func (e *Extender) question(pod *v1.Pod) question {
	ref := api.Ref(pod)
	req, err := e.Names.Request(pod)
	q := question{Question: cache.NewQuestion(ref, req, e.Policy)}
	if err != nil {
		q.unreadable = unreadable(err)
		return q
	}
	on, assumed, known := e.Cache.Where(ref.UID)
	if q.known = known; known {
		q.on, q.refusal = on, &decide.Refusal{Reason: decide.Elsewhere, Node: on, Assumed: assumed}
	}
	return q
}

// judge sorts the nodes of a question into those on which the pod fits and others.
func (e *Extender) judge(q question, args *extenderv1.ExtenderArgs) (fit []asked, refused refusals) {
	nodes := nodesOf(args)
	fit = make([]asked, 0, len(nodes))
	for _, node := range nodes {
		if refusal := e.refuses(q, node); refusal != nil {
			refused.nodes = append(refused.nodes, refusedNode{node.name, refusal})
		} else {
			fit = append(fit, node)
		}
	}
	return fit, refused
}

// refuses says why the pod cannot go to a node, or nil. A node that is given in full
// counts where the cache does not know it.
func (e *Extender) refuses(q question, node asked) *decide.Refusal {
	switch {
	case q.unreadable != nil:
		return q.unreadable
	case q.Request.Empty():
		return nil
	case q.known && q.on != node.name:
		return q.refusal
	case q.known:
		return nil // what it has there already is enough for it
	case node.given == nil || e.Cache.Look(node.name) != nil:
		return e.Cache.Refused(node.name, q.Question)
	}
	state, err := e.template(node)
	if err != nil {
		return unreadable(err)
	}
	return q.Ask(*state)
}

// unreadable refuses since something in a pod or a node cannot be read, on which no
// other pod has any influence.
func unreadable(err error) *decide.Refusal {
	return &decide.Refusal{Reason: decisions.Unreadable, Message: err.Error(), Unresolvable: true}
}

// rank returns the best of some nodes. It counts pods that are expected on a node, and memory that
// is reserved for nominated pods.
func (e *Extender) rank(q question, most int, nodes []asked) ranking.Ranking {
	of := ranking.Question{
		Request: q.Request, Defaults: ranking.Policies{GPU: e.Policy, Node: e.NodePolicy},
		View: q.View, Instead: e.Cache.Expecting(),
	}
	among := make(map[string]bool, len(nodes))
	for _, node := range nodes {
		among[node.name] = true
		if node.given != nil && e.Cache.Look(node.name) == nil {
			of.Instead[node.name], _ = e.template(node)
		}
	}
	return e.index.Rank(e.Cache, of, most, among)
}

// template returns a node that is not known: what it says itself where it is given in
// full, and nothing where that cannot be read.
func (e *Extender) template(node asked) (*placement.Node, error) {
	if node.given == nil {
		return &placement.Node{Name: node.name}, nil
	}
	inv, err := template.Inventory(e.Names, node.given)
	state := placement.NewNode(node.name, inv, nil)
	return &state, err
}

// score returns the score of a node for a pod that prefers some nodes. The preferences of the pod's own spec go before the cluster's
// policy: kube-scheduler gives up to 200 points for each. Where Filter names the best node alone to
// other pods, the chart gives these scores the weight 1, and the pod's are up to 50 points. With a
// weight that is not known, they would outweigh its preferences.
func (e *Extender) score(score int64) int64 {
	if e.Alone {
		return score / 2
	}
	return 0
}

// Prioritize scores the nodes, from 0 to extenderv1.MaxExtenderPriority. It
// has no way to say what is wrong: then all nodes are equal. Where one is the best,
// the pod is expected there.
func (e *Extender) Prioritize(_ context.Context, args *extenderv1.ExtenderArgs) *extenderv1.HostPriorityList {
	nodes := nodesOf(args)
	result, index := make(extenderv1.HostPriorityList, len(nodes)), make(map[string]int, len(nodes))
	for i, node := range nodes {
		result[i].Host, index[node.name] = node.name, i
	}
	if args.Pod == nil {
		result = result[:0]
		return &result
	}
	q := e.question(args.Pod)
	if q.unreadable != nil || q.Request.Empty() || e.Missing() != "" {
		return &result
	}
	order := e.rank(q, len(nodes), nodes)
	prefers := len(api.Preferences(args.Pod)) > 0
	for _, one := range order.Best {
		score := one.Score
		if prefers {
			score = e.score(score)
		}
		result[index[one.Node.Name]].Score = score
	}
	e.Record(q.Pod, decisions.Ranked(order, len(nodes)))
	if prefers {
		return &result // it may go elsewhere
	}
	if n := len(order.Best); n == 1 || n > 1 && order.Best[1].Score < ranking.MaxScore {
		e.Cache.Expect(q.Pod, order.First.Node.Name, q.Request, q.Fallback, e.Now())
	}
	return &result
}
