package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/cli/listing"
	"github.com/gpumem/gpumem/pkg/cli/overview"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

func TestOutput(t *testing.T) {
	for name, args := range map[string][]string{
		"default":   nil,
		"wide":      {"-o", "wide"},
		"details":   {"-d"},
		"namespace": {"-d", "-n", "ml"},
		"named":     {"gpu-c", "node/cpu-1", "nobody"},
		"selector":  {"-l", "name=gpu-c", "--no-headers"},
		"yaml":      {"-o", "yaml", "-l", "name=gpu-c"},
		"name":      {"-o", "name"},
	} {
		t.Run(name, func(t *testing.T) {
			clirun.Golden(t, fake.NewClientset(clitest.OddCluster(t)...), "overview/"+name, args)
		})
	}
}

func TestYAMLSaysWhatJSONSays(t *testing.T) {
	client := fake.NewClientset(clitest.OddCluster(t)...)
	asJSON, _, _ := clirun.Inspect(client, "-o", "json")
	asYAML, _, _ := clirun.Inspect(client, "-o", "yaml")
	var fromJSON, fromYAML inspect.Report
	if err := json.Unmarshal([]byte(asJSON), &fromJSON); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(asYAML), &fromYAML); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fromJSON, fromYAML); diff != "" {
		t.Errorf("(-json +yaml):\n%s", diff)
	}
}

func TestEmptyCluster(t *testing.T) {
	stdout, stderr, err := clirun.Inspect(fake.NewClientset(kubetest.Node(t, "cpu-1", gpu.Inventory{})))
	if err != nil || stdout != "" || stderr != "No nodes found that offer gpumem.dev/gpu-mem (1 without it)\n" {
		t.Errorf("error %v, stdout %q, stderr %q", err, stdout, stderr)
	}
	_, stderr, err = clirun.Inspect(fake.NewClientset(), "--selector", "pool=none")
	if err != nil || stderr != "No node matches the selector pool=none\n" {
		t.Errorf("error %v, stderr %q", err, stderr)
	}
}

func TestManyProblemsAreToldInShort(t *testing.T) {
	var objects []runtime.Object
	for i := range 50 {
		node := kubetest.Node(t, fmt.Sprintf("bad-%02d", i), gpu.Inventory{})
		node.Annotations = map[string]string{kubetest.Names(t).Inventory(): "\x1b[2J"}
		objects = append(objects, node)
	}
	_, stderr, err := clirun.Inspect(fake.NewClientset(objects...))
	if err == nil || strings.Count(stderr, "\n") != cluster.MaxListed+1 || !strings.Contains(stderr, "and 30 more") {
		t.Errorf("error %v, stderr:\n%s", err, stderr)
	}
	if strings.Contains(stderr, "\x1b") {
		t.Error("stderr steers the terminal")
	}
}

// A watch prints the overview again only after changes that are visible in the overview.
func TestTheOverviewIsPrintedAgainWhenItDiffers(t *testing.T) {
	var out bytes.Buffer
	o := &overview.Options{Flags: listing.Flags{Factory: cmdutil.NewFactory(genericiooptions.IOStreams{Out: &out, ErrOut: &out}, "dev")}}
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)))
	o.Client = client
	if err := o.Complete(nil); err != nil {
		t.Fatal(err)
	}
	var lengths []int
	for range 2 {
		if err := o.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		lengths = append(lengths, out.Len())
	}
	if lengths[0] == 0 || lengths[1] != lengths[0] {
		t.Errorf("%v bytes are out after each look, want something, and nothing more", lengths)
	}
	first := out.String()
	pod := kubetest.Pod(t, "ml/there", "gpu-a", 3, kubetest.UUID("gpu-a", 0))
	if _, err := client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := o.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := strings.TrimPrefix(out.String(), first); !strings.HasPrefix(again, "\nNAME") || !strings.Contains(again, "3/16") {
		t.Errorf("after a pod has come:\n%s", again)
	}
}

// Before the plugin of a node registers, the kubelet offers no GPU memory.
func TestANodeWhoseKubeletOffersNothingIsMarked(t *testing.T) {
	node := kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 14, 14))
	node.Status.Allocatable[kubetest.Names(t).GPUMem()] = resource.MustParse("0")
	client := fake.NewClientset(node, kubetest.Node(t, "gpu-b", kubetest.Inventory("gpu-b", 16)), kubetest.Pod(t, "ml/runs", "gpu-a", 8, kubetest.UUID("gpu-a", 0)))
	for _, tc := range []struct {
		args  []string
		wants []string
	}{
		{nil, []string{" 8/28^ ", " 0/16             0%\n", "; ^ not offered by the kubelet (run doctor)\n"}},
		{[]string{"-d"}, []string{"* The kubelet of this node offers no GPU memory, so new pods get none"}},
	} {
		stdout, _, err := clirun.Inspect(client, tc.args...)
		for _, want := range tc.wants {
			if err != nil || strings.Count(stdout, want) != 1 {
				t.Errorf("%v: error %v, want %q once in:\n%s", tc.args, err, want, stdout)
			}
		}
	}
}

// An unreadable object, for example an annotation that a user broke, does not end a watch.
func TestAWatchGoesOnWhereSomethingCannotBeRead(t *testing.T) {
	client := fake.NewClientset(clitest.OddCluster(t)...)
	out, stop := clirun.Watch(t, client, "nodes", "-w", "--no-headers")
	out.Until(t, "warning: node gpu-bad: ")
	if _, err := client.CoreV1().Nodes().Create(t.Context(), kubetest.Node(t, "gpu-new", kubetest.Inventory("gpu-new", 16)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out.Until(t, "gpu-new")
	stop()
}

// If no API server answers, the command suggests no similar command.
func TestNoAPIServerAnswers(t *testing.T) {
	for _, args := range [][]string{nil, {"explian"}} {
		client := fake.NewClientset()
		client.PrependReactor("*", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		})
		stdout, stderr, err := clirun.Inspect(client, args...)
		const want = "no API server answers: dial tcp: connection refused; did you select the right cluster (--kubeconfig, --context)?"
		if err == nil || err.Error() != want || stdout+stderr != "" {
			t.Errorf("%v: error %v, want %s; printed:\n%s%s", args, err, want, stdout, stderr)
		}
	}
}
