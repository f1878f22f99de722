package cli_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

// fragmented returns a cluster with a waiting pod that requests 8 GiB. The three GPUs of its two nodes have
// 17 GiB free in all, but at most 6 GiB each.
func fragmented(t *testing.T) map[string]runtime.Object {
	return map[string]runtime.Object{
		"extender": clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"),

		"gpu-a": kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 10, 10)),
		"gpu-b": kubetest.Node(t, "gpu-b", kubetest.Inventory("gpu-b", 16)),
		"x":     kubetest.With(kubetest.Pod(t, "ml/x", "gpu-a", 4, kubetest.UUID("gpu-a", 0)), kubetest.OwnedBy("ReplicaSet")),
		"y":     kubetest.With(kubetest.Pod(t, "ml/y", "gpu-a", 5, kubetest.UUID("gpu-a", 1)), kubetest.OwnedBy("Job")),
		"z":     kubetest.With(kubetest.Pod(t, "ml/z", "gpu-b", 10, kubetest.UUID("gpu-b", 0)), kubetest.OwnedBy("StatefulSet")),
		"waits": kubetest.Pod(t, "ml/waits", "", 8),
	}
}

const planForWaits = `Plan for pod ml/waits: GPU0 of node gpu-a

NAMESPACE   POD   CONTROLLER         HOLDS   FROM    FITS ON
ml          x     ReplicaSet/owner   4 GiB   gpu-a   gpu-a
`

func clientOf(cluster map[string]runtime.Object) *fake.Clientset {
	return fake.NewClientset(slices.Collect(maps.Values(cluster))...)
}

// A controller's name in an owner reference must not control the terminal or add a line.
func TestDefragCleansWhatItPrints(t *testing.T) {
	cluster := fragmented(t)
	cluster["x"].(*v1.Pod).OwnerReferences[0].Name = "a\x1b[2J\nml"
	const want = "ml          x     ReplicaSet/a\uFFFD[2J ml   4 GiB   gpu-a   gpu-a\n"
	if stdout, _, err := clirun.Inspect(clientOf(cluster), "defrag", "ml/waits"); err != nil || !strings.Contains(stdout, want) {
		t.Errorf("error %v, want %q in %q", err, want, stdout)
	}
}

// defrag suggests --force only if a plan with --force exists.
func TestDefragAdvisesToForceWhatHelps(t *testing.T) {
	cluster := fragmented(t)
	for _, o := range []struct {
		name, node string
		units      int64
		gpu        int
	}{{"w", "gpu-a", 3, 0}, {"x", "gpu-a", 3, 0}, {"y", "gpu-a", 5, 1}, {"z", "gpu-b", 14, 0}} { // only one of w and x fits elsewhere
		cluster[o.name] = kubetest.Pod(t, "ml/"+o.name, o.node, o.units, kubetest.UUID(o.node, o.gpu))
	}
	for _, tc := range []struct{ args, want string }{
		{"ml/waits", "no evictions are enough for pod ml/waits; pods that may not be evicted: 4 without a controller"},
		{"ml/waits --force", "no evictions are enough for pod ml/waits"},
	} {
		if _, _, err := clirun.Inspect(clientOf(cluster), append([]string{"defrag"}, strings.Fields(tc.args)...)...); err == nil || err.Error() != tc.want {
			t.Errorf("%s: error %v, want %s", tc.args, err, tc.want)
		}
	}
}

