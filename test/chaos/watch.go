package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// A journal lists the events of a run in order. A violation is printed with the events around it.
type journal struct {
	mu      sync.Mutex
	entries []entry
}

type entry struct {
	at   time.Time
	pod  string // namespace/name; empty: concerns all
	text string
}

func (j *journal) add(pod, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry{time.Now(), pod, fmt.Sprintf(format, args...)})
}

// around returns the events of these pods, and of the cluster, from 30 seconds before a time to 5 after it.
func (j *journal) around(at time.Time, pods []string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	for _, e := range j.entries {
		since := e.at.Sub(at)
		if since >= -30*time.Second && since <= 5*time.Second && (e.pod == "" || slices.Contains(pods, e.pod)) {
			fmt.Fprintf(&b, "  %+6.1f s  %s\n", since.Seconds(), strings.TrimSpace(e.pod+" "+e.text))
		}
	}
	return b.String()
}

// A tracker follows the run's pods by an informer. It serves the workload, the counts and the journal. No
// check uses it: a watch may lag.
type tracker struct {
	journal *journal
	pods    cache.Store

	mu      sync.Mutex
	last    map[types.UID]string // journal text
	bound   map[types.UID]bool
	ran     map[types.UID]bool
	refused map[types.UID]bool // by a kubelet
}

func newTracker(j *journal) *tracker {
	return &tracker{journal: j, last: make(map[types.UID]string), bound: make(map[types.UID]bool), ran: make(map[types.UID]bool), refused: make(map[types.UID]bool)}
}

func (t *tracker) start(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	t.pods = informer.GetStore()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { t.update(o.(*v1.Pod)) },
		UpdateFunc: func(_, o any) { t.update(o.(*v1.Pod)) },
		DeleteFunc: func(o any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
				t.journal.add(key, "deleted")
			}
		},
	})
	factory.Start(ctx.Done())
	return err
}

// started reports whether a container of the pod runs or has run.
func started(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c v1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil && !c.State.Terminated.StartedAt.IsZero()
	})
}

func (t *tracker) update(p *v1.Pod) {
	shares, _ := parseAssignment(p.Annotations[assignmentKey])
	text := fmt.Sprintf("(%s): node %q, GPUs %v, %s %s, started: %t, deleting: %t", p.UID, p.Spec.NodeName, shares, p.Status.Phase, p.Status.Message, started(p), p.DeletionTimestamp != nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last[p.UID] != text {
		t.last[p.UID] = text
		t.journal.add(p.Namespace+"/"+p.Name, "%s", text)
	}
	if p.Spec.NodeName != "" {
		t.bound[p.UID] = true
	}
	if started(p) {
		t.ran[p.UID] = true
	} else if p.Status.Phase == v1.PodFailed && p.Status.Reason != "" {
		t.refused[p.UID] = true
	}
}

// counts are numbers of pods since the start.
type counts struct{ bound, ran, refused int }

func (t *tracker) count() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return counts{len(t.bound), len(t.ran), len(t.refused)}
}

// wait waits until a condition of the counts holds.
func (t *tracker) wait(ctx context.Context, condition func(counts) bool) error {
	return wait.PollUntilContextCancel(ctx, 2*time.Millisecond, true, func(context.Context) (bool, error) { return condition(t.count()), nil })
}

// waitPod waits until a condition of a pod by its name holds; nil: it does not exist.
func (t *tracker) waitPod(ctx context.Context, name string, condition func(*v1.Pod) bool) error {
	return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		object, _, err := t.pods.GetByKey(namespace + "/" + name)
		p, _ := object.(*v1.Pod)
		return condition(p), err
	})
}

// A watcher checks the promises while pods come and go, and collects the violations.
type watcher struct {
	*bench

	mu         sync.Mutex
	known      map[string]bool // texts of violations
	violations []violation
	checks     int
	miscounts  int // how often kube-scheduler counted pods that did not exist
}

type violation struct {
	finding
	at time.Time
}

// run checks until ctx ends. Each source has its own loop, so that one that is down does not delay the others.
func (w *watcher) run(ctx context.Context) {
	var group sync.WaitGroup
	loop := func(check func()) {
		group.Go(func() {
			for ; ctx.Err() == nil; sleep(ctx, 500*time.Millisecond) {
				check()
			}
		})
	}
	for _, node := range w.cluster.Nodes() {
		loop(func() { w.checkKubelet(ctx, node) })
	}
	loop(func() { w.checkAPI(ctx) })
	group.Wait()
}

func (w *watcher) checkKubelet(ctx context.Context, node string) {
	held, err := w.listHeld(ctx, node)
	if err != nil {
		return // it is down
	}
	findings := checkHeld(w.gpus, node, held)
	if len(findings) > 0 { // PodResources is not one state of the kubelet
		if held, err = w.listHeld(ctx, node); err != nil {
			return
		}
		again := checkHeld(w.gpus, node, held)
		findings = slices.DeleteFunc(findings, func(f finding) bool {
			return !slices.ContainsFunc(again, func(g finding) bool { return f.text == g.text })
		})
	}
	w.add(findings...)
}

func (w *watcher) checkAPI(ctx context.Context) {
	pods, err := w.listPods(ctx)
	if err != nil {
		return // it is down
	}
	findings := checkShares(w.gpus, pods)
	for _, p := range pods {
		findings = append(findings, checkAssignment(w.gpus, p)...)
	}
	w.add(slices.DeleteFunc(findings, func(f finding) bool { return f.repairable })...)
}

// add records violations, each once.
func (w *watcher) add(findings ...finding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checks++
	for _, f := range findings {
		if !w.known[f.text] {
			w.known[f.text] = true
			w.violations = append(w.violations, violation{f, time.Now()})
			fmt.Fprintln(w.log, "VIOLATION", f)
		}
	}
}

// count returns the number of violations of some promises; none given: of all.
func (w *watcher) count(promises ...string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range w.violations {
		if len(promises) == 0 || slices.Contains(promises, v.promise) {
			n++
		}
	}
	return n
}

// report returns the violations with the events around them.
func (w *watcher) report() (text string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d checks; kube-scheduler counted pods that did not exist, and was started again: %d times\n", w.checks, w.miscounts)
	for _, v := range w.violations {
		fmt.Fprintf(&b, "violation: %s\n%s%s", v.finding, v.facts, w.journal.around(v.at, v.pods))
	}
	if len(w.violations) > 0 {
		err = errors.New("promises were broken")
	}
	return b.String(), err
}
