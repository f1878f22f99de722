package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/gpu"
)

func labelsOf(component string) map[string]string {
	return map[string]string{"app.kubernetes.io/part-of": "gpumem", "app.kubernetes.io/component": component}
}

// pluginSet is the device plugin's.
func pluginSet() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "gpumem-system", Name: "gpumem-device-plugin", UID: "uid-set", Labels: labelsOf("device-plugin")}}
}

// pluginPod is the device plugin's on a node.
func pluginPod(node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "gpumem-system", Name: "plugin-" + node, UID: "uid-plugin", Labels: labelsOf("device-plugin"),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pluginSet(), appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
		},
		Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "p", Ports: []v1.ContainerPort{{Name: "probes", ContainerPort: 8012}}}}},
	}
}

// answer is what a proxied request is answered with.
type answer struct {
	text string
	err  error
}

func (a answer) DoRaw(context.Context) ([]byte, error) { return []byte(a.text), a.err }
func (a answer) Stream(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(a.text)), a.err
}

// measured is the odd cluster with device plugins, of which that on gpu-c does
// not answer.
func measured(t *testing.T) *fake.Clientset {
	objects := append(oddCluster(t), pluginSet(), pluginPod("gpu-a"), pluginPod("gpu-c"))
	for _, object := range objects {
		if pod, ok := object.(*v1.Pod); ok && pod.Namespace == "ml" {
			pod.Labels = map[string]string{"team": "vision"}
		}
	}
	client := fake.NewClientset(objects...)
	client.AddProxyReactor("pods", func(action clienttesting.Action) (bool, restclient.ResponseWrapper, error) {
		get := action.(clienttesting.ProxyGetAction)
		if get.GetName() != "plugin-gpu-a" || get.GetPort() != "8012" || get.GetPath() != "/metrics" {
			return true, answer{err: fmt.Errorf("no answer from %s:%s", get.GetName(), get.GetPort())}, nil
		}
		return true, answer{text: `
# TYPE gpumem_device_plugin_gpu_memory_used_bytes gauge
gpumem_device_plugin_gpu_memory_used_bytes{gpu="0",uuid="GPU-gpu-a-0",model="x"} 9.663676416e+09
# TYPE gpumem_device_plugin_container_memory_used_bytes gauge
gpumem_device_plugin_container_memory_used_bytes{namespace="ml",pod="train",container="main",uuid="GPU-gpu-a-0"} 2.147483648e+09
gpumem_device_plugin_container_memory_used_bytes{namespace="ml",pod="leaving",container="main",uuid="GPU-gpu-a-0"} 1.3958643712e+10
# TYPE gpumem_device_plugin_container_memory_peak_bytes gauge
gpumem_device_plugin_container_memory_peak_bytes{namespace="ml",pod="train",container="main",uuid="GPU-gpu-a-0"} 3.221225472e+09
gpumem_device_plugin_container_memory_peak_bytes{namespace="ml",pod="leaving",container="main",uuid="GPU-gpu-a-0"} 1.3958643712e+10
`}, nil
	})
	return client
}

func TestLists(t *testing.T) {
	for name, args := range map[string][]string{
		"gpus":           {"gpus"},
		"gpus-wide":      {"gpus", "-o", "wide", "gpu-a"},
		"gpus-sorted":    {"gpus", "--sort-by", ".requested.units", "--no-headers"},
		"gpus-name":      {"gpus", "-o", "name", "-l", "name=gpu-a"},
		"pods":           {"pods"},
		"pods-selector":  {"pods", "-l", "team=vision", "-o", "wide"},
		"pods-waiting":   {"pods", "--waiting", "-o", "wide"},
		"pods-name":      {"pods", "-n", "ml", "-o", "name"},
		"pods-named":     {"pods", "ml/train", "pod/new", "nobody"},
		"pods-yaml":      {"pods", "train", "-o", "yaml"},
		"top":            {"top", "-n", "ml"},
		"fit":            {"fit", "--mem", "10"},
		"fit-two":        {"fit", "--mem", "20Gi", "--count", "2", "-o", "json"},
		"fit-nowhere":    {"fit", "--mem", "1000"},
		"explain-waits":  {"explain", "-n", "ml", "huge"},
		"explain-bound":  {"explain", "ml/train"},
		"explain-odd":    {"explain", "web/odd"},
		"explain-nobody": {"explain", "web/plain"},
		"nodes":          {"nodes", "gpu-a"},
	} {
		t.Run(name, func(t *testing.T) { golden(t, measured(t), "lists/"+name, args) })
	}
}

