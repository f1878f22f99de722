package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/placement"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func testNames(t testing.TB) api.Names {
	t.Helper()
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// uuid names the i-th GPU of a node.
func uuid(node string, i int) gpu.UUID {
	return gpu.UUID(fmt.Sprintf("GPU-%s-%d", node, i))
}

func inventory(node string, gib ...int) gpu.Inventory {
	inv := gpu.Inventory{UnitMiB: 1024, DriverVersion: "570.86.15", Enforcement: gpu.EnforcementMPS}
	for i, size := range gib {
		inv.Devices = append(inv.Devices, gpu.Device{
			UUID: uuid(node, i), Index: i, Model: "NVIDIA A100", MemoryMiB: int64(size) * 1024,
			Capacity: gpu.Units(size), NUMANode: -1,
		})
	}
	return inv
}

func makeNode(t testing.TB, name string, inv gpu.Inventory) *v1.Node {
	t.Helper()
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
		Status: v1.NodeStatus{
			Addresses:  []v1.NodeAddress{{Type: v1.NodeHostName, Address: name}, {Type: v1.NodeInternalIP, Address: "10.0.0.1"}},
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
	if len(inv.Devices) > 0 {
		value, err := api.EncodeInventory(inv)
		if err != nil {
			t.Fatal(err)
		}
		node.Annotations = map[string]string{testNames(t).Inventory(): value}
		var cordoned []gpu.UUID
		for _, d := range inv.Devices {
			if d.Status.Cordoned {
				cordoned = append(cordoned, d.UUID)
			}
		}
		if len(cordoned) > 0 {
			node.Annotations[testNames(t).Cordoned()] = api.FormatCordonedGPUs(cordoned)
		}
		node.Status.Allocatable = v1.ResourceList{testNames(t).GPUMem(): *resource.NewQuantity(int64(inv.Capacity()), resource.DecimalSI)}
	}
	return node
}

// makePod makes a pod that asks for units and runs on these GPUs of a node.
func makePod(t testing.TB, name, nodeName string, units int64, on ...gpu.UUID) *v1.Pod {
	t.Helper()
	names := testNames(t)
	namespace, short, _ := strings.Cut(name, "/")
	amount := v1.ResourceList{names.GPUMem(): *resource.NewQuantity(units, resource.DecimalSI)}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short, UID: types.UID("uid-" + name), Annotations: map[string]string{}},
		Spec:       v1.PodSpec{NodeName: nodeName, Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Limits: amount}}}},
		Status:     v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}},
	}
	if nodeName == "" {
		pod.Status.Phase = v1.PodPending
		pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable}}
	}
	var a placement.Assignment
	there := placement.Node{Name: nodeName, Enforcement: gpu.EnforcementKernel}
	for i, id := range on {
		a.Shares = append(a.Shares, placement.Share{Device: id, Units: gpu.Units(units / int64(len(on)))})
		there.Devices = append(there.Devices, placement.Device{Device: gpu.Device{UUID: id, Index: i}})
	}
	if len(on) > 1 {
		pod.Annotations[names.Count()] = strconv.Itoa(len(on))
	}
	if len(on) > 0 {
		annotations, err := names.AssignmentAnnotations(a, there)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(pod.Annotations, annotations)
	}
	return pod
}

func with(pod *v1.Pod, change func(*v1.Pod)) *v1.Pod {
	change(pod)
	return pod
}

