package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/test/stack"
)

const (
	exchangeInterval = 10 * time.Second
	// exchangeTime bounds each step of an exchange. The API server may be away, or the node full.
	exchangeTime = 8 * time.Second
)

// exchanges has kubelets take one of two equal pods for the other, now and then, until ctx ends.
func (r *run) exchanges(ctx context.Context) {
	random := rand.New(rand.NewPCG(r.workload.seed, uint64(1<<34+r.exchanged)))
	for ctx.Err() == nil {
		node := r.cluster.Nodes()[random.IntN(len(r.cluster.Nodes()))]
		names := [2]string{fmt.Sprintf("older-%d", r.exchanged), fmt.Sprintf("younger-%d", r.exchanged)}
		r.exchanged++
		if err := r.exchange(ctx, node, names); err != nil {
			r.journal.add("", "no exchange on %s: %v", node, err)
		}
		sleep(ctx, exchangeInterval)
	}
}

// exchange makes two equal pods and has the younger one bound and admitted first, while the
// kubelet does not say which it admits.
func (r *run) exchange(ctx context.Context, node string, names [2]string) error {
	var uids [2]types.UID
	defer func() {
		for i, name := range names {
			if uids[i] != "" {
				_ = r.workload.delete(context.WithoutCancel(ctx), name, uids[i], nil) // tries until it succeeds
			}
		}
	}()
	for i, name := range names {
		pod := basicPod(name)
		pod.Labels[shapeLabel] = "equal"
		pod.Annotations[policyKey] = "spread"
		pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: node}
		pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "chaos/later"}}
		pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", 1)}
		var err error
		// Until it is answered: a pod that is made and not known would wait behind its gate for good.
		if uids[i], err = r.workload.create(context.WithoutCancel(ctx), pod); err != nil {
			return err
		}
		sleep(ctx, 1100*time.Millisecond) // creation times have whole seconds
	}
	kubelet := "kubelet@" + node
	if !r.faults.takeDown(kubelet) {
		return fmt.Errorf("%s is down", kubelet)
	}
	defer r.faults.release(kubelet)
	if err := r.cluster.Signal(kubelet, unix.SIGSTOP); err != nil {
		return err
	}
	bound := r.bindInTurn(ctx, names[1], names[0])
	if bound == nil {
		if letThrough := r.faults.keepBack(node); letThrough != nil {
			defer letThrough()
		}
	}
	if err := r.cluster.Signal(kubelet, unix.SIGCONT); err != nil {
		return err
	}
	sleep(ctx, exchangeTime/2)
	return bound
}

// bindInTurn has pods bound, one after the other.
func (r *run) bindInTurn(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	for _, name := range names {
		patch := []byte(`{"spec":{"schedulingGates":null}}`)
		if _, err := r.client.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
		if err := r.tracker.wait(ctx, func(pods map[string]seen) bool { return pods[name].node != "" }); err != nil {
			return fmt.Errorf("%s is not bound: %w", name, err)
		}
	}
	return nil
}