// Anybody may give a pod the labels of a device plugin, and have it tell of others' pods; and who
// has taken a node has its plugin's words.
func TestWhatIsUsedIsToldByTheNodesOwnPlugin(t *testing.T) {
	const tells = `
# TYPE gpumem_device_plugin_gpu_memory_used_bytes gauge
gpumem_device_plugin_gpu_memory_used_bytes{gpu="0",uuid="GPU-gpu-a-0",model="x"} 9.0e+10
# TYPE gpumem_device_plugin_container_memory_used_bytes gauge
gpumem_device_plugin_container_memory_used_bytes{namespace="ml",pod="train",container="main",uuid="GPU-gpu-a-0"} 9.0e+10
`
	change := func(change func(*v1.Pod)) *v1.Pod { return with(pluginPod("gpu-a"), change) }
	replaced := pluginSet()
	replaced.UID = "uid-of-the-one-before"
	elsewhere := pluginSet()
	elsewhere.Namespace = "ml"
	for name, tc := range map[string]struct {
		plugin *v1.Pod
		tells  string
		want   string // in place of what is used
		warns  string
	}{
		"its own plugin":            {pluginPod("gpu-a"), tells, "85830", ""},
		"a pod of another node":     {change(func(p *v1.Pod) { p.Spec.NodeName = "gpu-c" }), tells, "-", ""},
		"a pod without an owner":    {change(func(p *v1.Pod) { p.OwnerReferences = nil }), tells, "-", ""},
		"a pod of another set":      {change(func(p *v1.Pod) { p.OwnerReferences[0].UID = replaced.UID }), tells, "-", ""},
		"a set of a user, likewise": {change(func(p *v1.Pod) { p.Namespace = elsewhere.Namespace }), tells, "-", ""},
		"without end":               {pluginPod("gpu-a"), strings.Repeat("x", cluster.MaxAnswer+1), "-", "it answers more than 4 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(append(oddCluster(t), pluginSet(), elsewhere, tc.plugin)...)
			client.AddProxyReactor("pods", func(clienttesting.Action) (bool, restclient.ResponseWrapper, error) {
				return true, answer{text: tc.tells}, nil
			})
			stdout, stderr, _ := inspectWith(client, "top", "ml/train", "--no-headers")
			if fields := strings.Fields(stdout); len(fields) == 0 || strings.Contains(stdout, "85830") != (tc.want == "85830") {
				t.Errorf("want %s as what is used, in %q", tc.want, stdout)
			}
			if !strings.Contains(stderr, tc.warns) {
				t.Errorf("stderr %q, want %q", stderr, tc.warns)
			}
		})
	}
}

// golden compares what a command prints with a file of testdata.
func golden(t *testing.T, client *fake.Clientset, name string, args []string) {
	t.Helper()
	stdout, stderr, err := inspectWith(client, args...)
	got := fmt.Sprintf("$ kubectl inspect gpumem %s\n%s--- stderr\n%s--- error\n%v\n", strings.Join(args, " "), stdout, stderr, err)
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// What is kept for a pod that waits until others have left is in every view.
func TestRoomThatIsKeptForANominatedPod(t *testing.T) {
	a := inventory("gpu-a", 14, 14)
	now := metav1.NewTime(time.Unix(1700000000, 0))
	low := with(makePod(t, "web/low", "gpu-a", 10, a.Devices[0].UUID), func(p *v1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"x/y"} })
	vip := with(makePod(t, "ml/vip", "", 12), func(p *v1.Pod) {
		p.Spec.Priority, p.Status.NominatedNodeName = new(int32(100)), "gpu-a"
	})
	beside := makePod(t, "web/beside", "gpu-a", 5, a.Devices[1].UUID)
	late := makePod(t, "ml/late", "", 12)
	objects := []runtime.Object{extenderDeployment("gpumem-system", "gpumem.dev", "binpack"), makeNode(t, "gpu-a", a), low, vip, beside, late}
	for name, args := range map[string][]string{
		"nominated-nodes":   {"nodes"},
		"nominated-details": {"--details"},
		"nominated-gpus":    {"gpus"},
		"nominated-pods":    {"pods", "--waiting"},
		"nominated-top":     {"top"},
		"nominated-vip":     {"explain", "ml/vip"},
		"nominated-late":    {"explain", "ml/late"},
		"nominated-fit":     {"fit", "--mem", "4"},
	} {
		t.Run(name, func(t *testing.T) { golden(t, fake.NewClientset(objects...), "lists/"+name, args) })
	}
}

