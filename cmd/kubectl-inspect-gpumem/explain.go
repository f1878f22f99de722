package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/decide"
	"github.com/gpumem/gpumem/pkg/decisions"
	"github.com/gpumem/gpumem/pkg/doctor"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/placement"
	"github.com/gpumem/gpumem/pkg/printers"
	"github.com/gpumem/gpumem/pkg/reach"
)

func newExplainCommand(o *options) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "explain POD [-n NAMESPACE] [--all] [-o json]",
		Short: "Say why a pod waits, or why it is where it is",
		Long: `Say why a pod waits, or why it is where it is: of a pod that waits the GPUs of
the nodes that come closest (of every node with --all), with the reason why each would not
do; of one that is placed the GPUs of its node, and how nodes were scored.

What would do now is worked out from the API server. What was decided, and when,
is told by the extender, which remembers its last answers about each pod; for
that you need the right to forward ports to its pods (create pods/portforward).`,
		Example: "  kubectl inspect gpumem explain -n ml train-0",
		Args: func(cmd *cobra.Command, args []string) error {
			if ofKind(args) {
				return nil
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		ValidArgsFunction: o.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.prepare(nil, o.Validate); err != nil {
				return err
			}
			return o.explain(cmd.Context(), strings.Join(args, "/"), all)
		},
	}
	o.sayNamespace(cmd, namespaceOfPod)
	cmd.Flags().BoolVar(&all, "all", false, "Show all nodes, not those alone that come closest")
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "Output format: json; text unless set")
	return cmd
}

// ofKind reports whether arguments are KIND NAME, which says what KIND/NAME does.
func ofKind(args []string) bool {
	return len(args) == 2 && (slices.Contains(podKinds(), args[0]) || isWorkload(args[0]))
}

// isWorkload reports whether a kind, or the start of "kind.group", is one that people
// name instead of a pod.
func isWorkload(kind string) bool {
	kind, _, _ = strings.Cut(kind, ".")
	return slices.Contains(workloads(), kind)
}

func podKinds() []string { return []string{"pod", "pods", "po"} }

// podNamed reads POD or NAMESPACE/POD. The namespace is that of the flag, or else
// of the kubeconfig, as kubectl has it.
func (o *options) podNamed(arg string) (namespace, name string, err error) {
	for _, kind := range podKinds() {
		arg = strings.TrimPrefix(arg, kind+"/")
	}
	if namespace, name, ok := strings.Cut(arg, "/"); ok {
		return namespace, name, nil
	}
	namespace, _, err = o.config.ToRawKubeConfigLoader().Namespace()
	return cmp.Or(o.namespace(), namespace, metav1.NamespaceDefault), arg, err
}

// getPod reads the pod that an argument names.
func (o *options) getPod(ctx context.Context, arg string) (*v1.Pod, error) {
	namespace, name, err := o.podNamed(arg)
	if err != nil {
		return nil, err
	}
	pod, err := o.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && isWorkload(namespace) {
		return nil, fmt.Errorf("%s is no pod: name one of its pods; kubectl get %s -o wide shows their labels, and kubectl get pods -l LABELS their names; where there are none, kubectl get events --field-selector reason=FailedCreate says why", arg, arg)
	}
	return pod, err
}

// workloads are what people name instead of a pod.
func workloads() []string {
	return []string{
		"deploy", "deployment", "deployments", "sts", "statefulset", "statefulsets", "ds", "daemonset", "daemonsets",
		"rs", "replicaset", "replicasets", "job", "jobs", "cj", "cronjob", "cronjobs",
	}
}

