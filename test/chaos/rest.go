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

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/test/stack"
)

const (
	// idleTime is how long after the last fault, or after it begins to fit, a pod may not run.
	idleTime = 60 * time.Second
	// watchTime is how long client-go may wait before it watches again after an outage of the API server.
	watchTime = 60 * time.Second
)

func (b *bench) listAll(ctx context.Context) ([]node, []pod, error) {
	nodes, err := b.listNodes(ctx)
	if err != nil {
		return nil, nil, err
	}
	pods, err := b.listPods(ctx)
	return nodes, pods, err
}

// awaitRunning waits until every pod that fits runs, or is late. A late pod is a violation, unless
// kube-scheduler counts pods that do not exist: then kube-scheduler is started again, once.
func (b *bench) awaitRunning(ctx context.Context, lastFault, outage time.Time) error {
	last, notBefore := lastFault, outage.Add(watchTime+idleTime)
	since := make(map[types.UID]time.Time)
	restarted := false
	for ; ctx.Err() == nil; sleep(ctx, time.Second) {
		nodes, pods, err := b.listAll(ctx)
		if err != nil {
			if time.Since(lastFault) > 20*time.Minute {
				return err
			}
			continue
		}
		now, idle, late := time.Now(), make(map[types.UID]time.Time), 0
		for _, p := range idlePods(nodes, pods) {
			start, known := since[p.UID]
			if !known {
				start = last
			}
			idle[p.UID] = start
			if now.Sub(start) <= idleTime || now.Before(notBefore) {
				continue
			}
			late++
			facts, miscounted := b.explain(ctx, p)
			if miscounted && !restarted {
				restarted, notBefore = true, time.Now().Add(idleTime)
				if err := b.restartScheduler(facts); err != nil {
					return err
				}
				break
			}
			f := p.finding("idle", "fits on %v or is bound to %q, and does not run: %s", fitting(nodes, pods, p), p.Spec.NodeName, p.reason())
			f.facts = facts
			b.watcher.add(f)
		}
		since, last = idle, now
		if late == len(idle) && (late == 0 || now.After(notBefore)) {
			return nil
		}
	}
	return context.Cause(ctx)
}

// explain returns gpumem's own explanation of a pod, and the pods that kube-scheduler counts although they do
// not exist.
func (b *bench) explain(ctx context.Context, p pod) (facts string, miscounted bool) {
	facts, err := b.stack.Inspect(ctx, b.cluster, "explain", "-n", namespace, p.Name)
	if err != nil {
		facts += err.Error()
	}
	ghosts, err := b.ghosts(ctx)
	if err != nil {
		ghosts += err.Error() + "\n"
	}
	return strings.TrimRight(facts, "\n") + "\n" + ghosts, err == nil && ghosts != ""
}

// ghosts returns the pods that kube-scheduler counts on nodes and that do not exist, a line each. At SIGUSR2
// kube-scheduler writes its cache to its log.
func (b *bench) ghosts(ctx context.Context) (out string, err error) {
	processes, err := b.cluster.ContainerProcesses(b.stack.Scheduler())
	if err != nil {
		return "", err
	}
	for _, p := range processes {
		if err := p.Signal(syscall.SIGUSR2); err != nil {
			return "", err
		}
	}
	sleep(ctx, 3*time.Second)
	list, err := b.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	exist := make(map[string]bool)
	for _, p := range list.Items {
		exist[string(p.UID)] = true
	}
	for _, node := range b.cluster.Nodes() {
		log, err := stack.ContainerLog(b.cluster, node, b.stack.Scheduler())
		if err != nil {
			return "", err
		}
		for uid, name := range lastDump(log) {
			if !exist[uid] {
				out += fmt.Sprintf("  kube-scheduler on %s counts pod %s (%s), which does not exist\n", node, name, uid)
			}
		}
	}
	return out, nil
}

var dumpedPod = regexp.MustCompile(`^\s*name: (\S+), namespace: (\S+), uid: (\S+), phase: `)

// lastDump returns the pods of nodes, by UID, in the last dump of kube-scheduler's cache.
func lastDump(log []string) map[string]string {
	var out map[string]string
	ofNodes := false
	for _, line := range log {
		switch {
		case strings.Contains(line, "Dump of cached NodeInfo"):
			out, ofNodes = make(map[string]string), true
		case strings.Contains(line, "Dump of scheduling queue"):
			ofNodes = false
		}
		if m := dumpedPod.FindStringSubmatch(line); m != nil && ofNodes {
			out[m[3]] = m[2] + "/" + m[1]
		}
	}
	return out
}