func TestDefrag(t *testing.T) {
	one := int32(1)
	half := func(c map[string]runtime.Object) { // GPU0 of gpu-a is out of use, and GPU1 is free
		node := kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 16))
		clitest.Sicken(t, node, 0)
		c["gpu-a"] = node
		delete(c, "y")
	}
	tests := map[string]struct {
		change  func(map[string]runtime.Object)
		args    []string
		want    string
		wantErr string
		evicted []string
	}{
		"a plan": {
			args: []string{"ml/waits"}, want: planForWaits + "Nothing was evicted: --apply carries out the plan.\n",
		},
		"carried out": {
			args: []string{"-n", "ml", "waits", "--apply"}, want: planForWaits + "pod/x evicted\npod/waits is on node gpu-a\n", evicted: []string{"x"},
		},
		"no controller": {
			change: func(c map[string]runtime.Object) { c["x"].(*v1.Pod).OwnerReferences = nil },
			args:   []string{"ml/waits"},
			want: "Plan for pod ml/waits: GPU1 of node gpu-a\n\n" +
				"NAMESPACE   POD   CONTROLLER   HOLDS   FROM    FITS ON\n" +
				"ml          y     Job/owner    5 GiB   gpu-a   gpu-b\n" +
				"Nothing was evicted: --apply carries out the plan.\n",
		},
		"a budget of all pods of the namespace": { // kube-scheduler ignores a budget with an empty selector
			change: func(c map[string]runtime.Object) {
				c["budget"] = &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "all"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}
			},
			args: []string{"ml/waits"}, wantErr: "no evictions are enough for pod ml/waits; pods that may not be evicted: 3 whose PodDisruptionBudget allows no eviction",
		},
		"no controller, and force": {
			change: func(c map[string]runtime.Object) { c["x"].(*v1.Pod).OwnerReferences = nil },
			args:   []string{"ml/waits", "--force"},
			want: "Plan for pod ml/waits: GPU0 of node gpu-a\n\n" +
				"NAMESPACE   POD   CONTROLLER   HOLDS   FROM    FITS ON\n" +
				"ml          x     <none>       4 GiB   gpu-a   gpu-a\n" +
				"Nothing was evicted: --apply carries out the plan.\n",
		},
		"a DaemonSet, and a node that takes no pods": {
			change: func(c map[string]runtime.Object) {
				kubetest.With(c["x"].(*v1.Pod), kubetest.OwnedBy("DaemonSet"))
				kubetest.With(c["z"].(*v1.Pod), kubetest.OwnedBy("DaemonSet"))
				c["gpu-a"].(*v1.Node).Spec.Unschedulable = true
			},
			args: []string{"ml/waits"}, wantErr: "no evictions are enough for pod ml/waits; pods that may not be evicted: 2 of a DaemonSet",
		},
		"who ends holds a GPU that is out of use": {
			change: func(c map[string]runtime.Object) {
				half(c)
				delete(c, "z")
				delete(c, "gpu-b")
				c["x"] = kubetest.Pod(t, "ml/x", "gpu-a", 10, kubetest.UUID("gpu-a", 0))
				c["x"].(*v1.Pod).DeletionTimestamp, c["x"].(*v1.Pod).Finalizers = new(metav1.Now()), []string{"x/y"}
			},
			args: []string{"ml/waits"}, want: "Plan for pod ml/waits: GPU1 of node gpu-a\nNo pod has to be evicted once these pods have terminated: ml/x.\n",
		},
		"a free GPU beside one that is out of use": {
			change: func(c map[string]runtime.Object) {
				half(c)
				c["x"] = kubetest.With(kubetest.Pod(t, "ml/x", "gpu-a", 16, kubetest.UUID("gpu-a", 0)), kubetest.OwnedBy("ReplicaSet"))
			},
			want: "Plan for a GPU without pods: GPU1 of node gpu-a\nNo pod has to be evicted as it is.\n",
		},
		"a GPU that is over-committed": {
			change: func(c map[string]runtime.Object) {
				delete(c, "y")
				c["x"] = kubetest.With(kubetest.Pod(t, "ml/x", "gpu-a", 14, kubetest.UUID("gpu-a", 0)), kubetest.OwnedBy("DaemonSet"))
				kubetest.With(c["z"].(*v1.Pod), kubetest.OwnedBy("DaemonSet"))
			},
			args: []string{"ml/waits"}, wantErr: "no evictions are enough for pod ml/waits; node gpu-a: kube-scheduler counts 4 GiB of pods on GPU0 (over-committed) " +
				"against the node's other GPUs: kubectl inspect gpumem drain gpu-a 0; pods that may not be evicted: 2 of a DaemonSet",
		},
		"budgets": {
			change: func(c map[string]runtime.Object) {
				for _, name := range []string{"x", "y", "z"} {
					c[name].(*v1.Pod).Labels = map[string]string{"guarded": "yes"}
				}
				c["budget"] = &policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "guard"},
					Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"guarded": "yes"}}},
				}
			},
			args: []string{"ml/waits", "--apply"}, wantErr: "no evictions are enough for pod ml/waits; pods that may not be evicted: 3 whose PodDisruptionBudget allows no eviction",
		},
		"pods of higher priority, or without a controller": {
			change: func(c map[string]runtime.Object) {
				for _, name := range []string{"x", "y", "z"} {
					c[name].(*v1.Pod).Spec.Priority = &one
				}
				c["z"].(*v1.Pod).OwnerReferences = nil
			},
			args:    []string{"ml/waits"},
			wantErr: "no evictions are enough for pod ml/waits; pods that may not be evicted: 3 of a higher priority",
		},
		"pods without a controller": {
			change: func(c map[string]runtime.Object) {
				for _, name := range []string{"x", "y", "z"} {
					c[name].(*v1.Pod).OwnerReferences = nil
				}
			},
			args:    []string{"ml/waits"},
			wantErr: "no evictions are enough for pod ml/waits; pods that may not be evicted: 3 without a controller (--force evicts them)",
		},
		"a pod of lower priority waits itself": {
			change: func(c map[string]runtime.Object) {
				c["waits"].(*v1.Pod).Spec.Priority = &one
				for _, name := range []string{"gpu-a", "x", "y"} {
					delete(c, name)
				}
			},
			args: []string{"ml/waits"},
			want: "Plan for pod ml/waits: GPU0 of node gpu-b\n\n" +
				"NAMESPACE   POD   CONTROLLER          HOLDS    FROM    FITS ON\n" +
				"ml          z     StatefulSet/owner   10 GiB   gpu-b   <none: it will wait>\n" +
				"Nothing was evicted: --apply carries out the plan.\n",
		},
		"more than there are": {
			change: func(c map[string]runtime.Object) {
				for _, name := range []string{"waits", "x", "y", "z"} {
					c[name].(*v1.Pod).Annotations["gpumem.dev/exclusive-group"] = "one"
				}
			},
			args: []string{"ml/waits"}, wantErr: "no evictions are enough for pod ml/waits",
		},
		"a GPU": {
			args: []string{},
			want: strings.Replace(planForWaits, "pod ml/waits", "a GPU without pods", 1) + "Nothing was evicted: --apply carries out the plan.\n",
		},
		"there is room": {
			change: func(c map[string]runtime.Object) { delete(c, "x") },
			args:   []string{"ml/waits", "--apply"},
			want:   "Plan for pod ml/waits: GPU0 of node gpu-a\nNo pod has to be evicted as it is.\n",
		},
		"a pod that ends already": {
			change: func(c map[string]runtime.Object) { c["y"].(*v1.Pod).DeletionTimestamp = &metav1.Time{} },
			args:   []string{"ml/waits"},
			want:   "Plan for pod ml/waits: GPU1 of node gpu-a\nNo pod has to be evicted once these pods have terminated: ml/y.\n",
		},
		"a pod that ends already, and one that is evicted": {
			change: func(c map[string]runtime.Object) {
				c["y"].(*v1.Pod).DeletionTimestamp = &metav1.Time{}
				c["more"] = kubetest.Pod(t, "ml/more", "gpu-a", 3, kubetest.UUID("gpu-a", 1)) // without a controller
			},
			args: []string{"ml/waits"}, want: strings.Replace(planForWaits, "gpu-a   gpu-a", "gpu-a   gpu-b", 1) + "Nothing was evicted: --apply carries out the plan.\n",
		},
		"a node whose kubelet offers nothing": {
			change: func(c map[string]runtime.Object) {
				free := kubetest.Node(t, "gpu-c", kubetest.Inventory("gpu-c", 16))
				free.Status.Allocatable = nil
				c["gpu-c"] = free
			},
			args: []string{"ml/waits"}, want: planForWaits + "Nothing was evicted: --apply carries out the plan.\n",
		},
		"taints": {
			change: func(c map[string]runtime.Object) {
				c["gpu-a"].(*v1.Node).Spec.Taints = []v1.Taint{{Key: "reserved", Effect: v1.TaintEffectNoSchedule}}
			},
			args: []string{"ml/waits"}, wantErr: "no evictions are enough for pod ml/waits",
		},
		"a pod that runs":      {args: []string{"ml/x"}, wantErr: "pod ml/x does not wait: it is on node gpu-a"},
		"a pod that is not":    {args: []string{"ml/nobody"}, wantErr: `"nobody" not found`},
		"too many evictions":   {args: []string{"--max-evictions", "99"}, wantErr: "--max-evictions is 99, want 0 to 32"},
		"no evictions allowed": {args: []string{"ml/waits", "--max-evictions", "0"}, wantErr: "0 evictions (--max-evictions) are too few"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cluster := fragmented(t)
			if tc.change != nil {
				tc.change(cluster)
			}
			client := clientOf(cluster)
			client.PrependReactor("create", "pods", replace(t, client, "waits"))
			stdout, _, err := clirun.Inspect(client, append([]string{"defrag"}, tc.args...)...)
			if (err != nil) != (tc.wantErr != "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("error %v, want %q; output:\n%s", err, tc.wantErr, stdout)
			}
			if diff := cmp.Diff(tc.want, stdout); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.evicted, evictions(client)); diff != "" {
				t.Errorf("evicted (-want +got):\n%s", diff)
			}
		})
	}
}