// explanation is what explain tells, for programs too.
type explanation struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Namespace  string           `json:"namespace"`
	Name       string           `json:"name"`
	Asks       string           `json:"asks,omitempty"`
	Policy     string           `json:"policy,omitempty"`        // that the pod names
	Fallback   string           `json:"clusterPolicy,omitempty"` // of pods that name none; empty when not known
	Node       string           `json:"node,omitempty"`
	Nominated  string           `json:"nominated,omitempty"`
	Indexes    string           `json:"gpus,omitempty"`
	Preferred  []string         `json:"preferred,omitempty"` // how models are now that a placed pod likes better than its own, the one that it likes best first
	Health     string           `json:"health,omitempty"`    // why GPUs of a placed pod take no new ones; empty where they do
	State      string           `json:"state,omitempty"`     // what keeps a container from running; empty when nothing does
	Summary    string           `json:"summary"`
	Advice     string           `json:"advice,omitempty"`  // what to do about it
	Now        []decisions.Node `json:"now,omitempty"`     // nodes as they are for the pod; of one that is placed, its own
	Decided    *decisions.Pod   `json:"decided,omitempty"` // nil when no extender remembers it

	gpuless   bool // the pod has no GPU, and gets none
	asked     bool // a scheduler has asked an extender, and placed it
	forgotten bool // which remembers nothing of it
	cores     bool // some node offers them
	unitMiB   int64
	more      int // nodes that are left out
}

// shownNodes is how many nodes explain shows unless all are asked for.
const shownNodes = 5

func (o *options) explain(ctx context.Context, arg string, all bool) error {
	pod, err := o.getPod(ctx, arg)
	if err != nil {
		return err
	}
	namespace, name := pod.Namespace, pod.Name
	e, err := o.explanationOf(ctx, pod, all)
	if err != nil {
		return err
	}
	for _, key := range o.names.Unknown(pod) {
		fmt.Fprintf(o.ErrOut, "warning: annotation %s is none that gpumem knows, and has no effect: %s\n", printers.Clean(key), doctor.Correct(o.names, key))
	}
	extenders, unread := o.cluster.Extenders(ctx)
	e.Decided, err = o.cluster.Decided(ctx, extenders, namespace, name, string(pod.UID))
	e.forgotten = e.asked && e.Decided == nil && err == nil && len(extenders) > 0
	if err = cmp.Or(unread, err); err != nil {
		fmt.Fprintf(o.ErrOut, "warning: what was decided cannot be read: %s\n", printers.Clean(cluster.OneLine(err)))
	}
	if o.output == "json" {
		return printers.WriteJSON(o.Out, e)
	}
	return o.printExplanation(e)
}

// explanationOf is what the objects of the API server say of a pod.
func (o *options) explanationOf(ctx context.Context, pod *v1.Pod, all bool) (explanation, error) {
	none := fmt.Errorf("pod %s/%s asks for no %s%s", pod.Namespace, pod.Name, o.names.GPUMem(), o.nearMisses(pod))
	if !o.cluster.PerhapsAsks(pod) {
		return explanation{}, none
	}
	where := cluster.NewPlaces()
	nodes, facts, err := o.cluster.Load(ctx, cluster.Selection{Where: where})
	if err != nil {
		return explanation{}, err
	}
	if !where.AsksFor(o.names, pod) {
		return explanation{}, none
	}
	e := explanation{
		APIVersion: inspect.APIVersion, Kind: "Explanation", Namespace: pod.Namespace, Name: pod.Name,
		Node: pod.Spec.NodeName, Indexes: pod.Annotations[o.names.Index()], State: doctor.Trouble(pod),
	}
	for _, n := range nodes {
		e.unitMiB = cmp.Or(n.UnitMiB, e.unitMiB)
		e.cores = e.cores || facts.Nodes[n.Name].RefusesCores == nil
	}
	asks := where.WaitFacts(o.names, pod)
	if !asks.Request.Empty() {
		e.Asks, e.Policy = asksOf(asks.Request, e.unitMiB), string(asks.Request.Policy)
		if o.learnPolicy(ctx, &facts) {
			e.Fallback = string(facts.Policy)
		}
	}
	switch {
	case api.Terminal(pod):
		e.gpuless = e.Indexes == ""
		e.Summary, e.Advice = "has ended, and holds nothing any more"+why(pod), o.advice(ctx, pod)
	case pod.Spec.NodeName != "":
		if node, known := facts.Nodes[pod.Spec.NodeName]; !known {
			e.State = "its node is gone: Kubernetes deletes the pod in a while, unless the node comes back"
		} else if node.NotReady {
			down := fmt.Sprintf("its node is NotReady, and what is known of the pod may be old: kubectl describe node %s says why", pod.Spec.NodeName)
			e.State = strings.TrimSuffix(down+"; "+e.State, "; ")
		}
		e.asked = o.askedFor(pod)
		e.Summary = o.lookThere(ctx, &e, pod, asks, nodes, facts)
	default:
		e.consider(asks, nodes, facts, all)
		if asks.InVain != "" && asks.Problem == "" {
			_, e.Advice = doctor.WaitsInVain(o.names, where.Unoffered(o.names, pod))
		}
		if asks.Nominated != "" && len(e.Now) > 0 {
			e.Nominated, e.Summary = asks.Nominated, "is nominated to "+asks.Nominated+", where others leave for it, and "+e.Summary
		}
	}
	return e, nil
}

