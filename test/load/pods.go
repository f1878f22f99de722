package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

const (
	namespace = "load"
	writers   = 32 // concurrent requests to the API server
	batchTime = 5 * time.Minute
)

// batch is a number of pods that are created at once.
type batch struct {
	client kubernetes.Interface
	pods   []*v1.Pod
	done   func(*v1.Pod) bool // the scheduler has decided

	mu      sync.Mutex
	created map[string]time.Time
	decided map[string]time.Time
}

// bound and refused are the two outcomes of a pod.
func bound(p *v1.Pod) bool { return p.Spec.NodeName != "" }

func refused(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse
	})
}

// run creates the pods and returns when the scheduler has decided about all of them: after which
// time, and after which time for each, sorted.
func (b *batch) run(ctx context.Context) (took time.Duration, waits []time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, batchTime, errors.New("the scheduler did not decide about all pods in time"))
	defer cancel()
	b.created, b.decided = make(map[string]time.Time), make(map[string]time.Time)
	none, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, nil, err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return b.create(groupCtx) })
	group.Go(func() error { return b.await(groupCtx, none.ResourceVersion) })
	if err := group.Wait(); err != nil {
		return 0, nil, fmt.Errorf("%d pods: %d created, %d decided: %w", len(b.pods), len(b.created), len(b.decided), err)
	}
	for name, created := range b.created {
		waits = append(waits, b.decided[name].Sub(created))
	}
	slices.Sort(waits)
	first := slices.MinFunc(slices.Collect(maps.Values(b.created)), time.Time.Compare)
	last := slices.MaxFunc(slices.Collect(maps.Values(b.decided)), time.Time.Compare)
	return last.Sub(first), waits, nil
}

func (b *batch) create(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for _, pod := range b.pods {
		group.Go(func() error {
			b.note(b.created, pod.Name)
			_, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
	}
	return group.Wait()
}

// await watches until the scheduler has decided about all pods. The API server ends a watch whose
// client is slow, so await may open several.
func (b *batch) await(ctx context.Context, version string) error {
	for {
		events, err := b.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			return err
		}
		for event := range events.ResultChan() {
			pod, ok := event.Object.(*v1.Pod)
			if !ok {
				return fmt.Errorf("watch pods: %v", event.Object)
			}
			version = pod.ResourceVersion
			if b.done(pod) && b.note(b.decided, pod.Name) == len(b.pods) {
				events.Stop()
				return nil
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// note records the first time of a pod and returns the number of recorded pods.
func (b *batch) note(times map[string]time.Time, pod string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := times[pod]; !known {
		times[pod] = time.Now()
	}
	return len(times)
}

// clear deletes all pods and waits until they are gone.
func (b *batch) clear(ctx context.Context) error {
	pods := b.client.CoreV1().Pods(namespace)
	if err := pods.DeleteCollection(ctx, *metav1.NewDeleteOptions(0), metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete the pods: %w", err)
	}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, batchTime, true, func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(list.Items) == 0, err
	})
}