// replace returns a reaction to evictions. It acts as a controller, which creates a pod on gpu-b for each
// evicted pod, and as a scheduler, which places the pod named by waits, if any, on gpu-a.
func replace(t *testing.T, client *fake.Clientset, waits string) clienttesting.ReactionFunc {
	return func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		resource := v1.SchemeGroupVersion.WithResource("pods")
		name := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction).Name
		old, err := client.Tracker().Get(resource, a.GetNamespace(), name)
		if err != nil {
			return true, nil, err
		}
		again := kubetest.Pod(t, a.GetNamespace()+"/"+name+"-again", "gpu-b", 4, kubetest.UUID("gpu-b", 0))
		again.OwnerReferences = old.(*v1.Pod).OwnerReferences
		if err := client.Tracker().Add(again); err != nil {
			return true, nil, err
		}
		if waits != "" {
			placed := kubetest.Pod(t, a.GetNamespace()+"/"+waits, "gpu-a", 10, kubetest.UUID("gpu-a", 0))
			if err := client.Tracker().Update(resource, placed, placed.Namespace); err != nil {
				return true, nil, err
			}
		}
		return true, nil, client.Tracker().Delete(resource, a.GetNamespace(), name)
	}
}

func TestDefragEvictsNobodyForAPodThatNobodyPlaces(t *testing.T) {
	cluster := fragmented(t)
	cluster["waits"].(*v1.Pod).Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/quota"}}
	client := clientOf(cluster)
	_, _, err := clirun.Inspect(client, "defrag", "ml/waits", "--apply")
	if want := "nothing was evicted for pod ml/waits: it has scheduling gates"; err == nil || !strings.HasPrefix(err.Error(), want) || len(evictions(client)) > 0 {
		t.Errorf("error %v, want %q; evicted: %v", err, want, evictions(client))
	}
}

