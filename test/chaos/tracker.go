package chaos

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// tracker follows the pods of the run by a watch. It serves the workload, the
// counts and the journal; no check relies on it, because a watch may lag and
// leave out.
type tracker struct {
	journal *journal

	mu      sync.Mutex
	pods    map[string]seen // by name
	bound   map[types.UID]bool
	ran     map[types.UID]bool
	refused map[types.UID]string // why
	forced  map[types.UID]bool
	moved   int           // assignments that were corrected
	changed chan struct{} // closed at the next change
}

// seen is what the watch has told of a pod.
type seen struct {
	uid                      types.UID
	node                     string
	gpus                     string
	started, ended, deleting bool
}

func (s seen) String() string {
	text := fmt.Sprintf("(%s): ", s.uid)
	if s.node == "" {
		text += "waits"
	} else {
		text += "on " + s.node
	}
	if s.gpus != "" {
		text += " with " + s.gpus
	}
	if s.started {
		text += ", started"
	}
	if s.ended {
		text += ", ended"
	}
	if s.deleting {
		text += ", is being deleted"
	}
	return text
}

func newTracker(j *journal) *tracker {
	return &tracker{
		journal: j, pods: make(map[string]seen), bound: make(map[types.UID]bool), ran: make(map[types.UID]bool),
		refused: make(map[types.UID]string), forced: make(map[types.UID]bool), changed: make(chan struct{}),
	}
}

// start begins to watch, until ctx ends.
func (t *tracker) start(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { t.saw(o.(*v1.Pod)) },
		UpdateFunc: func(_, o any) { t.saw(o.(*v1.Pod)) },
		DeleteFunc: func(o any) {
			if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tombstone.Obj
			}
			t.gone(o.(*v1.Pod))
		},
	})
	factory.Start(ctx.Done())
	return err
}

func (t *tracker) saw(pod *v1.Pod) {
	s := seen{
		uid: pod.UID, node: pod.Spec.NodeName, deleting: pod.DeletionTimestamp != nil,
		ended: pod.Status.Phase == v1.PodFailed || pod.Status.Phase == v1.PodSucceeded,
	}
	if shares, _ := sharesOf(pod.Annotations[assignmentKey]); len(shares) > 0 {
		s.gpus = fmt.Sprint(shares)
	}
	s.started = slices.ContainsFunc(pod.Status.ContainerStatuses, func(c v1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil && !c.State.Terminated.StartedAt.IsZero()
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pods[pod.Name] != s {
		t.journal.add(namespace+"/"+pod.Name, "%s", s)
	}
	if was := t.pods[pod.Name]; was.uid == s.uid && was.node != "" && was.gpus != "" && s.gpus != "" && was.gpus != s.gpus {
		t.moved++
	}
	t.pods[pod.Name] = s
	if s.node != "" {
		t.bound[s.uid] = true
	}
	if s.started {
		t.ran[s.uid] = true
	}
	if pod.Status.Phase == v1.PodFailed && !s.started && pod.Status.Reason != "" {
		t.refused[s.uid] = pod.Status.Reason + ": " + general(pod.Status.Message)
	}
	t.tell()
}

func (t *tracker) gone(pod *v1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pods[pod.Name].uid == pod.UID {
		delete(t.pods, pod.Name)
	}
	t.journal.add(namespace+"/"+pod.Name, "(%s): gone", pod.UID)
	t.tell()
}

// tell wakes all who wait; t.mu is held.
func (t *tracker) tell() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// wait waits until condition holds of the pods, by name.
func (t *tracker) wait(ctx context.Context, condition func(pods map[string]seen) bool) error {
	for {
		t.mu.Lock()
		holds, changed := condition(t.pods), t.changed
		t.mu.Unlock()
		if holds {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// waitCount is wait for a condition of the counts.
func (t *tracker) waitCount(ctx context.Context, condition func(counts) bool) error {
	return t.wait(ctx, func(map[string]seen) bool { return condition(t.countLocked()) })
}

// force notes that a pod is going to be deleted by force.
func (t *tracker) force(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forced[uid] = true
}

func (t *tracker) forcedPods() map[types.UID]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.forced)
}

func (t *tracker) hasRun(uid types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ran[uid]
}

// counts are of pods: those that exist, and those that ever were bound, ran, were refused by
// a kubelet, or had other GPUs written of them than before.
type counts struct{ exist, bound, ran, refused, corrected int }

func (t *tracker) count() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.countLocked()
}

func (t *tracker) countLocked() counts {
	return counts{exist: len(t.pods), bound: len(t.bound), ran: len(t.ran), refused: len(t.refused), corrected: t.moved}
}

// refusals returns how often kubelets refused pods, by the reason.
func (t *tracker) refusals() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[string]int)
	for _, why := range t.refused {
		out[why]++
	}
	return out
}

var particular = regexp.MustCompile(`GPU-[0-9a-f-]+|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{8}-\d+|\d+`)

// general leaves out of a message what is one pod's own, so that equal reasons
// are counted together.
func general(message string) string {
	message = particular.ReplaceAllString(message, "#")
	for strings.Contains(message, "#, #") {
		message = strings.ReplaceAll(message, "#, #", "#")
	}
	return message
}
