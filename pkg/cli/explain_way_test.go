package cli_test

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func TestExplainSaysWhatIsInTheWay(t *testing.T) {
	of := func(set, hash string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			kubetest.OwnedBy("ReplicaSet")(p)
			p.OwnerReferences[0].Name = set
			p.Labels = map[string]string{"pod-template-hash": hash}
		}
	}
	leaves := func(p *v1.Pod) {
		now := metav1.NewTime(time.Unix(1700000000, 0))
		p.DeletionTimestamp, p.Finalizers = &now, []string{"x/y"}
	}
	on := kubetest.UUID("gpu-a", 0)
	const hint = "They belong to the previous revision of Deployment web, which deletes them only when the new pod runs: with spec.strategy.rollingUpdate.maxSurge: 0"
	for name, tc := range map[string]struct {
		asks   int64
		change []func(*v1.Pod) // changes to the pod of 10 GiB on the node
		want   []string        // empty: no advice
	}{
		"the revision before":            {12, []func(*v1.Pod){of("web-1", "1")}, []string{"Replaces:  ml/there on gpu-a: 10 GiB; the pod fits once they are gone. " + hint}},
		"is not enough":                  {17, []func(*v1.Pod){of("web-1", "1")}, []string{"Replaces:  ml/there on gpu-a: 10 GiB, which is not enough. " + hint}},
		"another Deployment":             {12, []func(*v1.Pod){of("other-1", "1")}, nil},
		"the same revision":              {12, []func(*v1.Pod){of("web-2", "2")}, nil},
		"no Deployment":                  {12, []func(*v1.Pod){kubetest.OwnedBy("ReplicaSet")}, nil},
		"terminating, and it fits now":   {2, []func(*v1.Pod){leaves}, nil},
		"terminating":                    {12, []func(*v1.Pod){leaves}, []string{"Leaving:   ml/there on gpu-a: 10 GiB; the pod fits once they are gone\n"}},
		"the revision before is leaving": {12, []func(*v1.Pod){leaves, of("web-1", "1")}, []string{"Leaving:   ml/there on gpu-a"}},
	} {
		t.Run(name, func(t *testing.T) {
			there := kubetest.Pod(t, "ml/there", "gpu-a", 10, on)
			for _, change := range tc.change {
				change(there)
			}
			client := fake.NewClientset(clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"), kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)),
				there, kubetest.With(kubetest.Pod(t, "ml/waits", "", tc.asks), of("web-2", "2")))
			stdout, _, err := clirun.Inspect(client, "explain", "ml/waits")
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(stdout, want) {
					t.Errorf("want %q in:\n%s", want, stdout)
				}
			}
			for _, label := range []string{"Leaving:", "Replaces:"} {
				if wanted := strings.Contains(strings.Join(tc.want, "\n"), label); strings.Contains(stdout, label) != wanted {
					t.Errorf("%s: want it: %t, in:\n%s", label, wanted, stdout)
				}
			}
		})
	}
}

func TestExplainOfWhatIsFragmented(t *testing.T) {
	const todo = "To do:     kubectl inspect gpumem defrag ml/waits plans which pods to move: a node has enough free memory in all\n"
	for asks, want := range map[int64]bool{3: false, 6: true, 7: false} { // each of two GPUs has 3 GiB free
		client := fake.NewClientset(clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"), kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 8, 8)),
			kubetest.Pod(t, "ml/a", "gpu-a", 5, kubetest.UUID("gpu-a", 0)), kubetest.Pod(t, "ml/b", "gpu-a", 5, kubetest.UUID("gpu-a", 1)), kubetest.Pod(t, "ml/waits", "", asks))
		if stdout, _, err := clirun.Inspect(client, "explain", "ml/waits"); err != nil || strings.Contains(stdout, todo) != want {
			t.Errorf("of %d GiB: error %v, want %t for %q in:\n%s", asks, err, want, todo, stdout)
		}
		clitest.Forbid(client, "poddisruptionbudgets")
		const other = "To do:     ask an administrator to run kubectl inspect gpumem defrag ml/waits, because you may not list PodDisruptionBudgets"
		if stdout, _, err := clirun.Inspect(client, "explain", "ml/waits"); err != nil || strings.Contains(stdout, other) != want || strings.Contains(stdout, todo) {
			t.Errorf("of %d GiB, without the right: error %v, want %t for %q in:\n%s", asks, err, want, other, stdout)
		}
	}
}