// oddCluster has one of everything that a cluster may surprise with.
func oddCluster(t testing.TB) []runtime.Object {
	names := testNames(t)
	sick := inventory("gpu-a", 16, 80)
	sick.Devices[1].Status = gpu.Unhealthy("XID 79")
	unread := makeNode(t, "gpu-bad", gpu.Inventory{})
	unread.Annotations = map[string]string{names.Inventory(): "{broken"}
	cordoned := makeNode(t, "gpu-c", inventory("gpu-c", 80))
	cordoned.Spec.Unschedulable = true
	now := metav1.NewTime(time.Unix(1700000000, 0))
	return []runtime.Object{
		extenderDeployment("gpumem-system", "gpumem.dev", "binpack"),
		makeNode(t, "gpu-a", sick), unread, cordoned, makeNode(t, "cpu-1", gpu.Inventory{}), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}},

		makePod(t, "ml/train", "gpu-a", 10, uuid("gpu-a", 0)),
		with(makePod(t, "ml/leaving", "gpu-a", 12, uuid("gpu-a", 0)), func(p *v1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"x/y"} }),
		makePod(t, "ml/pair", "gpu-a", 8, uuid("gpu-a", 0), uuid("gpu-a", 1)),
		with(makePod(t, "ml/done", "gpu-a", 9, uuid("gpu-a", 1)), func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }),
		with(makePod(t, "web/failed", "gpu-a", 9, uuid("gpu-a", 1)), func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }),
		with(makePod(t, "web/broken", "gpu-a", 2), func(p *v1.Pod) { p.Annotations[names.Assignment()] = `{"v":9}` }),
		makePod(t, "web/moved", "gpu-a", 1, "GPU-gone"),
		with(makePod(t, "web/new", "gpu-c", 4), func(p *v1.Pod) { p.Status.Phase = "" }),
		makePod(t, "web/stranded", "gpu-bad", 3, uuid("gpu-bad", 0)),
		makePod(t, "web/ghost", "deleted-node", 3, "GPU-x"),
		makePod(t, "web/nothing", "gpu-c", 0),
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "plain"}, Spec: v1.PodSpec{NodeName: "gpu-a"}},

		makePod(t, "ml/huge", "", 100),
		with(makePod(t, "web/odd", "", 4), func(p *v1.Pod) { p.Annotations[names.Count()] = "two" }),
		makePod(t, "web/zero", "", 0),
	}
}

// inspectWith runs the command against a cluster of these objects.
func inspectWith(client *fake.Clientset, args ...string) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	o := newOptions(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut})
	if client != nil {
		o.client = client
	}
	cmd := newCommand(o)
	cmd.SetArgs(append([]string{}, args...)) // cobra takes nil for the arguments of the test
	err = cmd.Execute()
	return out.String(), errOut.String(), err
}

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
		t.Run(name, func(t *testing.T) { golden(t, fake.NewClientset(oddCluster(t)...), name, args) })
	}
}

func TestNothingIsChanged(t *testing.T) {
	client := fake.NewClientset(oddCluster(t)...)
	for _, args := range [][]string{{}, {"-d"}, {"gpu-a"}, {"-o", "json"}} {
		_, _, _ = inspectWith(client, args...)
	}
	for _, a := range client.Actions() {
		if !slices.Contains([]string{"get", "list"}, a.GetVerb()) {
			t.Errorf("the command did %s %s", a.GetVerb(), a.GetResource())
		}
	}
}

func TestYAMLSaysWhatJSONSays(t *testing.T) {
	client := fake.NewClientset(oddCluster(t)...)
	asJSON, _, _ := inspectWith(client, "-o", "json")
	asYAML, _, _ := inspectWith(client, "-o", "yaml")
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

// forbid lets nobody list objects of a kind.
func forbid(client *fake.Clientset, what string) {
	client.PrependReactor("list", what, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource(what), "", fmt.Errorf("ask your administrator"))
	})
}