// The command reserves the GPUs before the first eviction, and renews the reservation while it waits. It
// does not change the rest of the waiting pod's status.
func TestDefragReservesAndRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := fragmented(t)
		other := v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable}
		cluster["waits"].(*v1.Pod).Status.Conditions = []v1.PodCondition{other}
		client := clientOf(cluster)
		reserved := func() (gpus []gpu.UUID) {
			obj, err := client.Tracker().Get(v1.SchemeGroupVersion.WithResource("pods"), "ml", "waits")
			if err != nil {
				t.Fatal(err)
			}
			if pod := obj.(*v1.Pod); len(pod.Status.Conditions) != 2 || !slices.Contains(pod.Status.Conditions, other) {
				t.Errorf("conditions %+v, want one more", pod.Status.Conditions)
			}
			_, at, _ := api.Nomination(obj.(*v1.Pod), placement.Request{}, time.Now())
			return at.Devices()
		}
		want := []gpu.UUID{kubetest.UUID("gpu-a", 0)}
		client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if diff := cmp.Diff(want, reserved()); diff != "" {
				t.Errorf("reserved when a pod is evicted (-want +got):\n%s", diff)
			}
			return a.GetSubresource() == "eviction", nil, nil // and the pod stays for ever
		})
		_, stderr, err := clirun.Inspect(client, "defrag", "ml/waits", "--apply", "--timeout", "5m")
		const late = "pod ml/waits still waits, and its reservation ends within a minute: kubectl inspect gpumem explain ml/waits shows the reason; run the command again for a new plan"
		if err == nil || err.Error() != late || stderr != "waiting for pod/waits to be placed\n" {
			t.Errorf("error %v, want %q; stderr:\n%s", err, late, stderr)
		}
		if diff := cmp.Diff(want, reserved()); diff != "" {
			t.Errorf("reserved after five minutes (-want +got):\n%s", diff)
		}
		time.Sleep(api.ReservationTime)
		if left := reserved(); len(left) > 0 {
			t.Errorf("reserved a minute later: %v", left)
		}
	})
}

// keptFor returns a waiting pod with a reservation of GPU0 on gpu-a.
func keptFor(t *testing.T, name string) *v1.Pod {
	pod := kubetest.Pod(t, "ml/"+name, "", 8)
	pod.Status.Conditions = []v1.PodCondition{api.Reservation{Node: "gpu-a", GPUs: []gpu.UUID{kubetest.UUID("gpu-a", 0)}}.Condition(time.Now())}
	return pod
}

