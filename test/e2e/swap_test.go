package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/test/cluster"
)

// relayAnswers puts itself between the kubelet's PodResources and who asks, until the test
// ends. The device plugins are replaced, so that they ask here.
func (e *env) relayAnswers(node string) *cluster.Answers {
	e.Helper()
	socket := filepath.Join(e.cluster.NodeDir(node), "lib", "kubelet", "pod-resources", "kubelet.sock")
	own := filepath.Join(filepath.Dir(socket), "own.sock")
	if err := os.Rename(socket, own); err != nil {
		e.Fatal(err)
	}
	answers, err := cluster.RelayAnswers(socket, own)
	e.atEnd(func() {
		if answers != nil {
			answers.Close()
		}
		if err := os.Rename(own, socket); err != nil {
			e.Error(err)
		}
	})
	if err != nil {
		e.Fatal(err)
	}
	e.replacePlugins()
	e.offers(node)
	return answers
}

// Two equal pods are admitted in the order in which they were bound, the younger first, while
// the kubelet does not say which it admits: the plugin takes the older one to be first. So the
// kubelet gives each the GPU that is written of the other, and both assignments are corrected.
func TestEqualPodsThatAreExchangedAreCorrected(t *testing.T) {
	e := setup(t)
	kubelet := e.relayAnswers("node1")
	const tries = 5
	for i := range tries {
		older, younger := fmt.Sprint("older-", i), fmt.Sprint("younger-", i)
		written := e.admitInTheOrderBound(kubelet, older, younger)
		is := map[string]string{older: e.agree(older, "main")[0], younger: e.agree(younger, "main")[0]}
		if is[older] == is[younger] {
			t.Fatalf("both are on %s, want a GPU each", is[older])
		}
		e.eventually("each GPU has 8 units allocated", func() (bool, string) {
			allocated := e.books()["node1"]
			return allocated[is[older]] == 8 && allocated[is[younger]] == 8, fmt.Sprint(allocated)
		})
		if is[older] != written[older] {
			for _, name := range []string{older, younger} {
				e.hasEvent(name, "GPUMemoryCorrected", "a pod of the same size")
			}
			return
		}
		for _, name := range []string{older, younger} { // the kubelet heard of the older one first
			e.delete(name, 0)
			e.gone(name)
		}
	}
	t.Errorf("of %d pairs of pods the kubelet exchanged none: nothing was tested", tries)
}

// admitInTheOrderBound makes two equal pods, has the second bound before the first while the
// kubelet is stopped, and the kubelet admit them while its answers are kept back. It returns
// the GPUs that were written of them at first.
func (e *env) admitInTheOrderBound(kubelet *cluster.Answers, older, younger string) map[string]string {
	e.Helper()
	gated := func(pod *v1.Pod) { pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "test/later"}} }
	spread := annotated("policy", "spread")
	first := e.create(e.pod(older, 8, onNode("node1"), spread, gated))
	e.eventually("a second has passed, for creation times have whole seconds", func() (bool, string) {
		second := e.create(e.pod(younger, 8, onNode("node1"), spread, gated))
		if second.CreationTimestamp.After(first.CreationTimestamp.Time) {
			return true, ""
		}
		e.delete(younger, 0)
		e.gone(younger)
		return false, "the same second"
	})
	signal := func(s unix.Signal) {
		if err := e.cluster.Signal("kubelet@node1", s); err != nil {
			e.Error(err)
		}
	}
	signal(unix.SIGSTOP)
	defer signal(unix.SIGCONT)
	written := make(map[string]string)
	for _, name := range []string{younger, older} {
		pod := e.ungate(name)
		e.eventually(name+" is bound", func() (bool, string) {
			pod = e.get(name)
			return pod.Spec.NodeName != "", waitsBecause(pod)
		})
		written[name] = e.assigned(pod)[0]
	}
	kubelet.KeepBack()
	admitted := func() {
		defer kubelet.LetThrough()
		signal(unix.SIGCONT)
		for _, name := range []string{younger, older} {
			e.eventually(name+" is admitted", func() (bool, string) {
				pod := e.get(name)
				return pod.Status.StartTime != nil, string(pod.Status.Phase)
			})
		}
	}
	admitted()
	e.running(older)
	e.running(younger)
	return written
}
