package cli_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func TestNamespaces(t *testing.T) {
	since := func(d time.Duration) func(*v1.Pod) {
		return func(p *v1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Now().Add(-d)) }
	}
	client := func() *fake.Clientset {
		return fake.NewClientset(clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"), kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 16)),
			kubetest.Pod(t, "web/one", "gpu-a", 2, kubetest.UUID("gpu-a", 0)), kubetest.Pod(t, "ml/a", "gpu-a", 4, kubetest.UUID("gpu-a", 0)),
			kubetest.Pod(t, "ml/pair", "gpu-a", 8, kubetest.UUID("gpu-a", 0), kubetest.UUID("gpu-a", 1)),
			kubetest.With(kubetest.Pod(t, "ml/young", "", 20), since(time.Minute+time.Second)), kubetest.With(kubetest.Pod(t, "ml/old", "", 30), since(2*time.Hour+time.Second)))
	}
	for line, want := range map[string]string{
		"namespaces --no-headers": "ml 2 12 37.5% ? 2 50 120m\nweb 1 2 6.2% ? 0 <none> <none>\n",
		"ns --no-headers --sort-by=.granted.MiB -o custom-columns=:.namespace": "web\nml\n",
		"namespaces -n web -o name":                                  "namespace/web\n",
		"namespaces -o jsonpath={.items[0].share}":                   "0.375",
		"pods --waiting --no-headers -o custom-columns=:.name -n ml": "old\nyoung\n",
	} {
		stdout, stderr, err := clirun.Inspect(client(), strings.Fields(line)...)
		if diff := cmp.Diff(strings.Fields(want), strings.Fields(stdout)); err != nil || diff != "" {
			t.Errorf("%s: error %v, stderr %q (-want +got):\n%s", line, err, stderr, diff)
		}
	}
	stdout, _, _ := clirun.Inspect(client(), "pods", "--waiting")
	if !strings.Contains(stdout, "AGE") || !strings.Contains(stdout, "120m") || strings.Contains(stdout, "NODE ") {
		t.Errorf("want ages, and no column for nodes that no pod has, in:\n%s", stdout)
	}
}
