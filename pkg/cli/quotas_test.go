package cli_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func quota(name, used, hard string, resources ...v1.ResourceName) *v1.ResourceQuota {
	q := &v1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name},
		Status:     v1.ResourceQuotaStatus{Used: v1.ResourceList{}, Hard: v1.ResourceList{}},
	}
	for _, r := range resources {
		q.Status.Used[r], q.Status.Hard[r] = resource.MustParse(used), resource.MustParse(hard)
	}
	return q
}

// limited returns a cluster with pods in the namespaces ml and web, and quotas in ml.
func limited(t *testing.T, quotas ...*v1.ResourceQuota) *fake.Clientset {
	client := fake.NewClientset(clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"), kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 16)),
		kubetest.Pod(t, "web/one", "gpu-a", 2, kubetest.UUID("gpu-a", 0)), kubetest.Pod(t, "ml/a", "gpu-a", 4, kubetest.UUID("gpu-a", 0)))
	for _, q := range quotas {
		if err := client.Tracker().Add(q); err != nil {
			t.Fatal(err)
		}
	}
	return client
}

func TestQuotasOfNamespaces(t *testing.T) {
	const mem, shares = "requests.gpumem.dev/gpu-mem", "requests.gpumem.dev/gpu-share"
	scoped := quota("scoped", "1", "2", mem)
	scoped.Spec.Scopes = []v1.ResourceQuotaScope{v1.ResourceQuotaScopeBestEffort}
	selected := quota("selected", "1", "2", mem)
	selected.Spec.ScopeSelector = &v1.ScopeSelector{}
	for name, tc := range map[string]struct {
		quotas []*v1.ResourceQuota
		column string // header and cells; empty: no column
		legend string
	}{
		"none":               {},
		"of something else":  {quotas: []*v1.ResourceQuota{quota("cpu", "1", "2", v1.ResourceRequestsCPU)}},
		"of some pods alone": {quotas: []*v1.ResourceQuota{scoped, selected}},
		"of memory":          {[]*v1.ResourceQuota{quota("gpus", "34", "40", mem, v1.ResourceRequestsCPU)}, "QUOTA(GiB)|34/40|<none>", ""},
		"several, by name": {
			[]*v1.ResourceQuota{quota("z", "34", "9223372036854775807", mem), quota("a", "3", "10", shares)},
			"QUOTA(GiB)|3s/10s, 34/9007199254740991|<none>", "s counts shares of GPUs, ten to each.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, _, _ := clirun.Inspect(limited(t, tc.quotas...), "namespaces")
			cells := append(strings.Split(tc.column, "|"), "", "")
			want := fmt.Sprintf(`NAMESPACE PODS ALLOCATED(GiB) SHARE %s USED(GiB) WAITING WAITS-FOR(GiB) OLDEST
				ml 1 4 12.5%% %s ? 0 <none> <none> web 1 2 6.2%% %s ? 0 <none> <none>
				%s ? is unknown: no program of the pod has used a GPU, or the device plugin of its node could not be read.`,
				cells[0], cells[1], cells[2], tc.legend)
			if diff := cmp.Diff(strings.Fields(want), strings.Fields(stdout)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	stdout, _, err := clirun.Inspect(limited(t, quota("gpus", "34", "40", mem)), "namespaces", "-n", "ml", "-o", "jsonpath={.items[*].quotas}")
	if want := `[{"hard":{"MiB":40960,"units":40},"name":"gpus","used":{"MiB":34816,"units":34}}]`; err != nil || stdout != want {
		t.Errorf("error %v, want %s, got %s", err, want, stdout)
	}
}

func TestQuotasThatCannotBeRead(t *testing.T) {
	own := quota("gpus", "34", "40", "requests.gpumem.dev/gpu-mem")
	for name, tc := range map[string]struct {
		change func(*fake.Clientset)
		stdout string
		stderr string
		fails  bool
	}{
		"forbidden": {
			func(c *fake.Clientset) { clitest.Forbid(c, "resourcequotas") }, "12.5%",
			"note: not shown, because you lack the right: ResourceQuotas. Ask for the ClusterRole gpumem-viewer", false,
		},
		"not answered": {
			func(c *fake.Clientset) {
				c.PrependReactor("list", "resourcequotas", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no answer") })
			}, "12.5%", "warning: resourcequotas: no answer\n", true,
		},
		"of one namespace alone": {func(c *fake.Clientset) { clitest.OnlyIn(c, "ml") }, "34u/40u", "pods outside namespace ml", false},
	} {
		t.Run(name, func(t *testing.T) {
			client := limited(t, own)
			tc.change(client)
			stdout, stderr, err := clirun.Inspect(client, "namespaces", "-n", "ml")
			if (err != nil) != tc.fails || !strings.Contains(stdout, tc.stdout) || strings.Count(stderr, tc.stderr) != 1 {
				t.Errorf("error %v, stderr %s, stdout %s", err, stderr, stdout)
			}
		})
	}
}
