package main

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// instantAPI is an API server that answers at once and refuses nothing.
type instantAPI struct {
	mu   sync.Mutex
	pods map[string]*v1.Pod // by namespace and name

	bound func(*v1.Binding) // is told of each binding; nil: nobody wants to know
}

func (a *instantAPI) create(pod *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pods[pod.Namespace+"/"+pod.Name] = pod
}

func (a *instantAPI) remove(pod *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pods, pod.Namespace+"/"+pod.Name)
}

func (a *instantAPI) Pod(namespace, name string) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods[namespace+"/"+name]
}

// Waiting returns none: kube-scheduler has found a node for each pod.
func (*instantAPI) Waiting() []*v1.Pod { return nil }

func (a *instantAPI) ReadPod(_ context.Context, namespace, name string) (*v1.Pod, error) {
	return a.Pod(namespace, name), nil
}

// ReadPodsOn has nothing to tell: a benchmark has one extender, which knows its own.
func (*instantAPI) ReadPodsOn(context.Context, string) ([]*v1.Pod, error) { return nil, nil }

func (a *instantAPI) Bind(_ context.Context, b *v1.Binding) error {
	if a.bound != nil {
		a.bound(b)
	}
	return nil
}

func (*instantAPI) Refused(error) bool { return false }

// Leader is always the same, and the watch is never behind.
func (*instantAPI) Leader(context.Context) (string, error)   { return "the one", nil }
func (*instantAPI) Revision(context.Context) (string, error) { return "1", nil }
func (*instantAPI) Shown(string) bool                        { return true }

// Wake does nothing: no pod waits.
func (*instantAPI) Wake(context.Context, placement.PodRef) error { return nil }