func (b *bench) restartScheduler(facts string) error {
	fmt.Fprintf(b.log, "kube-scheduler counts pods that do not exist, and is started again:\n%s", facts)
	b.watcher.mu.Lock()
	b.watcher.miscounts++
	b.watcher.mu.Unlock()
	return b.killContainers(b.stack.Scheduler(), nil)
}

// checkRest waits until all checks at rest pass, and records the violations that stay.
func (b *bench) checkRest(ctx context.Context) error {
	var findings []finding
	left, err := settle(ctx, func(ctx context.Context) (text string) {
		var err error
		if findings, err = b.findAtRest(ctx); err != nil {
			return err.Error()
		}
		for _, f := range findings {
			text += f.String() + "\n"
		}
		return text
	})
	if err == nil && left != "" && len(findings) == 0 {
		err = fmt.Errorf("check at rest: %s", left)
	}
	b.watcher.add(findings...)
	return err
}

func (b *bench) findAtRest(ctx context.Context) (out []finding, err error) {
	nodes, pods, err := b.listAll(ctx)
	if err != nil {
		return nil, err
	}
	held, err := b.listAllHeld(ctx)
	if err != nil {
		return nil, err
	}
	processes, err := b.listProcesses()
	if err != nil {
		return nil, err
	}
	own, err := b.client.CoreV1().Pods(stack.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out = append(checkShares(b.gpus, pods), checkOrphans(pods, held)...)
	for _, p := range own.Items {
		if !isReady(&p) {
			out = append(out, finding{promise: "stuck", text: "gpumem's pod " + p.Name + " is not ready"})
		}
	}
	for _, p := range pods {
		out = append(out, checkAssignment(b.gpus, p)...)
		out = append(out, checkRest(nodes, pods, p, held[p.Spec.NodeName], processes)...)
	}
	return out, nil
}

func (b *bench) listAllHeld(ctx context.Context) (map[string][]holding, error) {
	out := make(map[string][]holding)
	for _, node := range b.cluster.Nodes() {
		held, err := b.listHeld(ctx, node)
		if err != nil {
			return nil, err
		}
		out[node] = held
	}
	return out, nil
}

// checkLeaks deletes all pods, and then fills each GPU with one pod: memory that is allocated to no pod, in any
// part, keeps one of them from running.
func (b *bench) checkLeaks(ctx context.Context) error {
	fmt.Fprintln(b.log, "delete all pods, and fill each GPU with one")
	if err := b.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}, metav1.ListOptions{}); err != nil {
		return err
	}
	left, err := settle(ctx, func(ctx context.Context) string {
		pods, err := b.listPods(ctx)
		if err != nil || len(pods) > 0 {
			return fmt.Sprint(len(pods), " pods still exist ", err)
		}
		return ""
	})
	if err != nil {
		return err
	}
	if left != "" {
		return errors.New("delete all pods: " + left)
	}
	for _, g := range b.gpus {
		pod := newPod(fmt.Sprintf("full-%s-%d", g.node, g.index))
		pod.Annotations[uuidKey] = g.uuid
		pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: g.node}
		pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", g.units)}
		if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	// On a busy machine, a node may be tainted as unreachable for some seconds.
	if _, err := settle(ctx, func(ctx context.Context) string {
		pods, err := b.listPods(ctx)
		waiting := slices.DeleteFunc(pods, func(p pod) bool { return isReady(p.Pod) })
		if err != nil || len(waiting) > 0 {
			return fmt.Sprint(len(waiting), " pods wait ", err)
		}
		return ""
	}); err != nil {
		return err
	}
	if err := b.awaitRunning(ctx, time.Now(), time.Time{}); err != nil {
		return err
	}
	pods, err := b.listPods(ctx)
	for _, p := range pods {
		if !isReady(p.Pod) {
			b.watcher.add(p.finding("leaked", "of all %d units of a GPU does not run: %s %s", p.units, p.Status.Message, p.reason()))
		}
	}
	if err != nil {
		return err
	}
	return b.checkRest(ctx)
}