func TestForbidden(t *testing.T) {
	forbid := func(what string) *fake.Clientset {
		client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16)))
		forbid(client, what)
		return client
	}
	t.Run("pods", func(t *testing.T) {
		stdout, stderr, err := inspectWith(forbid("pods"))
		if err == nil || !strings.Contains(stderr, "warning: pods: pods is forbidden: ask your administrator") {
			t.Errorf("error %v, stderr %s", err, stderr)
		}
		if !strings.Contains(stdout, "?/16") || strings.Contains(stdout, "0/16") {
			t.Errorf("what pods hold is not known, and the table says:\n%s", stdout)
		}
		for name, args := range map[string][]string{"fit": {"fit", "--mem", "2"}, "snapshot": {"snapshot"}} {
			stdout, _, err := inspectWith(forbid("pods"), args...)
			if err == nil || !strings.HasSuffix(err.Error(), "cannot be told without knowing all pods: pods is forbidden: ask your administrator") || stdout != "" {
				t.Errorf("%s: error %v, and it prints\n%s", name, err, stdout)
			}
		}
		stdout, _, _ = inspectWith(forbid("pods"), "gpus")
		if !strings.Contains(stdout, "? is not known: the pods could not be listed.") || !regexp.MustCompile(`\?\s+Healthy`).MatchString(stdout) {
			t.Errorf("how many pods there are is not known, and the GPUs are:\n%s", stdout)
		}
		stdout, _, _ = inspectWith(forbid("pods"), "-o", "json")
		var r inspect.Report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		if !r.RequestedUnknown || r.Total.RequestedMiB != nil || r.Nodes[0].Requested != nil || r.Nodes[0].GPUs[0].Requested != nil {
			t.Errorf("what pods hold is not known, and the JSON says:\n%s", stdout)
		}
	})
	t.Run("nodes", func(t *testing.T) {
		stdout, _, err := inspectWith(forbid("nodes"))
		if !apierrors.IsForbidden(err) || stdout != "" {
			t.Errorf("error %v, stdout %s", err, stdout)
		}
	})
}

func TestEmptyCluster(t *testing.T) {
	stdout, stderr, err := inspectWith(fake.NewClientset(makeNode(t, "cpu-1", gpu.Inventory{})))
	if err != nil || stdout != "" || stderr != "No nodes found that offer gpumem.dev/gpu-mem (1 without it)\n" {
		t.Errorf("error %v, stdout %q, stderr %q", err, stdout, stderr)
	}
	_, stderr, err = inspectWith(fake.NewClientset(), "--selector", "pool=none")
	if err != nil || stderr != "No node matches the selector pool=none\n" {
		t.Errorf("error %v, stderr %q", err, stderr)
	}
}

func TestManyProblemsAreToldInShort(t *testing.T) {
	var objects []runtime.Object
	for i := range 50 {
		node := makeNode(t, fmt.Sprintf("bad-%02d", i), gpu.Inventory{})
		node.Annotations = map[string]string{testNames(t).Inventory(): "\x1b[2J"}
		objects = append(objects, node)
	}
	_, stderr, err := inspectWith(fake.NewClientset(objects...))
	if err == nil || strings.Count(stderr, "\n") != cluster.MostNamed+1 || !strings.Contains(stderr, "and 30 more") {
		t.Errorf("error %v, stderr:\n%s", err, stderr)
	}
	if strings.Contains(stderr, "\x1b") {
		t.Error("stderr steers the terminal")
	}
}

func TestMistakesInFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"format":          {[]string{"-o", "xml"}, []string{`--output is "xml", want one of wide, json, yaml, name`}},
		"selector":        {[]string{"-l", "a in"}, []string{"--selector: "}},
		"name and label":  {[]string{"gpu-a", "-l", "a=b"}, []string{"exclude each other"}},
		"empty name":      {[]string{""}, []string{"the name of a node is empty"}},
		"details of name": {[]string{"-d", "-o", "name"}, []string{"--details has no place"}},
		"domain":          {[]string{"--resource-domain", "not a domain"}, []string{"--resource-domain: ", "not a domain"}},
		"unknown":         {[]string{"--nope"}, []string{"unknown flag: --nope", "See 'kubectl inspect gpumem --help'"}},
		"too few":         {[]string{"cordon", "gpu-a"}, []string{"accepts 2 arg(s), received 1\nUsage: kubectl inspect gpumem cordon NODE GPU"}},
		"all at once":     {[]string{"x", "-l", "a in", "-o", "xml"}, []string{"--output", "--selector:", "exclude each other"}},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, _, err := inspectWith(fake.NewClientset(), tc.args...)
			if err == nil {
				t.Fatal("no error")
			}
			if stdout != "" {
				t.Errorf("stdout: %s", stdout)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
}