// Memory that is reserved for another pod does not count as free, and a plan evicts no pod to free it.
func TestDefragSeesWhatIsKeptForOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"a pod": {[]string{"ml/waits"}, "Plan for pod ml/waits: GPU1 of node gpu-a\n\nNAMESPACE   POD   CONTROLLER   HOLDS   FROM    FITS ON\nml          y     Job/owner    5 GiB   gpu-a   gpu-b\n"},
		"a GPU": {nil, "Plan for a GPU without pods: GPU1 of node gpu-a\n\nNAMESPACE   POD   CONTROLLER   HOLDS   FROM    FITS ON\nml          y     Job/owner    5 GiB   gpu-a   gpu-b\n"},
	} {
		for _, stays := range []bool{false, true} {
			cluster := fragmented(t)
			cluster["first"] = keptFor(t, "first")
			if !stays {
				delete(cluster, "x")
			}
			stdout, _, err := clirun.Inspect(clientOf(cluster), append([]string{"defrag"}, tc.args...)...)
			if err != nil || !strings.HasPrefix(stdout, tc.want) {
				t.Errorf("%s: error %v, want\n%s\ngot\n%s", name, err, tc.want, stdout)
			}
		}
	}
}

// After an interrupted command, the evicted pod is still terminating: the next command evicts no other pod.
func TestDefragWaitsForWhoEndsAlready(t *testing.T) {
	synctest.Test(t, testWaitsForWhoEndsAlready)
}

func testWaitsForWhoEndsAlready(t *testing.T) {
	cluster := fragmented(t)
	cluster["x"].(*v1.Pod).DeletionTimestamp = &metav1.Time{}
	client := clientOf(cluster)
	gone := false
	client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		pods := v1.SchemeGroupVersion.WithResource("pods")
		if gone { // this patch renews the reservation
			return false, nil, client.Tracker().Update(pods, kubetest.Pod(t, "ml/waits", "gpu-a", 8, kubetest.UUID("gpu-a", 0)), "ml")
		}
		gone = true
		return false, nil, client.Tracker().Delete(pods, "ml", "x")
	})
	stdout, _, err := clirun.Inspect(client, "defrag", "ml/waits", "--apply")
	if err != nil || !strings.HasSuffix(stdout, "No pod has to be evicted once these pods have terminated: ml/x.\npod/waits is on node gpu-a\n") || len(evictions(client)) > 0 {
		t.Errorf("error %v, evicted %v; output:\n%s", err, evictions(client), stdout)
	}
}

// loseAnswer makes the client apply the first patch of a resource, but return an error.
func loseAnswer(t *testing.T, client *fake.Clientset, resource string) {
	t.Helper()
	first := true
	client.PrependReactor("patch", resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
		if !first {
			return false, nil, nil
		}
		first = false
		if _, _, err := clienttesting.ObjectReaction(client.Tracker())(a); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewTimeoutError("lost", 1)
	})
}

// A single failed check of the waiting pod does not end the command.
func TestDefragLooksAgain(t *testing.T) {
	client := clientOf(fragmented(t))
	client.PrependReactor("create", "pods", replace(t, client, "waits"))
	gets := 0
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		gets++
		return gets == 2, nil, apierrors.NewInternalError(errors.New("leader changed"))
	})
	stdout, _, err := clirun.Inspect(client, "defrag", "ml/waits", "--apply")
	if err != nil || gets < 3 || !strings.HasSuffix(stdout, "pod/waits is on node gpu-a\n") {
		t.Errorf("error %v after %d looks; output:\n%s", err, gets, stdout)
	}
}

func TestDefragEvictsNobodyWhereItMayKeepNoRoom(t *testing.T) {
	client := clientOf(fragmented(t))
	client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource("pods/status"), "waits", nil)
	})
	_, _, err := clirun.Inspect(client, "defrag", "ml/waits", "--apply")
	if want := "nothing was evicted: status of pod ml/waits: "; err == nil || !strings.HasPrefix(err.Error(), want) || len(evictions(client)) > 0 {
		t.Errorf("error %v, want %q; evicted: %v", err, want, evictions(client))
	}
}

// changes returns the patches and evictions that a client received.
func changes(client *fake.Clientset) (order []string) {
	for _, a := range client.Actions() {
		if patch, ok := a.(clienttesting.PatchAction); ok {
			order = append(order, string(patch.GetPatch()))
		} else if a.GetSubresource() == "eviction" {
			order = append(order, "eviction")
		}
	}
	return order
}

