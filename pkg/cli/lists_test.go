package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/boundedhttp"
)

// The usage of a node comes only from its own device plugin: anybody may create a pod with a plugin's
// labels and false metrics, and a compromised node may report false usage for other nodes.
func TestWhatIsUsedIsToldByTheNodesOwnPlugin(t *testing.T) {
	const tells = `
# TYPE gpumem_device_plugin_gpu_memory_used_bytes gauge
gpumem_device_plugin_gpu_memory_used_bytes{gpu="0",uuid="GPU-gpu-a-0",model="x"} 9.0e+10
# TYPE gpumem_device_plugin_container_memory_used_bytes gauge
gpumem_device_plugin_container_memory_used_bytes{namespace="ml",pod="train",container="main",uuid="GPU-gpu-a-0"} 9.0e+10
`
	change := func(change func(*v1.Pod)) *v1.Pod { return kubetest.With(clitest.PluginPod("gpu-a"), change) }
	replaced := clitest.PluginSet()
	replaced.UID = "uid-of-the-one-before"
	elsewhere := clitest.PluginSet()
	elsewhere.Namespace = "ml"
	for name, tc := range map[string]struct {
		plugin *v1.Pod
		tells  string
		want   string // used memory in MiB; - if it is unknown
		warns  string
	}{
		"its own plugin": {clitest.PluginPod("gpu-a"), tells, "85830", ""},
		"clients of MPS in one": {clitest.PluginPod("gpu-a"), tells + "# TYPE gpumem_device_plugin_mps_server_memory_bytes gauge\ngpumem_device_plugin_mps_server_memory_bytes{uuid=\"GPU-gpu-a-0\"} 3.145728e+09\n", "85830",
			"usage on gpu-a: NVML counts 3000 MiB of MPS clients on GPU GPU-gpu-a-0 as memory of the MPS server"},
		"a pod of another node":     {change(func(p *v1.Pod) { p.Spec.NodeName = "gpu-c" }), tells, "-", ""},
		"a pod without an owner":    {change(func(p *v1.Pod) { p.OwnerReferences = nil }), tells, "-", ""},
		"a pod of another set":      {change(func(p *v1.Pod) { p.OwnerReferences[0].UID = replaced.UID }), tells, "-", ""},
		"a set of a user, likewise": {change(func(p *v1.Pod) { p.Namespace = elsewhere.Namespace }), tells, "-", ""},
		"without end":               {clitest.PluginPod("gpu-a"), strings.Repeat("x", boundedhttp.Max+1), "-", "the answer exceeds 4 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(append(clitest.OddCluster(t), clitest.PluginSet(), elsewhere, tc.plugin)...)
			client.AddProxyReactor("pods", func(clienttesting.Action) (bool, restclient.ResponseWrapper, error) {
				return true, clitest.Answer{Text: tc.tells}, nil
			})
			stdout, stderr, _ := clirun.Inspect(client, "top", "ml/train", "--no-headers")
			if fields := strings.Fields(stdout); len(fields) == 0 || strings.Contains(stdout, "85830") != (tc.want == "85830") {
				t.Errorf("want %s as what is used, in %q", tc.want, stdout)
			}
			if !strings.Contains(stderr, tc.warns) {
				t.Errorf("stderr %q, want %q", stderr, tc.warns)
			}
		})
	}
}

func TestListsShowCoresWhereTheyAreOffered(t *testing.T) {
	offering, plain := kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16))
	offering.Status.Allocatable[kubetest.Names(t).GPUCore()] = resource.MustParse("100")
	askCores := kubetest.With(kubetest.Pod(t, "ml/cores", "", 3), func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits[kubetest.Names(t).GPUCore()] = resource.MustParse("30")
	})
	for name, tc := range map[string]struct {
		node *v1.Node
		pod  *v1.Pod
		want bool
	}{
		"offered":                   {offering, kubetest.Pod(t, "ml/waits", "", 3), true},
		"asked for and not offered": {plain, askCores, true},
		"not offered":               {plain, kubetest.Pod(t, "ml/waits", "", 3), false},
	} {
		for _, list := range []string{"gpus", "pods"} {
			stdout, _, err := clirun.Inspect(fake.NewClientset(tc.node, tc.pod), list, "-o", "wide")
			if err != nil || strings.Contains(stdout, "GPU-CORE(%)") != tc.want {
				t.Errorf("%s, %s: error %v, want a column of cores: %t, got:\n%s", list, name, err, tc.want, stdout)
			}
		}
	}
}

// A waiting pod's request does not count as granted.
func TestAPodThatWaitsIsGrantedNothing(t *testing.T) {
	stdout, _, _ := clirun.Inspect(clitest.Measured(t), "pods", "huge", "train", "-o", "json", "--sort-by", ".waitsFor.MiB")
	type amount struct{ Units, MiB int }
	type row struct {
		Name     string
		Granted  *amount
		WaitsFor *amount
	}
	var got struct{ Items []row }
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v\n%s", err, stdout)
	}
	want := []row{{Name: "train", Granted: &amount{10, 10 * 1024}}, {Name: "huge", WaitsFor: &amount{100, 100 * 1024}}}
	if diff := cmp.Diff(want, got.Items); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// --sort-by accepts a field that no row has yet, if the help names it.
