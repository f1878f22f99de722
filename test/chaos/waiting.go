package chaos

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/test/stack"
)

const (
	// idleTime is how long after the last fault a pod that fits may not run.
	idleTime = 60 * time.Second
	// watchTime is how long client-go may wait before it watches again, when the API
	// server was away more than once; in kube-scheduler and the kubelet too. The last
	// fault counts from then.
	watchTime = 60 * time.Second
	// dumpTime is how long kube-scheduler gets to write down what it counts.
	dumpTime = 3 * time.Second
	// fewLines are what is shown of a log about one pod.
	fewLines = 30
)

// awaitFitting waits, when nothing more is made or deleted, until every pod that
// fits runs or is late, which is a violation. Where it is kube-scheduler that counts
// pods that are gone, it is told of and kube-scheduler is started again, once.
func (b *bench) awaitFitting(ctx context.Context, lastFault, lastOutage time.Time) error {
	w := newWaits(lastFault, lastOutage)
	restarted := false
	for over := false; !over; sleep(ctx, time.Second) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		nodes, pods, err := nodesAndPods(ctx, b.client)
		switch {
		case err != nil && time.Since(lastFault) > longTime:
			return fmt.Errorf("look for pods that wait: %w", err)
		case err != nil:
			continue
		}
		var late []pod
		late, over = w.look(time.Now(), nodes.idle(pods))
		facts, miscounted := b.lateFacts(ctx, nodes, pods, late)
		if miscounted && !restarted {
			fmt.Fprintf(b.log, "kube-scheduler counts pods that are gone, and is started again:\n%s", strings.Join(facts, ""))
			if err := b.restartScheduler(); err != nil {
				return err
			}
			b.watcher.miscounted()
			w.again(time.Now())
			restarted, over = true, false
			continue
		}
		for i, p := range late {
			b.watcher.idle(p, nodes.fitting(pods, p), facts[i])
		}
	}
	b.watcher.waited(w.longest)
	return nil
}

func nodesAndPods(ctx context.Context, client kubernetes.Interface) (hosts, []pod, error) {
	nodes, err := listHosts(ctx, client)
	if err != nil {
		return nil, nil, err
	}
	pods, err := listPods(ctx, client)
	return nodes, pods, err
}

// lateFacts returns the facts of each pod that is late, and whether it is
// kube-scheduler's own count that one of them waits for.
func (b *bench) lateFacts(ctx context.Context, nodes hosts, pods, late []pod) (facts []string, miscounted bool) {
	for _, p := range late {
		text := b.facts(ctx, nodes, pods, p)
		if p.node == "" {
			counts, gone, err := b.schedulerCounts(ctx, p)
			if err != nil {
				counts += err.Error() + "\n"
			}
			text += counts
			miscounted = miscounted || gone
		}
		facts = append(facts, text)
	}
	return facts, miscounted
}

// facts say why a pod waits: what it asks for, what is free, and what its events
// say, a line each.
func (b *bench) facts(ctx context.Context, nodes hosts, pods []pod, p pod) string {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var text strings.Builder
	fmt.Fprintf(&text, "it asks for %d units of %d GPUs, pinned to %q, exclusive: %t\n%s", p.need, p.count, p.pinned, p.exclusive, nodes.describe(pods))
	list, err := b.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(p.uid)).String()})
	if err != nil {
		fmt.Fprintln(&text, err)
		return text.String()
	}
	for _, e := range list.Items {
		last := e.EventTime.Time
		if e.Series != nil {
			last = e.Series.LastObservedTime.Time
		}
		fmt.Fprintf(&text, "event of %s, last %s: %s: %s\n", e.CreationTimestamp.UTC().Format(time.TimeOnly), last.UTC().Format(time.TimeOnly), e.Reason, e.Message)
	}
	return text.String()
}

// schedulerCounts has the kube-schedulers write down what they count on each node,
// and returns their logs' lines about a pod and about what they count that is gone,
// and whether there is such.
func (b *bench) schedulerCounts(ctx context.Context, p pod) (text string, gone bool, err error) {
	program := b.stack.Scheduler()
	processes, err := b.cluster.ContainerProcesses(program)
	if err != nil {
		return "", false, err
	}
	var errs []error
	for _, one := range processes {
		errs = append(errs, one.Signal(syscall.SIGUSR2))
	}
	sleep(ctx, dumpTime)
	exist, err := b.uids(ctx)
	errs = append(errs, err)
	var lines strings.Builder
	for _, node := range b.cluster.Nodes() {
		log, err := stack.ContainerLog(b.cluster, node, program)
		errs = append(errs, err)
		names := []string{p.name}
		for _, c := range lastDump(log) {
			if exist != nil && !exist[c.uid] {
				gone = true
				fmt.Fprintf(&lines, "kube-scheduler on %s counts %s (%s) on %s, which is gone\n", node, c.name, c.uid, c.node)
				names = append(names, c.name)
			}
		}
		for _, line := range linesAbout(log, names) {
			fmt.Fprintf(&lines, "kube-scheduler on %s: %s\n", node, line)
		}
	}
	return lines.String(), gone, errors.Join(errs...)
}

// uids returns those of all pods.
func (b *bench) uids(ctx context.Context) (map[types.UID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := b.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make(map[types.UID]bool)
	for _, one := range list.Items {
		out[one.UID] = true
	}
	return out, nil
}

// counted is a pod that kube-scheduler counts on a node.
type counted struct {
	node string
	name string // namespace/name
	uid  types.UID
}

var (
	dumpedNode = regexp.MustCompile(`^\s*Node name: (\S+)`)
	dumpedPod  = regexp.MustCompile(`^\s*name: (\S+), namespace: (\S+), uid: (\S+), phase: `)
)

// lastDump reads what kube-scheduler has last written down at SIGUSR2.
func lastDump(log []string) []counted {
	var out []counted
	node := ""
	for _, line := range log {
		switch {
		case strings.Contains(line, "Dump of cached NodeInfo"):
			out, node = nil, ""
		case strings.Contains(line, "Dump of scheduling queue"):
			node = ""
		}
		if m := dumpedNode.FindStringSubmatch(line); m != nil {
			node = m[1]
		}
		if m := dumpedPod.FindStringSubmatch(line); m != nil && node != "" {
			out = append(out, counted{node: node, name: m[2] + "/" + m[1], uid: types.UID(m[3])})
		}
	}
	return out
}

// linesAbout returns the last lines of a log that name one of the pods, and those
// that tell of a cache that is wrong.
func linesAbout(log []string, pods []string) []string {
	var out []string
	for _, line := range log {
		named := func(pod string) bool { return strings.Contains(line, `"`+pod+`"`) }
		if strings.Contains(line, "Cache mismatch") || slices.ContainsFunc(pods, named) {
			out = append(out, line)
		}
	}
	return out[max(0, len(out)-fewLines*len(pods)):]
}
