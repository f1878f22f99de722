package extender

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// Filter returns the feasible nodes, and the reason for each other node. If Alone is set, it returns only the
// best feasible node, or all of them if the pod prefers some nodes, and reasons only if no node is feasible. If
// all nodes refuse the pod, and not all as unresolvable, Filter first waits up to recheckTimeout for a change of
// the cache, as long as recheckBudget allows such waits.
func (e *Extender) Filter(ctx context.Context, args *extenderv1.ExtenderArgs) *extenderv1.ExtenderFilterResult {
	changed := e.Cache.Changed()
	result := e.filter(args)
	if len(result.FailedNodes) == 0 || hasFeasible(result) || !e.rechecks.allow(e.Now()) {
		return result
	}
	ctx, cancel := context.WithTimeout(ctx, recheckTimeout)
	defer cancel()
	for !hasFeasible(result) {
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
	names, templates, err := requestedNodes(args)
	if err != nil {
		return &extenderv1.ExtenderFilterResult{Error: err.Error()}
	}
	c, unreadable, err := e.Begin(history.Filter, args.Pod, len(names))
	switch {
	case err != nil:
		return &extenderv1.ExtenderFilterResult{Error: replacePercent(err.Error())}
	case unreadable != nil:
		result := newFilterResult(templates, []string{})
		result.FailedAndUnresolvableNodes = make(extenderv1.FailedNodesMap, len(names))
		for _, name := range names {
			result.FailedAndUnresolvableNodes[name] = replacePercent(reasons.Counted(unreadable, unreadable.Message))
		}
		return result
	case c == nil:
		return newFilterResult(templates, names)
	}
	_, all := e.Cache.Changes()
	c.Sampled, c.Templates = e.isSampled(len(names), all), templates
	c.Expecting = e.Cache.Unexpect(c.Pod.UID)
	chooses := e.Alone && len(api.Preferences(args.Pod)) == 0
	if chooses && templates == nil && c.BoundNode() == "" {
		if best := e.best(c, names); best != "" {
			return newFilterResult(nil, []string{best})
		}
	}
	fit, refused := e.splitNodes(c, names)
	if len(fit) == 0 && c.Expecting {
		// Expected pods may block every node. They must not make a pod unschedulable, so ignore them.
		c.Expecting = false
		fit, refused = e.splitNodes(c, names)
	}
	var closest []history.Node
	if len(fit) == 0 {
		closest = e.Unfit(c, refused)
	} else {
		e.Fits(c, len(names), len(fit), refused)
	}
	e.Log.Debug("filter",
		zap.Stringer("pod", c.Pod), zap.String("uid", c.Pod.UID), zap.Int("asked", len(names)), zap.Int("fit", len(fit)))
	result := newFilterResult(templates, e.selectNodes(c, fit, chooses))
	if len(fit) == 0 || !e.Alone {
		result.FailedNodes, result.FailedAndUnresolvableNodes = failedNodes(c, refused, closest)
	}
	return result
}

// maxNodes bounds the nodes of a request. Kubernetes supports 5,000 nodes per cluster, and the response has
// an entry for each node.
const maxNodes = 100_000

// requestedNodes returns the names of a request's nodes, and the Node objects by name if the request has full
// objects. It returns an error for a malformed request.
func requestedNodes(args *extenderv1.ExtenderArgs) (names []string, templates map[string]*v1.Node, err error) {
	switch {
	case args.Pod == nil:
		return nil, nil, errors.New("the request names no pod")
	case args.NodeNames != nil && len(*args.NodeNames) > maxNodes:
		return nil, nil, fmt.Errorf("the request names %d nodes, and %d is the most", len(*args.NodeNames), maxNodes)
	case args.NodeNames != nil:
		return *args.NodeNames, nil, nil
	case args.Nodes == nil:
		return nil, nil, errors.New("the request names no nodes")
	}
	templates = make(map[string]*v1.Node, len(args.Nodes.Items))
	for i := range args.Nodes.Items {
		node := &args.Nodes.Items[i]
		names, templates[node.Name] = append(names, node.Name), node
	}
	return names, templates, nil
}

// newFilterResult returns a filter result with the feasible nodes, as names or, if the request has objects,
// as objects.
func newFilterResult(templates map[string]*v1.Node, names []string) *extenderv1.ExtenderFilterResult {
	if templates == nil {
		return &extenderv1.ExtenderFilterResult{NodeNames: &names}
	}
	nodes := &v1.NodeList{}
	for _, name := range names {
		nodes.Items = append(nodes.Items, *templates[name])
	}
	return &extenderv1.ExtenderFilterResult{Nodes: nodes}
}

// splitNodes splits the nodes into feasible and refused ones.
func (e *Extender) splitNodes(c *decider.Cycle, names []string) (fit []string, refused []decider.RefusedNode) {
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

// best returns the best feasible node by the index, without evaluating the others. It returns an empty name if
// none of the tried nodes is feasible beside the expected pods (Decider.Best).
func (e *Extender) best(c *decider.Cycle, names []string) string {
	if len(names) == 0 {
		return ""
	}
	passes := func(name string) bool { return e.Refuse(c, decider.Node{Name: name}) == nil }
	best := e.Best(c, names, passes, func(nodes []string) string { return nodes[0] })
	if best != "" {
		e.Cache.Expect(c.Pod, best, c.Request, c.Fallback, e.Now())
	}
	return best
}

// selectNodes returns the feasible nodes to offer to kube-scheduler: the best one if the extender chooses. If
// only one remains, selectNodes records that kube-scheduler is about to bind the pod to it (Cache.Expect).
func (e *Extender) selectNodes(c *decider.Cycle, fit []string, chooses bool) []string {
	if len(fit) > 1 && chooses {
		if order := e.Rank(c, fit, history.MaxNodes); len(order.Best) > 0 {
			fit = []string{order.First.Node.Name}
		}
	}
	if len(fit) == 1 {
		e.Cache.Expect(c.Pod, fit[0], c.Request, c.Fallback, e.Now())
	}
	return fit
}

// failedNodes returns the messages of refusals by node: in `never` for nodes on which no eviction could help,
// and in `failed` for the others. kube-scheduler writes each distinct message once into a condition of the pod,
// and the messages of 5,000 nodes took half a megabyte. kube-scheduler also retries a pod at once when the
// condition changes. So in a request about many nodes, only the closest nodes get a full message. A sample
// contains different nodes each time, so none of its nodes gets a full message.
func failedNodes(c *decider.Cycle, refused []decider.RefusedNode, closest []history.Node) (failed, never extenderv1.FailedNodesMap) {
	failed, never = make(extenderv1.FailedNodesMap), make(extenderv1.FailedNodesMap)
	described := make(map[string]bool)
	if !c.Sampled {
		for _, node := range closest {
			described[node.Name] = true
		}
	}
	for _, node := range refused {
		to, text := failed, c.Message(node.Refusal)
		if node.Unresolvable {
			to = never
		} else if described[node.Name] {
			text = reasons.Counted(node.Refusal, reasons.Refusal(node.Refusal))
		}
		to[node.Name] = replacePercent(text)
	}
	return failed, never
}

// replacePercent replaces percent signs in a message by full-width ones. kube-scheduler uses the message as the
// format string of the pod's event (k8s.io/kubernetes/pkg/scheduler, handleSchedulingFailure), where a percent
// sign from an annotation would be a formatting verb. It also writes the message unchanged into the pod's
// condition, where an escaped percent sign would appear as two. The full-width sign is correct in both places.
func replacePercent(message string) string { return strings.ReplaceAll(message, "%", "％") }

// Prioritize scores the nodes from 0 to extenderv1.MaxExtenderPriority. The response cannot report an error, so
// all nodes get the score 0 on failure. If one node is the best, Prioritize records that kube-scheduler is
// about to bind the pod to this node (Cache.Expect).
//
// The pod's own preferences must outrank the cluster's policy. Each scoring plugin of kube-scheduler that
// evaluates preferences (api.Preferences) gives up to 200 points. If Alone is set, the chart gives the
// extender's scores the weight 1, so the nodes of a pod with preferences get 50 points at most. If not, the
// weight is unknown and the extender's scores could outweigh the preferences, so these nodes all get 0.
func (e *Extender) Prioritize(_ context.Context, args *extenderv1.ExtenderArgs) *extenderv1.HostPriorityList {
	names, templates, err := requestedNodes(args)
	if err != nil {
		return &extenderv1.HostPriorityList{}
	}
	result := make(extenderv1.HostPriorityList, len(names))
	for i, name := range names {
		result[i].Host = name
	}
	c, _, _ := e.Begin(history.Prioritize, args.Pod, len(names))
	if c == nil {
		return &result
	}
	c.Templates = templates
	order := e.Rank(c, names, len(names))
	prefers := len(api.Preferences(args.Pod)) > 0
	for i, name := range names {
		switch {
		case !prefers:
			result[i].Score = c.Score(name)
		case e.Alone:
			result[i].Score = c.Score(name) / 2
		}
	}
	if prefers {
		return &result // the pod's preferences may send it to another node
	}
	if n := len(order.Best); n == 1 || n > 1 && order.Best[1].Score < ranking.MaxScore {
		e.Cache.Expect(c.Pod, order.First.Node.Name, c.Request, c.Fallback, e.Now())
	}
	return &result
}
