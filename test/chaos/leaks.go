package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/stack"
)

// leaks deletes all pods and returns how many units are held after that: in
// the books, at the kubelets, or somewhere that only a pod of a GPU's whole size
// finds.
func (b *bench) leaks(ctx context.Context) (units int64, err error) {
	if err := b.deleteAll(ctx); err != nil {
		return 0, err
	}
	left, err := settle(ctx, func(ctx context.Context) (where string) {
		units, where = b.stillHeld(ctx)
		return where
	})
	if err != nil {
		return 0, err
	}
	if left != "" {
		b.watcher.leak("after the last pod was deleted: %s", left)
		return max(units, 1), nil
	}
	return b.fillAll(ctx)
}

// deleteAll deletes all that the run has made.
func (b *bench) deleteAll(ctx context.Context) error {
	background := metav1.DeletePropagationBackground
	if err := b.client.BatchV1().Jobs(namespace).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}); err != nil {
		return err
	}
	return b.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}, metav1.ListOptions{})
}

// stillHeld returns how many units are held and where, or nothing.
func (b *bench) stillHeld(ctx context.Context) (units int64, where string) {
	held, err := b.watcher.allHeld(ctx)
	if err != nil {
		return 0, err.Error()
	}
	for _, node := range slices.Sorted(maps.Keys(held)) {
		for _, h := range held[node] {
			units += int64(len(h.ids))
			where += fmt.Sprintf("the kubelet of %s has given %d to %s; ", node, len(h.ids), h)
		}
	}
	inBooks, inWhich := b.inBooks(ctx)
	return units + inBooks, where + inWhich
}

// inBooks returns the units that "kubectl inspect gpumem" shows as requested, and
// where, or nothing.
func (b *bench) inBooks(ctx context.Context) (units int64, where string) {
	text, err := b.stack.Inspect(ctx, b.cluster, "-o", "json")
	if err != nil {
		return 0, err.Error()
	}
	var report struct {
		Nodes []struct {
			Name         string
			Unattributed []json.RawMessage
			PodCount     int
			GPUs         []struct {
				UUID      string
				Requested *struct{ Units int64 }
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		return 0, err.Error()
	}
	gpus := 0
	for _, n := range report.Nodes {
		if n.PodCount != 0 || len(n.Unattributed) > 0 {
			where += fmt.Sprintf("the books of %s have %d pods; ", n.Name, n.PodCount)
		}
		for _, g := range n.GPUs {
			gpus++
			switch {
			case g.Requested == nil:
				where += fmt.Sprintf("what %s gives is not known; ", g.UUID)
			case g.Requested.Units != 0:
				units += g.Requested.Units
				where += fmt.Sprintf("the books of %s give %d units of %s; ", n.Name, g.Requested.Units, g.UUID)
			}
		}
	}
	if gpus != len(b.devices) {
		where += fmt.Sprintf("%d of %d GPUs are shown; ", gpus, len(b.devices))
	}
	return units, where
}

// fillAll starts a pod of full size on each GPU and returns how many units of
// GPUs could not be had.
func (b *bench) fillAll(ctx context.Context) (missing int64, err error) {
	for _, d := range b.devices {
		if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, fullPod(d), metav1.CreateOptions{}); err != nil {
			return 0, err
		}
	}
	filled := func(ctx context.Context) (why string) {
		missing, why = b.notFilled(ctx)
		return why
	}
	left, err := settle(ctx, filled)
	if err != nil {
		return 0, err
	}
	if left != "" && b.miscounted(ctx) { // started again, kube-scheduler counts what the API server has
		fmt.Fprintln(b.log, "kube-scheduler counts more on a node than there is, and is started again")
		if err := b.restartScheduler(); err != nil {
			return 0, err
		}
		if left, err = settle(ctx, filled); err != nil {
			return 0, err
		}
	}
	if left != "" {
		b.watcher.leak("%s", left)
		return max(missing, 1), nil
	}
	return 0, b.watcher.rest(ctx)
}

// miscounted reports whether all pods that do not run wait for kube-scheduler
// alone: by its own count of the node, which these words are of, there is too little.
func (b *bench) miscounted(ctx context.Context) bool {
	pods, err := listPods(ctx, b.client)
	if err != nil {
		return false
	}
	for _, p := range pods {
		if !p.ready && (p.node != "" || !strings.Contains(p.waits, "Insufficient "+gpuMem)) {
			return false
		}
	}
	return true
}

// restartScheduler kills the kube-schedulers, which the kubelets start again.
func (b *bench) restartScheduler() error {
	program := b.stack.Scheduler()
	processes, err := b.cluster.ContainerProcesses(program)
	if err != nil {
		return err
	}
	for _, p := range processes {
		if err := stack.KeepContainerLogs(b.cluster, p.Node, program); err != nil {
			return err
		}
		if err := p.Signal(syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}

// notFilled returns the units of pods that do not run, and why, or nothing.
func (b *bench) notFilled(ctx context.Context) (units int64, why string) {
	pods, err := listPods(ctx, b.client)
	if err != nil {
		return 0, err.Error()
	}
	for _, p := range pods {
		if !p.ready {
			units += p.need
			why += fmt.Sprintf("pod %v of %d units, bound to %q, does not run: %s; ", p, p.need, p.node, p.waits)
		}
	}
	if len(pods) != len(b.devices) {
		why += fmt.Sprintf("there are %d pods for %d GPUs; ", len(pods), len(b.devices))
	}
	return units, why
}