// A GPU that a pod holds alone is free for nobody, and says so in every view.
func TestAGPUThatIsHeldAlone(t *testing.T) {
	a := inventory("gpu-a", 14, 14)
	alone := with(makePod(t, "ml/alone", "gpu-a", 4, a.Devices[0].UUID), func(p *v1.Pod) { p.Annotations[testNames(t).Policy()] = "exclusive" })
	client := fake.NewClientset(extenderDeployment("gpumem-system", "gpumem.dev", "binpack"), makeNode(t, "gpu-a", a), alone, makePod(t, "ml/beside", "gpu-a", 9, a.Devices[1].UUID))
	for name, args := range map[string][]string{
		"alone-nodes":   {"nodes", "-o", "wide"},
		"alone-details": {"--details"},
		"alone-gpus":    {"gpus"},
		"alone-fit":     {"fit", "--mem", "6"},
	} {
		t.Run(name, func(t *testing.T) { golden(t, client, "lists/"+name, args) })
	}
}

func TestListsShowCoresWhereTheyAreOffered(t *testing.T) {
	offering, plain := makeNode(t, "gpu-a", inventory("gpu-a", 16)), makeNode(t, "gpu-a", inventory("gpu-a", 16))
	offering.Status.Allocatable[testNames(t).GPUCore()] = resource.MustParse("100")
	askCores := with(makePod(t, "ml/cores", "", 3), func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits[testNames(t).GPUCore()] = resource.MustParse("30")
	})
	for name, tc := range map[string]struct {
		node *v1.Node
		pod  *v1.Pod
		want bool
	}{
		"offered":                   {offering, makePod(t, "ml/waits", "", 3), true},
		"asked for and not offered": {plain, askCores, true},
		"not offered":               {plain, makePod(t, "ml/waits", "", 3), false},
	} {
		for _, list := range []string{"gpus", "pods"} {
			stdout, _, err := inspectWith(fake.NewClientset(tc.node, tc.pod), list, "-o", "wide")
			if err != nil || strings.Contains(stdout, "GPU-CORE(%)") != tc.want {
				t.Errorf("%s, %s: error %v, want a column of cores: %t, got:\n%s", list, name, err, tc.want, stdout)
			}
		}
	}
}

