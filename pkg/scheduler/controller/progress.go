package controller

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
)

// progress tracks the resource version up to which the handler has processed the pod watch.
//
// The handler receives all events in the order in which the informer has received them. But the objects of a
// list, which starts or resumes a watch, arrive in any order. So hasPassed has two steps. First, it waits until
// the informer has received all changes up to the version. The version that the informer has reached by then is
// the fence. Second, it waits until the handler has processed an object with a later version than the fence:
// the informer has received this object after these changes.
type progress struct {
	received func() string // the version that the informer has reached

	mu      sync.Mutex
	handled string // latest version of a handled pod
	target  string // argument of the last call of hasPassed
	fence   string // the version that handled must exceed; empty: the informer has not reached target yet
}

// wrapHandler returns a handler that calls h and then records the object's version.
func (p *progress) wrapHandler(h toolscache.ResourceEventHandler) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, first bool) { h.OnAdd(obj, first); p.recordVersion(obj) },
		UpdateFunc: func(before, after any) { h.OnUpdate(before, after); p.recordVersion(after) },
		DeleteFunc: func(obj any) { h.OnDelete(obj); p.recordVersion(obj) },
	}
}

func (p *progress) recordVersion(obj any) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return // a missed deletion has only an older version
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handled == "" || isNewer(pod.ResourceVersion, p.handled) {
		p.handled = pod.ResourceVersion
	}
}

// hasPassed reports whether all changes up to a version were handled.
func (p *progress) hasPassed(version string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.target != version {
		p.target, p.fence = version, ""
	}
	if received := p.received(); p.fence == "" && !isNewer(version, received) {
		p.fence = received
	}
	return isNewer(p.handled, p.fence)
}

// isNewer reports whether a is a later version than b. It returns false if either is unreadable.
func isNewer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}
