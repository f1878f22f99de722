package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpumem/gpumem/test/stack"
)

const (
	namespace  = "chaos"
	shapeLabel = "chaos/shape"
	direct     = "direct"   // the shape with a nodeName
	restarts   = "restarts" // the shape whose container fails again and again
)

// newPod returns a pod without containers.
func newPod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec: v1.PodSpec{
			SchedulerName: schedulerName, TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		},
	}
}

// randomPod returns a pod of a random shape.
func randomPod(r *rand.Rand, name string, nodes []string) *v1.Pod {
	pod := newPod(name)
	main := func(from, to int64, args ...string) {
		pod.Spec.Containers = append(pod.Spec.Containers, stack.SampleContainer(fmt.Sprintf("c%d", len(pod.Spec.Containers)), from+r.Int64N(to-from+1), args...))
	}
	switch n := r.IntN(114); {
	case n < 30:
		main(1, 6)
	case n < 45: // of equal size, so that the kubelet can confuse them
		main(4, 4)
		pod.Annotations[policyKey] = "spread"
	case n < 53:
		main(9, 14)
	case n < 55:
		main(30, 50)
	case n < 65:
		main(1, 3)
		main(1, 3)
		main(0, 0)
	case n < 75:
		sidecar := stack.SampleContainer("sidecar", 1)
		sidecar.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
		pod.Spec.InitContainers = []v1.Container{sidecar, stack.SampleContainer("prepare", 1+r.Int64N(5), "-exit-after=50ms")}
		main(1, 3)
	case n < 85:
		pod.Annotations[countKey] = "2"
		pod.Spec.Containers = []v1.Container{stack.SampleContainer("c0", 2*(1+r.Int64N(4)))}
	case n < 88:
		main(1, 4)
		pod.Annotations[policyKey] = "exclusive"
	case n < 96:
		main(1, 4)
		pod.Labels[shapeLabel] = direct
		pod.Spec.NodeName = nodes[r.IntN(len(nodes))]
	case n < 104:
		main(1, 4, "-exit-after=1s")
		pod.Spec.RestartPolicy = v1.RestartPolicyNever
	case n < 108:
		main(1, 4, "-exit-after=2s", "-exit-code=1")
		pod.Labels[shapeLabel] = restarts
	default:
		main(1, 6, "-ignore-term")
		pod.Spec.TerminationGracePeriodSeconds = new(int64(3))
	}
	return pod
}

// A workload creates and deletes pods in a number of places at once. Each place has one pod or Job at a time,
// so that the cluster sets the pace.
type workload struct {
	*bench
	created atomic.Int64
	calls   sync.RWMutex // locked for writing, it pauses the calls
}

func (w *workload) run(ctx context.Context, places int) {
	var group sync.WaitGroup
	for i := range places {
		group.Go(func() { w.runPlace(ctx, i) })
	}
	group.Wait()
}

func (w *workload) runPlace(ctx context.Context, i int) {
	r := rand.New(rand.NewPCG(w.seed, uint64(i)))
	for generation := 0; ctx.Err() == nil; generation++ {
		name := fmt.Sprintf("pod-%d", i) // half of the pods follow another of the same name at once
		if r.IntN(2) == 0 {
			name = fmt.Sprintf("pod-%d-%d", i, generation)
		}
		w.runPod(ctx, r, name)
	}
}

// runPod creates a pod and deletes it. Some pods are deleted before they run or are bound.
func (w *workload) runPod(ctx context.Context, r *rand.Rand, name string) {
	pod := randomPod(r, name, w.cluster.Nodes())
	// Drawn before any wait, so that they follow from the seed.
	patience := time.Duration(r.Int64N(int64(20 * time.Second)))
	life := time.Duration(r.Int64N(int64(6 * time.Second)))
	graces := [][]*int64{{nil}, {new(int64(0))}, {new(int64(5)), new(int64(0))}}[[]int{0, 0, 0, 0, 0, 0, 1, 1, 1, 2}[r.IntN(10)]]

	var uid types.UID
	pods := w.client.CoreV1().Pods(namespace)
	err := w.call(ctx, func(ctx context.Context) error {
		created, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an answer was lost
			created, err = pods.Get(ctx, name, metav1.GetOptions{})
		}
		if err == nil {
			uid = created.UID
		}
		return err
	})
	if err != nil {
		return
	}
	w.created.Add(1)
	waiting, cancel := context.WithTimeout(ctx, patience)
	_ = w.tracker.waitPod(waiting, name, func(p *v1.Pod) bool {
		return p != nil && p.UID == uid && (started(p) || p.Status.Phase == v1.PodFailed)
	})
	cancel()
	sleep(ctx, life)
	for _, grace := range graces {
		options := metav1.DeleteOptions{GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &uid}}
		err = w.call(ctx, func(ctx context.Context) error { return pods.Delete(ctx, name, options) })
		sleep(ctx, 300*time.Millisecond)
	}
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		_ = w.tracker.waitPod(ctx, name, func(p *v1.Pod) bool { return p == nil || p.UID != uid })
	}
}

// call repeats a call until the API server answers it.
func (w *workload) call(ctx context.Context, call func(context.Context) error) error {
	for {
		w.calls.RLock()
		one, cancel := context.WithTimeout(ctx, callTimeout)
		err := call(one)
		cancel()
		w.calls.RUnlock()
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
			return err
		}
		if sleep(ctx, 300*time.Millisecond); ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// forge patches annotations of pods until ctx ends, as a tenant with the role edit. The API server has to refuse
// each write. It returns the number of refusals.
func (b *bench) forge(ctx context.Context) (refused int, err error) {
	config, err := b.cluster.RESTConfig()
	if err != nil {
		return 0, err
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: "tenant"}
	account, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	r := rand.New(rand.NewPCG(b.seed, 1<<33))
	for ; ctx.Err() == nil; sleep(ctx, 200*time.Millisecond) {
		g := b.gpus[r.IntN(len(b.gpus))]
		forged := [][2]string{{assignmentKey, fmt.Sprintf(`{"v":1,"unitMiB":1024,"gpus":[{"uuid":%q,"index":%d,"units":1}]}`, g.uuid, g.index)}, {countKey, "8"}, {policyKey, "exclusive"}}[r.IntN(3)]
		pods := b.tracker.pods.List()
		if len(pods) == 0 {
			continue
		}
		p := pods[r.IntN(len(pods))].(*v1.Pod)
		if p.Annotations[forged[0]] == forged[1] || p.Spec.NodeName == "" && forged[0] != assignmentKey {
			continue // the tenant may write that
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, p.UID, forged[0], forged[1])
		_, err := account.CoreV1().Pods(namespace).Patch(call, p.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		cancel()
		switch {
		case err == nil:
			b.watcher.add(finding{promise: "I11", text: fmt.Sprintf("the API server let the tenant write %v of pod %s (%s)", forged, p.Name, p.UID), pods: []string{namespace + "/" + p.Name}})
		case apierrors.IsInvalid(err) || apierrors.IsForbidden(err):
			refused++
		}
	}
	return refused, nil
}