// What a pod waits for is nothing that it was granted.
func TestAPodThatWaitsIsGrantedNothing(t *testing.T) {
	stdout, _, _ := inspectWith(measured(t), "pods", "huge", "train", "-o", "json", "--sort-by", ".waitsFor.MiB")
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

// What the help names as a field to sort by is one.
func TestHelpNamesFieldsThatThereAre(t *testing.T) {
	for _, list := range [][]string{{"gpus"}, {"pods"}, {"top"}, {"fit", "--mem", "1"}} {
		help, _, err := inspectWith(measured(t), list[0], "--help")
		_, fields, found := strings.Cut(help, "as a JSONPath: ")
		if err != nil || !found {
			t.Fatalf("%s: error %v, help:\n%s", list, err, help)
		}
		fields, _, _ = strings.Cut(fields, "\n")
		for field := range strings.SplitSeq(strings.ReplaceAll(fields, " or ", ", "), ", ") {
			if _, _, err := inspectWith(measured(t), append(list, "--sort-by", field)...); err != nil && strings.Contains(err.Error(), "--sort-by") {
				t.Errorf("%s: %v", list, err)
			}
		}
	}
}

// A pod writes a whole number of units, and misreads what people write elsewhere.
func TestFitSaysHowAPodAsksForIt(t *testing.T) {
	small := inventory("gpu-b", 64)
	small.UnitMiB = 256
	client := fake.NewClientset(extenderDeployment("gpumem-system", "gpumem.dev", "binpack"), makeNode(t, "gpu-a", inventory("gpu-a", 16)), makeNode(t, "gpu-b", small), makeNode(t, "gpu-c", inventory("gpu-c", 16)))
	note := func(amount, unit string) string {
		return "note: a pod asks for it as gpumem.dev/gpu-mem: " + amount + ", a whole number of units of " + unit + "\n"
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--mem", "3", "gpu-a"}, ""},
		{[]string{"--mem", "3Gi", "gpu-a"}, note("3", "1 GiB")},
		{[]string{"--mem", "3.5", "gpu-a"}, note("4", "1 GiB")},
		{[]string{"--mem", "512Mi", "gpu-a", "gpu-c"}, note("1", "1 GiB")},
		{[]string{"--mem", "10", "--count", "3", "gpu-a"}, note("12", "1 GiB")},
		{[]string{"--gpu-mem", "10", "--gpu-count", "3", "--gpu-model", "A100*", "--gpu-core", "3", "gpu-a"}, note("12", "1 GiB")},
		{[]string{"--mem", "3"}, note("12", "256 MiB")},
	} {
		if _, stderr, _ := inspectWith(client, append([]string{"fit"}, tc.args...)...); stderr != tc.want {
			t.Errorf("%q: want %q, got %q", tc.args, tc.want, stderr)
		}
	}
}

// What is not known of any row yet is no mistake to sort by.
func TestSortingByWhatIsNotKnown(t *testing.T) {
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16)), makePod(t, "ml/p", "gpu-a", 5, uuid("gpu-a", 0)))
	if stdout, _, err := inspectWith(client, "top", "--sort-by=.usage.usedMiB"); err != nil || !strings.Contains(stdout, "ml ") {
		t.Errorf("error %v, got:\n%s", err, stdout)
	}
}

func TestWhereNothingWasFound(t *testing.T) {
	for want, args := range map[string]string{
		"Nothing found\n":                   "gpus -n ml",
		"Nothing found in namespace none\n": "pods -n none",
	} {
		if _, stderr, err := inspectWith(fake.NewClientset(makeNode(t, "cpu-1", gpu.Inventory{})), strings.Fields(args)...); err != nil || stderr != want {
			t.Errorf("%s: error %v, want %q, got %q", args, err, want, stderr)
		}
	}
}

