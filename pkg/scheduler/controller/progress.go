package controller

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
)

// progress is how far a watch of pods has come.
//
// A watch tells in order, so an event of a later version than one means that all up to
// that one were seen. A list, with which a watch begins and goes on after it was broken,
// comes in any order. So an event counts that is later than the version up to which
// the watch had got when one late enough came first: that list is worked off.
type progress struct {
	listed func() string // the version that the watch has got to, handled or not

	mu    sync.Mutex
	seen  string // the latest version of a pod that was handled
	asked string // the last version that past was asked about
	fence string // the version to get past for it; empty: seen has not reached it
}

// follow has the progress known of what a handler gets, once that has taken it in.
func (p *progress) follow(h toolscache.ResourceEventHandler) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, first bool) { h.OnAdd(obj, first); p.tell(obj) },
		UpdateFunc: func(before, after any) { h.OnUpdate(before, after); p.tell(after) },
		DeleteFunc: func(obj any) { h.OnDelete(obj); p.tell(obj) },
	}
}

func (p *progress) tell(obj any) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return // a deletion that was missed: only an older version is known
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == "" || later(pod.ResourceVersion, p.seen) {
		p.seen = pod.ResourceVersion
	}
}

// past reports whether all up to a version was handled.
func (p *progress) past(version string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked != version {
		p.asked, p.fence = version, ""
	}
	switch {
	case p.seen == "" || later(version, p.seen):
		return false
	case p.fence == "" && later(p.seen, p.listed()):
		return false // a list is being handled, whose version the watch has not taken over yet
	case p.fence == "":
		p.fence = p.seen
		if listed := p.listed(); later(listed, p.fence) {
			p.fence = listed
		}
		return false
	}
	return later(p.seen, p.fence)
}

// later reports whether a version is later than another. One that cannot be read is not.
func later(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}
