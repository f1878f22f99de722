package throughput

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

const namespace = "throughput"

// sizes are what pods ask for by turns, in units.
var sizes = []int64{3, 5, 8, 10, 16, 20, 40}

// fakePod describes the i-th pod of a batch. No kubelet runs it.
func fakePod(batch string, i int, scheduler string) *v1.Pod {
	automount, grace := false, int64(0)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%05d", batch, i)},
		Spec: v1.PodSpec{
			SchedulerName: scheduler, AutomountServiceAccountToken: &automount, TerminationGracePeriodSeconds: &grace,
			// Who takes this taint from new nodes does not run.
			Tolerations: []v1.Toleration{{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists}},
			Containers: []v1.Container{{
				Name: "main", Image: "example.org/model-server:1",
				Resources: v1.ResourceRequirements{
					Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("128Mi")},
					Limits:   v1.ResourceList{gpuMem: *resource.NewQuantity(sizes[i%len(sizes)], resource.DecimalSI)},
				},
			}},
		},
	}
}

// batch is pods that are made, and when each was made and bound.
type batch struct {
	client    kubernetes.Interface
	name      string
	scheduler string
	pods      int
	interval  time.Duration // between two of them; 0: all at once

	mu      sync.Mutex
	created map[string]time.Time
	bound   map[string]time.Time
}

// figures are how a batch has gone.
type figures struct {
	took    time.Duration   // from the first pod that was made to the last that was bound
	waiting []time.Duration // of each pod, from its creation to its binding
}

// run makes the pods, waits until all of them are bound, and deletes them.
func (b *batch) run(ctx context.Context) (figures, error) {
	b.created, b.bound = make(map[string]time.Time, b.pods), make(map[string]time.Time, b.pods)
	none, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return figures{}, err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return b.create(groupCtx) })
	group.Go(func() error { return b.await(groupCtx, none.ResourceVersion) })
	if err := group.Wait(); err != nil {
		return figures{}, fmt.Errorf("%d pods %s: %d made, %d bound: %w%s", b.pods, b.name, len(b.created), len(b.bound), err, b.waiting(context.WithoutCancel(ctx)))
	}
	return b.figures(), b.clear(ctx)
}

// waiting says of the pods that are not bound why they are not, a line each.
func (b *batch) waiting(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", "").String(), Limit: 10})
	if err != nil {
		return "\n" + err.Error()
	}
	var text strings.Builder
	for _, pod := range list.Items {
		fmt.Fprintf(&text, "\n%s: made %s", pod.Name, pod.CreationTimestamp.UTC().Format(time.TimeOnly))
		for _, c := range pod.Status.Conditions {
			fmt.Fprintf(&text, "; %s since %s: %s", c.Reason, c.LastTransitionTime.UTC().Format(time.TimeOnly), c.Message)
		}
	}
	return text.String()
}

func (b *batch) create(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	next := time.Now()
	for i := range b.pods {
		if time.Sleep(time.Until(next)); ctx.Err() != nil {
			break
		}
		next = next.Add(b.interval)
		group.Go(func() error {
			pod := fakePod(b.name, i, b.scheduler)
			b.note(b.created, pod.Name)
			_, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
	}
	return group.Wait()
}

// await watches until all pods have a node. The API server ends watches whose
// other end it finds too slow, so there may be several, each from where the one
// before ended.
func (b *batch) await(ctx context.Context, version string) error {
	for {
		events, err := b.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{
			ResourceVersion: version,
			FieldSelector:   fields.OneTermNotEqualSelector("spec.nodeName", "").String(),
		})
		if err != nil {
			return err
		}
		for event := range events.ResultChan() {
			pod, ok := event.Object.(*v1.Pod)
			if !ok {
				return fmt.Errorf("watch pods: %v", event.Object)
			}
			version = pod.ResourceVersion
			if b.note(b.bound, pod.Name) == b.pods {
				events.Stop()
				return nil
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// note remembers when something first happened to a pod, and returns to how
// many it has.
func (b *batch) note(times map[string]time.Time, pod string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := times[pod]; !known {
		times[pod] = time.Now()
	}
	return len(times)
}

func (b *batch) figures() figures {
	var f figures
	for pod, created := range b.created {
		f.waiting = append(f.waiting, b.bound[pod].Sub(created))
	}
	first := slices.MinFunc(slices.Collect(maps.Values(b.created)), time.Time.Compare)
	last := slices.MaxFunc(slices.Collect(maps.Values(b.bound)), time.Time.Compare)
	f.took = last.Sub(first)
	return f
}

// clear deletes all pods and waits until they are gone.
func (b *batch) clear(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for pod := range b.created {
		group.Go(func() error {
			return b.client.CoreV1().Pods(namespace).Delete(groupCtx, pod, *metav1.NewDeleteOptions(0))
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("delete the pods: %w", err)
	}
	return wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		list, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(list.Items) == 0, err
	})
}