// askedFor reports whether a scheduler has asked gpumem about a placed pod.
func (o *options) askedFor(pod *v1.Pod) bool {
	a, err := o.names.AssignmentOf(pod)
	return err == nil && !a.None() && !a.ByNode
}

// lookThere looks at the node of a placed pod as it is now, and at what it would have liked
// better, and says in a line why the pod is there.
func (o *options) lookThere(ctx context.Context, e *explanation, pod *v1.Pod, asks inspect.WaitFacts, nodes []placement.Node, facts inspect.Facts) string {
	_, unread := o.names.Holding(pod)
	if asks.Problem != "" {
		return "is on a node, and its request cannot be read: " + cluster.OneLine(unread)
	}
	there := o.whyThere(ctx, pod)
	if facts.PodsUnknown {
		return there + "; how its GPUs are cannot be told without knowing all pods: " + facts.WhyUnknown
	}
	a, err := o.names.AssignmentOf(pod)
	if err != nil || a.None() {
		return there
	}
	if unread != nil {
		there += "; " + cluster.OneLine(unread)
	}
	for _, n := range nodes {
		if n.Name == pod.Spec.NodeName && len(n.Devices) > 0 {
			e.has(a, n, pod)
			e.Now = append(e.Now, decisions.Look(asks.Request, n, a))
			e.Preferred = preferred(asks, n, a, nodes, facts)
		}
	}
	return there
}

// has tells which GPUs of its node a pod has, and what is wrong with them.
func (e *explanation) has(a placement.Assignment, n placement.Node, pod *v1.Pod) {
	var indexes, wrong []string
	for _, id := range a.Devices() {
		i := slices.IndexFunc(n.Devices, func(d placement.Device) bool { return d.UUID == id })
		if i < 0 {
			indexes = append(indexes, "?")
			wrong = append(wrong, fmt.Sprintf("it has %s, which the node does not offer any more: if that is gone for good, %s", id, placedAnew))
			continue
		}
		d := n.Devices[i]
		indexes = append(indexes, fmt.Sprint(d.Index))
		switch {
		case d.Status.TakesPods():
		case d.Status.OnlyCordoned():
			wrong = append(wrong, fmt.Sprintf("GPU%d is cordoned: it takes no new pods, and those that are there stay", d.Index))
		case !d.Status.Unhealthy:
			wrong = append(wrong, fmt.Sprintf("GPU%d takes no new pods, for %s; those that are there go on", d.Index, d.Status.Causes()))
		default:
			wrong = append(wrong, fmt.Sprintf("GPU%d is %s: %s", d.Index, d.Status, moveOff(pod)))
		}
	}
	e.Indexes, e.Health = strings.Join(indexes, ","), strings.Join(wrong, "; ")
}

// placedAnew is what becomes of a pod that loses its GPU.
const placedAnew = "made anew the pod is placed on another, if one that it may use has room"

// moveOff says how a pod comes off a GPU that has failed. A drain of the GPU would ask what is to
// become of the others on it.
func moveOff(pod *v1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return placedAnew + ", and it has no controller that would do so"
	}
	return fmt.Sprintf("kubectl delete pod --namespace %s %s has its %s make it anew on another, if one that it may use has room", pod.Namespace, pod.Name, owner.Kind)
}

// nearMisses says what a pod that asks for no GPU memory does ask for that is
// easily taken for it: 0 of it, or a resource of gpumem's domain or of its name.
func (o *options) nearMisses(pod *v1.Pod) string {
	_, short, _ := strings.Cut(string(o.names.GPUMem()), "/")
	var near []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for resource := range c.Resources.Limits {
			if resource == o.names.GPUMem() {
				return ": it asks for 0 of it"
			}
			domain, base, _ := strings.Cut(string(resource), "/")
			if (domain == o.names.Domain() || base == short) && !slices.Contains(near, string(resource)) {
				near = append(near, string(resource))
			}
		}
	}
	if len(near) == 0 {
		return ""
	}
	slices.Sort(near)
	return ", but for " + strings.Join(near, " and ") + ", which is not the same"
}

