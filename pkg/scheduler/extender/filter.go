package extender

import (
	"context"
	"fmt"
	"strings"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/decisions"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// Filter says on which of the nodes the pod fits, and of each other one why not; of
// those where it fits it names the best alone if Alone is set. Before it says that
// the pod fits nowhere, it may wait for SecondLook.
func (e *Extender) Filter(ctx context.Context, args *extenderv1.ExtenderArgs) *extenderv1.ExtenderFilterResult {
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
	if problem := unanswerable(args); problem != "" {
		return &extenderv1.ExtenderFilterResult{Error: problem}
	}
	names, templates := namesOf(args), templatesOf(args)
	c, unreadable, err := e.Begin(decisions.Filter, args.Pod, len(names))
	switch {
	case err != nil:
		return &extenderv1.ExtenderFilterResult{Error: passedOn(err.Error())}
	case unreadable != nil:
		result := fitting(templates, []string{})
		result.FailedAndUnresolvableNodes = make(extenderv1.FailedNodesMap, len(names))
		for _, name := range names {
			result.FailedAndUnresolvableNodes[name] = passedOn(reasons.Counted(unreadable, unreadable.Message))
		}
		return result
	case c == nil:
		return fitting(templates, names)
	}
	_, all := e.Cache.Changes()
	c.Sampled, c.Templates = e.sampled(len(names), all), templates
	c.Expecting = e.Cache.Unexpect(c.Pod.UID)
	fit, refused := e.judge(c, names)
	if len(fit) == 0 && c.Expecting {
		// What is expected on a node is no reason to refuse it where that is all there is.
		c.Expecting = false
		fit, refused = e.judge(c, names)
	}
	var closest []decisions.Node
	if len(fit) == 0 {
		closest = e.Unfit(c, refused)
	} else {
		e.Fits(c, len(names), len(fit), refused)
	}
	e.Log.Debug("filter",
		zap.Stringer("pod", c.Pod), zap.String("uid", c.Pod.UID), zap.Int("asked", len(names)), zap.Int("fit", len(fit)))
	result := fitting(templates, e.choose(c, args.Pod, fit))
	if len(fit) == 0 || !e.Alone {
		result.FailedNodes, result.FailedAndUnresolvableNodes = explained(c, refused, closest)
	}
	return result
}

// maxNodes bounds the nodes of a question: Kubernetes is made for 5,000 in a cluster, and an
// answer says something of each.
const maxNodes = 100_000

// unanswerable says why a question about nodes cannot be answered at all.
func unanswerable(args *extenderv1.ExtenderArgs) string {
	switch {
	case args.Pod == nil:
		return "the request names no pod"
	case args.NodeNames == nil && args.Nodes == nil:
		return "the request names no nodes"
	case args.NodeNames != nil && len(*args.NodeNames) > maxNodes:
		return fmt.Sprintf("the request names %d nodes, and %d is the most", len(*args.NodeNames), maxNodes)
	}
	return ""
}

// namesOf returns the names of the nodes of a question.
func namesOf(args *extenderv1.ExtenderArgs) (names []string) {
	if args.NodeNames != nil {
		return *args.NodeNames
	}
	if args.Nodes != nil {
		for i := range args.Nodes.Items {
			names = append(names, args.Nodes.Items[i].Name)
		}
	}
	return names
}

// templatesOf returns the nodes that a question has in full, by name; nil: it has names alone.
func templatesOf(args *extenderv1.ExtenderArgs) map[string]*v1.Node {
	if args.NodeNames != nil || args.Nodes == nil {
		return nil
	}
	out := make(map[string]*v1.Node, len(args.Nodes.Items))
	for i := range args.Nodes.Items {
		out[args.Nodes.Items[i].Name] = &args.Nodes.Items[i]
	}
	return out
}

// fitting answers where the pod fits, in the form of the question.
func fitting(templates map[string]*v1.Node, names []string) *extenderv1.ExtenderFilterResult {
	if templates == nil {
		return &extenderv1.ExtenderFilterResult{NodeNames: &names}
	}
	nodes := &v1.NodeList{}
	for _, name := range names {
		nodes.Items = append(nodes.Items, *templates[name])
	}
	return &extenderv1.ExtenderFilterResult{Nodes: nodes}
}

// judge sorts nodes into those on which the pod fits and others.
func (e *Extender) judge(c *decider.Cycle, names []string) (fit []string, refused []decider.RefusedNode) {
	fit = make([]string, 0, len(names))
	for _, name := range names {
		if refusal := e.Refuse(c, decider.Node{Name: name}); refusal != nil {
			refused = append(refused, decider.RefusedNode{Name: name, Refusal: refusal})
		} else {
			fit = append(fit, name)
		}
	}
	return fit, refused
}

// choose returns the nodes that kube-scheduler chooses from, among the nodes that the pod fits. If
// one is left, the pod is expected on it.
func (e *Extender) choose(c *decider.Cycle, pod *v1.Pod, fit []string) []string {
	if len(fit) > 1 && e.Alone && len(api.Preferences(pod)) == 0 {
		if order := e.Rank(c, fit, decisions.MaxNodes); len(order.Best) > 0 {
			fit = []string{order.First.Node.Name}
		}
	}
	if len(fit) == 1 {
		e.Cache.Expect(c.Pod, fit[0], c.Request, c.Fallback, e.Now())
	}
	return fit
}

// explained returns the text of each refusal, and apart from them the texts of nodes to which no
// eviction could bring the pod. kube-scheduler writes each text once into a condition of the pod:
// the texts of 5,000 nodes were half a megabyte. And it tries a pod again at once whose condition
// has changed. So of many nodes, only the closest have a full text. A sample has other nodes each
// time, so none of them has one.
func explained(c *decider.Cycle, refused []decider.RefusedNode, closest []decisions.Node) (failed, never extenderv1.FailedNodesMap) {
	failed, never = make(extenderv1.FailedNodesMap), make(extenderv1.FailedNodesMap)
	described := make(map[string]bool)
	if !c.Sampled {
		for _, node := range closest {
			described[node.Name] = true
		}
	}
	for _, node := range refused {
		to, text := failed, c.Why(node.Refusal)
		if node.Unresolvable {
			to = never
		} else if described[node.Name] {
			text = reasons.Counted(node.Refusal, reasons.Refusal(node.Refusal))
		}
		to[node.Name] = passedOn(text)
	}
	return failed, never
}

// passedOn returns a message as kube-scheduler is to get it. It takes it for
// the format of the pod's event (k8s.io/kubernetes/pkg/scheduler,
// handleSchedulingFailure), where a percent sign of an annotation would be a
// mistake, and writes it as it is into the pod's condition, where a doubled one
// would be two. The full-width sign is itself in both.
func passedOn(message string) string { return strings.ReplaceAll(message, "%", "％") }

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
	if args.Pod == nil {
		return &extenderv1.HostPriorityList{}
	}
	names := namesOf(args)
	result := make(extenderv1.HostPriorityList, len(names))
	for i, name := range names {
		result[i].Host = name
	}
	c, _, _ := e.Begin(decisions.Prioritize, args.Pod, len(names))
	if c == nil {
		return &result
	}
	c.Templates = templatesOf(args)
	order := e.Rank(c, names, len(names))
	prefers := len(api.Preferences(args.Pod)) > 0
	for i, name := range names {
		if result[i].Score = c.Score(name); prefers {
			result[i].Score = e.score(c.Score(name))
		}
	}
	if prefers {
		return &result // it may go elsewhere
	}
	if n := len(order.Best); n == 1 || n > 1 && order.Best[1].Score < ranking.MaxScore {
		e.Cache.Expect(c.Pod, order.First.Node.Name, c.Request, c.Fallback, e.Now())
	}
	return &result
}