func TestListsSayWhatIsWrongWithFlags(t *testing.T) {
	for want, args := range map[string][]string{
		`--output is "csv"`:   {"gpus", "-o", "csv"},
		"--selector":          {"pods", "-l", "a=b=c"},
		"--sort-by":           {"pods", "--sort-by", "{.a"},
		"no row has .nothing": {"gpus", "--sort-by", ".nothing"},
		"no row has .no":      {"gpus", "--sort-by", ".no"},
		"--watch prints rows": {"gpus", "-w", "-o", "json"},
		"--sort-by: .granted has no order: name one of its fields, .granted.MiB or .granted.units": {"pods", "--sort-by", ".granted"},
		"--sort-by: {$.granted} has no order: name one of its fields, MiB or units":                {"pods", "--sort-by", "{$.granted}"},
		"--sort-by: .pods is a list, which has no order":                                           {"gpus", "--sort-by", ".pods"},
		`--mem is "much"`:              {"fit", "--mem", "much"},
		"want a number of GPUs from 1": {"fit", "--mem", "1", "--count", "0"},
		`policy "best"`:                {"fit", "--mem", "1", "--policy", "best"},
		"has no GPU \"7\": want an":    {"cordon", "gpu-a", "7"},
		"offers no GPU memory":         {"cordon", "cpu-1", "0"},
		"not found":                    {"cordon", "nobody", "0"},
	} {
		if _, _, err := inspectWith(measured(t), args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

func TestListsAreJSON(t *testing.T) {
	for _, list := range []string{"gpus", "pods", "top"} {
		stdout, _, _ := inspectWith(measured(t), list, "-o", "json")
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

func cordonedOn(t *testing.T, client *fake.Clientset, node string) string {
	t.Helper()
	n, err := client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n.Annotations[testNames(t).Cordoned()]
}

// While the plugin of a node is not registered, its kubelet offers nothing.
func TestANodeWhoseKubeletOffersNothingIsMarked(t *testing.T) {
	node := makeNode(t, "gpu-a", inventory("gpu-a", 14, 14))
	node.Status.Allocatable[testNames(t).GPUMem()] = resource.MustParse("0")
	client := fake.NewClientset(node, makeNode(t, "gpu-b", inventory("gpu-b", 16)), makePod(t, "ml/runs", "gpu-a", 8, uuid("gpu-a", 0)))
	for _, tc := range []struct {
		args  []string
		wants []string
	}{
		{nil, []string{" 8/28^ ", " 0/16             0%\n", "\n^ the kubelet offers none of it: no new pod gets any"}},
		{[]string{"-d"}, []string{"* The kubelet of this node offers none of its GPU memory, and no new pod gets any"}},
	} {
		stdout, _, err := inspectWith(client, tc.args...)
		for _, want := range tc.wants {
			if err != nil || strings.Count(stdout, want) != 1 {
				t.Errorf("%v: error %v, want %q once in:\n%s", tc.args, err, want, stdout)
			}
		}
	}
}

func TestCordonAndUncordon(t *testing.T) {
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16, 80)), makeNode(t, "gpu-b", inventory("gpu-b", 16)))
	for _, tc := range []struct {
		args         []string
		says, listed string
	}{
		{[]string{"cordon", "gpu-a", "1"}, "gpu/gpu-a/1 cordoned\n", "GPU-gpu-a-1"},
		{[]string{"cordon", "gpu-a", "1"}, "gpu/gpu-a/1 was cordoned already\n", "GPU-gpu-a-1"},
		{[]string{"cordon", "node/gpu-a", "GPU-gpu-a-0"}, "gpu/gpu-a/0 cordoned\n", "GPU-gpu-a-1,GPU-gpu-a-0"},
		{[]string{"uncordon", "gpu-a", "1"}, "gpu/gpu-a/1 uncordoned\n", "GPU-gpu-a-0"},
		{[]string{"uncordon", "gpu-a", "0"}, "gpu/gpu-a/0 uncordoned\n", ""},
		{[]string{"uncordon", "gpu-a", "0"}, "gpu/gpu-a/0 was not cordoned\n", ""},
		{[]string{"cordon", "gpu-b", "GPU-gpu-b"}, "gpu/gpu-b/0 cordoned\n", ""},
	} {
		stdout, _, err := inspectWith(client, tc.args...)
		if err != nil || stdout != tc.says || cordonedOn(t, client, "gpu-a") != tc.listed {
			t.Errorf("%v: %v, %q, listed %q; want %q, %q", tc.args, err, stdout, cordonedOn(t, client, "gpu-a"), tc.says, tc.listed)
		}
	}
	if _, _, err := inspectWith(client, "cordon", "gpu-a", "0"); err != nil {
		t.Fatal(err)
	}
	if stdout, _, err := inspectWith(client, "gpus"); err != nil || !strings.Contains(stdout, " Cordoned\n") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

// evicting makes a fake cluster obey evictions, but for those of a pod that a
// budget protects.
func evicting(client *fake.Clientset) (evicted *[]string) {
	evicted = new([]string)
	client.Resources = []*metav1.APIResourceList{
		{GroupVersion: "policy/v1"},
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods/eviction", Kind: "Eviction", Group: "policy", Version: "v1"}}},
	}
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		eviction := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		*evicted = append(*evicted, eviction.Namespace+"/"+eviction.Name)
		return true, nil, client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), eviction.Namespace, eviction.Name)
	})
	return evicted
}

func controlled(kind string) func(*v1.Pod) {
	yes := true
	return func(pod *v1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "owner", Controller: &yes}}
	}
}