// consider looks at every node as it is now, for a pod that waits.
func (e *explanation) consider(pod inspect.WaitFacts, nodes []placement.Node, facts inspect.Facts, all bool) {
	switch {
	case pod.Problem != "":
		e.Summary = "waits, since its request cannot be read: " + pod.Problem
		return
	case pod.InVain != "":
		e.Summary = "waits: it " + pod.InVain
		if unserved := pod.Unserved(facts.Schedulers); unserved != "" {
			e.Summary += "; " + unserved
		}
		return
	case facts.PodsUnknown:
		e.Summary = "waits; where it fits cannot be told without knowing all pods: " + facts.WhyUnknown
		return
	}
	var chances []inspect.Chance
	for _, n := range nodes {
		if len(n.Devices) > 0 {
			chances = append(chances, facts.Chance(pod, n))
		}
	}
	slices.SortStableFunc(chances, inspect.Chance.Compare)
	e.Summary = summary(pod, chances, facts)
	if !all && len(chances) > shownNodes {
		e.more = len(chances) - shownNodes
		chances = chances[:shownNodes]
	}
	for _, c := range chances {
		n := decisions.Look(pod.Request, c.Node, placement.Assignment{})
		switch {
		case c.Refusal != nil:
			n.Reason, n.Message = c.Refusal.Reason, c.Refusal.Message
		case !c.Fits():
			n.Reason, n.Message = c.Reason.String(), c.Why()
		}
		e.Now = append(e.Now, n)
	}
}

// summary says in a line what a pod waits for. Its chances are sorted.
func summary(pod inspect.WaitFacts, chances []inspect.Chance, facts inspect.Facts) string {
	fit, allowed := 0, 0
	for _, c := range chances {
		if c.Good() {
			fit++
		}
		if !c.KeptOff {
			allowed++
		}
	}
	of := nodesOf(allowed)
	if allowed < len(chances) {
		of += " that its nodeSelector, affinity and tolerations allow"
	}
	unserved := pod.Unserved(facts.Schedulers)
	var s string
	switch {
	case len(chances) == 0:
		s = "waits: no node offers GPU memory; kubectl inspect gpumem doctor says what is wrong"
	case fit > 0:
		return fmt.Sprintf("waits, though by GPU memory it fits on %d of %s: %s", fit, of, cmp.Or(unserved, inspect.AskEvents))
	case pod.Request.Cores() > 0 && facts.CoresOff != "":
		s = "waits: " + facts.CoresOff
	case allowed == 0:
		s = fmt.Sprintf("waits: its nodeSelector, affinity and tolerations allow none of %s; %s comes closest: %s", nodesOf(len(chances)), chances[0].Node.Name, chances[0].Why())
	default:
		s = fmt.Sprintf("waits: it fits on none of %s; %s comes closest: %s", of, chances[0].Node.Name, chances[0].Why())
		if tainted := inspect.Tainted(chances...); tainted != "" {
			s += "; " + tainted
		}
	}
	if unserved != "" {
		s += "; " + unserved
	}
	return s
}

// asksOf says what a pod asks for.
func asksOf(req placement.Request, unitMiB int64) string {
	units, cores := req.Share()
	s := fmt.Sprintf("%d units", units)
	if unitMiB > 0 {
		s = gpu.Format(units, unitMiB)
	}
	if cores > 0 {
		s += fmt.Sprintf(" and %d%% of cores", cores)
	}
	if n := req.GPUs(); n > 1 {
		s += fmt.Sprintf(" on each of %d GPUs", n)
	} else {
		s += " on one GPU"
	}
	return s + wishes(req)
}

