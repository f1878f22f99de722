package cli_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func setOf(names []string) map[string]bool {
	out := make(map[string]bool)
	for _, name := range names {
		out[name] = true
	}
	return out
}

func TestDrainEvictsThePodsOfTheGPUAlone(t *testing.T) {
	here, there := kubetest.UUID("gpu-a", 0), kubetest.UUID("gpu-a", 1)
	client := fake.NewClientset(
		kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 80)),
		kubetest.With(kubetest.Pod(t, "ml/on-it", "gpu-a", 4, here), kubetest.OwnedBy("ReplicaSet")),
		kubetest.With(kubetest.Pod(t, "ml/on-both", "gpu-a", 4, here, there), kubetest.OwnedBy("ReplicaSet")),
		kubetest.With(kubetest.Pod(t, "ml/beside", "gpu-a", 4, there), kubetest.OwnedBy("ReplicaSet")),
		kubetest.With(kubetest.Pod(t, "ml/done", "gpu-a", 4, here), func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }),
	)
	evicted := clitest.Evicting(client)
	stdout, stderr, err := clirun.Inspect(client, "drain", "gpu-a", "0")
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	if diff := cmp.Diff(map[string]bool{"ml/on-it": true, "ml/on-both": true}, setOf(*evicted)); diff != "" {
		t.Errorf("evicted (-want +got):\n%s", diff)
	}
	if clitest.CordonedOn(t, client, "gpu-a") != string(here) || !strings.HasSuffix(stdout, "gpu/gpu-a/0 drained\n") ||
		stderr != "The GPU is still cordoned; to undo the cordon: kubectl inspect gpumem uncordon gpu-a 0\n" {
		t.Errorf("cordoned %q, says:\n%s%s", clitest.CordonedOn(t, client, "gpu-a"), stdout, stderr)
	}
}

// A budget may block an eviction for long. After an interrupt, the command lists the remaining pods.
func TestDrainIsInterrupted(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)),
		kubetest.With(kubetest.Pod(t, "ml/held", "gpu-a", 4, kubetest.UUID("gpu-a", 0)), kubetest.OwnedBy("ReplicaSet")), kubetest.With(kubetest.Pod(t, "ml/left", "gpu-a", 4, kubetest.UUID("gpu-a", 0)), kubetest.OwnedBy("ReplicaSet")))
	clitest.Evicting(client)
	ctx, interrupt := context.WithCancel(t.Context())
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		eviction, ok := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if !ok || eviction.Name != "held" {
			return false, nil, nil
		}
		if err := client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "ml", "left"); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		interrupt()
		return true, nil, apierrors.NewTooManyRequests("its budget needs it", 0)
	})
	const want = "interrupted: not gone yet: ml/held\nThe GPU is still cordoned"
	if err := clirun.Until(ctx, client, "drain", "gpu-a", "0"); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestDrainRefusesPodsThatNothingMakesAgain(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Pod(t, "ml/alone", "gpu-a", 4, kubetest.UUID("gpu-a", 0)))
	evicted := clitest.Evicting(client)
	const undo = "The GPU is still cordoned; to undo the cordon: kubectl inspect gpumem uncordon gpu-a 0"
	if _, _, err := clirun.Inspect(client, "drain", "gpu-a", "0"); err == nil || !strings.HasPrefix(err.Error(), "nothing was evicted") ||
		!strings.HasSuffix(err.Error(), undo) || len(*evicted) > 0 {
		t.Errorf("%v, evicted %v", err, *evicted)
	}
	if _, _, err := clirun.Inspect(client, "drain", "gpu-a", "0", "--force"); err != nil || len(*evicted) != 1 {
		t.Errorf("%v, evicted %v", err, *evicted)
	}
}