func TestSortingByWhatIsNotKnown(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), kubetest.Pod(t, "ml/p", "gpu-a", 5, kubetest.UUID("gpu-a", 0)))
	if stdout, _, err := clirun.Inspect(client, "top", "--sort-by=.usage.usedMiB"); err != nil || !strings.Contains(stdout, "ml ") {
		t.Errorf("error %v, got:\n%s", err, stdout)
	}
}

func TestWhereNothingWasFound(t *testing.T) {
	for want, args := range map[string]string{
		"Nothing found\n":                   "gpus -n ml",
		"Nothing found in namespace none\n": "pods -n none",
	} {
		if _, stderr, err := clirun.Inspect(fake.NewClientset(kubetest.Node(t, "cpu-1", gpu.Inventory{})), strings.Fields(args)...); err != nil || stderr != want {
			t.Errorf("%s: error %v, want %q, got %q", args, err, want, stderr)
		}
	}
}

// A named pod that exists only in another namespace counts as missing.
func TestAPodOfAnotherNamespaceIsMissing(t *testing.T) {
	client := fake.NewClientset(clitest.OddCluster(t)...)
	for _, args := range []string{"pods train -n web", "pods ml/train -n web", "top train -n web", "pods absent -n ml"} {
		name := strings.Fields(args)[1]
		if _, stderr, err := clirun.Inspect(client, strings.Fields(args)...); err == nil || !strings.Contains(stderr, "warning: pod "+name+": no pod of this name holds or requests GPU memory") {
			t.Errorf("%s: error %v, stderr %q, want that there is no such pod", args, err, stderr)
		}
	}
	if _, stderr, _ := clirun.Inspect(client, "pods", "train", "-n", "ml"); strings.Contains(stderr, "no pod of this name") {
		t.Errorf("stderr %q, of a pod that is there", stderr)
	}
}

func TestListsAreJSON(t *testing.T) {
	for _, list := range []string{"gpus", "pods", "top"} {
		stdout, _, _ := clirun.Inspect(clitest.Measured(t), list, "-o", "json")
		var got struct {
			APIVersion, Kind string
			Items            []map[string]any
			Problems         []any
		}
		if err := json.Unmarshal([]byte(stdout), &got); err != nil {
			t.Fatalf("%s: %v\n%s", list, err, stdout)
		}
		if got.APIVersion != "inspect.gpumem.dev/v1" || got.Kind == "" || len(got.Items) == 0 || len(got.Problems) != 3 {
			t.Errorf("%s: %+v", list, got)
		}
	}
}

// Lists include pods that have memory by a claim.
func TestPodsWithClaims(t *testing.T) {
	inv := kubetest.Inventory("gpu-c", 16)
	inv.Devices[0].Status.ByClaims = true
	inv.Allocated = []gpu.PodAllocation{
		{UID: "uid-ml/claims", Namespace: "ml", Name: "claims", Shares: []gpu.Share{{Device: inv.Devices[0].UUID, Units: 5}}},
		{UID: "uid-of-a-claim", Namespace: "ml", Name: "of-no-pod", Shares: []gpu.Share{{Device: inv.Devices[0].UUID, Units: 2}}},
	}
	claims := kubetest.With(kubetest.Pod(t, "ml/claims", "gpu-c", 0), func(p *v1.Pod) {
		p.Spec.Containers[0].Resources, p.Labels = v1.ResourceRequirements{}, map[string]string{"app": "web"}
	})
	other := kubetest.With(claims.DeepCopy(), func(p *v1.Pod) { p.Name, p.UID = "other", "uid-of-other" })
	client := fake.NewClientset(kubetest.Node(t, "gpu-c", inv), kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), claims, other)
	for name, tc := range map[string]struct {
		args []string
		want int // number of rows
	}{
		"all": {[]string{"pods"}, 1}, "by name": {[]string{"pods", "-n", "ml", "claims"}, 1}, "by label": {[]string{"pods", "-l", "app=web"}, 1},
		"by another": {[]string{"pods", "-l", "app=db"}, 0}, "top": {[]string{"top", "claims", "-n", "ml"}, 1},
	} {
		stdout, _, _ := clirun.Inspect(client, append(tc.args, "--no-headers")...)
		if strings.Count(stdout, "\n") != tc.want || tc.want > 0 && !strings.Contains(stdout, "claims") || strings.Contains(stdout, "of-no-pod") {
			t.Errorf("%s: want %d rows:\n%s", name, tc.want, stdout)
		}
	}
	stdout, _, _ := clirun.Inspect(client, "pods", "claims", "-n", "ml", "--no-headers")
	if got := strings.Join(strings.Fields(stdout), " "); !strings.HasPrefix(got, "ml claims gpu-c 0 5 ") || !strings.Contains(got, "Running") {
		t.Errorf("the row is %q", got)
	}
}