func TestNamespaceOfFlag(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"none":    {nil, ""},
		"given":   {[]string{"-n", "ml"}, "ml"},
		"all win": {[]string{"-n", "ml", "-A"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOptions(genericiooptions.NewTestIOStreamsDiscard())
			if err := newCommand(o).ParseFlags(tc.args); err != nil {
				t.Fatal(err)
			}
			if got := o.namespace(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestCompletion(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"nodes that offer something": {[]string{"gpu-"}, []string{"gpu-a", "gpu-bad", "gpu-c"}},
		"not twice":                  {[]string{"gpu-a", "gpu-"}, []string{"gpu-bad", "gpu-c"}},
		"formats":                    {[]string{"-o", ""}, []string{"wide", "json", "yaml", "name"}},
		"namespaces":                 {[]string{"-n", "m"}, []string{"ml"}},
		"pods, misspelt ones too":    {[]string{"explain", "-n", "ml", "odd"}, []string{"odd-resource"}},
	} {
		t.Run(name, func(t *testing.T) {
			misspelt := with(makePod(t, "ml/odd-resource", "", 0), func(p *v1.Pod) {
				p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"gpumem.dev/gpu-memory": resource.MustParse("3")}
			})
			objects := append(oddCluster(t), misspelt, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ml"}}, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
			stdout, _, err := inspectWith(fake.NewClientset(objects...), append([]string{"__complete"}, tc.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(stdout) {
				if line = strings.TrimSpace(line); !strings.HasPrefix(line, ":") {
					got = append(got, line)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, arg := range []string{"--help", "--version", "-h"} {
		stdout, stderr, err := inspectWith(nil, arg)
		if err != nil || stderr != "" || !strings.Contains(stdout, "kubectl inspect gpumem") {
			t.Errorf("%s: error %v, stderr %q, stdout %q", arg, err, stderr, stdout)
		}
	}
}

// server answers lists in pages, as an API server does. It forgets where it was
// once when told to.
type server struct {
	nodes []*v1.Node
	pods  []*v1.Pod

	forgets  bool
	requests []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	query := req.URL.Query()
	s.requests = append(s.requests, req.URL.Path+" "+query.Get("fieldSelector"))
	from, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	w.Header().Set("Content-Type", "application/json")
	if from > 0 && s.forgets {
		s.forgets = false
		w.WriteHeader(http.StatusGone)
		status := apierrors.NewResourceExpired("the list has expired").Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		_ = json.NewEncoder(w).Encode(status)
		return
	}
	page := func(total int) (to int, meta metav1.ListMeta) {
		if limit == 0 || from+limit >= total {
			return total, metav1.ListMeta{}
		}
		return from + limit, metav1.ListMeta{Continue: strconv.Itoa(from + limit)}
	}
	switch req.URL.Path {
	case "/api/v1/nodes":
		to, meta := page(len(s.nodes))
		list := v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: meta}
		for _, n := range s.nodes[from:to] {
			list.Items = append(list.Items, *n)
		}
		_ = json.NewEncoder(w).Encode(list)
	case "/api/v1/pods":
		to, meta := page(len(s.pods))
		list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: meta}
		for _, p := range s.pods[from:to] {
			list.Items = append(list.Items, *p)
		}
		_ = json.NewEncoder(w).Encode(list)
	default:
		http.NotFound(w, req)
	}
}

func TestAgainstAServerInPages(t *testing.T) {
	for name, forgets := range map[string]bool{"all pages": false, "a page has expired": true} {
		t.Run(name, func(t *testing.T) {
			s := &server{forgets: forgets}
			s.nodes = append(s.nodes, makeNode(t, "gpu-a", inventory("gpu-a", 80, 80)))
			for i := range 1200 {
				s.pods = append(s.pods, makePod(t, fmt.Sprintf("ml/p%d", i), "", 1))
			}
			for i := range 70 {
				s.pods = append(s.pods, makePod(t, fmt.Sprintf("ml/r%d", i), "gpu-a", 1, uuid("gpu-a", i%2)))
			}
			web := httptest.NewServer(s)
			defer web.Close()
			var out, errOut bytes.Buffer
			err := run(t.Context(), []string{"--kubeconfig", os.DevNull, "--server", web.URL, "-o", "json"}, genericiooptions.IOStreams{Out: &out, ErrOut: &errOut})
			if err != nil {
				t.Fatalf("%v: %s", err, errOut.String())
			}
			var r inspect.Report
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			if got := r.Nodes[0].Requested.Units; got != 70 {
				t.Errorf("requested %d, want 70", got)
			}
			if got := len(r.Waiting); got != 1200 {
				t.Errorf("%d pods wait, want 1200", got)
			}
			want := []string{"/api/v1/nodes "}
			for range 3 {
				want = append(want, "/api/v1/pods status.phase!=Succeeded,status.phase!=Failed")
			}
			want = append(want, "/api/v1/configmaps ", "/apis/apps/v1/namespaces/gpumem-system/deployments ")
			if diff := cmp.Diff(want, s.requests); !forgets && diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestErrorsGoToStderr(t *testing.T) {
	var out, errOut bytes.Buffer
	missing := filepath.Join(t.TempDir(), "none")
	err := run(t.Context(), []string{"--kubeconfig", missing}, genericiooptions.IOStreams{Out: &out, ErrOut: &errOut})
	if err == nil || out.Len() > 0 || !strings.HasPrefix(errOut.String(), "error: ") {
		t.Errorf("error %v, stdout %q, stderr %q", err, out.String(), errOut.String())
	}
}

// FuzzRun puts any text into every annotation that the command reads.
func FuzzRun(f *testing.F) {
	f.Add(`{"v":1,"unitMiB":1024,"gpus":[{"uuid":"GPU-1","index":5,"memoryMiB":16384,"units":16,"healthy":true}]}`,
		`{"v":1,"enforcement":"mps","gpus":[{"uuid":"GPU-1","index":5,"units":3}]}`, "2", int64(3))
	f.Add(`{"v":1,"unitMiB":9223372036854775807,"gpus":[]}`, `[]`, "", int64(-1))
	f.Fuzz(func(t *testing.T, inventory, assignment, count string, units int64) {
		names := testNames(t)
		node := makeNode(t, "n", gpu.Inventory{})
		node.Annotations = map[string]string{names.Inventory(): inventory}
		annotations := map[string]string{names.Assignment(): assignment, names.Count(): count}
		client := fake.NewClientset(node,
			with(makePod(t, "a/bound", "n", units), func(p *v1.Pod) { p.Annotations = annotations }),
			with(makePod(t, "a/waits", "", units), func(p *v1.Pod) { p.Annotations = annotations }))
		for _, args := range [][]string{{"-o", "wide"}, {"-d", "-o", "wide"}, {"-o", "json"}, {"-o", "yaml"}} {
			_, _, _ = inspectWith(client, args...)
		}
	})
}

// FuzzArguments gives any arguments: they are carried out or refused with words,
// and what looks like JSON is.
func FuzzArguments(f *testing.F) {
	f.Add("-o wide -d -n a n1 n2")
	f.Add("-A -l a=b,c!=d --no-headers")
	f.Add("-ojson --resource-domain x.y")
	f.Add("-o yaml --resource-domain x..y")
	f.Add("--selector ,, -o= node/n")
	f.Add("__complete -n")
	f.Fuzz(func(t *testing.T, line string) {
		stdout, _, err := inspectWith(fake.NewClientset(makeNode(t, "n", gpu.Inventory{})), strings.Fields(line)...)
		if err != nil && err.Error() == "" {
			t.Errorf("%q: an error that says nothing", line)
		}
		if strings.HasPrefix(stdout, "{") && !json.Valid([]byte(stdout)) {
			t.Errorf("%q: broken JSON: %s", line, stdout)
		}
	})
}

// Much that changes on nodes and pods is not shown.
func TestTheOverviewIsPrintedAgainWhenItDiffers(t *testing.T) {
	var out bytes.Buffer
	o := newOptions(genericiooptions.IOStreams{Out: &out, ErrOut: &out})
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16)))
	o.client = client
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
	pod := makePod(t, "ml/there", "gpu-a", 3, uuid("gpu-a", 0))
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