func TestDrainMindsDaemonSetsOfTheGPUAlone(t *testing.T) {
	objects := func() []runtime.Object {
		return []runtime.Object{
			kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 16)),
			kubetest.With(kubetest.Pod(t, "ml/agent", "gpu-a", 1, kubetest.UUID("gpu-a", 0)), kubetest.OwnedBy("DaemonSet")),
			kubetest.With(kubetest.Pod(t, "ml/elsewhere", "gpu-a", 1, kubetest.UUID("gpu-a", 1)), kubetest.OwnedBy("DaemonSet")),
			clitest.PluginPod("gpu-a"), // without GPU memory, so drain ignores it
		}
	}
	client := fake.NewClientset(objects()...)
	evicted := clitest.Evicting(client)
	if _, _, err := clirun.Inspect(client, "drain", "gpu-a", "0"); err == nil || !strings.Contains(err.Error(), "pod ml/agent belongs to a DaemonSet") || strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("%v", err)
	}
	if _, stderr, err := clirun.Inspect(client, "drain", "gpu-a", "0", "--ignore-daemonsets"); err != nil || !strings.Contains(stderr, "ml/agent belongs to a DaemonSet, and is not evicted") {
		t.Errorf("%v\n%s", err, stderr)
	}
	if len(*evicted) > 0 {
		t.Errorf("evicted %v", *evicted)
	}
}

// A pod's owner can change the pod's annotation, so the kubelet's allocation counts too, also by claims. If
// neither names a GPU of the node, the command prints a warning.
func TestDrainFindsPodsThatAreNotWhereTheySay(t *testing.T) {
	here, there := kubetest.UUID("gpu-a", 0), kubetest.UUID("gpu-a", 1)
	inv := kubetest.Inventory("gpu-a", 16, 16)
	inv.Allocated = []gpu.PodAllocation{
		{UID: "uid-ml/claim", Namespace: "ml", Name: "claim", Shares: []gpu.Share{{Device: here, Units: 4}}},
		{UID: "uid-ml/liar", Shares: []gpu.Share{{Device: here, Units: 4}}},
	}
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", inv),
		kubetest.With(kubetest.Pod(t, "ml/liar", "gpu-a", 4, there), kubetest.OwnedBy("ReplicaSet")),
		kubetest.With(kubetest.Pod(t, "ml/claim", "gpu-a", 0), kubetest.OwnedBy("ReplicaSet")),
		kubetest.With(kubetest.Pod(t, "ml/zero", "gpu-a", 0, here), kubetest.OwnedBy("ReplicaSet")),
		kubetest.With(kubetest.Pod(t, "ml/broken", "gpu-a", 4), kubetest.OwnedBy("ReplicaSet")),
		kubetest.With(kubetest.Pod(t, "ml/moved", "gpu-a", 4, "GPU-gone"), kubetest.OwnedBy("ReplicaSet")),
	)
	evicted := clitest.Evicting(client)
	_, stderr, err := clirun.Inspect(client, "drain", "gpu-a", "0")
	if diff := cmp.Diff(map[string]bool{"ml/liar": true, "ml/claim": true}, setOf(*evicted)); diff != "" || err != nil {
		t.Errorf("error %v, evicted (-want +got):\n%s", err, diff)
	}
	for _, pod := range []string{"ml/broken", "ml/moved"} {
		if want := "warning: pod " + pod + " is on no known GPU of the node, and is not evicted\n"; !strings.Contains(stderr, want) {
			t.Errorf("want %q in:\n%s", want, stderr)
		}
	}
}

// An eviction of a static pod's mirror has no effect: the kubelet creates the mirror pod again.
func TestDrainLeavesStaticPods(t *testing.T) {
	pod := kubetest.With(kubetest.Pod(t, "ml/static", "gpu-a", 4, kubetest.UUID("gpu-a", 0)), kubetest.OwnedBy("Node"))
	pod.Annotations[v1.MirrorPodAnnotationKey] = "hash"
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), pod)
	evicted := clitest.Evicting(client)
	_, stderr, err := clirun.Inspect(client, "drain", "gpu-a", "0", "--force")
	if err != nil || len(*evicted) > 0 || !strings.Contains(stderr, "warning: pod ml/static is static, so only its node can end it, and is not evicted\n") {
		t.Errorf("error %v, evicted %v:\n%s", err, *evicted, stderr)
	}
}

