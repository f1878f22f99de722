package cli_test

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

// preempted returns the Event that kube-scheduler records on an evicted pod. Parameter by is the UID of the
// preempting pod.
func preempted(victim, reason string, by types.UID, ago time.Duration) *v1.Event {
	namespace, name, _ := strings.Cut(victim, "/")
	return &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name + "." + reason + string(by), CreationTimestamp: metav1.NewTime(time.Now().Add(-ago))},
		InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name},
		Reason:         reason,
		Message:        "Preempted by pod " + string(by) + " on node gpu-a",
	}
}

// explain names the pods that preemption evicted, from the Events that the user may read.
func TestExplainNamesWhomPreemptionEvicted(t *testing.T) {
	const unseen = "pods of other namespaces, if any, are not shown: you may not read Events there"
	vip := kubetest.Pod(t, "ml/vip", "", 8)
	events := []runtime.Object{
		preempted("ml/low-b", "Preempted", vip.UID, 90*time.Minute), preempted("ml/low-b", "Killing", vip.UID, 80*time.Minute),
		preempted("ml/of-another", "Preempted", "another", time.Second),
	}
	elsewhere := preempted("team/low-a", "Preempted", vip.UID, 100*time.Minute)
	for name, tc := range map[string]struct {
		events    []runtime.Object
		nominated bool
		forbidden []string // namespaces; "" means all
		want      string
	}{
		"none":                        {want: ""},
		"of two namespaces":           {events: append(events, elsewhere), want: "ml/low-b, team/low-a, by preemption 90m ago"},
		"of its own, as a tenant":     {events: append(events, elsewhere), forbidden: []string{""}, want: "ml/low-b, by preemption 90m ago; " + unseen},
		"none of its own, nominated":  {events: []runtime.Object{elsewhere}, nominated: true, forbidden: []string{""}, want: unseen},
		"none of its own":             {events: []runtime.Object{elsewhere}, forbidden: []string{""}, want: ""},
		"no Event may be read":        {events: events, forbidden: []string{"", "ml"}, want: ""},
		"no Event may be read though": {events: events, nominated: true, forbidden: []string{"", "ml"}, want: unseen},
	} {
		t.Run(name, func(t *testing.T) {
			pod := vip.DeepCopy()
			if tc.nominated {
				pod.Status.NominatedNodeName = "gpu-a"
			}
			client := fake.NewClientset(append(tc.events, kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 80)), pod)...)
			client.PrependReactor("list", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
				for _, namespace := range tc.forbidden {
					if a.GetNamespace() == namespace {
						return true, nil, apierrors.NewForbidden(v1.Resource("events"), "", nil)
					}
				}
				selector := a.(clienttesting.ListAction).GetListRestrictions().Fields
				list := &v1.EventList{}
				for _, o := range tc.events {
					e := o.(*v1.Event)
					of := fields.Set{"reason": e.Reason}
					if ns := a.GetNamespace(); (ns == "" || ns == e.Namespace) && selector.Matches(of) {
						list.Items = append(list.Items, *e)
					}
				}
				return true, list, nil
			})
			stdout, stderr, err := clirun.Inspect(client, "explain", "ml/vip")
			if err != nil {
				t.Fatalf("%v\n%s", err, stderr)
			}
			got := ""
			for line := range strings.Lines(stdout) {
				if text, ok := strings.CutPrefix(line, "Evicted:"); ok {
					got = strings.TrimSpace(text)
				}
			}
			if got != tc.want {
				t.Errorf("says %q, want %q, in:\n%s", got, tc.want, stdout)
			}
		})
	}
}