func TestDrainEvictsThePodsOfTheGPUAlone(t *testing.T) {
	here, there := uuid("gpu-a", 0), uuid("gpu-a", 1)
	client := fake.NewClientset(
		makeNode(t, "gpu-a", inventory("gpu-a", 16, 80)),
		with(makePod(t, "ml/on-it", "gpu-a", 4, here), controlled("ReplicaSet")),
		with(makePod(t, "ml/on-both", "gpu-a", 4, here, there), controlled("ReplicaSet")),
		with(makePod(t, "ml/beside", "gpu-a", 4, there), controlled("ReplicaSet")),
		with(makePod(t, "ml/done", "gpu-a", 4, here), func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }),
	)
	evicted := evicting(client)
	stdout, stderr, err := inspectWith(client, "drain", "gpu-a", "0")
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	if diff := cmp.Diff(map[string]bool{"ml/on-it": true, "ml/on-both": true}, setOf(*evicted)); diff != "" {
		t.Errorf("evicted (-want +got):\n%s", diff)
	}
	if cordonedOn(t, client, "gpu-a") != string(here) || !strings.HasSuffix(stdout, "gpu/gpu-a/0 drained\n") ||
		stderr != "The GPU stays cordoned; to undo that: kubectl inspect gpumem uncordon gpu-a 0\n" {
		t.Errorf("cordoned %q, says:\n%s%s", cordonedOn(t, client, "gpu-a"), stdout, stderr)
	}
}

func setOf(names []string) map[string]bool {
	out := make(map[string]bool)
	for _, name := range names {
		out[name] = true
	}
	return out
}

// A budget may hold a pod for long: who interrupts the command is told what has not gone.
func TestDrainIsInterrupted(t *testing.T) {
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16)),
		with(makePod(t, "ml/held", "gpu-a", 4, uuid("gpu-a", 0)), controlled("ReplicaSet")), with(makePod(t, "ml/left", "gpu-a", 4, uuid("gpu-a", 0)), controlled("ReplicaSet")))
	evicting(client)
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
	o := newOptions(genericiooptions.NewTestIOStreamsDiscard())
	o.client = client
	cmd := newCommand(o)
	cmd.SetArgs([]string{"drain", "gpu-a", "0"})
	const want = "interrupted: not gone yet: ml/held\nThe GPU stays cordoned"
	if err := cmd.ExecuteContext(ctx); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestDrainRefusesPodsThatNothingMakesAgain(t *testing.T) {
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16)), makePod(t, "ml/alone", "gpu-a", 4, uuid("gpu-a", 0)))
	evicted := evicting(client)
	const undo = "The GPU stays cordoned; to undo that: kubectl inspect gpumem uncordon gpu-a 0"
	if _, _, err := inspectWith(client, "drain", "gpu-a", "0"); err == nil || !strings.HasPrefix(err.Error(), "nothing was evicted") ||
		!strings.HasSuffix(err.Error(), undo) || len(*evicted) > 0 {
		t.Errorf("%v, evicted %v", err, *evicted)
	}
	if _, _, err := inspectWith(client, "drain", "gpu-a", "0", "--force"); err != nil || len(*evicted) != 1 {
		t.Errorf("%v, evicted %v", err, *evicted)
	}
}

func TestDrainMindsDaemonSetsOfTheGPUAlone(t *testing.T) {
	objects := func() []runtime.Object {
		return []runtime.Object{
			makeNode(t, "gpu-a", inventory("gpu-a", 16, 16)),
			with(makePod(t, "ml/agent", "gpu-a", 1, uuid("gpu-a", 0)), controlled("DaemonSet")),
			with(makePod(t, "ml/elsewhere", "gpu-a", 1, uuid("gpu-a", 1)), controlled("DaemonSet")),
			pluginPod("gpu-a"), // without GPU memory: nobody's concern
		}
	}
	client := fake.NewClientset(objects()...)
	evicted := evicting(client)
	if _, _, err := inspectWith(client, "drain", "gpu-a", "0"); err == nil || !strings.Contains(err.Error(), "pod ml/agent is of a DaemonSet") || strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("%v", err)
	}
	if _, stderr, err := inspectWith(client, "drain", "gpu-a", "0", "--ignore-daemonsets"); err != nil || !strings.Contains(stderr, "ml/agent is of a DaemonSet and stays") {
		t.Errorf("%v\n%s", err, stderr)
	}
	if len(*evicted) > 0 {
		t.Errorf("evicted %v", *evicted)
	}
}
