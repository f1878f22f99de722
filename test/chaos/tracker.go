package chaos

import (
	"context"
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

// tracker follows the pods of the run by a watch. It serves the workload and the
// counts; no check relies on it, because a watch may lag and leave out.
type tracker struct {
	mu      sync.Mutex
	pods    map[string]seen // by name
	bound   map[types.UID]bool
	ran     map[types.UID]bool
	refused map[types.UID]string
	forced  map[types.UID]bool
	changed chan struct{} // closed at the next change
}

// seen is what the workload waits for.
type seen struct {
	uid                   types.UID
	bound, started, ended bool
}

func newTracker() *tracker {
	return &tracker{
		pods: make(map[string]seen), bound: make(map[types.UID]bool), ran: make(map[types.UID]bool),
		refused: make(map[types.UID]string), forced: make(map[types.UID]bool), changed: make(chan struct{}),
	}
}

// run watches until the context is done.
func (t *tracker) run(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { t.saw(o.(*v1.Pod)) },
		UpdateFunc: func(_, o any) { t.saw(o.(*v1.Pod)) },
		DeleteFunc: func(o any) {
			if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tombstone.Obj
			}
			t.gone(o.(*v1.Pod))
		},
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	<-ctx.Done()
	return nil
}

func (t *tracker) saw(pod *v1.Pod) {
	s := seen{uid: pod.UID, bound: pod.Spec.NodeName != "", ended: pod.Status.Phase == v1.PodFailed || pod.Status.Phase == v1.PodSucceeded}
	s.started = slices.ContainsFunc(pod.Status.ContainerStatuses, func(c v1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil && !c.State.Terminated.StartedAt.IsZero()
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pods[pod.Name] = s
	if s.bound {
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
	t.tell()
}

// tell wakes all who wait; t.mu is held.
func (t *tracker) tell() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// wait waits until condition holds for the pod called name.
func (t *tracker) wait(ctx context.Context, name string, condition func(s seen, exists bool) bool) error {
	for {
		t.mu.Lock()
		s, exists := t.pods[name]
		changed := t.changed
		t.mu.Unlock()
		if condition(s, exists) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
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

func (t *tracker) counts() (alive, bound, ran, refused int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pods), len(t.bound), len(t.ran), len(t.refused)
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