func evictions(client *fake.Clientset) (names []string) {
	for _, a := range client.Actions() {
		if create, ok := a.(clienttesting.CreateAction); ok && a.GetSubresource() == "eviction" {
			names = append(names, create.GetObject().(*policyv1.Eviction).Name)
		}
	}
	return names
}

func TestDefragStopsAtARefusal(t *testing.T) {
	client := clientOf(fragmented(t))
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.GetSubresource() == "eviction", nil, apierrors.NewTooManyRequests("its budget needs it", 0)
	})
	_, _, err := clirun.Inspect(client, "defrag", "ml/waits", "--apply", "--timeout", "1ms")
	if err == nil || !strings.Contains(err.Error(), "pod ml/x may not be evicted now; evicted: 0 of 1: its budget needs it") {
		t.Errorf("error %v, want that the pod may not be evicted now", err)
	}
}

func TestDefragNeedsToKnowAllPods(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", gpu.Inventory{}))
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource("pods"), "", nil)
	})
	_, _, err := clirun.Inspect(client, "defrag")
	if err == nil || !strings.Contains(err.Error(), "cannot plan evictions without a list of all pods") {
		t.Errorf("error %v, want none without all pods", err)
	}
}

func TestDefragCordonsUntilAllAreElsewhere(t *testing.T) {
	client := clientOf(fragmented(t))
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.GetSubresource() == "eviction", nil, nil // and the pod stays for ever
	})
	_, _, err := clirun.Inspect(client, "defrag", "--apply", "--timeout", "1ms")
	if err == nil || !strings.Contains(err.Error(), "the GPUs were not freed within 1ms: pod ml/x has not ended yet") {
		t.Errorf("error %v, want that the pods are not elsewhere yet", err)
	}
	order := changes(client)
	cordoned := `"gpumem.dev/cordoned-gpus":"`
	if len(order) != 3 || !strings.Contains(order[0], cordoned) || order[1] != "eviction" || strings.Contains(order[2], cordoned) {
		t.Errorf("what was done: %q, want the GPU cordoned, an eviction, and the GPU uncordoned", order)
	}
}

// If the reply to a cordon is lost, the command removes the cordon too, and evicts no pod.
func TestDefragTakesBackACordonThatItMayHaveWritten(t *testing.T) {
	client := clientOf(fragmented(t))
	loseAnswer(t, client, "nodes")
	_, _, err := clirun.Inspect(client, "defrag", "--apply")
	if err == nil || len(evictions(client)) > 0 || clitest.CordonedOn(t, client, "gpu-a") != "" {
		t.Errorf("error %v, evicted %v, cordoned %q", err, evictions(client), clitest.CordonedOn(t, client, "gpu-a"))
	}
}

// The command does not remove a cordon that another user set after the plan.
func TestDefragLeavesTheCordonOfAnother(t *testing.T) {
	client := clientOf(fragmented(t))
	client.PrependReactor("list", "poddisruptionbudgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		inv := kubetest.Inventory("gpu-a", 10, 10)
		inv.Devices[0].Status.Cordoned = true
		return false, nil, client.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), kubetest.Node(t, "gpu-a", inv), "")
	})
	client.PrependReactor("create", "pods", replace(t, client, ""))
	stdout, _, err := clirun.Inspect(client, "defrag", "--apply")
	if err != nil || !strings.HasSuffix(stdout, "pod/x evicted\n") || clitest.CordonedOn(t, client, "gpu-a") != string(kubetest.UUID("gpu-a", 0)) {
		t.Errorf("error %v, cordoned %q; output:\n%s", err, clitest.CordonedOn(t, client, "gpu-a"), stdout)
	}
}

// The command skips pods that are gone already.
func TestDefragPassesOverAPodThatIsGone(t *testing.T) {
	client := clientOf(fragmented(t))
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.GetSubresource() == "eviction", nil, apierrors.NewNotFound(v1.Resource("pods"), "x")
	})
	stdout, _, err := clirun.Inspect(client, "defrag", "ml/waits", "--apply", "--timeout", "1ms")
	if err == nil || !strings.HasPrefix(err.Error(), "pod ml/waits still waits") || strings.Contains(stdout, "evicted\n") {
		t.Errorf("error %v, want that the pod still waits, in:\n%s", err, stdout)
	}
}