func nodesOf(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

func timesOf(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// policy is the one by which the pod is placed, as far as is known.
func (e explanation) policy() string {
	if e.Policy == "" && e.Fallback != "" {
		return e.Fallback + ", the cluster's: the pod names none"
	}
	return e.Policy
}

// gpus are the indexes of those that the pod has on its node.
func (e explanation) gpus() string {
	if e.Node == "" || e.gpuless {
		return ""
	}
	return cmp.Or(e.Indexes, "not known yet")
}

func (o *options) printExplanation(e explanation) error {
	out := o.Out
	fmt.Fprintf(out, "Pod %s/%s %s\n", printers.Clean(e.Namespace), printers.Clean(e.Name), printers.Clean(e.Summary))
	type labelled struct{ label, text string }
	lines := []labelled{{"Asks for:", e.Asks}, {"Policy:", e.policy()}, {"Node:", e.Node}, {"GPU:", e.gpus()}}
	for _, model := range e.Preferred {
		lines = append(lines, labelled{"Preferred:", model})
	}
	for _, line := range append(lines, labelled{"Health:", e.Health}, labelled{"State:", e.State}, labelled{"To do:", e.Advice}) {
		if line.text != "" {
			fmt.Fprintf(out, "%-11s%s\n", line.label, printers.Clean(line.text))
		}
	}
	then := e.whenBound()
	if len(e.Now) > 0 && len(then) == 0 {
		fmt.Fprintf(out, "\n%s:\n", e.whatIsNow())
		if err := o.printConsidered(e.Now, e.cores); err != nil {
			return err
		}
		if e.more > 0 {
			fmt.Fprintf(out, "and %d more nodes; --all shows them\n", e.more)
		}
	}
	if e.forgotten {
		fmt.Fprintln(out, "\nWhat was decided is not remembered: the extender has been started since.")
	}
	if e.Decided == nil {
		return nil
	}
	fmt.Fprintf(out, "\nDecided (asked for the first time %s ago, %s in all):\n", since(e.Decided.First), timesOf(e.Decided.Tries))
	for _, d := range slices.Backward(e.Decided.Decisions) {
		fmt.Fprintf(out, "  %s ago  %-10s  %s\n", since(d.Time), d.Verb, printers.Clean(outcome(d)))
		for _, line := range refusals(d) {
			fmt.Fprintf(out, "      %s\n", printers.Clean(line))
		}
	}
	if len(then) > 0 {
		fmt.Fprintln(out, "\nThe GPUs of the node when it was bound:")
		return o.printConsidered(then, e.cores)
	}
	return nil
}

func (e explanation) whatIsNow() string {
	if e.Node != "" {
		return "The GPUs of the node now"
	}
	return "Now"
}

// whenBound is the node of the pod as it was when it was bound, if that is remembered.
func (e explanation) whenBound() []decisions.Node {
	if e.Decided != nil {
		for _, d := range e.Decided.Decisions {
			if d.Verb == decisions.Bind && len(d.Nodes) > 0 {
				return d.Nodes
			}
		}
	}
	return nil
}

// outcome is what was decided, in a line.
func outcome(d decisions.Decision) string {
	switch {
	case d.Verb == decisions.Filter && d.Result == decisions.Unfit && len(d.Nodes) > 0: // the message is that of the first
		return d.Result + ": " + fitting(d)
	case d.Message != "":
		return d.Result + ": " + d.Message
	case d.Verb == decisions.Filter:
		return fitting(d)
	case d.Verb == decisions.Prioritize:
		var best []string
		for _, n := range d.Nodes[:min(3, len(d.Nodes))] {
			best = append(best, fmt.Sprintf("%s %d", n.Name, *n.Score))
		}
		return fmt.Sprintf("best of %s, 10 is most: %s", nodesOf(d.Asked), strings.Join(best, ", "))
	default:
		return strings.TrimSpace(d.Result + " " + d.Node)
	}
}

// fitting says on how many nodes a pod fits. They are fewer than the cluster has:
// kube-scheduler leaves out those that it has ruled out itself.
func fitting(d decisions.Decision) string {
	return fmt.Sprintf("fits on %d of the %s that kube-scheduler asked about", d.Fit, nodesOf(d.Asked))
}

// refusals are why a filter found that the pod does not fit nodes, as far as it is
// remembered: a line for those that say the same.
func refusals(d decisions.Decision) (lines []string) {
	if d.Verb != decisions.Filter || len(d.Nodes) == 0 {
		return nil
	}
	said := make(map[string][]string) // names, by message
	var messages []string
	for _, n := range d.Nodes {
		if _, ok := said[n.Message]; !ok {
			messages = append(messages, n.Message)
		}
		said[n.Message] = append(said[n.Message], n.Name)
	}
	told := 0
	for _, message := range messages[:min(shownNodes, len(messages))] {
		lines = append(lines, strings.Join(said[message], ", ")+": "+message)
		told += len(said[message])
	}
	if more := d.Asked - d.Fit - told; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more nodes", more))
	}
	return lines
}

func since(t time.Time) string { return duration.HumanDuration(time.Since(t)) }

// considered is one GPU of a list of those that were considered.
type considered struct {
	node decisions.Node
	gpu  decisions.GPU
}

func (o *options) printConsidered(nodes []decisions.Node, cores bool) error {
	var rows []considered
	for _, n := range nodes {
		for _, g := range n.GPUs {
			rows = append(rows, considered{n, g})
		}
	}
	return printers.List(o.Out, []printers.Column[considered]{
		{Header: "NODE", Cell: func(c considered) string { return c.node.Name }},
		{Header: "GPU", Cell: func(c considered) string { return fmt.Sprint(c.gpu.Index) }},
		{Header: "MODEL", Cell: func(c considered) string { return c.gpu.Model }},
		{Header: "ALLOCATED", Cell: func(c considered) string {
			return printers.Bar(float64(c.gpu.Capacity-c.gpu.Free), float64(c.gpu.Capacity))
		}},
		{Header: "FREE/TOTAL", Cell: func(c considered) string {
			free, _ := gpu.Scale(c.gpu.Free, c.node.UnitMiB)
			return fmt.Sprintf("%d/%s", free, gpu.Format(c.gpu.Capacity, c.node.UnitMiB))
		}},
		{Header: "FREE-CORE(%)", Hidden: !cores, Cell: freeCores},
		{Header: "VERDICT", Cell: verdict, Colour: func(c considered) printers.Colour {
			if c.gpu.Reason == "" && c.node.Reason == "" {
				return printers.Green
			}
			return printers.Plain
		}},
	}, rows, printers.ListOptions{Colours: o.colours()})
}

func freeCores(c considered) string {
	if c.gpu.FreeCores == nil {
		return "?" // an extender of an older version does not tell
	}
	return fmt.Sprint(*c.gpu.FreeCores)
}

// verdict says of a GPU in some words whether it would do.
func verdict(c considered) string {
	if c.gpu.Chosen { // whatever is left of it now
		if c.gpu.Unhealthy != "" {
			return "chosen; " + outOfUse(c.gpu)
		}
		return "chosen"
	}
	switch c.gpu.Reason {
	case "NoSuchDevice":
		return "is none that the pod asks for"
	case "TooLarge":
		return "too small even when empty"
	case "Unhealthy":
		return outOfUse(c.gpu)
	case "Occupied":
		return "occupied"
	case "Insufficient":
		return "not enough free"
	case decisions.InsufficientCores:
		return "not enough cores free"
	}
	switch {
	case c.node.Reason == reach.Withheld:
		return "would do, but the node's kubelet offers none of it"
	case slices.Contains([]string{reach.Cordoned, reach.NotReady, reach.Coreless, reach.KeptAway, reach.Untolerated, inspect.Overdrawn, decide.Confusable}, c.node.Reason):
		return "would do, but " + c.node.Message
	case slices.Contains([]string{"TooFew", "Unhealthy", "Occupied", "Insufficient", "Fragmented"}, c.node.Reason):
		return "would do, but too few of the node would"
	case c.node.Reason != "" && c.node.Reason != "Fits":
		return "would do, but the node does not: " + cmp.Or(c.node.Message, c.node.Reason)
	default:
		return "would do"
	}
}

// outOfUse says why a GPU takes no new pods.
func outOfUse(g decisions.GPU) string {
	switch {
	case g.Status.OnlyCordoned():
		return g.Unhealthy
	case g.Status.Unhealthy:
		return "unhealthy: " + g.Unhealthy
	case g.Unhealthy != "": // its device plugin is stopped; or it is of an extender that tells no more
		return "takes no new pods: " + g.Unhealthy
	default:
		return "takes no new pods"
	}
}