// drain retries a refused eviction, because the budget may allow it later. The messages are kubectl drain's.
func TestDrainAsksAgain(t *testing.T) {
	const (
		asks   = "evicting pod ml/kept\n"
		again  = "error when evicting pods/\"kept\" -n \"ml\" (will retry after 5s): its budget needs it\n"
		stays  = "The GPU is still cordoned; to undo the cordon: kubectl inspect gpumem uncordon gpu-a 0"
		begins = "gpu/gpu-a/0 cordoned\n"
	)
	for name, tc := range map[string]struct {
		refusals       int // evictions that the budget refuses first
		answer         error
		args           string
		stdout, stderr string
		err            string
	}{
		"twice": {refusals: 2, stdout: begins + asks + asks + asks + "pod/kept evicted\ngpu/gpu-a/0 drained\n", stderr: again + again + stays + "\n"},
		"for good": {refusals: 99, args: " --timeout 7s", stdout: begins + asks + asks + asks, stderr: again + again,
			err: `error when evicting pods/"kept" -n "ml": global timeout reached: 7s` + "\n" + stays},
		"gone meanwhile": {refusals: 1, answer: apierrors.NewNotFound(v1.Resource("pods"), "kept"), stdout: begins + asks + asks + "gpu/gpu-a/0 drained\n", stderr: again + stays + "\n"},
		"another error":  {answer: errors.New("lost"), stdout: begins + asks, err: `error when evicting pods/"kept" -n "ml": lost` + "\n" + stays},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)),
					kubetest.With(kubetest.Pod(t, "ml/kept", "gpu-a", 4, kubetest.UUID("gpu-a", 0)), kubetest.OwnedBy("ReplicaSet")))
				clitest.Evicting(client)
				left := tc.refusals
				client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
					if left--; left >= 0 {
						return true, nil, apierrors.NewTooManyRequests("its budget needs it", 0)
					}
					return tc.answer != nil, nil, tc.answer
				})
				stdout, stderr, err := clirun.Inspect(client, strings.Fields("drain gpu-a 0"+tc.args)...)
				said := ""
				if err != nil {
					said = err.Error()
				}
				if diff := cmp.Diff([]string{tc.stdout, tc.stderr, tc.err}, []string{stdout, stderr, said}); diff != "" {
					t.Errorf("stdout, stderr, error (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// drain also evicts a pod whose binding was in progress when the GPU was cordoned.
func TestDrainEvictsAPodThatCameMeanwhile(t *testing.T) {
	here := kubetest.UUID("gpu-a", 0)
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)),
		kubetest.With(kubetest.Pod(t, "ml/first", "gpu-a", 4, here), kubetest.OwnedBy("ReplicaSet")))
	evicted := clitest.Evicting(client)
	late := kubetest.With(kubetest.Pod(t, "ml/late", "gpu-a", 4, here), kubetest.OwnedBy("ReplicaSet"))
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if err := client.Tracker().Add(late); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Error(err)
		}
		return false, nil, nil
	})
	if stdout, stderr, err := clirun.Inspect(client, "drain", "gpu-a", "0"); err != nil || !strings.HasSuffix(stdout, "drained\n") {
		t.Fatalf("%v\n%s%s", err, stdout, stderr)
	}
	if diff := cmp.Diff(map[string]bool{"ml/first": true, "ml/late": true}, setOf(*evicted)); diff != "" {
		t.Errorf("evicted (-want +got):\n%s", diff)
	}
}

// drain warns about the other clients of the same MPS server.
func TestDrainWarnsOfTheNeighbours(t *testing.T) {
	for _, served := range []bool{false, true} {
		inv := kubetest.Inventory("gpu-a", 16)
		inv.MPS = served
		client := fake.NewClientset(kubetest.Node(t, "gpu-a", inv),
			kubetest.With(kubetest.Pod(t, "ml/on-it", "gpu-a", 4, kubetest.UUID("gpu-a", 0)), kubetest.OwnedBy("ReplicaSet")))
		clitest.Evicting(client)
		if _, stderr, err := clirun.Inspect(client, "drain", "gpu-a", "0"); err != nil || strings.Count(stderr, "use MPS") != map[bool]int{true: 1}[served] {
			t.Errorf("with MPS %t: %v\n%s", served, err, stderr)
		}
	}
}
